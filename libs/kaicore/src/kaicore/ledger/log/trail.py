"""The trail of a cluster's log: snapshots of the state along it, so that no moment of the past is far from one.

Programs that fold write them: services that follow the log, and questions that had to fold far. There is one every
`SPACING` events, or less often where states are large: folding must stay the larger part of the work. When a cluster's
snapshots exceed `MOST_BYTES`, one is dropped: the one with the closest neighbours, relative to its distance from the
trail's end. So the gaps grow with age, and the oldest place stays.
"""

import asyncio
import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kaicore.errors import ConfigurationError, KaiError
from kaicore.ledger.log.port import EventLog, Snapshot

_log = logging.getLogger(__name__)

#: Events between two places, at least.
SPACING = 2000
#: And at least one event for so many compressed bytes of a state.
_BYTES_PER_EVENT = 50
#: Compressed bytes that the trail of one cluster takes at most.
MOST_BYTES = 512 * 1024 * 1024
#: zlib's: the fastest, which makes a state a tenth.
_LEVEL = 1


@dataclass(frozen=True, slots=True)
class TrailPlace:
    """A snapshot on a trail.

    Attributes:
        position: of the state.
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
        ...

    async def load(self, cluster: str, *, schema: str, upto: int) -> Snapshot | None:
        """Return the last snapshot of a schema at or before `upto` that is what was saved; None where there is none."""
        ...

    async def save(self, cluster: str, snapshot: Snapshot, packed: bytes, *, drop: Sequence[TrailPlace] = ()) -> None:
        """Keep a snapshot with the compressed body `packed`, and drop others."""
        ...


@runtime_checkable
class HasTrail(Protocol):
    """A log beside which trails are kept."""

    @property
    def trail(self) -> TrailStore:
        """The store of the snapshots."""
        ...


def trail_of(log: EventLog) -> TrailStore | None:
    """Return where a log's trails are kept; None where it has none."""
    return log.trail if isinstance(log, HasTrail) else None


class Trail:
    """Leaves snapshots of one cluster's state where they are due; for one that folds."""

    def __init__(self, log: EventLog, cluster: str, *, schema: str) -> None:
        """Args:
        log: the log that the trail is of; one that has none is left without.
        cluster: the name of the cluster.
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
            position: that was folded to.
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
