"""Pods that wait for a node are recorded after everything else of the first lists.

Otherwise a scheduler that follows a new log would see waiting pods and empty nodes. It would place pods on nodes with
running pods that the log does not have yet.
"""

from collections.abc import Iterable, Sequence

from kaicore.rules.events.envelope import Unit
from kaicore.rules.events.payloads import PodObserved


class FirstLists:
    """Holds back what has to come last, until every kind was listed once."""

    def __init__(self, kinds: Iterable[str]) -> None:
        """Args: kinds: whose first lists are awaited."""
        self._outstanding = set(kinds)
        self._held: list[Unit] = []
        self._streams: set[str] = set()

    @property
    def complete(self) -> bool:
        """Whether every kind was listed."""
        return not self._outstanding

    @property
    def outstanding(self) -> tuple[str, ...]:
        """Kinds that were not listed yet."""
        return tuple(sorted(self._outstanding))

    def admit(self, units: Sequence[Unit]) -> Sequence[Unit]:
        """Return the units that may be recorded now; the others are held back, the order in a stream being kept."""
        if self.complete:
            return units
        admitted = []
        for unit in units:
            first = unit.events[0]
            if first.stream in self._streams or _waits(unit):
                self._streams.add(first.stream)
                self._held.append(unit)
            else:
                admitted.append(unit)
        return admitted

    def listed(self, kind: str) -> Sequence[Unit]:
        """Take note of a list; return what was held back, if it was the last one awaited."""
        self._outstanding.discard(kind)
        if not self.complete:
            return ()
        held, self._held = self._held, []
        self._streams.clear()
        return held


def _waits(unit: Unit) -> bool:
    payload = unit.events[0].payload
    return isinstance(payload, PodObserved) and not payload.pod.node_name and not payload.pod.finished
