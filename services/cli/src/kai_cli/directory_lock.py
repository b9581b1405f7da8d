"""Lock of a data directory: one user at a time, from before the first look into it until its last process ends.

The lock is an `flock` on the directory itself. So nothing is written to a directory that turns out to belong to
another program, and clearing a directory does not remove its lock. Processes that are started inherit it. When `kai
up` was killed, its directory is free once its servers and services have ended, too.
"""

from pathlib import Path

from kaicore.errors import ConfigurationError
from kaicore.runtime.file_lock import FileLock

#: Seconds that processes of a killed `kai up`, or a question to the log, have to end.
PATIENCE_S = 30.0
#: Seconds between two tries: the end of another process sets no event.
LOOK_S = 0.05


def try_lock(root: Path) -> FileLock | None:
    """Lock a directory that exists; None when another process has it.

    Raises:
        ConfigurationError: it cannot be locked at all.
    """
    if not root.is_dir():
        raise ConfigurationError(f"{root}: is no directory")
    try:
        lock = FileLock(root)
    except OSError as error:
        raise ConfigurationError(f"{root}: {error.strerror}") from error
    try:
        if lock.taken():
            return lock
    except OSError as error:
        lock.release()
        raise ConfigurationError(
            f"{root}: cannot be locked ({error.strerror}): name a directory on a disk of this machine"
        ) from error
    lock.release()
    return None
