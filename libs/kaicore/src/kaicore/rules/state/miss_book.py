"""Why placements were observed otherwise than predicted, as far as it can be told: some only seconds later.

That a kubelet was ahead of the API shows when the API tells the end of what it had freed; that a report showed half of
an admission, when the whole is reported. So a miss stays open for a while, and is counted under one cause in the end.
"""

from collections.abc import Iterable

import msgspec

#: How long a miss may be explained by what is told after it, microseconds.
OPEN_US = 5_000_000

#: Explanations that are kept, for pods that are gone as well.
_MOST_KEPT = 1000


class OpenMiss(msgspec.Struct, frozen=True):
    """A miss whose cause is not known for certain yet.

    Attributes:
        policy, cause: as recorded.
        at: position of its event.
        recorded_at: when that was, microseconds since the epoch.
    """

    uid: str
    node: str
    policy: str
    cause: str
    at: int
    recorded_at: int


class ExplainedMiss(msgspec.Struct, frozen=True):
    """A miss and its cause.

    Attributes:
        at: position of its event.
        charged_at: as the pod's entry has it, 0 where that was gone.
        released: pods that the kubelet had released before the API told their end.
    """

    uid: str
    node: str
    cause: str
    at: int
    charged_at: int = 0
    released: tuple[str, ...] = ()


class MissBook:
    """Open misses, and the last explained ones, by uid of the pod."""

    def __init__(self) -> None:
        self.open: dict[str, OpenMiss] = {}
        self.explained: dict[str, ExplainedMiss] = {}

    def close(self, miss: ExplainedMiss) -> None:
        """Give an open miss its cause."""
        del self.open[miss.uid]
        self.explained.pop(miss.uid, None)
        self.explained[miss.uid] = miss
        if len(self.explained) > _MOST_KEPT:
            del self.explained[next(iter(self.explained))]

    def expired(self, now: int) -> list[OpenMiss]:
        """Return the open misses that nothing will explain any more."""
        return [miss for miss in self.open.values() if miss.recorded_at + OPEN_US <= now]

    def before(self, node: str, *, charged_at: int, since: int) -> list[ExplainedMiss]:
        """Return the explained misses of pods that came to a node before another, told after that was decided on."""
        return [
            miss
            for miss in self.explained.values()
            if miss.node == node and 0 < miss.charged_at < charged_at and miss.at > since
        ]

    def restore(self, open_: Iterable[OpenMiss], explained: Iterable[ExplainedMiss]) -> None:
        """Put back what a snapshot has."""
        self.open = {miss.uid: miss for miss in open_}
        self.explained = {miss.uid: miss for miss in explained}
