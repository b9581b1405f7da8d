"""The output of a process: a file of bounded size, and its last lines in memory.

The process writes into a pipe of ours, not into the file. So a large file can be rotated without losing a line, a full
disk costs lines and not the process, and the last lines are those of this run.
"""

import asyncio
import fcntl
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

#: Bytes of a log file; then it is put aside.
_MOST_BYTES = 16 << 20
#: Files that are kept aside: `<file>.1` is the youngest.
_ASIDE = 3
#: Lines that are searched for a process's last words.
_LAST_LINES = 20
#: Bytes that a process can write while we are stopped (Ctrl-Z), as far as the system allows.
_PIPE_BYTES = 1 << 20


class RotatedFile:
    """A file that is put aside when it is large. Nothing here raises: what cannot be written is lost."""

    def __init__(self, path: Path, *, most_bytes: int = _MOST_BYTES) -> None:
        """Args:
        path: of the file; what is in it stays.
        most_bytes: size at which it is put aside.
        """
        self._path = path
        self._most_bytes = most_bytes
        self._file: IO[bytes] | None = None

    def write(self, data: bytes) -> None:
        """Append whole lines."""
        with suppress(OSError):
            if self._file is None:
                self._file = self._path.open("ab", buffering=0)
            if self._file.tell() + len(data) > self._most_bytes and self._file.tell():
                self.close()
                self._put_aside()
                self._file = self._path.open("ab", buffering=0)
            self._file.write(data)

    def close(self) -> None:
        """Close it; a later write opens it again."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _put_aside(self) -> None:
        for number in range(_ASIDE, 0, -1):
            younger = self._path if number == 1 else _aside(self._path, number - 1)
            with suppress(FileNotFoundError):
                younger.rename(_aside(self._path, number))


def _aside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


class _LogLine(msgspec.Struct):
    error: str = ""


class ProcessOutput:
    """One run's output, from its start to its end."""

    def __init__(self, file: RotatedFile, *, on_line: Callable[[bytes], None] | None = None) -> None:
        """Args:
        file: where it goes.
        on_line: gets each line.
        """
        self._file = file
        self._on_line = on_line
        self._last: deque[bytes] = deque(maxlen=_LAST_LINES)
        self._partial = b""
        self._read, self.write_end = os.pipe()
        os.set_blocking(self._read, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(OSError):
                fcntl.fcntl(self._read, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        asyncio.get_running_loop().add_reader(self._read, self._take)

    def started(self) -> None:
        """The process has its end of the pipe; ours is closed."""
        os.close(self.write_end)
        self.write_end = -1

    def close(self) -> None:
        """Take what is left."""
        self._take()
        asyncio.get_running_loop().remove_reader(self._read)
        os.close(self._read)
        if self.write_end >= 0:
            os.close(self.write_end)
        if self._partial:
            self._write(self._partial + b"\n")
        self._file.close()

    def last_words(self) -> str:
        """What the process said of its end: the error of its last line that has one."""
        for line in reversed(self._last):
            text = line.decode(errors="replace")
            try:
                error = msgspec.json.decode(line, type=_LogLine).error
            except msgspec.DecodeError:
                error = text.strip()
            if error:
                return error
        return "it said nothing"

    def _take(self) -> None:
        while True:
            try:
                data = os.read(self._read, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                asyncio.get_running_loop().remove_reader(self._read)
                return
            lines, newline, rest = data.rpartition(b"\n")
            if newline:
                self._write(self._partial + lines + newline)
                self._partial = rest
            else:
                self._partial += rest
            if len(self._partial) > _PIPE_BYTES:
                self._write(self._partial)
                self._partial = b""

    def last_lines(self) -> str:
        """The last lines that the process printed."""
        return "\n".join(line.decode(errors="replace") for line in self._last)

    def _write(self, text: bytes) -> None:
        lines = text.splitlines()
        if self._on_line is not None:
            for line in lines:
                self._on_line(line)
        self._last.extend(lines[-_LAST_LINES:])
        self._file.write(text)


def last_lines_of(file: Path, *, since: int, most: int = _LAST_LINES) -> str:
    """Return the last lines of a log that a process writes itself.

    Args:
        file: the log.
        since: bytes that it had before; they do not count.
        most: how many lines.
    """
    with file.open("rb") as log:
        log.seek(since)
        return "\n".join(log.read().decode(errors="replace").splitlines()[-most:])
