"""Moments of a log, and ranges between them: the notations that people use, and the position of each.

A moment is a position, a time, or a time before the log's end. Times are those at which events were recorded: a moment
at a time is the last event that was recorded at or before it. No clock is read, so a question has one answer.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kaicore.analysis.json_spelling import time_text
from kaicore.analysis.replay.log_states import check_position, end_text
from kaicore.errors import EventsRetired, InvalidObject, UnknownMoment
from kaicore.ledger.log.port import EventLog, Filter, Head
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.quantity import parse_duration

if TYPE_CHECKING:
    from kaicore.rules.state.cluster_state import ClusterState


_DAY_US = 24 * 3600 * 1_000_000
#: Largest position that a log can have.
_LARGEST = 2**63 - 1
#: Events that are read at once to find the end of an append.
_APPENDED = 200

_WHAT_THERE_IS = (
    "a moment is a position (12345), a time with its zone (2026-11-22T02:55:00Z), a time of the log's last day "
    "(02:55Z), a time before the log's end (-5m, 10m ago), or end"
)
#: A day is no unit of Kubernetes, where days have no fixed length; here one has 24 hours.
_DAYS = re.compile(r"^(\d{1,5})d", re.ASCII)
_TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?(Z?)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Moment:
    """A place in a log; exactly one of these is set.

    Attributes:
        position: of the last event that counts; 0 is before the first one.
        time: the last event recorded at or before it counts, microseconds since the epoch.
        before_end: so long before the last event was recorded, microseconds.
        time_of_day: the last such time (UTC) at or before the log's end, microseconds since midnight.
    """

    position: int | None = None
    time: int | None = None
    before_end: int | None = None
    time_of_day: int | None = None

    def __str__(self) -> str:
        if self.position is not None:
            return f"position {self.position}"
        if self.time is not None:
            return time_text(self.time)
        if self.before_end is not None:
            return f"{self.before_end / 1e6:g} s before the log's end" if self.before_end else "the log's end"
        seconds = (self.time_of_day or 0) // 1_000_000
        return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"


#: Where a log ends.
END = Moment(before_end=0)


def parse_moment(text: str) -> Moment:
    """Read a moment: `12345`, `2026-11-22T02:55:00Z`, `02:55Z`, `-5m`, `10m ago`, `end`.

    Raises UnknownMoment: it is none of these; the message names the valid ones.
    """
    plain = text.strip()
    if plain.isascii() and plain.isdigit():
        if len(plain) > 19 or int(plain) > _LARGEST:
            raise UnknownMoment(f"{plain[:30]}: no log has such a position")
        return Moment(position=int(plain))
    if plain == "end":
        return END
    if plain.startswith("-") or plain.endswith(" ago"):
        return Moment(before_end=_before_end(plain))
    if (clock := _TIME_OF_DAY.fullmatch(plain)) is not None:
        return Moment(time_of_day=_time_of_day(plain, clock))
    return Moment(time=_time(plain))


def _before_end(text: str) -> int:
    length = text.removesuffix(" ago").strip() if text.endswith(" ago") else text[1:]
    length = _DAYS.sub(lambda days: f"{int(days[1]) * 24}h", length)
    try:
        before_end = parse_duration(length, subject="moment", field="duration")
    except InvalidObject:
        raise _no_moment(text, "that is no duration such as -90s, -1h30m, -7d or 10m ago") from None
    if before_end < 0:
        raise _no_moment(text, "that would be after the log's end")
    return before_end


def _time_of_day(text: str, clock: re.Match[str]) -> int:
    hours, minutes, seconds = (int(part or 0) for part in clock.groups()[:3])
    if hours > 23 or minutes > 59 or seconds > 59:
        raise _no_moment(text, "there is no such time of day")
    if not clock[4]:
        raise _no_moment(text, f"it has no time zone; for UTC write {text}Z")
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000


def _time(text: str) -> int:
    try:
        # Python 3.11 takes RFC 3339, and more of ISO 8601.
        time = datetime.fromisoformat(text)
    except ValueError:
        raise _no_moment(text, _WHAT_THERE_IS) from None
    if time.tzinfo is None:
        day_only = len(text) <= len("2026-11-22")
        raise _no_moment(text, f"it has no time zone; for UTC write {text}{'T00:00:00' if day_only else ''}Z")
    try:
        passed = time.astimezone(UTC) - datetime.fromtimestamp(0, UTC)
    except OverflowError:
        raise _no_moment(text, "no log is so old or so new") from None
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


def _no_moment(text: str, why: str) -> UnknownMoment:
    return UnknownMoment(f"{text[:100]!r} is no moment of a log: {why}")


async def position_of(log: EventLog, cluster: str, moment: Moment) -> int:
    """Return a moment's position: for a time that of the last event recorded at or before it.

    Raises:
        UnknownMoment: it is before the log's first event, or beyond its end.
        EventsRetired: it is a time in a month that was retired.
    """
    head = await log.head(cluster)
    if moment.position is not None:
        check_position(cluster, moment.position, head)
        return moment.position
    if not head.position:
        raise UnknownMoment(f"cluster {cluster}: its log is empty: there is no moment {moment}")
    time = _time_of(moment, head)
    if time > head.recorded_at:
        raise UnknownMoment(f"cluster {cluster}: {time_text(time)} is beyond the log's end, {end_text(head)}")
    if time == head.recorded_at:
        return head.position
    later = await log.read(cluster, limit=1, where=Filter(since=time + 1))
    # The head is such an event, unless its month has been retired.
    before = later[0].position - 1 if later else head.position
    if before <= (retired := await log.retired(cluster)):
        if retired:
            raise EventsRetired(cluster, retired)
        first = time_text(later[0].recorded_at)
        raise UnknownMoment(f"cluster {cluster}: {time_text(time)} is before its log begins, at {first}")
    return before


async def time_of(log: EventLog, cluster: str, moment: Moment) -> int:
    """Return the time of a moment: the one that it says, or at which its event was recorded; 0 before the first one.

    Raises: see `position_of`; a time that the moment itself says may be before the log begins, or beyond its end.
    """
    if moment.time is not None:
        return moment.time
    if moment.before_end is not None:
        return max((await log.head(cluster)).recorded_at - moment.before_end, 0)
    position = await position_of(log, cluster, moment)
    events = await log.read(cluster, after=position - 1, upto=position, limit=1) if position else []
    return events[0].recorded_at if events else 0


async def end_of_append(log: EventLog, cluster: str, position: int) -> int:
    """Return the position of the last event that was appended together with one: of a cycle and its decisions."""
    if position <= await log.retired(cluster):
        return position
    end, first = position, None
    while page := await log.read(cluster, after=max(end - 1, 0) if first is None else end, limit=_APPENDED):
        for event in page:
            first = first or event
            if not first.correlation or not appended_together(event, first):
                return end
            end = event.position
    return end


def appended_together(one: Event, other: Event) -> bool:
    """Tell whether two events of one undertaking, such as a cycle and a decision of it, were appended at once."""
    return (one.actor, one.correlation, one.recorded_at) == (other.actor, other.correlation, other.recorded_at)


def _time_of(moment: Moment, head: Head) -> int:
    if moment.time is not None:
        return moment.time
    if moment.before_end is not None:
        return head.recorded_at - moment.before_end
    assert moment.time_of_day is not None
    return head.recorded_at - (head.recorded_at - moment.time_of_day) % _DAY_US


async def state_at(log: EventLog, cluster: str, position: int) -> "ClusterState":
    """Return the state after the event at a position; see `kaicore.analysis.replay.past_states.PastStates.at`."""
    # A client of the API reads moments, and needs no state.
    from kaicore.analysis.replay.past_states import PastStates  # noqa: PLC0415

    return await PastStates(log, cluster, once=True).at(position)


@dataclass(frozen=True, slots=True)
class Range:
    """The events from `first` to `last`, both included."""

    first: int
    last: int


async def range_of(log: EventLog, cluster: str, *, since: Moment | None = None, until: Moment | None = None) -> Range:
    """Return the positions of a range of a log.

    Args:
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
