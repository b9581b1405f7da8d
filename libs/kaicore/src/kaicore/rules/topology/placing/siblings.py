"""The sets and pods of one set that have been placed so far: the pods that they attract, and the domains that they
close.
"""

from dataclasses import dataclass, field

import numpy as np

from kaicore.rules.topology.ordered import Numbers, OrderedTree, Truths
from kaicore.rules.topology.placing.trial import Trial
from kaicore.rules.topology.placing.work import Work


@dataclass(slots=True)
class Siblings:
    """What of a set has been put, in order.

    Attributes:
        tree: the spots.
        trial: where it has been put.
        work: the set.
        closed: spots that are closed to all of it; None for none.
        begin: number of the set's first pod in the trial.
        ends: of each that has been placed, the set, or None for pods with no constraint of their own, and the number
            of the pod behind its last one.
    """

    tree: OrderedTree
    trial: Trial
    work: Work
    closed: Truths | None
    begin: int
    ends: list[tuple[Work | None, int]] = field(default_factory=list)

    def pull(self) -> Numbers | None:
        """Return of each spot how many pods of the set attract others; None for none."""
        placed = self.trial.placed_since(self.begin)
        if placed is None or self.work.held is None:
            return self.work.held if placed is None else placed
        return placed + self.work.held

    def closed_to(self, one: Work | None) -> Truths | None:
        """Return the spots that are closed to one more: its own domains are shared with no exclusive set's."""
        shut: dict[int, list[int]] = {}
        begin = self.begin
        for placed, end in self.ends:
            if placed is not None and placed.exclusive:
                shut.setdefault(placed.required, []).extend(self.trial.spots[begin:end])
            begin = end
        for batch in self.work.batches:
            for other in batch.works if batch.works[0].exclusive else ():
                if other is not one and other.held is not None:
                    shut.setdefault(other.required, []).extend(np.flatnonzero(other.held).tolist())
        if one is not None and one.exclusive:
            there = self.trial.spots[self.begin :]
            if self.work.held is not None:
                others = self.work.held if one.held is None else self.work.held - one.held
                there = [*there, *np.flatnonzero(others > 0).tolist()]
            shut.setdefault(one.required, []).extend(there)
        closed = self.closed
        for depth, spots in shut.items():
            if spots:
                domains = np.zeros(len(self.tree.starts[depth]), np.bool_)
                domains[self.tree.of[depth][spots]] = True
                inside = domains[self.tree.of[depth]]
                closed = inside if closed is None else closed | inside
        return closed
