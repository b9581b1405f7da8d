"""Candidates: the pods that may be evicted for a group, and the pods that have to go together.

A gang is never left below its minimum: it goes as a whole, and with it all gangs that start together with it. The cost
is in `kaicore.rules.engine.victims.eviction_cost`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.victims.eviction_cost import MOST_MINUTES, Ending, cost_of, gpu_seconds_lost, minutes_lost
from kaicore.rules.engine.victims.victim_set import VictimSet, name_of
from kaicore.rules.engine.work.workload import Counts, Member, Workload
from kaicore.rules.model.gpu_share import GPU
from kaicore.rules.model.quantity import PODS
from kaicore.rules.numa.columns import Ints


class Candidates:
    """The pods that may be evicted for a group.

    Attributes:
        workloads: the groups with pods that may be evicted, by key.
        on_row: the pods that are still there to be evicted, by row and uid.
        banned: keys of groups of which nothing may be evicted in the present search, and uids of single pods that may
            not.
        taken: keys of the groups that the present search has taken pods of, with how many times.
    """

    def __init__(self, session: Session, workloads: Sequence[Workload], *, protected: Mapping[str, int]) -> None:
        """Args:
        workloads: the groups with pods that may be evicted.
        protected: until when some of them must keep their minimum, by key; microseconds since the epoch.
        """
        self._session = session
        self._protected = protected
        priorities = sorted({workload.group.priority for workload in workloads})
        self._ranks = {priority: rank for rank, priority in enumerate(priorities, 1)}
        self.workloads = {workload.group.key: workload for workload in workloads}
        self._extra = {} if session.policies is None else session.policies.extra_costs(self.workloads)
        #: How many pods are evicted, by group and leaf.
        self._evicted: dict[str, dict[str, int]] = {}
        self.banned: set[str] = set()
        self.taken: Counter[str] = Counter()
        #: How many of the cycle's evictions are taken into account.
        self._synced = len(session.record.evicted)
        #: What is evicted together with a pod, by group and uid, as long as nothing is taken from the group.
        self._victim_sets: dict[str, dict[str, VictimSet | None]] = {}
        #: What it costs to evict the pod of a group that has no other, by group, as long as its set was not asked for.
        self._lone_costs: dict[str, int | None] = {}
        self._lone_bases: dict[tuple[int, Ending, str, int], int] = {}
        self._sums: tuple[Ints, Ints, dict[int, int]] | None = None
        self._losses: tuple[int, list[Member], Ints] | None = None
        #: How much work each pod loses if it goes, by uid, in GPU-seconds.
        self._lost: dict[str, int] = {}
        #: Rows of which the sums are to be worked out anew.
        self._outdated: set[int] = set()
        columns = session.nodes.columns
        self.on_row: dict[int, dict[str, Member]] = {}
        for workload in workloads:
            for uid, member in workload.active.items():
                if uid not in session.record.evicted:
                    self.on_row.setdefault(columns.rows[member.node], {})[uid] = member
                else:
                    self._count(workload, member)

    def begin(self, keep: Iterable[str]) -> None:
        """Begin another search: pods that the cycle decided to evict meanwhile are no candidates any more.

        Args:
            keep: keys of groups of which nothing may be evicted in it.
        """
        self.banned = set(keep)
        self.taken.clear()
        evicted = list(self._session.record.evicted.values())[self._synced :]
        self._synced += len(evicted)
        for eviction in evicted:
            workload = self.workloads.get(eviction.group)
            member = None if workload is None else workload.active.get(eviction.uid)
            if workload is not None and member is not None and self.has(member):
                self._take(member)

    def has(self, member: Member) -> bool:
        """Tell whether a pod is still there to be evicted."""
        return member.pod.uid in self.on_row.get(self._row(member), ())

    def ban(self, victim_set: VictimSet) -> None:
        """Let pods not be evicted in this search; of a group that is to end as a whole, no more pods at all."""
        shrinks = victim_set.shrinks
        self.banned.update([one.pod.uid for one in victim_set.members] if shrinks else victim_set.groups[:1])

    def victim_set(self, member: Member) -> VictimSet | None:
        """Return what is evicted with a pod, as things stand; None if it may not be."""
        if self._is_kept(member.group) or member.pod.uid in self.banned:
            return None
        victim_set = self._cached(member)
        if victim_set is None or victim_set.shrinks or member.group not in self._session.cycle_input.needed_by:
            return victim_set
        # A group that cannot be without this one may be about to start, and have no pod yet that could be evicted.
        return None if any(self._is_kept(other.group.key) for other in self._needing(member.group)) else victim_set

    def _cached(self, member: Member) -> VictimSet | None:
        """Return what would be evicted with a pod, whatever is kept in the present search."""
        by_uid = self._victim_sets.setdefault(member.group, {})
        uid = member.pod.uid
        if uid not in by_uid:
            by_uid[uid] = self._lone_set(member) if member.group in self._lone_costs else self._work_out(member)
        return by_uid[uid]

    def _cost(self, member: Member) -> int | None:
        """Return the cost of what would be evicted with a pod, whatever is kept; None if it may never be.

        Most groups have one pod. Their costs are kept without a set: few of these sets are ever asked for.
        """
        group = member.group
        if group in self._lone_costs:
            return self._lone_costs[group]
        if group not in self._victim_sets:
            workload = self.workloads[group]
            if len(workload.active) == 1 and not self._session.cycle_input.needed_by.get(group):
                cost = self._lone_costs[group] = self._lone_cost(workload, member)
                return cost
        victim_set = self._cached(member)
        return None if victim_set is None else victim_set.cost

    def _lone_cost(self, workload: Workload, member: Member) -> int | None:
        if member.group in self._protected:
            return None
        ending = Ending.FAILS if self._session.failures.refuse((member,)) else Ending.ENDS
        extra = self._extra.get(member.group, 0)
        key = workload.group.priority, ending, member.class_key, extra
        base = self._lone_bases.get(key)
        if base is None:
            rank, size = self._ranks[workload.group.priority], self._session.pods.size_of(member)
            base = self._lone_bases[key] = cost_of(rank=rank, ending=ending, pods=1, size=size, minutes=0, extra=extra)
        return base + min(minutes_lost(member, now=self._session.cycle_input.now), MOST_MINUTES)

    def _lone_set(self, member: Member) -> VictimSet | None:
        cost, members = self._lone_costs[member.group], (member,)
        parts = ((self.workloads[member.group], members),)
        return None if cost is None else VictimSet(parts, members, cost, shrinks=False)

    def _is_kept(self, group: str) -> bool:
        """Tell whether nothing may be taken from a group, as things stand."""
        return group in self.banned or self._session.gangs.is_growing(group)

    def _work_out(self, member: Member) -> VictimSet | None:
        workload = self.workloads[member.group]
        evicted = self._evicted.get(member.group, {})
        counts = {leaf: count - evicted.get(leaf, 0) for leaf, count in workload.counts.items()}
        members = workload.evicted_with(member, counts)
        shrinks = len(members) < len(workload.active) - sum(evicted.values()) and workload.satisfied(counts)
        if not shrinks and member.group in self._protected:
            return None
        parts = [(workload, self._still_there(members))]
        if self._session.cycle_input.needed_by.get(member.group) and not workload.satisfied(
            _less(counts, workload, members)
        ):
            for other in self._needing(member.group):
                whole = self._whole(other)
                if whole is None:
                    return None
                if whole:
                    parts.append((other, whole))
        all_members = tuple(other for _, part in parts for other in part)
        ending = self._ending(all_members, shrinks=shrinks)
        now, size_of = self._session.cycle_input.now, self._session.pods.size_of
        cost = sum(
            cost_of(
                rank=self._ranks[one.group.priority],
                ending=ending,
                pods=len(of_group),
                size=sum(map(size_of, of_group)),
                minutes=sum(minutes_lost(other, now=now) for other in of_group),
                extra=self._extra.get(one.group.key, 0),
            )
            for one, of_group in parts
        )
        return VictimSet(tuple(parts), all_members, cost, shrinks)

    def _ending(self, members: Sequence[Member], *, shrinks: bool) -> Ending:
        if self._session.failures.refuse(members):
            return Ending.FAILS
        return Ending.SHRINKS if shrinks else Ending.ENDS

    def _needing(self, group: str) -> list[Workload]:
        """Return the groups that do not go on without one, nor without one of those."""
        cycle_input = self._session.cycle_input
        keys = [group]
        for key in keys:
            keys += [other for other in sorted(cycle_input.needed_by.get(key, ())) if other not in keys]
        return [cycle_input.workloads[key] for key in keys[1:]]

    def _whole(self, workload: Workload) -> tuple[Member, ...] | None:
        """Return all running pods of a group; None if not all of them may be evicted."""
        key = workload.group.key
        evicted = self._session.record.evicted
        running = tuple(member for uid, member in workload.active.items() if uid not in evicted)
        if running and key not in self.workloads:
            return None
        members = self._still_there(running)
        return None if members and key in self._protected else members

    def _still_there(self, members: Iterable[Member]) -> tuple[Member, ...]:
        return tuple(sorted((member for member in members if self.has(member)), key=name_of))

    def members(self, eligible: Callable[[Workload], bool]) -> Iterator[Member]:
        """Yield the pods of eligible groups that are still there to be evicted."""
        for members in self.on_row.values():
            yield from (member for member in members.values() if eligible(self.workloads[member.group]))

    def protected(self, may_evict: Callable[[Workload], bool]) -> tuple[int, int]:
        """Count the pods that only their group's minimum runtime protects; with when the first of these runtimes ends.

        Args:
            may_evict: whether a group's queue lets it be evicted.
        """
        count, until = 0, 0
        for key in sorted(self._protected):
            workload = self.workloads[key]
            if not self._session.gangs.is_growing(key) and may_evict(workload):
                kept = sum(self.victim_set(member) is None for member in workload.active.values() if self.has(member))
                count += kept
                until = min(until or self._protected[key], self._protected[key]) if kept else until
        return count, until

    def losses(self) -> tuple[list[Member], Ints]:
        """Return the pods in order of name, and how much work each loses if it goes, in GPU-seconds; shape (pods,)."""
        decided = len(self._session.record.evicted)
        if self._losses is None or self._losses[0] != decided:
            pods, now = self._session.pods, self._session.cycle_input.now
            members = sorted((one for on_row in self.on_row.values() for one in on_row.values()), key=name_of)
            for one in members:
                if one.pod.uid not in self._lost:
                    self._lost[one.pod.uid] = gpu_seconds_lost(one, pods.requests_of((one,)), now=now)
            self._losses = decided, members, np.array([self._lost[one.pod.uid] for one in members], np.int64)
        return self._losses[1:]

    def losing(self, least: int) -> tuple[set[str], int]:
        """Return the keys of the groups of which each pod loses so much work at least, in GPU-seconds.

        Also returns the least of what is so much; 0 if nothing is.
        """
        members, lost = self.losses()
        few = {members[index].group for index in np.flatnonzero(lost < least).tolist()}
        much = lost[lost >= least]
        return {one.group for one in members} - few, int(much.min()) if len(much) else 0

    def take(self, victim_set: VictimSet) -> None:
        """Count the pods of a set as evicted."""
        self.taken.update(victim_set.groups)
        for member in victim_set.members:
            self._take(member)

    def _take(self, member: Member) -> None:
        self._changed(member.group)
        self._count(self.workloads[member.group], member)
        del self.on_row[self._row(member)][member.pod.uid]

    def _count(self, workload: Workload, member: Member) -> None:
        evicted = self._evicted.setdefault(workload.group.key, {})
        leaf = workload.leaf(member)
        evicted[leaf] = evicted.get(leaf, 0) + 1

    def put_back(self, victim_set: VictimSet) -> None:
        """Count the pods of a set as not evicted after all."""
        self.taken.subtract(victim_set.groups)
        for workload, members in victim_set.parts:
            key = workload.group.key
            self._changed(key)
            evicted = self._evicted[key]
            for member in members:
                evicted[workload.leaf(member)] -= 1
                self.on_row[self._row(member)][member.pod.uid] = member

    def _changed(self, group: str) -> None:
        """Forget what goes together in a group that has other pods now, and in all groups that it starts with."""
        rows = self._session.nodes.columns.rows
        for key in self._session.gangs.started_with([group]):
            self._victim_sets.pop(key, None)
            self._lone_costs.pop(key, None)
            if self._sums is not None and key in self.workloads:
                self._outdated.update(rows[member.node] for member in self.workloads[key].active.values())

    def sums(self) -> tuple[Ints, Ints, dict[int, int]]:
        """Return by row what all candidates hold (rows, resources), the most that one holds, and the least cost."""
        columns = self._session.nodes.future.statement.columns
        if self._sums is None or self._sums[0].shape != columns.used.shape:
            self._sums = np.zeros_like(columns.used), np.zeros_like(columns.used), {}
            self._outdated = set(self.on_row)
        if self._outdated:
            self._sum_up(self._sums, sorted(self._outdated))
            self._outdated.clear()
        return self._sums

    def _sum_up(self, sums: tuple[Ints, Ints, dict[int, int]], outdated: Sequence[int]) -> None:
        total, most, least = sums
        total[outdated], most[outdated] = 0, 0
        columns = self._session.nodes.future.statement.columns
        numbers: dict[str, int] = {}
        vectors: list[Ints] = []
        rows, held = [], []
        for row in outdated:
            least.pop(row, None)
            costs = []
            for member in self.on_row.get(row, {}).values():
                # Another search may keep other groups, so every pod counts that may ever go.
                cost = self._cost(member)
                if cost is None:
                    continue
                costs.append(cost)
                number = numbers.get(member.class_key)
                if number is None:
                    number = numbers[member.class_key] = len(vectors)
                    # With the last part of a GPU, the whole GPU is free.
                    shared = {GPU: len(member.gpus), PODS: 1 + len(member.gpus)} if member.gpus else {}
                    vectors.append(columns.vector({**member.requests, **shared}))
                rows.append(row)
                held.append(number)
            if costs:
                least[row] = min(costs)
        if rows:
            index, amounts = np.array(rows, np.int64), np.array(vectors)[held]
            np.add.at(total, index, amounts)
            np.maximum.at(most, index, amounts)

    def _row(self, member: Member) -> int:
        return self._session.nodes.columns.rows[member.node]


def _less(counts: Counts, workload: Workload, members: Iterable[Member]) -> Counts:
    """Return pods by leaf without some."""
    left = dict(counts)
    for member in members:
        left[workload.leaf(member)] -= 1
    return left
