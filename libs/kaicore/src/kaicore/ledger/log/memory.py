"""An event log in memory: the obvious implementation, for tests and for `kai simulate`."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kaicore.errors import LogUnavailable
from kaicore.ledger.log.appending import Tail, draft
from kaicore.ledger.log.port import Filter, Head, Snapshot
from kaicore.ledger.log.snapshots import TrailPlace
from kaicore.rules.events.envelope import Event, Unit, UnitOutcome


@dataclass(slots=True)
class _Cluster:
    tail: Tail
    events: list[Event] = field(default_factory=list)
    snapshots: dict[tuple[str, str], Snapshot] = field(default_factory=dict)
    grown: asyncio.Event = field(default_factory=asyncio.Event)


class MemoryTrail:
    """Trails in memory; see `kaicore.ledger.log.snapshots.TrailStore`."""

    def __init__(self) -> None:
        self._snapshots: dict[str, dict[TrailPlace, Snapshot]] = {}

    async def places(self, cluster: str) -> list[TrailPlace]:
        """See `TrailStore.places`."""
        return sorted(self._snapshots.get(cluster, ()), key=lambda place: place.position)

    async def load(self, cluster: str, *, schema: str, upto: int) -> Snapshot | None:
        """See `TrailStore.load`."""
        places = [place for place in await self.places(cluster) if place.schema == schema and place.position <= upto]
        return self._snapshots[cluster][places[-1]] if places else None

    async def save(self, cluster: str, snapshot: Snapshot, packed: bytes, *, drop: Sequence[TrailPlace] = ()) -> None:
        """See `TrailStore.save`."""
        kept = self._snapshots.setdefault(cluster, {})
        for place in drop:
            kept.pop(place, None)
        kept[TrailPlace(snapshot.position, snapshot.schema, len(packed))] = snapshot


class MemoryLog:
    """The log in memory, for tests and `kai simulate`; see `kaicore.ledger.log.port.EventLog`."""

    def __init__(self, clock: Callable[[], int]) -> None:
        """Args: clock: microseconds since the epoch."""
        self._clock = clock
        self._clusters: dict[str, _Cluster] = {}
        self._closed = False
        #: See `kaicore.ledger.log.snapshots.HasTrail`.
        self.trail = MemoryTrail()

    def _cluster(self, name: str) -> _Cluster:
        self._check_open()
        if name not in self._clusters:
            self._clusters[name] = _Cluster(Tail(name, Head(), {}, {}))
        return self._clusters[name]

    def _check_open(self) -> None:
        if self._closed:
            raise LogUnavailable("the log is closed")

    async def append(
        self, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        """See `EventLog.append`."""
        call = draft(cluster, units, expect=expect)
        log = self._cluster(cluster)
        outcomes, events = log.tail.take(call, now=self._clock())
        log.events += events
        if events:
            log.grown.set()
            log.grown = asyncio.Event()
        return outcomes

    async def head(self, cluster: str) -> Head:
        """See `EventLog.head`."""
        return self._cluster(cluster).tail.head

    async def read(
        self, cluster: str, *, after: int = 0, upto: int | None = None, limit: int = 1000, where: Filter | None = None
    ) -> list[Event]:
        """See `EventLog.read`."""
        events = self._cluster(cluster).events[max(after, 0) : upto]
        return [event for event in events if where is None or where.lets_through(event)][:limit]

    async def wait_beyond(self, cluster: str, position: int, *, timeout_s: float) -> int:
        """See `EventLog.wait_beyond`."""
        try:
            async with asyncio.timeout(timeout_s):
                while len(self._cluster(cluster).events) <= position:
                    await self._cluster(cluster).grown.wait()
        except TimeoutError:
            pass
        return len(self._cluster(cluster).events)

    async def clusters(self) -> list[str]:
        """See `EventLog.clusters`."""
        self._check_open()
        return sorted(name for name, log in self._clusters.items() if log.events)

    async def stream_versions(self, cluster: str, streams: Sequence[str]) -> dict[str, int]:
        """See `EventLog.stream_versions`."""
        versions = self._cluster(cluster).tail.versions
        return {stream: versions.get(stream, 0) for stream in streams}

    async def save_snapshot(self, cluster: str, snapshot: Snapshot) -> None:
        """See `EventLog.save_snapshot`."""
        kept = self._cluster(cluster).snapshots
        old = kept.get((snapshot.name, snapshot.schema))
        if old is None or old.position <= snapshot.position:
            kept[snapshot.name, snapshot.schema] = snapshot

    async def load_snapshot(self, cluster: str, *, name: str, schema: str, upto: int | None = None) -> Snapshot | None:
        """See `EventLog.load_snapshot`."""
        kept = self._cluster(cluster).snapshots.get((name, schema))
        return kept if kept is not None and (upto is None or kept.position <= upto) else None

    async def retired(self, cluster: str) -> int:
        """See `EventLog.retired`."""
        self._cluster(cluster)
        return 0

    async def kept_snapshots(self, cluster: str, *, name: str) -> list[Snapshot]:
        """See `EventLog.kept_snapshots`; nothing is ever detached here."""
        self._cluster(cluster)
        return []

    async def close(self) -> None:
        """See `EventLog.close`."""
        self._closed = True
        for log in self._clusters.values():
            log.grown.set()
