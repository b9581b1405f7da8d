"""The number of pods of a class that each row takes, kept between searches: only changed rows are counted again."""

import numpy as np

from kaicore.rules.engine.placement.placer import Placer
from kaicore.rules.engine.workload import Member
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
