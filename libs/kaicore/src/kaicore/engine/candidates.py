"""Who may be evicted for a group, and who would go with whom.

Costs: whoever ends counts by the rank of its priority among all candidates, twice as much if its whole group ends;
then the number of pods; then how long they have run. A gang is never left below its minimum: it goes as a whole.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kaicore.engine.session import Session
from kaicore.engine.workload import Member, Workload
from kaicore.numa.columns import Ints

#: Costs are one number: rank above pods above minutes.
_RANK, POD_COST, _MINUTES = 2**36, 2**16, 2**16 - 1


@dataclass(frozen=True, slots=True)
class Unit:
    """Pods that are evicted together.

    Attributes:
        members: in order of uid.
        cost: see the module.
        shrinks: whether the group goes on without them.
    """

    workload: Workload
    members: tuple[Member, ...]
    cost: int
    shrinks: bool

    @property
    def key(self) -> tuple[int, str]:
        """Order of units of equal cost."""
        return self.cost, self.members[0].pod.uid


class Candidates:
    """Who may be evicted for a group, as columns over their pods."""

    def __init__(self, session: Session, workloads: Sequence[Workload], *, protected: Mapping[str, int]) -> None:
        """Args:
        session: the cycle.
        workloads: whose pods may be evicted.
        protected: until when some of them must keep their minimum, by key; microseconds since the epoch.
        """
        self._session = session
        self._protected = protected
        ranks = {priority: rank for rank, priority in enumerate(sorted({w.group.priority for w in workloads}), 1)}
        self._ranks = ranks
        self.workloads = {workload.group.key: workload for workload in workloads}
        self._evicted: dict[str, dict[str, int]] = {}
        self._banned: set[str] = set()
        self._synced = len(session.evicted)
        #: What is evicted with whom, by group and uid, as long as nothing is taken from the group.
        self._units: dict[str, dict[str, Unit | None]] = {}
        self._sums: tuple[Ints, Ints, Ints] | None = None
        columns = session.trail.columns
        self.on_row: dict[int, dict[str, Member]] = {}
        for workload in workloads:
            for uid, member in workload.active.items():
                if uid not in session.evicted:
                    self.on_row.setdefault(columns.rows[member.node], {})[uid] = member
                else:
                    self._gone(workload, member)

    def begin(self) -> None:
        """Another search begins: whoever was decided to go meanwhile is no candidate any more."""
        self._banned.clear()
        evicted = list(self._session.evicted.values())[self._synced :]
        self._synced += len(evicted)
        for eviction in evicted:
            workload = self.workloads.get(eviction.group)
            member = None if workload is None else workload.active.get(eviction.uid)
            if workload is not None and member is not None and self.has(member):
                self.take(Unit(workload, (member,), 0, shrinks=True))

    def has(self, member: Member) -> bool:
        """Tell whether a pod is still there to be evicted."""
        return member.pod.uid in self.on_row.get(self._row(member), ())

    def ban(self, workload: Workload) -> None:
        """No more of a group may be evicted in this search."""
        self._banned.add(workload.group.key)

    def unit(self, member: Member) -> Unit | None:
        """Return what is evicted with a pod, as things stand; None if it may not be."""
        if member.group in self._banned or self._session.is_growing(member.group):
            return None
        known = self._units.setdefault(member.group, {})
        uid = member.pod.uid
        if uid not in known:
            known[uid] = self._unit(member)
        return known[uid]

    def _unit(self, member: Member) -> Unit | None:
        workload = self.workloads[member.group]
        gone = self._evicted.get(member.group, {})
        counts = {leaf: count - gone.get(leaf, 0) for leaf, count in workload.counts.items()}
        members = workload.unit(member, counts)
        shrinks = len(members) < len(workload.active) - sum(gone.values()) and workload.satisfied(counts)
        if not shrinks and member.group in self._protected:
            return None
        if len(members) > 1:
            members = tuple(other for other in sorted(members, key=lambda other: other.pod.uid) if self.has(other))
        rank = self._ranks[workload.group.priority] * (1 if shrinks else 2)
        now = self._session.given.now
        minutes = sum(max(now - other.placed_at, 0) // 60_000_000 if other.placed_at else _MINUTES for other in members)
        cost = rank * _RANK + len(members) * POD_COST + min(minutes, _MINUTES)
        return Unit(workload, members, cost, shrinks)

    def members(self, eligible: Callable[[Workload], bool]) -> Iterator[Member]:
        """Yield the pods of eligible groups that are still there to be evicted."""
        for members in self.on_row.values():
            yield from (member for member in members.values() if eligible(self.workloads[member.group]))

    def protected(self, may_evict: Callable[[Workload], bool]) -> tuple[int, int]:
        """Count the pods that only their group's minimum runtime protects; with when that of the first ends.

        Args:
            may_evict: whether a group's queue lets it be evicted.
        """
        count, until = 0, 0
        for key in sorted(self._protected):
            workload = self.workloads[key]
            if not self._session.is_growing(key) and may_evict(workload):
                held = sum(self.unit(member) is None for member in workload.active.values() if self.has(member))
                count += held
                until = min(until or self._protected[key], self._protected[key]) if held else until
        return count, until

    def take(self, unit: Unit) -> None:
        """The pods of a unit are gone."""
        self._sums = None
        self._units.pop(unit.workload.group.key, None)
        for member in unit.members:
            self._gone(unit.workload, member)
            del self.on_row[self._row(member)][member.pod.uid]

    def _gone(self, workload: Workload, member: Member) -> None:
        gone = self._evicted.setdefault(workload.group.key, {})
        leaf = workload.leaf(member)
        gone[leaf] = gone.get(leaf, 0) + 1

    def put_back(self, unit: Unit) -> None:
        """The pods of a unit stay."""
        self._sums = None
        self._units.pop(unit.workload.group.key, None)
        gone = self._evicted[unit.workload.group.key]
        for member in unit.members:
            gone[unit.workload.leaf(member)] -= 1
            self.on_row[self._row(member)][member.pod.uid] = member

    def sums(self) -> tuple[Ints, Ints, Ints]:
        """Return by row what all candidates hold (rows, resources), the most that one holds, and the least cost."""
        if self._sums is not None:
            return self._sums
        columns = self._session.future.trail.columns
        total = np.zeros_like(columns.used)
        most = np.zeros_like(columns.used)
        least = np.full(len(columns.present), np.iinfo(np.int64).max // 4)
        vectors = {}
        costs: dict[tuple[str, str], int] = {}
        rows, held, cost = [], [], []
        for row, members in self.on_row.items():
            for member in members.values():
                unit_key = (member.group, self.workloads[member.group].leaf(member))
                known = costs.get(unit_key)
                if known is None:
                    unit = self.unit(member)
                    known = costs[unit_key] = -1 if unit is None else unit.cost - min(unit.cost % POD_COST, _MINUTES)
                if known < 0:
                    continue
                if member.class_key not in vectors:
                    vectors[member.class_key] = columns.vector(member.requests)
                rows.append(row)
                held.append(vectors[member.class_key])
                cost.append(known)
        if rows:
            index = np.array(rows, np.int64)
            amounts = np.array(held)
            np.add.at(total, index, amounts)
            np.maximum.at(most, index, amounts)
            np.minimum.at(least, index, np.array(cost, np.int64))
        self._sums = total, most, least
        return self._sums

    def _row(self, member: Member) -> int:
        return self._session.trail.columns.rows[member.node]
