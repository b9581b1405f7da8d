"""Reservations: nodes that are for some work, or for nobody, from when to when, once or again and again.

A reservation is an object of its own (`kai reserve`, or `kubectl`). Nodes are named, or chosen by their labels. Work of
its queue or namespace may use them as before. All other work may be on them only outside its windows, so a pod starts
there only if it ends before the next one begins. A reservation for nobody is a maintenance window.

A time zone's law changes, and machines know different states of it. So the fact has the offsets of its zone, as the
watcher that recorded it knew them: whoever replays a log finds the windows of that day.
"""

import re
from bisect import bisect_right
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import islice, pairwise, takewhile
from typing import NamedTuple

import msgspec
from dateutil.rrule import rrulestr

from kaicore.errors import InvalidObject

#: Work of unknown length starts on reserved nodes until so long before a window, microseconds.
NOTICE_US = 3_600_000_000
#: A rule of recurrence has one of these as its frequency: a finer one is a mistake.
FREQUENCIES = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_WEEKDAY = f"({'|'.join(_WEEKDAYS)})"
_MONTH = "(0?[1-9]|1[0-2])"
_MONTHDAY = "[+-]?(0?[1-9]|[12][0-9]|3[01])"
_ONE_OF_MONTH = f"[+-]?[1-5]{_WEEKDAY}"
#: The parts of a rule, and what they can be. dateutil takes more of some, and then fails later or searches for ever.
_PARTS = {
    "FREQ": "|".join(FREQUENCIES),
    "INTERVAL": "[1-9][0-9]{0,3}",
    "COUNT": "[1-9][0-9]{0,5}",
    "UNTIL": "[0-9]{8}T[0-9]{6}Z",
    # Of days of both kinds, dateutil takes those that are both, and RFC 5545 those that are either.
    "BYDAY": f"{_WEEKDAY}(,{_WEEKDAY})*|{_ONE_OF_MONTH}(,{_ONE_OF_MONTH})*",
    "BYMONTHDAY": f"{_MONTHDAY}(,{_MONTHDAY})*",
    "BYMONTH": f"{_MONTH}(,{_MONTH})*",
    "WKST": _WEEKDAY,
}
_MOST_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_FOUR_YEARS = timedelta(days=1_462)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
#: Windows of a reservation that are looked at; a daily one has so many in three years.
_MOST_WINDOWS = 1_100


class Window(NamedTuple):
    """A stretch of time, microseconds since the epoch; its end is not part of it."""

    start: int
    end: int


class ZoneOffset(NamedTuple):
    """So many seconds a zone's clocks are ahead of UTC since a time (microseconds since the epoch)."""

    since: int
    seconds: int


class _Zone(tzinfo):
    """The clocks of a reservation.

    A time that they skip counts by the offset before, and of one that they show twice the first counts, as RFC 5545 has
    it. The first offset holds for all earlier times, the last for all later ones.
    """

    def __init__(self, offsets: tuple[ZoneOffset, ...]) -> None:
        self._since = [since for since, _ in offsets[1:]]
        self._local = [
            later.since + 1_000_000 * max(earlier.seconds, later.seconds) for earlier, later in pairwise(offsets)
        ]
        self._offsets = [timedelta(seconds=seconds) for _, seconds in offsets]

    def utcoffset(self, moment: datetime | None, /) -> timedelta | None:
        return None if moment is None else self._offsets[bisect_right(self._local, _us(moment.replace(tzinfo=UTC)))]

    def dst(self, moment: datetime | None, /) -> None:
        return None

    def tzname(self, moment: datetime | None, /) -> None:
        return None

    def fromutc(self, moment: datetime, /) -> datetime:
        return moment + self._offsets[bisect_right(self._since, _us(moment.replace(tzinfo=UTC)))]


