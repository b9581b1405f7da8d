"""States of a log: at its end, by way of the newest valid snapshot, and the one from which on the log has all events.

The ends of a log answer questions about positions that it does not have. The last events of a type are read backwards,
each once.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from functools import partial

from kaicore.analysis.json_spelling import time_text
from kaicore.errors import CorruptLog, EventsRetired, UnfoldableEvent, UnknownMoment
from kaicore.ledger.log.port import EventLog, Filter, Head, Snapshot
from kaicore.ledger.log.snapshots import STATE_SNAPSHOT, content, newest_kept, read_state, trail_of
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.quarantine import doubt
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA

#: Events of the log that are looked through first.
_WINDOW = 4000
#: How many times as far back the next look goes at most; and how much farther than the density so far asks for.
_MOST_GROWTH, _MARGIN = 16, 1.25
_LAST_PAGE = 1000


async def last_events(
    log: EventLog, cluster: str, where: Filter, *, after: int = 0, upto: int, enough: int
) -> tuple[list[Event], int]:
    """Return the last events that a filter lets through, in order: so many at least, or all.

    Args:
        where: what is meant; it must be read along an index, as types and streams are.
        after: nothing before this position is looked at, and not the event there either.
        upto: the last position that is looked at.

    Returns:
        The events, and the position after which they are; that is `after` where there are no more.
    """
    events: list[Event] = []
    begin, window = upto, _WINDOW
    while begin > after and len(events) < enough:
        end, begin = begin, max(after, begin - window)
        events = [*await _between(log, cluster, where, begin, end), *events]
        looked_at = upto - begin
        wanted = _MARGIN * looked_at * (enough - len(events)) / max(len(events), 1)
        window = max(_WINDOW, min(int(wanted), looked_at * _MOST_GROWTH))
    return events, begin


async def _between(log: EventLog, cluster: str, where: Filter, after: int, upto: int) -> list[Event]:
    events: list[Event] = []
    while page := await log.read(cluster, after=after, upto=upto, limit=_LAST_PAGE, where=where):
        events += page
        if len(page) < _LAST_PAGE:
            break
        after = page[-1].position
    return events


def check_position(cluster: str, position: int, head: Head) -> None:
    """Raise UnknownMoment unless a log that ends at `head` has a position; 0 is before its first event."""
    if position < 0:
        raise UnknownMoment(f"cluster {cluster}: position {position} is before the log begins: the first event is 1")
    if position > head.position:
        raise UnknownMoment(f"cluster {cluster}: position {position} is beyond the log's end, {end_text(head)}")


def end_text(head: Head) -> str:
    """Return where a log ends, in words."""
    return f"position {head.position}, recorded at {time_text(head.recorded_at)}" if head.position else "position 0"


#: Events read at once.
_PAGE = 2000


async def pages_of(
    log: EventLog, cluster: str, *, after: int = 0, upto: int | None = None, where: Filter | None = None
) -> AsyncGenerator[list[Event], None]:
    """Read events, some at a time, up to and including `upto`, by default to the log's end.

    The next ones are asked for before the caller has taken these, so that a server reads while the caller computes.
    """
    reading = asyncio.ensure_future(log.read(cluster, after=after, upto=upto, limit=_PAGE, where=where))
    try:
        while page := await reading:
            last = page[-1].position
            if last == upto:
                yield page
                return
            reading = asyncio.ensure_future(log.read(cluster, after=last, upto=upto, limit=_PAGE, where=where))
            # Sends the question.
            await asyncio.sleep(0)
            yield page
    finally:
        # Where the caller has enough, nobody asks what became of the next ones.
        reading.cancel()
        await asyncio.wait({reading})
        if not reading.cancelled():
            reading.exception()


async def events_of(
    log: EventLog, cluster: str, *, after: int = 0, upto: int | None = None, where: Filter | None = None
) -> AsyncGenerator[Event, None]:
    """Read events one by one; see `pages_of`."""
    async for page in pages_of(log, cluster, after=after, upto=upto, where=where):
        for event in page:
            yield event


async def fold_on(
    log: EventLog, state: ClusterState, position: int, *, step: int, take: Callable[[Event], object] | None = None
) -> AsyncGenerator[int, None]:
    """Fold a state on to a position, and yield how many events were folded each time that it was `step` at most.

    Args: take: folds one event; by default the state itself.

    Raises:
        CorruptLog: there are no events up to that position, or they contradict each other.
        EventsRetired: the next ones are gone with a retired month.
        LogUnavailable: the log does not answer; the state is at the end of a step.
    """
    if state.position >= position:
        return
    async with aclosing(pages_of(log, state.cluster, after=state.position, upto=position)) as pages:
        async for page in pages:
            for first in range(0, len(page), step):
                part = page[first : first + step]
                await fold_through(log, state, part, take=take)
                yield len(part)
                # Others get their turn.
                await asyncio.sleep(0)
    if state.position < position:
        raise CorruptLog(f"cluster {state.cluster}: event {state.position + 1} is missing")


async def restored(log: EventLog, cluster: str, *, upto: int | None = None) -> ClusterState:
    """Return the newest state that was saved, else the empty one.

    Raises EventsRetired: there is none, and the log's first events are gone.

    Args:
        upto: the position that it must not be beyond; by default the log's end.
    """
    state = await saved(log, cluster, upto=upto)
    return state if state is not None else await _from_the_beginning(log, cluster)


async def saved(log: EventLog, cluster: str, *, upto: int | None = None, beyond: int = -1) -> ClusterState | None:
    """Return the newest state that was saved, by itself, on the trail, or with a retired month; None where none is.

    Args:
        upto: the position that it must not be beyond; by default the log's end.
        beyond: the position that it must be beyond.
    """
    end, read = (await log.head(cluster)).position if upto is None else upto, partial(read_state, cluster)
    snapshots = [await log.load_snapshot(cluster, name=STATE_SNAPSHOT, schema=SNAPSHOT_SCHEMA, upto=upto)]
    if (trail := trail_of(log)) is not None:
        snapshots.append(await trail.load(cluster, schema=SNAPSHOT_SCHEMA, upto=end))
    # From an earlier one on, events are missing.
    first = max(await log.retired(cluster), beyond + 1)
    sound = [one for one in snapshots if one is not None and one.position >= first]
    for one in sorted(sound, key=lambda one: -one.position):
        if (state := content(cluster, one, read, end=end)) is not None:
            return state
    kept = await newest_kept(log, cluster, name=STATE_SNAPSHOT, schema=SNAPSHOT_SCHEMA, read=read, upto=end)
    return kept if kept is not None and kept.position > beyond else None


async def first_state(log: EventLog, cluster: str) -> ClusterState:
    """Return the state from which on the log has all events: the empty one, or the one kept with the last month.

    Raises EventsRetired: the log's first events are gone, and no sound state was kept.
    """
    if not await log.retired(cluster):
        return ClusterState(cluster)
    kept = await last_kept(log, cluster)
    return kept[1] if kept is not None else await _from_the_beginning(log, cluster)


async def last_kept(log: EventLog, cluster: str) -> tuple[Snapshot, ClusterState] | None:
    """Return the last sound snapshot that was kept with a retired month, and the state that it holds; None for none."""
    for snapshot in reversed(await log.kept_snapshots(cluster, name=STATE_SNAPSHOT)):
        state = content(cluster, snapshot, partial(read_state, cluster), end=snapshot.position)
        if state is not None:
            return snapshot, state
    return None


async def _from_the_beginning(log: EventLog, cluster: str) -> ClusterState:
    if position := await log.retired(cluster):
        raise EventsRetired(cluster, position)
    return ClusterState(cluster)


async def folded(log: EventLog, cluster: str) -> ClusterState:
    """Return the state at the log's end, by way of a snapshot where there is one.

    Raises EventsRetired: there is none, and the log's first events are gone.
    """
    state = await restored(log, cluster)
    async for page in pages_of(log, cluster, after=state.position):
        await fold_through(log, state, page)
    return state


async def fold_through(
    log: EventLog, state: ClusterState, events: Iterable[Event], *, take: Callable[[Event], object] | None = None
) -> None:
    """Fold events into a state; those that it cannot take in are quarantined.

    Raises LogUnavailable: the log does not answer; the state is not to be used any more.
    """
    for event in events:
        try:
            (take or state.fold)(event)
        except UnfoldableEvent as failed:
            state.become(await refolded(log, failed))


async def refolded(log: EventLog, failed: UnfoldableEvent) -> ClusterState:
    """Return the state right behind an event that cannot be folded.

    The event is quarantined if a state from the log cannot take it in either: what is in memory can be wrong, too.

    Raises EventsRetired: the events before it are gone, and no state before it was kept.
    """
    doubted = False
    while True:
        state = await restored(log, failed.cluster, upto=failed.position - 1)
        try:
            async for event in events_of(log, failed.cluster, after=state.position, upto=failed.position):
                if event.position == failed.position and not doubted:
                    doubt(event)
                    doubted = True
                state.fold(event)
        except UnfoldableEvent:
            # An earlier one, now known.
            continue
        return state
