"""What lies where in a data directory, and what a running stack tells others of itself."""

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec
from kaicore.embedded import usable_directory
from kaicore.errors import ConfigurationError


class RunningStack(msgspec.Struct):
    """How to reach a running `kai up`; written when everything is ready, removed when it ends."""

    pid: int
    database_url: str
    nats_url: str
    clusters: dict[str, "RunningCluster"]
    api_url: str = ""


class RunningCluster(msgspec.Struct):
    """One cluster of a running stack.

    Attributes:
        kubeconfig: for kubectl.
        service_kubeconfig: for our own services; the same unless the cluster is simulated.
    """

    kubeconfig: str
    service_kubeconfig: str
    simulated: bool


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """A data directory: servers' data, logs, kubeconfigs."""

    root: Path

    @property
    def postgres(self) -> Path:
        """Data of the embedded Postgres."""
        return self.root / "postgres"

    @property
    def nats(self) -> Path:
        """Data of the embedded NATS."""
        return self.root / "nats"

    @property
    def logs(self) -> Path:
        """The processes' logs."""
        return self.root / "logs"

    @property
    def running_file(self) -> Path:
        """See `RunningStack`."""
        return self.root / "running.json"

    def cluster(self, name: str) -> Path:
        """Data of a simulated cluster."""
        return self.root / "clusters" / name

    def running(self) -> RunningStack | None:
        """Return what the stack that runs here tells of itself; None when none does."""
        try:
            stack = msgspec.json.decode(self.running_file.read_bytes(), type=RunningStack)
        except (OSError, msgspec.DecodeError):
            return None
        try:
            os.kill(stack.pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return stack


def data_directory(path: Path | None) -> DataDirectory:
    """Return the data directory named on the command line, by `KAI_DATA_DIR`, or `.kai` here.

    As root the embedded Postgres runs as `nobody`, who must be able to enter it; where he cannot, a directory
    below `/var/tmp` stands for it.

    Raises:
        ConfigurationError: it is no directory, or cannot be used.
    """
    chosen = path or (Path(named) if (named := os.environ.get("KAI_DATA_DIR")) else Path(".kai"))
    root = usable_directory(chosen)
    if root.exists() and not root.is_dir():
        raise ConfigurationError(f"{root}: is no directory")
    return DataDirectory(root)
