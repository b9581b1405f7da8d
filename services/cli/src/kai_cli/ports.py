"""Ports for the processes of a stack: chosen once and kept, so that a restart has the same addresses."""

import random
import socket
from pathlib import Path

import msgspec
from kaicore.errors import ConfigurationError

#: Below the kernel's ephemeral ports: a client that retries an ephemeral port of its own host may connect to itself.
_LOWEST, _HIGHEST = 10_240, 32_000
_TRIES = 50


class Ports:
    """Ports by name."""

    def __init__(self, file: Path) -> None:
        """Args: file: where they are kept; made when missing."""
        self._file = file
        try:
            self._ports = msgspec.json.decode(file.read_bytes(), type=dict[str, int])
        except (OSError, msgspec.DecodeError):
            self._ports = {}

    def port(self, name: str) -> int:
        """Return the port that a name had before if it is free, otherwise a new one."""
        kept = self._ports.get(name)
        if kept is not None and _free(kept):
            return kept
        for _ in range(_TRIES):
            port = random.randrange(_LOWEST, _HIGHEST)
            if port not in self._ports.values() and _free(port):
                self._ports[name] = port
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._file.write_bytes(msgspec.json.encode(self._ports, order="sorted"))
                return port
        raise ConfigurationError(f"{name}: found no free port between {_LOWEST} and {_HIGHEST}")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
