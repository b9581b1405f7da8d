"""Liveness of members, as one of them observes it.

A member renews its record again and again. An observer counts it as live until it has not seen the record renewed for
the record's duration, **by the observer's own clock**. No two clocks are compared, so a wrong clock does no harm. Only
a clock that runs too fast or too slow does, by as much as its rate is off. A record that is gone without having been
withdrawn, because the store lost it, counts like one that is not renewed.
"""

from collections.abc import Iterable
from typing import NamedTuple

#: Seconds after the end of a member's time at which an observer looks whether it was renewed after all.
JUST_AFTER_S = 0.01

#: What waits for a record's end looks at the record so many times in its duration. A renewal that is seen late counts
#: from then, so it would see the end late by as much, and a withdrawal too.
LOOKS = 8

#: How often a record is renewed in its duration.
RENEWALS = 3


class Sighting(NamedTuple):
    """A member's record as it was read.

    Attributes:
        member: whose.
        revision: of the record; another one with each renewal.
        duration_s: how long it counts without being renewed; 0 for a record that was withdrawn.
    """

    member: str
    revision: int
    duration_s: float


class Liveness:
    """What an observer has seen of members' records."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}

    def observe(self, sightings: Iterable[Sighting], *, now: float) -> None:
        """Take what was read.

        Args:
            sightings: of any members.
            now: the observer's monotonic clock **after** reading, seconds; so no record counts for less than its time.
        """
        for member, revision, duration_s in sightings:
            if duration_s <= 0:
                self._seen.pop(member, None)
            elif self._seen.get(member, (0, 0.0))[0] != revision:
                self._seen[member] = (revision, now + duration_s)

    def live(self, *, now: float) -> tuple[str, ...]:
        """Return the members that count as live, sorted."""
        return tuple(sorted(member for member, (_, until) in self._seen.items() if now < until))

    def next_end(self, *, now: float) -> float:
        """Return when the next of the live members will count no more if it is not seen renewed; infinity for never."""
        return min((until for _, until in self._seen.values() if now < until), default=float("inf"))
