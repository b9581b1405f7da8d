"""The nodes in the view of the topology search: a placer's rows, on which pods are put on trial."""

from collections.abc import Sequence

import numpy as np

from kaicore.rules.engine.placement.placer import Assignment, Placer
from kaicore.rules.engine.topology.kept_counts import KeptCounts
from kaicore.rules.engine.workload import Member
from kaicore.rules.numa.zone_arrays import Flags, Ints
from kaicore.rules.topology.placing.request import PodsByRow


class PlacerRoom:
    """A placer's rows as `kaicore.rules.topology.placing.request.Room`; pods are numbers in the order given.

    Attributes:
        classes: of each pod, as a number.
        samples: a pod of each class.
    """

    def __init__(
        self, placer: Placer, members: Sequence[Member], kept_counts: KeptCounts, *, among: Flags | None = None
    ) -> None:
        """Args:
        placer: on the nodes at one time.
        members: by number.
        kept_counts: of the placer.
        among: rows that may take pods; None for all.
        """
        self.classes: list[int] = []
        self.samples: list[Member] = []
        self.placer = placer
        self._members = members
        self._kept_counts = kept_counts
        self._among = among
        #: Where pods were put, each with the savepoint before it.
        self._trail: list[tuple[int, Assignment]] = []
        #: Counts by class, as long as no pod is put or taken off.
        self._counts: dict[int, PodsByRow] = {}
        #: By class, as they were when they were asked for first.
        self._preferences: dict[int, PodsByRow | None] = {}
        numbers: dict[str, int] = {}
        for member in members:
            number = numbers.setdefault(placer.class_of(member).key, len(numbers))
            if number == len(self.samples):
                self.samples.append(member)
            self.classes.append(number)

    @property
    def assignments(self) -> list[Assignment]:
        """Where pods are now, in the order in which they were put there."""
        return [assignment for _, assignment in self._trail]

    def counts(self, pod_class: int) -> PodsByRow:
        """See `Room.counts`."""
        counts = self._counts.get(pod_class)
        if counts is None:
            counts = self._count(pod_class)
            if self._among is not None:
                counts = np.where(self._among, counts, 0)
            self._counts[pod_class] = counts
        return counts

    def preferences(self, pod_class: int) -> PodsByRow | None:
        """See `Room.preferences`."""
        if pod_class not in self._preferences:
            feasible = self.placer.feasible_nodes(self.placer.class_of(self.samples[pod_class]))
            self._preferences[pod_class] = feasible.preferences()
        return self._preferences[pod_class]

    def remaining(self) -> Ints | None:
        """See `Room.remaining`."""
        columns = self.placer.statement.columns
        remaining: Ints = np.maximum(columns.allocatable - columns.used, 0)
        return remaining

    def takes(self, pod_class: int) -> Ints:
        """See `Room.takes`."""
        return self.placer.feasible_nodes(self.placer.class_of(self.samples[pod_class])).need

    def put(self, pods: Sequence[int], row: int) -> int:
        """See `Room.put`."""
        self._counts.clear()
        for place, pod in enumerate(pods):
            before = self.savepoint()
            assignment = self._place(self._members[pod], row)
            if assignment is None:
                return place
            self._trail.append((before, assignment))
        return len(pods)

    def savepoint(self) -> int:
        """See `Room.savepoint`."""
        return self.placer.statement.savepoint()

    def rollback(self, savepoint: int) -> None:
        """See `Room.rollback`."""
        self._counts.clear()
        self._undo(savepoint)
        while self._trail and self._trail[-1][0] >= savepoint:
            self._trail.pop()

    def _count(self, pod_class: int) -> PodsByRow:
        return self._kept_counts.of(self.samples[pod_class])

    def _place(self, member: Member, row: int) -> Assignment | None:
        return self.placer.place_on(member, row)

    def _undo(self, savepoint: int) -> None:
        self.placer.statement.rollback(savepoint)
