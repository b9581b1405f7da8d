"""A restore point of a state: facts that are tried, and then taken back by other facts, leave no trace.

The other facts restore what follows from the objects that there are. Times, counts of changes and the past of groups
do not follow from them. Each part that keeps such figures copies them and puts them back.
"""

from kaicore.rules.state.cluster_state import ClusterState


class RestorePoint:
    """The figures of a state that facts change for good, as they were when it was taken.

    Counters are not among them: no decision depends on these.
    """

    def __init__(self, state: ClusterState, group: str) -> None:
        """Args:
        state: as it is now.
        group: key of the group that the facts may be about, with those that it starts together with.
        """
        index, known = state.workload_index, state.groups.get(group)
        together = () if known is None else known.together
        self._state = state
        self._clock = state.context.clock
        self._rejections = state.rejections.copy()
        self._readiness = state.node_readiness.copy()
        self._workloads = index.records({group, *together, *index.needed_by.get(group, ())})

    def restore(self) -> None:
        """Put the figures back, after facts that take back all others; once."""
        state = self._state
        state.context.turn_back(self._clock)
        state.rejections.restore(self._rejections)
        state.node_readiness.restore(self._readiness)
        there = state.workload_index.workloads
        state.workload_index.restore([record for record in self._workloads if record.key in there])
