"""Reasons of reserved starts (decision 0660): room is promised to a group, would be taken from it, or no longer is."""

from typing import Self

from msgspec import field
from msgspec.structs import replace

from kaicore.rules.events.reasons.base import CodedReason, plural, time_text

#: So many nodes are named in words.
_MOST_NAMES = 4


class RoomPromised(CodedReason, frozen=True, kw_only=True):
    """The group is the first that waits for room: nothing starts before it that would delay it.

    Attributes:
        nodes: on how many nodes it is to start.
        example: one of them.
        names: all of them, with commas.
        starts_at: the earliest time at which it can start, by the declared limits of what runs and by runs like those,
            microseconds since the epoch; 0 where nothing says it.
        unlimited: how many pods without a limit have to end before.
        expected: of how many of them runs of like pods say when they end.
        first_starts_at: the first time at which a start was promised, microseconds since the epoch; 0 for none.
        since: when room was promised first, microseconds since the epoch.
        moved: why the promise is not the first one; empty if it is.
        looked_at: when all nodes were looked at last for room that is only held, microseconds since the epoch; 0 for
            `since`.
    """

    nodes: int = 0
    example: str = ""
    unlimited: int = field(name="need", default=0)
    names: str = field(name="detail", default="")
    since: int = 0
    starts_at: int = 0
    moved: str = ""
    expected: int = 0
    first_starts_at: int = 0
    looked_at: int = 0

    def is_like(self, other: Self) -> bool:
        """Tell whether another record promises the same, whyever and whenever it was looked for."""
        return replace(self, moved=other.moved, looked_at=other.looked_at) == other

    def __str__(self) -> str:
        first = self.names.split(", ")[:_MOST_NAMES]
        others = f" and {self.nodes - len(first)} more" if self.nodes > len(first) else ""
        when = f"earliest start {time_text(self.starts_at)}" if self.starts_at else "it starts as soon as it fits"
        unknown = f", and {plural(self.unlimited, 'pod')} without a time limit must end" if self.unlimited else ""
        unknown += f" ({self.expected} by then, by the runs of like pods)" if self.expected else ""
        moved = f"; moved: {self.moved}" if self.moved else ""
        if self.moved and self.first_starts_at not in (0, self.starts_at):
            moved += f" (first promised for {time_text(self.first_starts_at)})"
        return f"reserved: nodes {', '.join(first)}{others}, {when}{unknown}, since {time_text(self.since)}{moved}"


class WouldDelay(CodedReason, frozen=True, kw_only=True):
    """The pods would fit, but would delay the group that room is promised to.

    Attributes:
        nodes: on how many nodes room is kept for that group.
        example: one of them.
        group: that group, `<kind> <namespace>/<name>`.
        starts_at: when it can start at the earliest, microseconds since the epoch; 0 where that is not known.
    """

    nodes: int = 0
    example: str = ""
    group: str = field(name="detail", default="")
    starts_at: int = 0

    def __str__(self) -> str:
        where = f"on {plural(self.nodes, 'node')} (such as {self.example})"
        if not self.starts_at:
            return f"would delay {self.group}, for which room is kept {where}"
        until = time_text(self.starts_at)
        return f"would delay {self.group}, which can start at {until} {where}: no declared limit ends it before that"


class PromiseGivenUp(CodedReason, frozen=True, kw_only=True):
    """Room is no longer promised to the group.

    Attributes:
        cause: why: see `kaicore.rules.engine.decisions.GiveUpReason`.
        until: until when no room is held for it without known limits, microseconds since the epoch; 0 for not at all.
    """

    cause: str = field(name="detail", default="")
    until: int = 0

    def __str__(self) -> str:
        until = f"; none is held without known limits until {time_text(self.until)}" if self.until else ""
        return f"room is no longer reserved for it: {self.cause}{until}"
