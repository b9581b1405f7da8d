"""The nodes in the view of the topology search: a placer's rows, on which pods are put on trial.

The number of pods of a class that each row takes is kept between searches: only changed rows are counted again.
"""

from collections.abc import Sequence

import numpy as np

from kaicore.rules.engine.placement.placer import Assignment, Placer
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.topology.placing.request import PodsByRow

#: No node takes more pods. How much room a domain has beyond what is asked for matters to the strategies.
_MOST_PODS = 2**31
#: Of so many rows at most one may have changed for it to be worth while.
_PART = 4


class KeptCounts:
    """The counts of one placer's rows, by class."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        #: By class, and by time of creation where that matters: how many changes of rows are taken into account, and
        #: the counts.
        self._kept: dict[tuple[str, int], tuple[int, PodsByRow]] = {}

    def of(self, sample: Member) -> PodsByRow:
        """Return how many pods of a class each row takes as it is now, if it gets no others; not to be changed."""
        pod_class = self._placer.class_of(sample)
        feasible, touched = self._placer.feasible_nodes(pod_class), self._placer.statement.touched
        # Gangs differ in it, so that each would count anew.
        created_at = sample.pod.created_at if feasible.doubted else 0
        key = pod_class.key, created_at
        kept = self._kept.get(key)
        changed = None if kept is None else np.array(sorted(set(touched[kept[0] :])), np.int64)
        # Rules about other pods look beyond the row.
        if kept is None or changed is None or feasible.non_monotonic or len(changed) * _PART > len(kept[1]):
            counts = self._placer.counts(pod_class, most=_MOST_PODS, created_at=created_at)
        elif not len(changed):
            return kept[1]
        else:
            counts = kept[1].copy()
            fresh = self._placer.counts(pod_class, most=_MOST_PODS, created_at=created_at, among=changed)
            counts[changed] = fresh[changed]
        self._kept[key] = len(touched), counts
        return counts


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
        """The places of pods now, in the order in which they were put there."""
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
