"""Ports for the processes of a stack: chosen once and kept, so that a restart has the same addresses.

A port that is listened on here stays ours for as long as the stack runs, whatever becomes of the process that serves
it.
"""

import random
import socket
from contextlib import suppress
from pathlib import Path

import msgspec
from kaicore.errors import ConfigurationError

#: Below the kernel's ephemeral ports: a client that retries an ephemeral port of its own host may connect to itself.
_LOWEST, _HIGHEST = 10_240, 32_000
_TRIES = 50
#: Connections that wait while a process is away.
_BACKLOG = 1024


class Ports:
    """Ports by name."""

    def __init__(self, file: Path) -> None:
        """Args: file: where they are kept; made when missing."""
        self._file = file
        try:
            self._ports = msgspec.json.decode(file.read_bytes(), type=dict[str, int])
        except (OSError, msgspec.DecodeError):
            self._ports = {}
        self._listening: dict[str, socket.socket] = {}

    def listen(self, name: str) -> socket.socket:
        """Return a socket that listens on the port of a name, the same for each call until `close`."""
        listening = self._listening.get(name)
        while listening is None:
            with suppress(OSError):
                # Taken in the moment since it was found free: another one is chosen.
                listening = socket.create_server(("127.0.0.1", self.port(name)), backlog=_BACKLOG)
                self._listening[name] = listening
        return listening

    def close(self) -> None:
        """Give up the ports that are listened on."""
        for listening in self._listening.values():
            listening.close()
        self._listening.clear()

    def port(self, name: str) -> int:
        """Return the port that a name had before if it is free, otherwise a new one."""
        kept = self._ports.get(name)
        if kept is not None and (name in self._listening or _free(kept)):
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