class NodeReservation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reservation.

    Attributes:
        queue: the queue that it is for, with the queues below that one; empty for any.
        namespace: the namespace that it is for; empty for any. With neither it is for nobody: maintenance.
        work: the work in that namespace that it is for, by the name of its Job, group or lone pod; empty for all of it.
        nodes: names of the nodes.
        node_labels: labels of further nodes; all must be there. None for no further ones.
        start: of the first window, microseconds since the epoch.
        end: of the first window.
        recurrence: when further windows begin, as RFC 5545 has it (`FREQ=WEEKLY;BYDAY=SA`); empty for never.
        notice_us: until so long before a window work of unknown length may start there.
        drain_by: when all other work has left its nodes, microseconds since the epoch; 0 where nothing is evicted. From
            its start on, work is evicted that can go on elsewhere; then all of it.
        time_zone: name of the zone by which it recurs (`Europe/Berlin`); empty for UTC.
        offsets: of that zone, in order; none for UTC.
    """

    uid: str
    name: str
    resource_version: str
    start: int
    end: int
    queue: str = ""
    namespace: str = ""
    nodes: tuple[str, ...] = ()
    node_labels: dict[str, str] | None = None
    recurrence: str = ""
    notice_us: int = NOTICE_US
    drain_by: int = 0
    work: str = ""
    time_zone: str = ""
    offsets: tuple[ZoneOffset, ...] = ()

    @property
    def maintenance(self) -> bool:
        """True if it is for nobody."""
        return not (self.queue or self.namespace)

    def admits(self, *, queues: Collection[str], namespace: str, group: str) -> bool:
        """Tell whether it is for some work (`queues`: that pays for it, and those above; `group`: its group's key)."""
        if self.maintenance or self.work not in ("", group.rpartition("/")[2]):
            return False
        return (not self.queue or self.queue in queues) and self.namespace in ("", namespace)

    def has(self, node: str, labels: Mapping[str, str]) -> bool:
        """Tell whether a node is one of its nodes."""
        if node in self.nodes:
            return True
        return self.node_labels is not None and self.node_labels.items() <= labels.items()

    def window(self, at: int) -> Window | None:
        """Return the window in which a moment is, or else the next one; None after the last."""
        if at < self.end or not self.recurrence:
            return Window(self.start, self.end) if at < self.end else None
        found = _next_start(self.recurrence, self.start, at - (self.end - self.start), self.offsets)
        return None if found is None else Window(found, found + self.end - self.start)

    def windows(self, begin: int, end: int) -> list[Window]:
        """Return the windows that a stretch of time touches, in order, `_MOST_WINDOWS` at most."""
        length = self.end - self.start
        starts = [self.start]
        if self.recurrence:
            rule = rrulestr(self.recurrence, dtstart=_local(self.start, self.offsets))
            found = islice(rule.xafter(_moment(max(begin - length, 0))), _MOST_WINDOWS)
            later = takewhile(lambda start: start < end, (_us(moment) for moment in found))
            starts += [start for start in later if start > self.start]
        windows = (Window(start, start + length) for start in starts)
        return [one for one in windows if one.start < end and one.end > begin]

    def first_of_rule(self) -> int | None:
        """Return the first moment of its recurrence that is not before its start; None where there is none."""
        return _next_start(self.recurrence, self.start, self.start - 1, self.offsets)


def check_recurrence(text: str, *, start: int, offsets: tuple[ZoneOffset, ...] = (), subject: str, field: str) -> None:
    """Look whether a rule of recurrence can be followed.

    Args:
        start: of the first window, microseconds since the epoch.
        offsets: of its zone; none for UTC.

    Raises InvalidObject: it is none, is too fine, or has no day in four years.
    """
    parts = dict(part.partition("=")[::2] for part in text.upper().split(";"))
    if parts.get("FREQ") not in FREQUENCIES:
        raise InvalidObject(subject, field, text[:100], f"needs FREQ, one of {', '.join(FREQUENCIES)}")
    if unknown := sorted(parts.keys() - _PARTS.keys()):
        raise InvalidObject(subject, field, text[:100], f"{unknown[0]} is not supported")
    try:
        if wrong := [name for name, value in parts.items() if not re.fullmatch(_PARTS[name], value)]:
            raise ValueError(f"{wrong[0]} cannot be {parts[wrong[0]][:40]!r}")
        if parts["FREQ"] in ("DAILY", "WEEKLY") and re.search("[1-5]", parts.get("BYDAY", "")):
            raise ValueError(f"BYDAY={parts['BYDAY'][:40]} needs FREQ=MONTHLY or YEARLY")
        if {"COUNT", "UNTIL"} <= parts.keys():
            raise ValueError("COUNT and UNTIL exclude each other")
        begin = _local(start, offsets)
        found = None
        if sought := _may_have_a_day(parts, begin):
            endless = ";".join(part for part in text.split(";") if not part.upper().startswith("COUNT="))
            found = next(iter(rrulestr(endless, dtstart=begin).replace(until=begin + _FOUR_YEARS)), None)
        if found is None and not (sought and "UNTIL" in parts):
            raise ValueError("it has no day in four years")
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidObject(subject, field, text[:100], f"is no rule of RFC 5545: {error}") from None


def _may_have_a_day(parts: Mapping[str, str], begin: datetime) -> bool:
    """Tell whether a rule may ever hold: dateutil would look until the year 9999, which takes half a minute."""
    if parts["FREQ"] == "DAILY" and int(parts.get("INTERVAL", "1")) % 7 == 0:
        return _WEEKDAYS[begin.weekday()] in parts.get("BYDAY", _WEEKDAYS[begin.weekday()])
    days = [abs(int(day)) for day in parts.get("BYMONTHDAY", "1").split(",")]
    months = [int(month) for month in parts.get("BYMONTH", "1").split(",")]
    return min(days) <= max(_MOST_DAYS[month - 1] for month in months)


@lru_cache(maxsize=4096)
def _next_start(recurrence: str, start: int, after: int, offsets: tuple[ZoneOffset, ...]) -> int | None:
    """Return when the first window begins after a moment."""
    rule = rrulestr(recurrence, dtstart=_local(start, offsets))
    found = rule.after(_moment(after))
    return None if found is None else _us(found)


@lru_cache(maxsize=256)
def _zone(offsets: tuple[ZoneOffset, ...]) -> tzinfo:
    return _Zone(offsets) if offsets else UTC


def _local(us: int, offsets: tuple[ZoneOffset, ...]) -> datetime:
    return _moment(us).astimezone(_zone(offsets))


def _us(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _moment(us: int) -> datetime:
    """Return a time; the last one that there is for what is later, such as a repetition of "until 9999"."""
    return _EPOCH + timedelta(microseconds=max(0, min(us, _LAST_US)))


def whom_text(queue: str, namespace: str, work: str) -> str:
    """Write for whom a reservation is: a queue, a namespace, a work there, or nobody."""
    of = [f"{kind} {name}" for kind, name in (("work", work), ("queue", queue), ("namespace", namespace)) if name]
    return ", ".join(of) or "maintenance"


def reservation_terms(reservation: NodeReservation, window: Window) -> str:
    """Write for whom a reservation is, and one of its windows."""
    whom = whom_text(reservation.queue, reservation.namespace, reservation.work)
    return f"for {whom}, {_text(window.start)} to {_text(window.end)}"


def _text(us: int) -> str:
    return _moment(us).strftime("%Y-%m-%dT%H:%M:%SZ")
