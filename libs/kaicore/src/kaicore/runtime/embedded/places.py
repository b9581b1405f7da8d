"""The user that runs an embedded server, and the places where that user can reach programs and data.

Postgres refuses to run as root. As root it is therefore run as `nobody`, and nothing of the machine is changed for
that: no user is made and no directory's mode is touched. A virtual environment below `/root` is out of reach for
`nobody`; then the programs are copied once to `/var/tmp`, into a directory that only root can write.
"""

import hashlib
import os
import pwd
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kaicore.errors import ConfigurationError

#: Where programs and data go that `nobody` cannot reach where they are.
_REACHABLE = Path("/var/tmp")  # noqa: S108  # ownership and mode are checked before anything there is used


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The user that a server runs as; -1 is our own user."""

    uid: int = -1
    gid: int = -1

    @property
    def other(self) -> bool:
        """True if it is another user than we are."""
        return self.uid >= 0

    def popen(self) -> dict[str, object]:
        """Arguments for `subprocess` that make a command run as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.other else {}


def unprivileged_user() -> ServerUser:
    """Return `nobody` when we are root, else our own user.

    Raises ConfigurationError: we are root, and there is no user `nobody`.
    """
    if os.geteuid() != 0:
        return ServerUser()
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError as error:
        raise ConfigurationError(
            "Postgres does not run as root, and there is no user nobody: run kai as another user"
        ) from error
    return ServerUser(entry.pw_uid, entry.pw_gid)


def blocked_at(path: Path, user: ServerUser) -> Path | None:
    """Return the first directory on the way to `path`, itself included, that `user` cannot enter; None when none."""
    if not user.other:
        return None
    for directory in [*reversed(path.absolute().parents), path.absolute()]:
        try:
            status = directory.stat()
        except FileNotFoundError:
            return None
        if status.st_uid == user.uid:
            needed = stat.S_IXUSR
        elif status.st_gid == user.gid:
            needed = stat.S_IXGRP
        else:
            needed = stat.S_IXOTH
        if not status.st_mode & needed:
            return directory
    return None


def usable_directory(preferred: Path) -> Path:
    """Return `preferred`, or where a server's user cannot get there, a directory in `/var/tmp` that stands for it.

    The same `preferred` always gives the same directory. Only for root does it ever differ from `preferred`.
    Raises ConfigurationError: `preferred`, or what it is in, is no directory; or what stands for it is another user's.
    """
    preferred = preferred.absolute()
    for path in (*reversed(preferred.parents), preferred):
        if path.exists() and not path.is_dir():
            raise ConfigurationError(f"{path}: is no directory")
    if blocked_at(preferred, unprivileged_user()) is None:
        return preferred
    digest = hashlib.sha256(os.fsencode(preferred)).hexdigest()[:12]
    directory = _REACHABLE / f"kai-{preferred.name.lstrip('.')}-{digest}"
    with suppress(FileExistsError):
        directory.mkdir()
        directory.chmod(0o755)
    _insist_on_owner(directory)
    return directory


def reachable_programs(root: Path, *, program: str, parts: tuple[str, ...], name: str, user: ServerUser) -> Path:
    """Return `root`, or a copy of its `parts` that `user` can reach.

    Raises ConfigurationError: a directory of that name exists and is not root's alone.

    Args:
        program: one of them, relative to `root`; all of `parts` is taken to be installed with the same modes.
        parts: directories below `root` that belong together, such as programs and the libraries that they load.
        name: of the copy; it must change with the contents.
    """
    runnable = stat.S_IROTH | stat.S_IXOTH
    if not user.other or (
        blocked_at((root / program).parent, user) is None and (root / program).stat().st_mode & runnable == runnable
    ):
        return root
    copy = _REACHABLE / f"kai-{name}"
    if not copy.exists():
        making = Path(tempfile.mkdtemp(prefix=f"kai-{name}-", dir=_REACHABLE))
        try:
            for part in parts:
                shutil.copytree(root / part, making / part, symlinks=True)
            for item in [making, *making.rglob("*")]:
                if not item.is_symlink():
                    mode = item.stat().st_mode
                    item.chmod(mode | 0o044 | (mode & stat.S_IXUSR and 0o011))
            making.rename(copy)
        except OSError:
            # Another process was faster; whether its copy will do is seen below.
            shutil.rmtree(making, ignore_errors=True)
            if not copy.exists():
                raise
    _insist_on_owner(copy)
    return copy


def _insist_on_owner(directory: Path) -> None:
    """Refuse a directory in a public place that another user made, or could change."""
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ConfigurationError(f"{directory}: exists, but others than this user can write there: remove it")
