"""The last events of a type before a position, read backwards, each event once."""

from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events.envelope import Event

#: Events of the log that are looked through first.
_WINDOW = 4000
#: How many times as far back the next look goes at most; and how much farther than the density so far asks for.
_MOST_GROWTH, _MARGIN = 16, 1.25
_PAGE = 1000


async def last_events(
    log: EventLog, cluster: str, where: Filter, *, after: int = 0, upto: int, enough: int
) -> tuple[list[Event], int]:
    """Return the last events that a filter lets through, in order: so many at least, or all that there are.

    Args:
        log: the cluster's.
        cluster: its name.
        where: what is meant; it must be read along an index, as types and streams are.
        after: nothing before this position is looked at, and not the event there either.
        upto: the last position that is looked at.
        enough: how many events are enough.

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
    while page := await log.read(cluster, after=after, upto=upto, limit=_PAGE, where=where):
        events += page
        if len(page) < _PAGE:
            break
        after = page[-1].position
    return events
