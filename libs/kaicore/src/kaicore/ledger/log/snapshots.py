"""Snapshots of the state, which are a cache, and the trail of them along a log.

A snapshot that is altered or unreadable is deleted, and this is reported. A digest over cluster, name, schema, position
and body is stored with each; a log returns a snapshot only if its digest fits. `newest` returns the decoded snapshot,
or nothing, and then the reader reads the log from further back. Where that part is gone with retired months, the
snapshots that were kept with them replace it. The hub's state has snapshots of its own.

The trail keeps every moment of the past close to a snapshot. Programs that fold write it: services that follow the log,
and questions that had to fold far. There is one every `SPACING` events, or less often where states are large: folding
must stay the larger part of the work. When a cluster's snapshots exceed `MOST_BYTES`, one is dropped: the one with the
closest neighbours, relative to its distance from the trail's end. So the gaps grow with age, and the oldest
place stays.
"""

import asyncio
import logging
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec
from prometheus_client import Counter

from kaicore.errors import ConfigurationError, CorruptLog, EventsRetired, KaiError
from kaicore.ledger.log.port import EventLog, Snapshot
from kaicore.rules.hub.hub_state import HUB, HubState
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA, decode_state, encode_state

DISCARDED = Counter(
    "kai_snapshots_discarded",
    "Snapshots that were thrown away: not what was saved (digest), not to be read (unreadable), beyond the log (ahead)",
    ["name", "why"],
)

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

#: Under which schedulers save the state.
STATE_SNAPSHOT = "state"

#: Bytes from which on a body is compressed, and how such a one begins; states are documents, which begin otherwise.
_PACKED_FROM = 32 * 1024 * 1024
_MARK = b"zlib\n"
#: zlib's: the fastest, which makes a state a tenth.
_LEVEL = 1

