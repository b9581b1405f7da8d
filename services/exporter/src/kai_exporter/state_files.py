"""Tells cheaply whether a kubelet may have given or taken anything since it was last asked.

A kubelet keeps what its resource managers have given in files, and writes them with each change: `cpu_manager_state`,
`memory_manager_state`, and the device manager's `kubelet_internal_checkpoint`. Looking at their times costs a few
microseconds, asking over gRPC a hundred times that. A file that is written before the pod is listed must not
mislead, so after a change the kubelet is asked more than once.
"""

import os
from pathlib import Path

#: Below the kubelet's root directory, usually `/var/lib/kubelet`.
STATE_FILES = ("cpu_manager_state", "memory_manager_state", "device-plugins/kubelet_internal_checkpoint")

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


def _version(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116  # a thousand nodes have three thousand of them
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
