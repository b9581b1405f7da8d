"""The state at a log's end, by way of the newest snapshot."""

from collections.abc import AsyncIterator

import msgspec

from kaicore.events.envelope import Event
from kaicore.log.port import EventLog, Filter
from kaicore.state.cluster_state import ClusterState
from kaicore.state.snapshot import SNAPSHOT_SCHEMA, decode_state

#: Under which the scheduler's snapshots are kept.
SNAPSHOT_NAME = "state"

#: Events read at once.
_PAGE = 2000


async def events_of(
    log: EventLog, cluster: str, *, after: int = 0, where: Filter | None = None
) -> AsyncIterator[Event]:
    """Read events page by page, to the log's end."""
    while page := await log.read(cluster, after=after, limit=_PAGE, where=where):
        for event in page:
            yield event
        after = page[-1].position


async def restored(log: EventLog, cluster: str) -> ClusterState:
    """Return the newest state that was saved, or the empty one."""
    snapshot = await log.load_snapshot(cluster, name=SNAPSHOT_NAME, schema=SNAPSHOT_SCHEMA)
    if snapshot is None:
        return ClusterState(cluster)
    try:
        return decode_state(snapshot.body)
    except msgspec.DecodeError:
        # A snapshot is a cache: one that cannot be read is one that is not there.
        return ClusterState(cluster)


async def folded(log: EventLog, cluster: str) -> ClusterState:
    """Return the state at the log's end, by way of a snapshot where there is one."""
    state = await restored(log, cluster)
    async for event in events_of(log, cluster, after=state.position):
        state.fold(event)
    return state
