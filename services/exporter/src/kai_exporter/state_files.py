"""Tells cheaply, and at once, whether a kubelet may have given or taken anything since it was last asked.

A kubelet keeps what its resource managers have given in files, and writes them with each change: `cpu_manager_state`,
`memory_manager_state`, and the device manager's `kubelet_internal_checkpoint`. Looking at their times costs a few
microseconds, asking over gRPC a hundred times that. A file that is written before the pod is listed must not
mislead, so after a change the kubelet is asked more than once.

Linux reports a change within a millisecond by inotify. Three calls of libc do, by ctypes, which takes 0.3 MB of the 30
that an exporter may take; watchdog takes 3.7 and threads (decision 0630).
"""

import asyncio
import os
import struct
from collections.abc import Callable
from pathlib import Path

#: Below the kubelet's root directory, usually `/var/lib/kubelet`.
STATE_FILES = ("cpu_manager_state", "memory_manager_state", "device-plugins/kubelet_internal_checkpoint")

#: Of `inotify(7)`: the events that are watched, those that are reported unasked, and how one is laid out.
_IN_CLOSE_WRITE, _IN_MOVED_TO, _IN_Q_OVERFLOW, _IN_IGNORED = 0x8, 0x80, 0x4000, 0x8000
_EVENT, _BUFFER = struct.Struct("iIII"), 4096
_NAMES = frozenset(os.fsencode(os.path.basename(name)) for name in STATE_FILES)  # noqa: PTH119

#: How often the kubelet is asked after a change.
_ASK_TIMES = 2


class StateFiles:
    """The state files of one kubelet."""

    def __init__(self, directory: Path) -> None:
        self._paths = [str(directory / name) for name in STATE_FILES]
        self._seen: list[tuple[int, int, int] | None] | None = None
        self._ask = 0

    def worth_asking(self) -> bool:
        """Tell whether to ask now; always so where there are no such files."""
        versions = [_version(path) for path in self._paths]
        if not any(versions):
            return True
        if versions != self._seen:
            self._seen = versions
            self._ask = _ASK_TIMES
        self._ask = max(self._ask - 1, -1)
        return self._ask >= 0


class StateFileWatch:
    """Reports changes of kubelets' state files as Linux does; in a running event loop.

    A kubelet replaces its files, so the directories are watched.
    """

    def __init__(self) -> None:
        """Raises:
        OSError: the system has no inotify, or no more of it.
        """
        # It takes 0.3 MB, and only exporters with state files need it.
        import ctypes  # noqa: PLC0415

        self._errno = ctypes.get_errno
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = _checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), self._errno)
        self._add, self._remove = libc.inotify_add_watch, libc.inotify_rm_watch
        self._watching: dict[int, Callable[[], None]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._read)

    def add(self, directory: Path, changed: Callable[[], None]) -> bool:
        """Have changes of a kubelet's state files reported from now on; to be asked again while it returns False.

        Args:
            directory: the kubelet's root directory.
            changed: called after each change.

        Returns:
            whether all directories are there.

        Raises:
            OSError: the system watches no more directories.
        """
        complete = True
        for path in sorted({(directory / name).parent for name in STATE_FILES}):
            try:
                number = _checked(self._add(self._fd, os.fsencode(path), _IN_CLOSE_WRITE | _IN_MOVED_TO), self._errno)
            except FileNotFoundError:
                complete = False
                continue
            self._watching[number] = changed
        return complete

    def remove(self, changed: Callable[[], None]) -> None:
        """Report nothing more to one that was given to `add`."""
        for number in [number for number, one in self._watching.items() if one == changed]:
            del self._watching[number]
            self._remove(self._fd, number)

    def close(self) -> None:
        """Watch nothing more."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _BUFFER)
        except BlockingIOError:
            return
        informed: dict[Callable[[], None], None] = {}
        at = 0
        while at < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            name = data[at : at + length].rstrip(b"\0")
            at += length
            if mask & _IN_Q_OVERFLOW:
                informed |= dict.fromkeys(self._watching.values())
            elif number in self._watching and (mask & _IN_IGNORED or name in _NAMES):
                # A directory that is gone is reported once: it may be there anew.
                informed[self._watching[number]] = None
                if mask & _IN_IGNORED:
                    del self._watching[number]
        for changed in informed:
            changed()

    def watches(self, changed: Callable[[], None]) -> bool:
        """Tell whether all directories of one that was given to `add` are still watched."""
        directories = {os.path.dirname(name) for name in STATE_FILES}  # noqa: PTH120
        return sum(one == changed for one in self._watching.values()) == len(directories)


def _checked(result: int, errno: Callable[[], int]) -> int:
    if result < 0:
        number = errno()
        raise OSError(number, os.strerror(number))
    return result


def _version(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116  # a thousand nodes have three thousand of them
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
