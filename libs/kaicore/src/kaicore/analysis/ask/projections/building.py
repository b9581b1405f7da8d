"""Builds read models: starts or continues a generation, and follows the log with it."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Protocol

from msgspec.structs import replace

from kaicore.analysis.ask.projections.projection import (
    HOUR_US,
    MINUTE_US,
    OWN_COLUMNS,
    PROJECTION_SCHEMA,
    Projection,
    first_row,
    own_changes,
)
from kaicore.analysis.ask.projections.rows import DecisionsHour, Occupancy, PodHistory, QueueHour, RowChanges, TimeRow
from kaicore.analysis.ask.projections.store import Generation, Superseded
from kaicore.analysis.replay.log_states import first_state, fold_on, pages_of, restored
from kaicore.analysis.replay.samples import (
    SampleDifference,
    differing,
    differs_by_sample,
    drawn_pods,
    pod_events,
    some,
)
from kaicore.errors import CorruptLog
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.cluster_state import ClusterState

#: Events in one transaction.
_BATCH = 500
#: Events that a check folds before others get their turn.
_STEP = 50


class GenerationStore(Protocol):
    """The store of read models; `ViewStore` says what each call does."""

    async def generations(self, cluster: str) -> list[Generation]:
        """Return the generations, the oldest first."""

    async def begin(self, cluster: str, *, position: int, recorded_at: int) -> Generation:
        """Begin a generation without rows."""

    async def there(self, cluster: str, generation: int) -> list[PodHistory]:
        """Return the rows of pods that are not gone."""

    async def pods(self, cluster: str, generation: int, uids: Collection[str]) -> list[PodHistory]:
        """Return the rows of some pods."""

    async def over_time(
        self, cluster: str, generation: int, *, minutes: tuple[int, int], hours: tuple[int, int]
    ) -> list[TimeRow]:
        """Return the rows of the minutes and hours that begin within these times."""

    async def save(
        self, cluster: str, before: Generation, changes: RowChanges, *, position: int, recorded_at: int
    ) -> None:
        """Write what events change, and how far they go, if the generation is where it was."""

    async def go_live(self, cluster: str, generation: int) -> None:
        """Make a generation the one that is read, and delete the others."""


class EventWatcher(Protocol):
    """Sees each event before it is taken in, and keeps what it makes of them before the read models are saved."""

    def look(self, state: ClusterState, event: Event) -> None:
        """See an event; `state` is as of the one before, and changes afterwards."""

    async def keep(self, position: int) -> None:
        """Keep what was made of the events up to a position; it may be asked for more than once."""


class FoldCounter(Protocol):
    """Counts along with folds: each event before it is folded, from the begin of a fold to its end."""

    def begin(self, state: ClusterState) -> None:
        """Take the state that is folded next."""

    def take(self, event: Event) -> None:
        """Take the event that is folded next."""

    def end(self) -> None:
        """Take that the fold is over."""


class Builder:
    """Builds one generation of one cluster's read models."""

    def __init__(
        self, log: EventLog, store: GenerationStore, cluster: str, generation: Generation, projection: Projection
    ) -> None:
        """Prefer `resume`, `beside` or `anew`."""
        self._log = log
        self._store = store
        self._cluster = cluster
        self.generation = generation
        self._projection = projection
        self.watcher: EventWatcher | None = None
        #: Events that were taken in, and what they change, until that is saved.
        self._unsaved: tuple[list[Event], RowChanges] | None = None

    @classmethod
    async def resume(cls, log: EventLog, store: GenerationStore, cluster: str) -> "Builder":
        """Go on with the newest generation that this program's rules have made; begin one where there is none.

        Raises EventsRetired: events that are needed have left the log, and no snapshot stands for them.
        """
        return await cls.beside(log, store, cluster) or await cls.anew(log, store, cluster)

    @classmethod
    async def beside(cls, log: EventLog, store: GenerationStore, cluster: str) -> "Builder | None":
        """Stand where the newest generation is that this program's rules have made; None where there is none.

        It may be another builder's: `trail` goes after that one, and `step` takes its place.
        Raises EventsRetired: events that are needed have left the log, and no snapshot stands for them.
        """
        generation, pods = await _newest(store, cluster), list[PodHistory]()
        while generation is not None:
            pods = await store.there(cluster, generation.number)
            before, generation = generation, await _newest(store, cluster)
            if generation == before:
                break
            # Another builder has moved on meanwhile: the position of the rows is unknown.
        if generation is None:
            return None
        # Not by way of PastStates, which makes bytes of states for later questions: here are none.
        state = await restored(log, cluster, upto=generation.position)
        async with aclosing(fold_on(log, state, generation.position, step=_BATCH)) as steps:
            async for _ in steps:
                pass
        return cls(log, store, cluster, generation, Projection(state, pods))

    @classmethod
    async def anew(cls, log: EventLog, store: GenerationStore, cluster: str) -> "Builder":
        """Begin a generation, beside the others.

        Raises EventsRetired: the log's first events are gone, and no state was kept with them.
        """
        state = await first_state(log, cluster)
        generation = await store.begin(cluster, position=state.position, recorded_at=state.recorded_at)
        return cls(log, store, cluster, generation, Projection(state, ()))

    @property
    def state(self) -> ClusterState:
        """The state as of the last event that was taken in; it changes with the next step."""
        return self._projection.state

    async def step(self) -> list[Event]:
        """Take in the next events, and return them; after `LogUnavailable` it may be called again.

        Raises Superseded: another one builds this generation, or has deleted it.
        """
        if self._unsaved is None:
            events = await self._log.read(self._cluster, after=self.generation.position, limit=_BATCH)
            if not events:
                return []
            for event in events:
                if self.watcher is not None:
                    self.watcher.look(self._projection.state, event)
                self._projection.take(event)
            self._unsaved = events, self._projection.changes()
        events, changes = self._unsaved
        if self.watcher is not None:
            await self.watcher.keep(events[-1].position)
        position, recorded_at = events[-1].position, events[-1].recorded_at
        await self._store.save(self._cluster, self.generation, changes, position=position, recorded_at=recorded_at)
        self._moved_to(events[-1])
        self._unsaved = None
        return events

    async def trail(self) -> None:
        """Take in what another builder has saved of this generation since, and save nothing.

        After `LogUnavailable` it may be called again.

        Raises:
            CorruptLog: the log ends before the generation does, as one that was restored from an older backup.
            Superseded: the generation is gone, another one is read, or this builder could not save what it took in.
        """
        saved = await _newest(self._store, self._cluster)
        if saved is None or saved.number != self.generation.number or self._unsaved is not None:
            raise Superseded(f"cluster {self._cluster}: generation {self.generation.number} is built by another one")
        while (at := self.generation.position) < saved.position:
            events = await self._log.read(self._cluster, after=at, upto=saved.position, limit=_BATCH)
            if not events:
                raise CorruptLog(f"cluster {self._cluster}: event {at + 1} is missing")
            for event in events:
                self._projection.take(event)
            self._projection.changes()
            self._moved_to(events[-1])
        self.generation = saved

    async def differs_by_sample(self, state: ClusterState) -> SampleDifference | None:
        """Compare a sample of the state with the log, and of the saved rows with the events of their pods."""
        return await differs_by_sample(self._log, state) or await self.rows_differ(
            {
                *await drawn_pods(self._log, self._cluster, upto=state.position),
                *some(self._projection.pods, state.position),
            }
        )

    async def stored_differs(self, after: int, upto: int) -> SampleDifference | None:
        """Compare the saved rows of all pods that the events between two positions are about."""
        async with aclosing(pages_of(self._log, self._cluster, after=after, upto=upto)) as pages:
            async for events in pages:
                streams = sorted({event.stream for event in events if event.stream.startswith("pod/")})
                for first in range(0, len(streams), _BATCH):
                    found = await self.rows_differ([one[len("pod/") :] for one in streams[first : first + _BATCH]])
                    if found is not None:
                        return found
        return None

    async def rows_differ(self, uids: Collection[str]) -> SampleDifference | None:
        """Compare the saved rows of pods with what their own events make of these, each by itself."""
        upto = self.generation.position
        rows = {row.uid: row for row in await self._store.pods(self._cluster, self.generation.number, uids)}
        # Rows may have been written since.
        known = max([upto, *(row.position for row in rows.values())])
        events = await pod_events(self._log, self._cluster, uids, upto=known)
        shown = {uid: None if (row := rows.get(uid)) is None else _by_own_events(row) for uid in uids}
        later = {uid: row.position for uid, row in rows.items() if row.position > upto}
        found = [
            differing({uid: own}, shown.__getitem__, _row_of, later.get(uid, upto))
            for uid, own in sorted(events.items())
        ]
        differ = [one for one in found if one is not None]
        if not differ:
            return None
        parts = tuple(part.replace("/pods/", "/rows/") for one in differ for part in one.parts)
        return SampleDifference(min(one.after for one in differ), parts)

    async def times_differ(self, folded: "FoldedRows") -> SampleDifference | None:
        """Compare the saved rows of the minutes and hours that are over with what the events make of them."""
        saved = await self._store.over_time(
            self._cluster, self.generation.number, minutes=folded.minutes, hours=folded.hours
        )
        here = dict(_timed(saved))
        after, right = folded.taken()
        parts = sorted(part for part in here.keys() | right.keys() if here.get(part) != right.get(part))
        return SampleDifference(after, tuple(parts)) if parts else None

    def _moved_to(self, event: Event) -> None:
        self.generation = self.generation._replace(position=event.position, recorded_at=event.recorded_at)

    async def catch_up(self, *, progress: Callable[[int, int], None] = lambda _, __: None) -> None:
        """Take in all events; then this generation is the one that is read.

        Args:
            progress: called with the position that is reached, and the one that will be.
        """
        head = await self._log.head(self._cluster)
        while self.generation.position < head.position and await self.step():
            progress(self.generation.position, head.position)
        if not self.generation.live:
            await self._store.go_live(self._cluster, self.generation.number)
            self.generation = self.generation._replace(live=True)


