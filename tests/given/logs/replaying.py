"""A replay of events as they were recorded."""

from collections.abc import Iterable

from kaicore.rules.deciding.replay import KNOWN_BEFOREHAND, Replay, ReplayReport
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.cluster_state import ClusterState


def replayed(events: Iterable[Event], policies: PolicyBook = NO_POLICIES) -> ReplayReport:
    """Decide anew all that a log of one cluster says was decided."""
    log = [*events]
    known = [event for event in log if event.type in KNOWN_BEFOREHAND]
    replay = Replay(ClusterState(log[0].cluster), known, policies=policies)
    for event in log:
        replay.take(event)
    return replay.finish()
