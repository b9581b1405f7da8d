"""A group in a cycle: the pods that may still start, and the cycle's decisions about it so far.

Thousands of pods that start alone wait on a full cluster, and a cycle treats those of one kind alike. They stand in
lines, and a group of a line becomes an object only when the cycle takes it up.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from kaicore.rules.engine.placement.placer import Assignment
from kaicore.rules.engine.work.workload import LonePod, Member, OrderKey, RestingLine, Step, Workload
from kaicore.rules.events.reasons.group import HeldByPolicy
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.queues.cycle_queues import CycleQueues, KeyPart

#: The parts of `PendingGroup.order_key`.
ORDER_PARTS: tuple[KeyPart, ...] = (
    ("priority", "highest"),
    ("not started, then place by policies", "count"),
    ("age", "time"),
    ("namespace", "text"),
    ("name", "text"),
    ("key", "text"),
)

#: More ranks than a queue has groups.
_RANKS = 2**32


class PendingGroup:
    """A group with waiting pods, in this cycle.

    Attributes:
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

    def take(self, members: Sequence[Member]) -> None:
        """Count pods of a step as started, or as nominated."""
        self.forget_step()
        if len(self.waiting) == 1:
            ((leaf, waiting),) = self.waiting.items()
            if len(members) == len(waiting):
                self.waiting[leaf], self.counts[leaf] = [], self.counts.get(leaf, 0) + len(members)
                return
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


class AlikeLine:
    """Waiting groups of one kind that start alone, in one queue.

    Attributes:
        pod_class: the key of their class.
        kind: the number of their kind, as `PendingGroup.kind`.
        entries: the place in the queue and the key of each, sorted once all are there.
        keys: the keys alone.
        oldest: when the first of their pods was created, seconds since the epoch.
        made: those that became objects.
        reasons: why the others go no further.
        blocked: whether the action Allocate is done with the others.
    """

    __slots__ = ("blocked", "entries", "keys", "kind", "made", "oldest", "pod_class", "queue", "reasons")

    def __init__(self, pod_class: str, kind: int, queue: str, *, oldest: int) -> None:
        self.pod_class, self.kind, self.queue, self.oldest = pod_class, kind, queue, oldest
        self.entries: list[tuple[OrderKey, str]] = []
        self.keys: list[str] = []
        self.made: list[PendingGroup] = []
        self.reasons: tuple[Reason, ...] = ()
        self.blocked = False

    def is_uniform(self, wanted: Callable[[PendingGroup], bool]) -> bool:
        """Tell whether its groups are alike still, and all of them are wanted."""
        return len(self.made) < len(self.entries) and all(
            one.kind == self.kind and one.reasons is self.reasons and wanted(one) for one in self.made
        )


class PendingGroups(Mapping[str, PendingGroup]):
    """Groups by key, in order; those in lines are made as they are looked up, and all of them by a look at all values.

    Attributes:
        lines: of groups that are alike.
        kinds: numbers of what groups that are alike have in common.
    """

    def __init__(self, workloads: Mapping[str, Workload], accounts: CycleQueues) -> None:
        self.lines: dict[tuple[object, ...], AlikeLine] = {}
        self.kinds: dict[tuple[object, ...], int] = {}
        self._workloads, self._accounts = workloads, accounts
        self._keys: list[str] = []
        self._made: dict[str, PendingGroup] = {}
        self._resting: dict[str, AlikeLine] = {}

    def add(self, pending_group: PendingGroup) -> None:
        """Add a group, behind all others."""
        self._keys.append(pending_group.key)
        self._made[pending_group.key] = pending_group

    def begin(self, pod_class: str, lone: LonePod) -> AlikeLine:
        """Begin a line, of groups like that of a pod (`pod_class`: the key of the pod's class)."""
        kind = pod_class, *lone.kind
        number = self.kinds.setdefault(kind, len(self.kinds) + 1)
        queue = self._accounts.queue_of(self._workloads[lone.member.group].group)
        line = self.lines[kind] = AlikeLine(pod_class, number, queue, oldest=lone.member.pod.created_at)
        return line

    def rest(self, key: str, lone: LonePod, line: AlikeLine) -> None:
        """Add a group to a line, behind all others."""
        line.oldest = min(line.oldest, lone.member.pod.created_at)
        line.entries.append((lone.order_key, key))
        line.keys.append(key)
        self._keys.append(key)
        self._resting[key] = line

    def rest_all(self, resting: RestingLine, pod_class: str) -> None:
        """Add the groups of a line that the state keeps (`pod_class`: the key of their class), behind all others."""
        line = self.begin(pod_class, next(iter(resting.lones.values())))
        entries, keys, line.oldest = resting.in_order()
        line.entries, line.keys = list(entries), list(keys)
        self._keys += keys
        self._resting.update(dict.fromkeys(keys, line))

    def sort(self) -> None:
        """Sort the groups of each line, when all are there."""
        for line in self.lines.values():
            line.entries.sort()

    @property
    def made(self) -> Iterable[PendingGroup]:
        """The groups that are objects by now; no other one has a decision, a nomination or a running pod."""
        return self._made.values()

    def peek(self, key: str) -> PendingGroup | None:
        """Return a group if it is an object by now."""
        return self._made.get(key)

    def resting(self) -> Iterator[tuple[AlikeLine, list[str]]]:
        """Yield each line with the sorted keys of its groups that are no objects, where there are any."""
        for line in self.lines.values():
            if len(line.made) < len(line.entries):
                yield line, sorted([key for key in line.keys if key in self._resting])

    def apart(self, wanted: Callable[[PendingGroup], bool]) -> tuple[list[PendingGroup], list[AlikeLine]]:
        """Return the wanted groups, by key, but for those of lines that are uniform; and these lines."""
        uniform = [line for line in self.lines.values() if line.is_uniform(wanted)]
        for line in self.lines.values():
            if line not in uniform:
                self.make(line)
        in_lines = {one.key for line in uniform for one in line.made}
        others = [one for one in self._made.values() if one.key not in in_lines and wanted(one)]
        return sorted(others, key=lambda one: one.key), uniform

    def make(self, line: AlikeLine) -> list[PendingGroup]:
        """Return all groups of a line as objects."""
        return [self[key] for _, key in line.entries]

    def make_first(self, line: AlikeLine, *, created_by: int) -> None:
        """Make an object of the first group of a line that is none, of those with a pod created by then (seconds)."""
        if line.oldest <= created_by:
            left = (key for _, key in line.entries if key in self._resting)
            first = next((key for key in left if self._lone(key).member.pod.created_at <= created_by), None)
            if first is not None:
                self._make(first, self._resting.pop(first))

    def __getitem__(self, key: str) -> PendingGroup:
        made = self._made.get(key)
        return made or self._make(key, self._resting.pop(key))

    def __contains__(self, key: object) -> bool:
        return key in self._made or key in self._resting

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def _make(self, key: str, line: AlikeLine) -> PendingGroup:
        lone = self._lone(key)
        made = self._made[key] = PendingGroup(self._workloads[key], {lone.leaf: [lone.member]}, 0)
        made.kind, made.place = line.kind, (line.queue, lone.order_key)
        made.reasons, made.blocked = line.reasons, line.blocked
        line.made.append(made)
        return made

    def _lone(self, key: str) -> LonePod:
        lone = self._workloads[key].lone
        assert lone is not None, "only such groups are in lines"
        return lone
