"""A whole log, replayed."""

from kaicore.inquiry.folding import events_of
from kaicore.log.port import EventLog, Filter
from kaicore.state.cluster_state import ClusterState
from kaicore.state.replay import KNOWN_BEFOREHAND, Replay, ReplayReport


async def replay_log(log: EventLog, cluster: str) -> ReplayReport:
    """Fold a cluster's whole log again and run every recorded cycle again."""
    known = [event async for event in events_of(log, cluster, where=Filter(types=KNOWN_BEFOREHAND))]
    replay = Replay(ClusterState(cluster), known)
    async for event in events_of(log, cluster):
        replay.take(event)
    return replay.finish()
