"""Order of work: decisions of one node are carried out one after the other, those of different nodes side by side.

A kubelet admits pods in the order in which they are bound, and the NUMA zones that it gives to one depend on those that
it gave before. The prediction assumed the order of the decisions, so that order is kept.
"""

from collections import deque
from uuid import UUID

from kai_binder.projection import PodBinding


class Lanes:
    """One lane per node: its first decision is given out, and the next one only when that is done."""

    def __init__(self) -> None:
        self._lanes: dict[str, deque[PodBinding]] = {}
        self._held: set[UUID] = set()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, binding: PodBinding) -> PodBinding | None:
        """Put a decision at the end of its node's lane unless it is there already; return it if it is its turn."""
        if binding.event_id in self._held:
            return None
        lane = self._lanes.setdefault(binding.decision.node, deque())
        lane.append(binding)
        self._held.add(binding.event_id)
        return binding if len(lane) == 1 else None

    def done(self, binding: PodBinding) -> PodBinding | None:
        """Take note that a decision that was given out is done with; return the next one of its node, if any."""
        lane = self._lanes[binding.decision.node]
        first = lane.popleft()
        assert first is binding
        self._held.discard(binding.event_id)
        if lane:
            return lane[0]
        del self._lanes[binding.decision.node]
        return None

    def leave(self, binding: PodBinding) -> int:
        """Leave a node's decisions, of which one was given out, to another binder; return how many they are."""
        lane = self._lanes.pop(binding.decision.node)
        assert lane[0] is binding
        self._held.difference_update(one.event_id for one in lane)
        return len(lane)