#: What reading bytes that are no snapshot raises.
_UNREADABLE = (msgspec.MsgspecError, KaiError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def snapshot_digest(cluster: str, snapshot: Snapshot) -> bytes:
    """Return the digest that is stored beside a snapshot."""
    about = "".join(f"{part}\n" for part in (cluster, snapshot.name, snapshot.schema, snapshot.position))
    digest = sha256(about.encode())
    # Not put together with what it is about: a state takes hundreds of megabytes.
    digest.update(snapshot.body)
    return digest.digest()


def is_large(snapshot: Snapshot) -> bool:
    """Tell whether a snapshot is compressed, which takes seconds."""
    return len(snapshot.body) >= _PACKED_FROM


def packed(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot as Postgres keeps it: large ones compressed, for it takes no value of 1 GB."""
    if not is_large(snapshot):
        return snapshot
    return replace(snapshot, body=_MARK + zlib.compress(snapshot.body, _LEVEL))


def unpacked(body: bytes) -> bytes:
    """Return the body of a snapshot that may be compressed; raises `zlib.error`."""
    return zlib.decompress(memoryview(body)[len(_MARK) :]) if body.startswith(_MARK) else body


def sound(cluster: str, rows: Iterable[Sequence[Any]]) -> list[Snapshot]:
    """Return the snapshots that are what was saved, and say which are not.

    Args:
        rows: of Postgres: name, position, schema, body and digest.
    """
    found = []
    for *fields, digest in rows:
        snapshot = Snapshot(*fields)
        if snapshot_digest(cluster, snapshot) != digest:
            discard(cluster, snapshot, why="digest")
            continue
        try:
            found.append(replace(snapshot, body=unpacked(snapshot.body)))
        except zlib.error as error:
            discard(cluster, snapshot, why="unreadable", error=str(error))
    return found


def discard(cluster: str, snapshot: Snapshot, *, why: str, error: str = "") -> None:
    """Say that a snapshot is thrown away (`why`: `digest`, `unreadable` or `ahead`)."""

    DISCARDED.labels(snapshot.name, why).inc()
    _log.warning(
        "cluster %s: snapshot thrown away: %s at position %d, schema %s: %s %s",
        cluster,
        snapshot.name,
        snapshot.position,
        snapshot.schema,
        why,
        error,
    )


async def newest(
    log: EventLog, cluster: str, *, name: str, schema: str, read: Callable[[Snapshot], _T], upto: int | None = None
) -> _T | None:
    """Return what the newest sound snapshot holds; None where there is none, and the log is to be read instead.

    Args:
        schema: as this program writes it. One of another schema is read only where the log alone does not suffice.
        read: makes of a snapshot what it holds; may raise whatever comes of bytes that are no snapshot.
        upto: the position that it must not be beyond; by default the log's end.
    """
    end = (await log.head(cluster)).position if upto is None else upto
    snapshot = await log.load_snapshot(cluster, name=name, schema=schema)
    latest = None if snapshot is None else content(cluster, snapshot, read, end=end)
    if latest is not None:
        return latest
    return await newest_kept(log, cluster, name=name, schema=schema, read=read, upto=end)


async def newest_kept(
    log: EventLog, cluster: str, *, name: str, schema: str, read: Callable[[Snapshot], _T], upto: int
) -> _T | None:
    """Return what the newest sound one of the snapshots holds that were kept with retired months; see `newest`."""
    if not await log.retired(cluster):
        return None
    kept = [one for one in await log.kept_snapshots(cluster, name=name) if one.position <= upto]
    for one in sorted(kept, key=lambda one: (one.schema == schema, one.position), reverse=True):
        if (latest := content(cluster, one, read, end=upto)) is not None:
            if one.schema != schema:
                _log.warning("cluster %s: snapshot %s is of another version: schema %s", cluster, name, one.schema)
            return latest
    return None


def content(cluster: str, snapshot: Snapshot, read: Callable[[Snapshot], _T], *, end: int) -> _T | None:
    """Return what a snapshot holds; None, with a line in the log, where it cannot be read or is beyond the end."""
    if snapshot.position > end:
        # The log was restored from an older backup, or its end was cut off.
        discard(cluster, snapshot, why="ahead", error=f"the log ends at {end}")
        return None
    try:
        return read(snapshot)
    except _UNREADABLE as error:
        discard(cluster, snapshot, why="unreadable", error=f"{type(error).__name__}: {error}")
        return None


#: Raised with every change of what the hub's state consists of, or of how it is folded.
_SCHEMA = "hub-2"
_NAME = "hub"
#: Events read at once.
_PAGE = 2000
#: Events that a hub folds until it saves its state again: a few tenths of a second's folding.
KEEP_EVERY = 2000

_decoder = msgspec.msgpack.Decoder(HubState)


def take_hub(state: HubState) -> Snapshot:
    """Return a snapshot of the hub's state as it is now."""
    return Snapshot(_NAME, state.position, _SCHEMA, msgspec.msgpack.encode(state))


async def restored_hub(log: EventLog) -> HubState:
    """Return the newest state of the hub that was saved, else the empty one.

    Raises EventsRetired: there is none, and the log's first events are gone.
    """
    state = await newest(log, HUB, name=_NAME, schema=_SCHEMA, read=_read)
    if state is None and (position := await log.retired(HUB)):
        raise EventsRetired(HUB, position)
    return HubState() if state is None else state


async def folded_hub(log: EventLog, state: HubState) -> HubState:
    """Fold a state of the hub on to its log's end, and return it."""
    while page := await log.read(HUB, after=state.position, limit=_PAGE):
        for event in page:
            state.fold(event)
    return state


def _read(snapshot: Snapshot) -> HubState:
    state = _decoder.decode(snapshot.body)
    if state.position != snapshot.position:
        raise CorruptLog(f"cluster {HUB}: the snapshot at {snapshot.position} holds position {state.position}")
    return state


def take_state(state: ClusterState) -> Snapshot:
    """Return a snapshot of a state as it is now."""
    return Snapshot(STATE_SNAPSHOT, state.position, SNAPSHOT_SCHEMA, encode_state(state))


def read_state(cluster: str, snapshot: Snapshot) -> ClusterState:
    """Return the state that a snapshot holds.

    Raises:
        msgspec.DecodeError: its bytes are no state.
        CorruptLog: it is another cluster's, or of another position.
    """
    state = decode_state(snapshot.body)
    if (state.cluster, state.position) != (cluster, snapshot.position):
        raise CorruptLog(
            f"cluster {cluster}: the snapshot at {snapshot.position} holds cluster {state.cluster} at {state.position}"
        )
    return state


#: Events between two places, at least.
SPACING = 2000
#: And at least one event for so many compressed bytes of a state.
_BYTES_PER_EVENT = 50
#: Compressed bytes that the trail of one cluster takes at most.
MOST_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TrailPlace:
    """A snapshot on a trail.

    Attributes:
        schema: as in `Snapshot`.
        size: compressed bytes.
    """

    position: int
    schema: str
    size: int


class TrailStore(Protocol):
    """A store of trails; a cache."""

    async def places(self, cluster: str) -> list[TrailPlace]:
        """Return the places of a cluster's trail in order of position, those of all schemas."""

    async def load(self, cluster: str, *, schema: str, upto: int) -> Snapshot | None:
        """Return the last snapshot of a schema at or before `upto` that is what was saved; None where there is none."""

    async def save(self, cluster: str, snapshot: Snapshot, packed: bytes, *, drop: Sequence[TrailPlace] = ()) -> None:
        """Keep a snapshot with the compressed body `packed`, and drop others."""


@runtime_checkable
class HasTrail(Protocol):
    """A log beside which trails are kept."""

    @property
    def trail(self) -> TrailStore:
        """The store of the snapshots."""


def trail_of(log: EventLog) -> TrailStore | None:
    """Return where a log's trails are kept; None where it has none."""
    return log.trail if isinstance(log, HasTrail) else None


class Trail:
    """Leaves snapshots of one cluster's state where they are due; for one that folds."""

    def __init__(self, log: EventLog, cluster: str, *, schema: str) -> None:
        """Args:
        log: the log that the trail is of; one that has none is left without.
        schema: of the snapshots that are left; places of others stand for none of it.
        """
        self._store = trail_of(log)
        self._cluster = cluster
        self._schema = schema
        #: No snapshot is due from the first of these on until the second.
        self._covered = 0, 1

    async def passed(self, position: int, take: Callable[[], Snapshot]) -> None:
        """Leave a snapshot if one is due at a position.

        Args:
            take: gives the snapshot there; called only when it is due.
        """
        since, until = self._covered
        if self._store is None or since <= position < until:
            return
        try:
            await self._leave(self._store, position, take)
        except ConfigurationError as error:
            # A role that only reads: taking a state costs as much as folding thousands of events, so not again.
            _log.info("cluster %s: no snapshots are left on the trail: %s", self._cluster, error)
            self._store = None
        except KaiError as error:
            # A server that does not answer: it is a cache.
            _log.info("cluster %s: no snapshot was left on the trail: %s", self._cluster, error)
            self._covered = position, position + SPACING

    async def _leave(self, store: TrailStore, position: int, take: Callable[[], Snapshot]) -> None:
        places = await store.places(self._cluster)
        before = [place for place in places if place.schema == self._schema and place.position <= position]
        due = before[-1].position + _spacing(before[-1].size) if before else SPACING
        if position < due:
            self._covered = position, due
            return
        snapshot = take()
        packed = await asyncio.to_thread(zlib.compress, snapshot.body, _LEVEL)
        self._covered = position, position + _spacing(len(packed))
        place = TrailPlace(position, snapshot.schema, len(packed))
        drop = to_drop([*places, place], schema=self._schema, most_bytes=MOST_BYTES)
        if place not in drop:
            await store.save(self._cluster, snapshot, packed, drop=drop)


def _spacing(size: int) -> int:
    return max(SPACING, size // _BYTES_PER_EVENT)


def to_drop(places: Sequence[TrailPlace], *, schema: str, most_bytes: int) -> list[TrailPlace]:
    """Return which places are to go so that the others are no more than `most_bytes`.

    Those of other schemas go first, the oldest before the others; then always the one that is missed least.
    """
    excess = sum(place.size for place in places) - most_bytes
    drop: list[TrailPlace] = []
    others = [place for place in places if place.schema != schema]
    left = sorted((place for place in places if place.schema == schema), key=lambda place: place.position)
    while excess > 0 and (others or left):
        place = others.pop(0) if others else left.pop(_missed_least(left))
        drop.append(place)
        excess -= place.size
    return drop


def _missed_least(places: Sequence[TrailPlace]) -> int:
    """Return the index of the place with the smallest gap between its neighbours, measured by its age."""
    end = places[-1].position
    gaps = [
        (places[index + 1].position - places[index - 1].position) / (end - places[index].position)
        for index in range(1, len(places) - 1)
    ]
    return 1 + gaps.index(min(gaps)) if gaps else 0
