"""Kubeconfigs by service, so that each service reaches the API server with its own account's rights."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kaicore.errors import ConfigurationError

#: The services that talk to the API server; ingest only to have tokens reviewed.
SERVICES = ("watcher", "binder", "ingest")


@dataclass(frozen=True, slots=True)
class Kubeconfigs:
    """The kubeconfigs of an existing cluster.

    Attributes:
        shared: of whatever has none of its own; None where every service has one.
        own: kubeconfigs of single services.
    """

    shared: Path | None
    own: dict[str, Path] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Sequence[str], *, binds: bool = True) -> "Kubeconfigs":
        """Read the values of `--kubeconfig`: `FILE`, or `SERVICE=FILE`.

        Args:
            binds: whether there is a binder, which needs one.

        Raises:
            ConfigurationError: a file is not there, a service is unknown, named twice, or left without a kubeconfig.
        """
        shared: Path | None = None
        own: dict[str, Path] = {}
        for value in given:
            service, equals, file = value.partition("=")
            if not equals or (service not in SERVICES and Path(value).exists()):
                if shared is not None:
                    raise ConfigurationError(f"--kubeconfig: {shared} and {value} are both for all services")
                shared = _existing(value)
            elif service not in SERVICES:
                raise ConfigurationError(f"--kubeconfig {value}: no service {service}, only {', '.join(SERVICES)}")
            elif service in own:
                raise ConfigurationError(f"--kubeconfig: {service} is named twice")
            else:
                own[service] = _existing(file)
        for service in ("watcher", "binder") if binds else ("watcher",):
            if shared is None and service not in own:
                raise ConfigurationError(f"--kubeconfig: none for {service}; give {service}=FILE, or a FILE for all")
        return cls(shared, own)

    def of(self, service: str) -> Path:
        """The kubeconfig of a service."""
        return self.own.get(service) or self.shared or self.own["watcher"]

    @property
    def of_people(self) -> Path:
        """The kubeconfig for `kubectl` and `kai load`: the shared one, else the watcher's, which may only read."""
        return self.shared or self.own["watcher"]


def _existing(path: str) -> Path:
    if not Path(path).is_file():
        raise ConfigurationError(f"--kubeconfig {path}: no such file")
    return Path(path)
