"""The state at a log's end, by way of the newest sound snapshot, and the state from which on the log has all events."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial

from kaicore.errors import EventsRetired
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.snapshots import STATE_SNAPSHOT, content, newest
from kaicore.ledger.log.state_snapshot import read_state
from kaicore.ledger.log.trail import trail_of
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA

#: Events read at once.
_PAGE = 2000


async def pages_of(
    log: EventLog, cluster: str, *, after: int = 0, upto: int | None = None, where: Filter | None = None
) -> AsyncIterator[list[Event]]:
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


async def restored(log: EventLog, cluster: str) -> ClusterState:
    """Return the newest state that was saved, by itself or on the trail, else the empty one.

    Raises:
        EventsRetired: there is none, and the log's first events are gone.
    """
    state = await newest(log, cluster, name=STATE_SNAPSHOT, schema=SNAPSHOT_SCHEMA, read=partial(read_state, cluster))
    if (trail := trail_of(log)) is not None:
        end = (await log.head(cluster)).position
        last = await trail.load(cluster, schema=SNAPSHOT_SCHEMA, upto=end)
        if last is not None and last.position > (0 if state is None else state.position):
            state = content(cluster, last, partial(read_state, cluster), end=end) or state
    return await _from_the_beginning(log, cluster) if state is None else state


async def first_state(log: EventLog, cluster: str) -> ClusterState:
    """Return the state from which on the log has all events: the empty one, or the one kept with the last month.

    Raises:
        EventsRetired: the log's first events are gone, and no sound state was kept.
    """
    if not await log.retired(cluster):
        return ClusterState(cluster)
    for snapshot in reversed(await log.kept_snapshots(cluster, name=STATE_SNAPSHOT)):
        state = content(cluster, snapshot, partial(read_state, cluster), end=snapshot.position)
        if state is not None:
            return state
    return await _from_the_beginning(log, cluster)


async def _from_the_beginning(log: EventLog, cluster: str) -> ClusterState:
    if position := await log.retired(cluster):
        raise EventsRetired(cluster, position)
    return ClusterState(cluster)


async def folded(log: EventLog, cluster: str) -> ClusterState:
    """Return the state at the log's end, by way of a snapshot where there is one.

    Raises:
        EventsRetired: there is none, and the log's first events are gone.
    """
    state = await restored(log, cluster)
    async for event in events_of(log, cluster, after=state.position):
        state.fold(event)
    return state
