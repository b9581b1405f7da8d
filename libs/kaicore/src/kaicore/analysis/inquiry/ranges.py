"""Ranges of a log: the notations for their ends, and the positions of these."""

from dataclasses import dataclass

from kaicore.analysis.inquiry.moments import Moment, position_of
from kaicore.errors import EventsRetired, UnknownMoment
from kaicore.ledger.log.port import EventLog


@dataclass(frozen=True, slots=True)
class Range:
    """The events from `first` to `last`, both included."""

    first: int
    last: int


async def range_of(log: EventLog, cluster: str, *, since: Moment | None = None, until: Moment | None = None) -> Range:
    """Return the positions of a range of a log.

    Args:
        log: that it is of.
        cluster: whose log.
        since: the first event: at this position, or recorded at this time or after; by default the first one left.
        until: the last event: at this position, or recorded at this time or before; by default the last one.

    Raises:
        EventsRetired: it begins in a month that was retired.
        UnknownMoment: it ends before the log's first event or beyond its last one, or begins beyond; the log is empty,
            or the range is.
    """
    head = await log.head(cluster)
    if not head.position:
        raise UnknownMoment(f"cluster {cluster}: its log is empty")
    last = head.position if until is None else await position_of(log, cluster, until)
    retired = await log.retired(cluster)
    first = retired + 1 if since is None else await _first(log, cluster, since, retired)
    if first <= retired:
        raise EventsRetired(cluster, retired)
    if first > last:
        raise UnknownMoment(f"cluster {cluster}: the range is empty: it begins with event {first}, ends with {last}")
    return Range(first, last)


async def _first(log: EventLog, cluster: str, since: Moment, retired: int) -> int:
    if since.position is not None:
        # Who asks for position 0 means the beginning.
        return max(await position_of(log, cluster, since), 1)
    if since.time is not None:
        # Events that were recorded at that very time are in the range.
        since = Moment(time=since.time - 1)
    try:
        return await position_of(log, cluster, since) + 1
    except UnknownMoment:
        head = await log.head(cluster)
        if since.time is not None and since.time >= head.recorded_at:
            raise
        return retired + 1
