"""The data directory of a stack: its layout, its lock, and the file by which other commands find a running stack.

One process uses a directory at a time, from before the first look into it until its last process ends. The lock is an
`flock` on the directory itself. So nothing is written to a directory that turns out to belong to another program, and
clearing a directory does not remove its lock. Processes that are started inherit it. When `kai up` was killed, its
directory is free once its servers and services have ended, too.
"""

import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
from kaicore.errors import ConfigurationError
from kaicore.runtime.embedded import usable_directory
from kaicore.runtime.embedded.process import alive
from kaicore.runtime.file_lock import FileLock

#: Seconds that processes of a killed `kai up`, or a question to the log, have to end.
PATIENCE_S = 30.0
#: Seconds between two tries: the end of another process sets no event.
LOOK_S = 0.05
#: A cluster's name is part of bus subjects, of paths and of Kubernetes names: RFC 1123.
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


def try_lock(root: Path) -> FileLock | None:
    """Lock a directory that exists; None when another process has it.

    Raises ConfigurationError: it cannot be locked at all.
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


class RunningStack(msgspec.Struct):
    """The file with the addresses of a running `kai up`; written as soon as it has the directory, removed at its end.

    Attributes:
        database_url: of the log; empty until the database is up and of this version's schema.
        nats_url: of the bus; empty until then.
        clusters: those that are ready, by name.
        api_url: of `kai-api`; empty until it is ready.
        services: where each process that was started answers about its health, by name.
    """

    pid: int
    database_url: str = ""
    nats_url: str = ""
    clusters: dict[str, "RunningCluster"] = {}
    api_url: str = ""
    services: dict[str, str] = {}
    api_key: str = ""


class RunningCluster(msgspec.Struct):
    """One cluster of a running stack.

    Attributes:
        service_kubeconfig: for our own services; the same unless the cluster is simulated.
    """

    kubeconfig: str
    service_kubeconfig: str


#: Says that a folder is kai's alone: written only where there was nothing when kai came.
_MARKER = ".kai-data"
#: Has the name of the cluster that `kai cluster use` chose.
_CURRENT_CLUSTER = "current-cluster"
#: Folder in a data directory in which `kai demo --once` keeps its own.
ONCE = "once"
#: Everything else that kai keeps in a data directory, at its top.
_LAYOUT = frozenset(
    {_MARKER, "api", "postgres", "nats", "logs", "clusters", "ports.json", "running.json", "running.new", "blind.yaml"}
    | {_CURRENT_CLUSTER, "seals"}
)


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """A data directory: servers' data, logs, kubeconfigs."""

    root: Path

    def claim(self) -> None:
        """Make the directory, and mark it as kai's alone if there is nothing in it yet."""
        self.root.mkdir(parents=True, exist_ok=True)
        if not self._entries():
            (self.root / _MARKER).write_text("kai keeps its data here, and deletes it when asked to begin anew.\n")

    def lock(self) -> FileLock:
        """Make the directory if need be, and lock it before anything in it is read; wait for what is about to end.

        Raises ConfigurationError: another process uses it, or it cannot be made or locked.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"{error.filename or self.root}: {error.strerror}") from error
        deadline = time.monotonic() + PATIENCE_S
        while (taken := try_lock(self.root)) is None:
            running = self.running()
            if running is not None:
                raise ConfigurationError(
                    f"{self.root}: in use by another kai, process {running.pid}: end that one, or name another "
                    "--data-dir"
                )
            if time.monotonic() > deadline:
                raise ConfigurationError(f"{self.root}: other processes of kai are still using it")
            time.sleep(LOOK_S)
        return taken

    def clear(self, *, named_by_us: bool = False) -> None:
        """Delete what an earlier run left; `once` in it stays.

        Raises ConfigurationError: it holds something that is not kai's, or kai was not the first there; nothing is
        deleted then. Or something cannot be deleted.

        Args:
            named_by_us: the directory's very name is kai's choice, so it needs no mark.
        """
        entries = self._entries()
        if not entries:
            return
        foreign = sorted(entries - _LAYOUT)
        if foreign:
            raise ConfigurationError(
                f"{self.root}: not deleted, for it holds {foreign[0]}, which is not kai's: name an empty folder"
            )
        if _MARKER not in entries and not named_by_us:
            raise ConfigurationError(
                f"{self.root}: not deleted, for kai did not make it: name an empty folder, or delete it yourself"
            )
        try:
            # The mark last: what is left of a deletion that breaks off can be deleted again.
            for name in sorted(entries, key=lambda name: (name == _MARKER, name)):
                path = self.root / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        except OSError as error:
            raise ConfigurationError(f"{error.filename or self.root}: {error.strerror or error}") from error

    def _entries(self) -> set[str]:
        if not self.root.exists():
            return set()
        return {path.name for path in self.root.iterdir()} - {ONCE}

    @property
    def postgres(self) -> Path:
        """Data of the embedded Postgres."""
        return self.root / "postgres"

    @property
    def nats(self) -> Path:
        """Data of the embedded NATS."""
        return self.root / "nats"

    @property
    def seals(self) -> Path:
        """Folder of the seals that the relay keeps, should it make any."""
        return self.root / "seals"

    @property
    def logs(self) -> Path:
        """The processes' logs."""
        return self.root / "logs"

    @property
    def api(self) -> Path:
        """The file with the callers that may ask the API."""
        return self.root / "api"

    @property
    def running_file(self) -> Path:
        """See `RunningStack`."""
        return self.root / "running.json"

    def cluster(self, name: str) -> Path:
        """Data of a simulated cluster."""
        return self.root / "clusters" / name

    def current_cluster(self) -> str:
        """Return the cluster that `kai cluster use` chose; empty where none is."""
        try:
            return (self.root / _CURRENT_CLUSTER).read_text().strip()
        except OSError:
            return ""

    def use_cluster(self, name: str) -> None:
        """Choose a cluster for commands that are about one; empty for the first by name."""
        try:
            (self.root / _CURRENT_CLUSTER).write_text(f"{name}\n")
        except OSError as error:
            raise ConfigurationError(f"{error.filename or self.root}: {error.strerror}") from error

    def running(self) -> RunningStack | None:
        """Return what the stack that runs here tells of itself; None when none does."""
        stack = self.noted()
        if stack is None:
            return None
        if not alive(stack.pid) or (free := try_lock(self.root)) is None:
            return stack if alive(stack.pid) else None
        # No process has it locked, so that process is another one of that id by now.
        free.release()
        return None

    def noted(self) -> RunningStack | None:
        """Return a stack's record of itself, whether it runs or was killed; None without one."""
        try:
            return msgspec.json.decode(self.running_file.read_bytes(), type=RunningStack)
        except (OSError, msgspec.DecodeError):
            return None

    def in_use(self) -> bool:
        """Return whether a process has the directory locked: a stack, or what one that was killed has left."""
        if not self.root.is_dir():
            return False
        if (free := try_lock(self.root)) is None:
            return True
        free.release()
        return False

    def note_running(self, stack: RunningStack) -> None:
        """Let other commands know of the stack that runs here; the caller has locked the directory."""
        partial = self.running_file.with_suffix(".new")
        partial.touch(mode=0o600)
        partial.write_bytes(msgspec.json.encode(stack))
        partial.rename(self.running_file)


def data_directory(path: Path | None) -> DataDirectory:
    """Return the data directory named on the command line, by `KAI_DATA_DIR`, or `.kai` here.

    As root the embedded Postgres runs as `nobody`, which must be able to enter it; where it cannot, a directory
    below `/var/tmp` stands for it. Raises ConfigurationError: it is no directory, or cannot be used.
    """
    chosen = path or (Path(named) if (named := os.environ.get("KAI_DATA_DIR")) else Path(".kai"))
    return DataDirectory(usable_directory(chosen))


def check_cluster_name(name: str) -> None:
    """Check a cluster's name. Raises ConfigurationError: it is no DNS label."""
    if not _LABEL.fullmatch(name):
        raise ConfigurationError(
            f"--cluster {name!r}: a cluster's name is a DNS label: a-z, 0-9 and - inside, 63 characters at most"
        )
