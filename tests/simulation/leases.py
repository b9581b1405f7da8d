"""Members and leases as a server in memory beside the bus, as a process reaches them over the network."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kaicore.errors import BusUnavailable
from kaicore.ledger.bus.leases import Entry, Members

from tests.given.doubles.memory_leases import MemoryLeaseStore
from tests.simulation.loop import Process
from tests.simulation.network import Network, Server

T = TypeVar("T")

#: Seconds that a caller waits for an answer.
_PATIENCE_S = 1.0


class NetworkLeaseStore:
    """See `kaicore.ledger.bus.leases.LeaseStore`."""

    def __init__(self, process: Process, network: Network, server: Server, store: MemoryLeaseStore) -> None:
        self._process, self._network, self._server, self._store = process, network, server, store

    async def _ask(self, name: str, serve: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._network.ask(
            self._process, self._server, f"lease {name}", serve, error=BusUnavailable, patience_s=_PATIENCE_S
        )

    async def read(self, cluster: str, prefix: str) -> list[Entry]:
        return await self._ask("read", lambda: self._store.read(cluster, prefix))

    async def write(self, cluster: str, name: str, value: bytes, *, expect: int) -> int | None:
        return await self._ask("write", lambda: self._store.write(cluster, name, value, expect=expect))

    async def delete(self, cluster: str, name: str, *, expect: int) -> bool:
        return await self._ask("delete", lambda: self._store.delete(cluster, name, expect=expect))

    async def close(self) -> None:
        """See `LeaseStore.close`; the server goes on."""


class LoopAnnouncer:
    """The work of `kai_scheduler.replicas.Announcer` in a thread, on the process's own loop."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._task: asyncio.Task[None] | None = None
        self.live: tuple[str, ...] = ()
        self.settled = self.fresh = False

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    def pulse(self) -> None:
        """See `Live.pulse`; a loop that hangs hangs this, too."""

    async def _run(self) -> None:
        members = self._members
        while True:
            await members.beat()
            self.live, self.settled, self.fresh = members.live(), members.settled, members.fresh
            await asyncio.sleep(members.renewal_s)