class FoldedRows:
    """Rows of minutes and hours as a check's folds make them; those of an hour go on from one fold to the next.

    Attributes:
        minutes, hours: from when to when they are whole.
    """

    def __init__(self, log: EventLog, counter: FoldCounter) -> None:
        """Args: counter: counts along with the folds."""
        self._log, self._counter = log, counter
        self._rows: dict[str, TimeRow] = {}
        #: Positions: before the first event of the rows, and before and after those of the last fold.
        self._after = self._began = self._at = -1
        self.minutes = self.hours = (0, 0)

    async def fold(self, state: ClusterState, position: int) -> None:
        """Fold a state on; see `fold_on` for the errors, after which it may be called again."""
        self._began, began = state.position, state.recorded_at
        if state.position != self._at:
            # A part of the hour that has begun is unknown.
            self._rows, self._after = {}, state.position
            self.minutes = began // MINUTE_US * MINUTE_US, 0
            self.hours = began and began // HOUR_US * HOUR_US + HOUR_US, 0
        projection = Projection(state, ())

        def take(event: Event) -> None:
            self._counter.take(event)
            projection.take(event)

        self._counter.begin(state)
        async for _ in fold_on(self._log, state, position, step=_STEP, take=take):
            pass
        self._counter.end()
        changes = projection.changes()
        for part, row in _timed((*changes.occupancy, *changes.queues, *changes.decisions)):
            before = self._rows.get(part)
            if before is None or isinstance(row, Occupancy) or isinstance(before, Occupancy):
                self._rows[part] = row
            else:
                self._rows[part] = row.plus(before)
        self._at, now = state.position, state.recorded_at
        self.minutes = self.minutes[0], now // MINUTE_US * MINUTE_US
        self.hours = self.hours[0], now // HOUR_US * HOUR_US

    def taken(self) -> tuple[int, dict[str, TimeRow]]:
        """Return the rows that are whole, and the position before their first event; go on behind them."""
        after, (first, last) = self._after, self.hours
        whole = {part: row for part, row in self._rows.items() if isinstance(row, Occupancy) or row.at < last}
        self._rows = {part: row for part, row in self._rows.items() if part not in whole}
        self._after = self._began if last > first else after
        self.minutes, self.hours = (self.minutes[1], 0), (max(self.hours), 0)
        return after, {part: row for part, row in whole.items() if isinstance(row, Occupancy) or row.at >= first}


