"""NATS as a cluster of three real servers, of which one can be killed, stopped, or cut off from the others."""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Self

from kaicore.ledger.nkeys import new_seed
from kaicore.runtime.embedded import EmbeddedNats

from tests.given.servers.ports import free_port

_CLUSTER = """
cluster {{
  name: kai
  listen: "127.0.0.1:{port}"
  # Where servers tell each other that they are, nothing listens: else they would go around the ways.
  no_advertise: true
  advertise: "127.0.0.1:1"
  pool_size: -1
  routes: [{routes}]
}}
"""


class Way:
    """One server's way to another one's port for routes; while it is cut, nothing passes and nothing is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Let nothing pass, and close nothing."""
        self._open.clear()

    def mend(self) -> None:
        """Close what was open, and let new connections pass."""
        for task in self._passing:
            task.cancel()
        self._open.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.mend()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        writers = [writer]
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            writers.append(back)
            ways = [asyncio.create_task(self._pass(one, other)) for one, other in ((reader, back), (there, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in writers:
                one.close()
            self._passing.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._open.wait()
                writer.write(data)
                await writer.drain()


class ClusteredNats(EmbeddedNats):
    def __init__(self, directory: Path, *, route_port: int) -> None:
        super().__init__(directory)
        self.route_port = route_port
        self.ways: dict[ClusteredNats, Way] = {}

    @property
    def server_name(self) -> str:
        """JetStream's name for it."""
        return self._server_name

    def share(self, seed: str) -> None:
        """Take the clients' key that all servers take."""
        self._directory.mkdir(parents=True, mode=0o700)
        self._seed_file.touch(mode=0o600)
        self._seed_file.write_text(seed)

    def _command(self, port: int) -> list[str]:
        command = super()._command(port)
        routes = ", ".join(f'"nats://127.0.0.1:{way.port}"' for way in self.ways.values())
        with Path(command[-1]).open("a") as config:
            config.write(_CLUSTER.format(port=self.route_port, routes=routes))
        return command


class NatsCluster:
    """Three servers, and the url with which clients reach all of them."""

    def __init__(self, directory: Path) -> None:
        self.servers = [ClusteredNats(directory / str(number), route_port=free_port()) for number in range(3)]
        self._stack = AsyncExitStack()

    @property
    def url(self) -> str:
        return ",".join(server.url for server in self.servers)

    async def __aenter__(self) -> Self:
        for server in self.servers:
            for other in self.servers:
                if other is not server:
                    server.ways[other] = await self._stack.enter_async_context(Way(other.route_port))
        seed = new_seed()
        for server in self.servers:
            server.share(seed)
        await asyncio.gather(*(server.start() for server in self.servers))
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(server.kill() for server in self.servers))
        await self._stack.aclose()

    def of_name(self, name: str) -> ClusteredNats:
        """Return the server that JetStream calls so."""
        return next(server for server in self.servers if server.server_name == name)

    def cut_off(self, server: ClusteredNats) -> None:
        """Cut a server off from the others; its clients still reach it."""
        for way in self._ways_of(server):
            way.cut()

    def join(self, server: ClusteredNats) -> None:
        """Let it reach the others again."""
        for way in self._ways_of(server):
            way.mend()

    def _ways_of(self, server: ClusteredNats) -> Iterable[Way]:
        return [way for one in self.servers for other, way in one.ways.items() if server in (one, other)]
