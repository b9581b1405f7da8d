"""An exclusive `flock`, which distinguishes a directory in use from the leftovers of a dead process.

Processes that are started may inherit the descriptor. The lock is free when the last process that has it is gone,
however it ended. A process id that now belongs to another program cannot mislead.
"""

import fcntl
import os
from pathlib import Path
from typing import Self


class FileLock:
    """A file, or a directory that exists, that one process and its children have for themselves."""

    def __init__(self, path: Path) -> None:
        """Open it, and make the file where there is none; the lock is not taken yet.

        Args: path: of the file or directory.

        Raises:
            OSError: it cannot be opened.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY if path.is_dir() else os.O_RDWR | os.O_CREAT
        #: To be inherited by processes that are to keep the lock.
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o600)

    def taken(self) -> bool:
        """Try to take the lock; return whether it is ours. Raises OSError: the file system has no locks."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Close our descriptor; the lock stays with the processes that inherited it."""
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
