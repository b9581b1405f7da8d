"""A group in a cycle: what of it may still start, and what became of it so far."""

from collections.abc import Iterable

from kaicore.rules.engine.placement.placer import Assignment
from kaicore.rules.engine.workload import Member, Step, Workload
from kaicore.rules.model.pod import Amounts
from kaicore.rules.reasons.reason import Reason


class PendingGroup:
    """A group with waiting pods, in this cycle.

    Attributes:
        queues: pods that may still be placed, by leaf, oldest first.
        counts: active pods by leaf, those placed by this cycle included.
        spots: where this cycle put pods of it.
        start: number of the decision by which this cycle started it, -1 if none did; all it grows by stands and falls
            with that.
        nominated: whether room is kept for pods of it.
        reasons: why it goes no further.
        blocked: its turn is over.
        request: what its next step asks for, once somebody has asked.
    """

    __slots__ = (
        "_step",
        "blocked",
        "counts",
        "held_back",
        "nominated",
        "queues",
        "reasons",
        "request",
        "spots",
        "start",
        "workload",
    )

    def __init__(self, workload: Workload, queues: dict[str, list[Member]], held_back: int) -> None:
        self.workload = workload
        self.queues = queues
        self.held_back = held_back
        self.counts = dict(workload.own_counts)
        self.spots: list[Assignment] = []
        self.start = -1
        self.nominated = any(member.nomination for members in queues.values() for member in members)
        self.reasons: tuple[Reason, ...] = ()
        self.blocked = False
        self._step: Step | None = None
        self.request: Amounts | None = None

    def step(self) -> Step:
        """Return what is to start next."""
        if self._step is None:
            self._step = self.workload.next_step(self.counts, self.queues)
        return self._step

    def forget_step(self) -> None:
        """Its pods have changed: what is to start next may be something else."""
        self._step = self.request = None

    def take(self, members: Iterable[Member]) -> None:
        """Note that pods of a step start, or are to."""
        self.forget_step()
        for member in members:
            leaf = self.workload.leaf(member)
            self.queues[leaf].remove(member)
            self.counts[leaf] = self.counts.get(leaf, 0) + 1

    @property
    def left(self) -> list[Member]:
        """Pods that may still be placed."""
        return [member for members in self.queues.values() for member in members]
