"""An event log in memory: the obvious implementation, for tests and for `kai simulate`."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from kaicore.errors import IdempotencyConflict, LogUnavailable, StaleExpectation
from kaicore.events.codec import encode_payload, schema_version
from kaicore.events.envelope import Event, NewEvent, Stale, Unit, UnitOutcome
from kaicore.log.chain import GENESIS, event_hash
from kaicore.log.port import Filter, Head, Snapshot


@dataclass(slots=True)
class _Cluster:
    events: list[Event] = field(default_factory=list)
    by_id: dict[bytes, Event] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    snapshots: dict[tuple[str, str], list[Snapshot]] = field(default_factory=dict)
    grown: asyncio.Event = field(default_factory=asyncio.Event)


class MemoryLog:
    """See `kaicore.log.port.EventLog`."""

    def __init__(self, clock: Callable[[], int]) -> None:
        """Args: clock: microseconds since the epoch."""
        self._clock = clock
        self._clusters: dict[str, _Cluster] = {}
        self._closed = False

    def _cluster(self, name: str) -> _Cluster:
        if self._closed:
            raise LogUnavailable("the log is closed")
        return self._clusters.setdefault(name, _Cluster())

    async def append(
        self, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        """See `EventLog.append`."""
        log = self._cluster(cluster)
        before = dict(log.versions)
        known = [_found(log, cluster, unit) for unit in units]
        if not all(known):
            for stream, expected in (expect or {}).items():
                if before.get(stream, 0) != expected:
                    raise StaleExpectation(cluster, stream, expected=expected, actual=before.get(stream, 0))
        outcomes = []
        recorded_at = max(self._clock(), log.events[-1].recorded_at if log.events else 0)
        for unit, positions in zip(units, known, strict=True):
            stale = next(
                (
                    Stale(stream, expected, before.get(stream, 0))
                    for stream, expected in unit.expect.items()
                    if before.get(stream, 0) != expected
                ),
                None,
            )
            if positions:
                outcomes.append(UnitOutcome(positions=positions, duplicate=True))
            elif stale:
                outcomes.append(UnitOutcome(stale=stale))
            else:
                outcomes.append(UnitOutcome(tuple(_record(log, cluster, new, recorded_at) for new in unit.events)))
        log.grown.set()
        log.grown = asyncio.Event()
        return outcomes

    async def head(self, cluster: str) -> Head:
        """See `EventLog.head`."""
        events = self._cluster(cluster).events
        return Head(events[-1].position, events[-1].hash, events[-1].recorded_at) if events else Head(0, GENESIS, 0)

    async def read(
        self, cluster: str, *, after: int = 0, upto: int | None = None, limit: int = 1000, where: Filter | None = None
    ) -> list[Event]:
        """See `EventLog.read`."""
        events = self._cluster(cluster).events[max(after, 0) : upto]
        return [event for event in events if where is None or _passes(event, where)][:limit]

    async def read_last(self, cluster: str, *, where: Filter) -> Event | None:
        """See `EventLog.read_last`."""
        return next((event for event in reversed(self._cluster(cluster).events) if _passes(event, where)), None)

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
        return sorted(name for name, log in self._clusters.items() if log.events)

    async def stream_versions(self, cluster: str, streams: Sequence[str]) -> dict[str, int]:
        """See `EventLog.stream_versions`."""
        versions = self._cluster(cluster).versions
        return {stream: versions.get(stream, 0) for stream in streams}

    async def save_snapshot(self, cluster: str, snapshot: Snapshot) -> None:
        """See `EventLog.save_snapshot`."""
        self._cluster(cluster).snapshots[snapshot.name, snapshot.schema] = [snapshot]

    async def load_snapshot(self, cluster: str, *, name: str, schema: str, upto: int | None = None) -> Snapshot | None:
        """See `EventLog.load_snapshot`."""
        kept = self._cluster(cluster).snapshots.get((name, schema), [])
        return next((item for item in reversed(kept) if upto is None or item.position <= upto), None)

    async def close(self) -> None:
        """See `EventLog.close`."""
        self._closed = True


def _found(log: _Cluster, cluster: str, unit: Unit) -> tuple[int, ...]:
    found = [log.by_id.get(new.id.bytes) for new in unit.events]
    if not any(found):
        return ()
    for new, event in zip(unit.events, found, strict=True):
        if event is None or (event.stream, event.type) != (new.stream, type(new.payload).__name__):
            raise IdempotencyConflict(
                f"cluster {cluster}: event {new.id} of stream {new.stream} is in the log in part or as another event"
            )
    return tuple(event.position for event in found if event is not None)


def _record(log: _Cluster, cluster: str, new: NewEvent, recorded_at: int) -> int:
    name = type(new.payload).__name__
    version = log.versions.get(new.stream, 0) + 1
    unsealed = Event(
        cluster=cluster,
        position=len(log.events) + 1,
        stream=new.stream,
        version=version,
        type=name,
        schema=schema_version(name),
        id=new.id,
        actor=new.actor,
        occurred_at=new.occurred_at,
        recorded_at=recorded_at,
        body=msgspec.Raw(encode_payload(new.payload)),
        hash=b"",
        subject=new.subject,
        cause=new.cause,
        correlation=new.correlation,
    )
    event = msgspec.structs.replace(unsealed, hash=event_hash(log.events[-1].hash if log.events else GENESIS, unsealed))
    log.events.append(event)
    log.by_id[new.id.bytes] = event
    log.versions[new.stream] = version
    return event.position


def _passes(event: Event, where: Filter) -> bool:
    return (
        (where.streams is None or event.stream in where.streams)
        and (where.subject is None or event.subject == where.subject)
        and (where.types is None or event.type in where.types)
        and (where.since is None or event.recorded_at >= where.since)
        and (where.until is None or event.recorded_at < where.until)
    )
