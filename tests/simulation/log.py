"""The log as a server in memory, and as a process reaches it over the network."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from kaicore.errors import LogUnavailable
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import Filter, Head, Snapshot
from kaicore.rules.events.envelope import Event, Unit, UnitOutcome

from tests.simulation.loop import Process
from tests.simulation.network import Network, Server

T = TypeVar("T")

#: Seconds that a caller waits for an answer.
_PATIENCE_S = 5.0


class LogServer(MemoryLog):
    """The log; it tells what was appended as soon as it is."""

    def __init__(
        self,
        clock: Callable[[], int],
        appended: Callable[[list[Event]], None],
        taken: Callable[[str, Sequence[Mapping[str, int]], int], None],
    ) -> None:
        """Make an empty log.

        Args:
            clock: gives microseconds since 1970.
            appended: called with events as soon as they are there.
            taken: called with a call before its events: the cluster, what was expected of streams by the call and by
                those of its units that were taken, and the position after which it was taken.
        """
        super().__init__(clock)
        self._appended, self._taken = appended, taken

    async def append(
        self, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        before = len(self._cluster(cluster).events)
        outcomes = await super().append(cluster, units, expect=expect)
        if len(events := self._cluster(cluster).events) > before:
            new = [unit.expect for unit, outcome in zip(units, outcomes, strict=True) if outcome.events]
            self._taken(cluster, [expect or {}, *new], before)
            self._appended(events[before:])
        return outcomes

    def events(self, cluster: str) -> list[Event]:
        """Everything that a cluster's log has."""
        return self._cluster(cluster).events


class Witness(Protocol):
    """Sees what processes append."""

    def proposing(self, process: Process, cluster: str, units: Sequence[Unit]) -> None:
        """Take note of what a process is about to append."""

    def acknowledged(
        self, process: Process, cluster: str, units: Sequence[Unit], outcomes: Sequence[UnitOutcome]
    ) -> None:
        """Take note of the answer."""


class NetworkLog:
    """See `kaicore.ledger.log.port.EventLog`."""

    def __init__(
        self,
        process: Process,
        network: Network,
        server: Server,
        log: LogServer,
        witness: Witness,
    ) -> None:
        self._process, self._network, self._server, self._log = process, network, server, log
        self._witness = witness

    async def _ask(self, name: str, serve: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._network.ask(
            self._process, self._server, name, serve, error=LogUnavailable, patience_s=_PATIENCE_S
        )

    async def append(
        self, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        self._witness.proposing(self._process, cluster, units)
        outcomes = await self._ask("append", lambda: self._log.append(cluster, units, expect=expect))
        self._witness.acknowledged(self._process, cluster, units, outcomes)
        return outcomes

    async def head(self, cluster: str) -> Head:
        return await self._ask("head", lambda: self._log.head(cluster))

    async def read(
        self, cluster: str, *, after: int = 0, upto: int | None = None, limit: int = 1000, where: Filter | None = None
    ) -> list[Event]:
        return await self._ask(
            "read", lambda: self._log.read(cluster, after=after, upto=upto, limit=limit, where=where)
        )

    async def wait_beyond(self, cluster: str, position: int, *, timeout_s: float) -> int:
        return await self._network.ask(
            self._process,
            self._server,
            "wait",
            lambda: self._log.wait_beyond(cluster, position, timeout_s=timeout_s),
            error=LogUnavailable,
            patience_s=timeout_s + _PATIENCE_S,
            waits=True,
        )

    async def clusters(self) -> list[str]:
        return await self._ask("clusters", self._log.clusters)

    async def stream_versions(self, cluster: str, streams: Sequence[str]) -> dict[str, int]:
        return await self._ask("versions", lambda: self._log.stream_versions(cluster, streams))

    async def save_snapshot(self, cluster: str, snapshot: Snapshot) -> None:
        await self._ask("save", lambda: self._log.save_snapshot(cluster, snapshot))

    async def load_snapshot(self, cluster: str, *, name: str, schema: str, upto: int | None = None) -> Snapshot | None:
        return await self._ask("load", lambda: self._log.load_snapshot(cluster, name=name, schema=schema, upto=upto))

    async def retired(self, cluster: str) -> int:
        return await self._ask("retired", lambda: self._log.retired(cluster))

    async def kept_snapshots(self, cluster: str, *, name: str) -> list[Snapshot]:
        return await self._ask("kept", lambda: self._log.kept_snapshots(cluster, name=name))

    async def close(self) -> None:
        """See `EventLog.close`; the server goes on."""