def _timed(rows: Iterable[TimeRow]) -> Iterator[tuple[str, TimeRow]]:
    """Yield rows of minutes and hours by what names them, without the counts that later events still change."""
    for row in rows:
        if isinstance(row, Occupancy):
            yield f"/occupancy/{row.at}", row
        elif isinstance(row, QueueHour):
            yield f"/queue_hour/{row.at}/{row.queue}/{row.resource}", row
        elif (final := replace(row, agreed=0, contradicted=0)) != DecisionsHour(at=row.at):
            yield f"/decisions_hour/{row.at}", final


def _by_own_events(row: PodHistory) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in OWN_COLUMNS)


def _row_of(events: Sequence[Event]) -> tuple[object, ...] | None:
    """Return what the events of a pod make of its row; None where there is none."""
    row: PodHistory | None = None
    for event in events:
        payload, at = decode_payload(event), event.recorded_at
        if row is None and isinstance(payload, payloads.PodObserved):
            row = first_row(payload.pod, at=at)
        if row is not None:
            row = replace(row, **own_changes(row, payload, at=at))
            if row.gone_at:
                break
    return None if row is None else _by_own_events(row)


async def _newest(store: GenerationStore, cluster: str) -> Generation | None:
    """Return the generation to go on with: the one that is read, or else the last; None where these rules made none."""
    ours = [one for one in await store.generations(cluster) if one.schema == PROJECTION_SCHEMA]
    return next((one for one in ours if one.live), ours[-1]) if ours else None
