"""Check of a log for resources that were promised twice."""

from kaicore.analysis.inquiry.log_states import events_of, first_state
from kaicore.ledger.log.port import EventLog
from kaicore.rules.state.promises import PromiseCheck, PromiseReport


async def promises_of(log: EventLog, cluster: str, *, upto: int) -> PromiseReport:
    """Check every decision of a cluster's log up to a position; where months have been retired, of what is left.

    Raises:
        EventsRetired: months have been retired, and no sound state was kept with them.
    """
    check = PromiseCheck(await first_state(log, cluster))
    async for event in events_of(log, cluster, after=check.state.position, upto=upto):
        check.take(event)
    return check.report
