"""A whole log, replayed."""

from collections.abc import Callable

from kaicore.analysis.inquiry.log_states import events_of, first_state
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.state.replay import KNOWN_BEFOREHAND, Replay
from kaicore.rules.state.replay_report import ReplayReport


async def replay_log(
    log: EventLog, cluster: str, *, progress: Callable[[int, int], None] = lambda _, __: None
) -> ReplayReport:
    """Fold a cluster's log again and run every recorded cycle again, up to where the log ends now.

    Where months have been retired, it goes on from the state that was kept with them.

    Args:
        log: to replay.
        cluster: whose log.
        progress: called with how far it is, and how far it will go, in positions.

    Raises:
        EventsRetired: no sound state was kept.
    """
    # One end for both passes: what is appended meanwhile is no part of it.
    head = (await log.head(cluster)).position
    state = await first_state(log, cluster)
    after, where = state.position, Filter(types=KNOWN_BEFOREHAND)
    events = [event async for event in events_of(log, cluster, after=after, upto=head, where=where)]
    replay = Replay(state, events)
    async for event in events_of(log, cluster, after=after, upto=head):
        replay.take(event)
        progress(event.position, head)
    return replay.finish()
