"""A group in a cycle: the pods that may still start, and the cycle's decisions about it so far."""

from collections.abc import Iterable

from kaicore.rules.engine.placement.placer import Assignment
from kaicore.rules.engine.work.workload import Member, Step, Workload
from kaicore.rules.events.reasons.group import HeldByPolicy
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.queues.cycle_queues import KeyPart

#: The parts of `PendingGroup.order_key`.
ORDER_PARTS: tuple[KeyPart, ...] = (
    ("priority", "highest"),
    ("not started, then place by policies", "count"),
    ("age", "time"),
    ("namespace", "text"),
    ("name", "text"),
    ("key", "text"),
)

#: `PendingGroup.order_key`.
OrderKey = tuple[int, int, int, str, str, str]

#: More ranks than a queue has groups.
_RANKS = 2**32


class PendingGroup:
    """A group with waiting pods, in this cycle.

    Attributes:
        workload: the group with all its pods.
        priority: by which it comes before others: its own, and what it has gained by waiting (`PriorityAging`).
        waiting: pods that may still be placed, by leaf, oldest first.
        held_back: how many waiting pods may not be placed in this cycle.
        counts: active pods by leaf, those placed by this cycle included.
        assignments: where this cycle placed pods of it.
        started_by: number of the batch by which this cycle started it, -1 if none did. What it grows by depends on
            that batch.
        moved: whether it ran until it was moved to make room for others; it comes first among equals then.
        nominated: whether room is reserved for pods of it.
        reasons: why it goes no further.
        blocked: whether this cycle is done with it.
        deferred: whether it fits where another replica is to decide first, and waits for that.
        rank: its place among the groups of its queue with its priority, by the operator's policies; 0 without any.
        held: why such a policy does not let it start; None where none holds it.
        kind: the number of its kind among groups that are alike, once that is looked up; 0 for none.
        place: its queue, and its place there, as long as they are not to be looked up again.
    """

    __slots__ = (
        "_step",
        "assignments",
        "blocked",
        "counts",
        "deferred",
        "group",
        "held",
        "held_back",
        "key",
        "kind",
        "moved",
        "nominated",
        "place",
        "priority",
        "rank",
        "reasons",
        "started_by",
        "waiting",
        "workload",
    )

    def __init__(
        self,
        workload: Workload,
        waiting: dict[str, list[Member]],
        held_back: int,
        *,
        gained: int = 0,
        moved: bool = False,
    ) -> None:
        self.workload = workload
        self.moved = moved
        self.group = workload.group
        self.key = workload.group.key
        self.priority = workload.group.priority + gained
        self.waiting = waiting
        self.held_back = held_back
        self.counts = dict(workload.own_counts)
        self.assignments: list[Assignment] = []
        self.started_by = -1
        self.nominated = False
        for members in waiting.values():
            for member in members:
                if member.nomination:
                    self.nominated = True
        self.reasons: tuple[Reason, ...] = ()
        self.blocked = False
        self.deferred = False
        self.rank = 0
        self.held: HeldByPolicy | None = None
        self._step: Step | None = None
        self.kind: int | None = None
        self.place: tuple[str, OrderKey] | None = None

    def step(self) -> Step:
        """Return what is to start next."""
        if self._step is None:
            self._step = self.workload.next_step(self.counts, self.waiting)
        return self._step

    def forget_step(self) -> None:
        """Work out the next step anew, since the group's pods have changed."""
        self._step = self.kind = self.place = None

    def hold(self, reason: HeldByPolicy) -> None:
        """Let no pod of it start in this cycle."""
        self.held, self.held_back = reason, self.held_back + len(self.unplaced)
        self.waiting = {}
        self.forget_step()

    def take(self, members: Iterable[Member]) -> None:
        """Count pods of a step as started, or as nominated."""
        self.forget_step()
        taken: dict[str, set[str]] = {}
        leaf_of = self.workload.leaf
        for member in members:
            taken.setdefault(leaf_of(member), set()).add(member.pod.uid)
        for leaf, uids in taken.items():
            waiting = self.waiting[leaf]
            self.waiting[leaf] = (
                [member for member in waiting if member.pod.uid not in uids] if len(uids) < len(waiting) else []
            )
            self.counts[leaf] = self.counts.get(leaf, 0) + len(uids)

    def lose(self, member: Member) -> None:
        """Count an active pod as evicted."""
        leaf = self.workload.leaf(member)
        self.counts[leaf] = self.counts.get(leaf, 0) - 1
        self.forget_step()

    @property
    def unplaced(self) -> list[Member]:
        """Pods that may still be placed."""
        return [member for members in self.waiting.values() for member in members]

    @property
    def placed_uids(self) -> set[str]:
        """Uids of the pods that this cycle placed."""
        return {assignment.member.pod.uid for assignment in self.assignments}

    @property
    def order_key(self) -> OrderKey:
        """The group's place in its queue: priority, groups that have not started before others, rank, age, name.

        A group that was moved stands as if it were the oldest: it had its place already.
        """
        group = self.group
        started = bool(self.counts) and self.workload.satisfied(self.counts)
        created_at = 0 if self.moved else group.created_at
        return -self.priority, int(started) * _RANKS + self.rank, created_at, group.namespace, group.name, group.key

    @property
    def reservation_order_key(self) -> tuple[int, int, str, str, str]:
        """The group's place among those for which room is reserved: priority, age, name."""
        group = self.group
        return -self.priority, group.created_at, group.namespace, group.name, group.key
