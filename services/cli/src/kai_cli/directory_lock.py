"""One user of a data directory at a time: from before the first look into it until its last process is gone.

The lock is an `flock` on the directory itself, so nothing is written to a directory that turns out to be another
program's, and clearing one does not remove its lock. Processes that are started inherit it: a directory whose `kai up`
was killed is free when its servers and services have ended, too.
"""

import fcntl
import os
from pathlib import Path
from typing import Self

from kaicore.errors import ConfigurationError

#: Seconds that processes of a killed `kai up`, or a question to the log, have to end.
PATIENCE_S = 30.0
#: Seconds between two tries: the end of another process sets no event.
LOOK_S = 0.05


class DirectoryLock:
    """A data directory that is ours alone; the lock ends with `release` and the processes that inherited `fd`."""

    def __init__(self, fd: int) -> None:
        """Args: fd: of the locked directory, closed by `release`."""
        self.fd = fd

    def release(self) -> None:
        """Close our descriptor; the lock stays with those who inherited it."""
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def try_lock(root: Path) -> DirectoryLock | None:
    """Lock a directory that exists; None when another process has it.

    Raises:
        ConfigurationError: it cannot be locked at all.
    """
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(f"{root}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError as error:
        os.close(fd)
        raise ConfigurationError(
            f"{root}: cannot be locked ({error.strerror}): name a directory on a disk of this machine"
        ) from error
    return DirectoryLock(fd)
