"""Who may be evicted for a group, and who would go with whom.

A gang is never left below its minimum: it goes as a whole, and with it all gangs that start together with it. What
that costs is `kaicore.rules.engine.victims.eviction_cost`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kaicore.rules.engine.session import Session
from kaicore.rules.engine.victims.eviction_cost import Ending, cost_of, minutes_run
from kaicore.rules.engine.workload import Counts, Member, Workload
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts
from kaicore.rules.numa.columns import Ints


@dataclass(frozen=True, slots=True)
class Unit:
    """Pods that are evicted together.

    Attributes:
        parts: the pods by group, in order of name; first the group that was asked about, then those that do not go on
            without it.
        members: all of them.
        cost: see `kaicore.rules.engine.victims.eviction_cost`.
        shrinks: whether the group goes on without them.
    """

    parts: tuple[tuple[Workload, tuple[Member, ...]], ...]
    members: tuple[Member, ...]
    cost: int
    shrinks: bool

    @property
    def key(self) -> tuple[int, str, str, str]:
        """Order in which units are preferred: by cost, equal ones by name."""
        return self.cost, *name_of(self.members[0])

    def held_by(self, session: Session) -> list[tuple[Group, Amounts]]:
        """Return what they hold, by group."""
        return [(workload.group, session.requests(members)) for workload, members in self.parts]

    @property
    def groups(self) -> tuple[str, ...]:
        """Keys of the groups that they are of."""
        return tuple(workload.group.key for workload, _ in self.parts)


def name_of(member: Member) -> tuple[str, str, str]:
    """Return what pods are told apart by where nothing else does."""
    return member.pod.namespace, member.pod.name, member.pod.uid


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
        self._sums: tuple[Ints, Ints, dict[int, int]] | None = None
        columns = session.trail.columns
        self.on_row: dict[int, dict[str, Member]] = {}
        for workload in workloads:
            for uid, member in workload.active.items():
                if uid not in session.evicted:
                    self.on_row.setdefault(columns.rows[member.node], {})[uid] = member
                else:
                    self._gone(workload, member)

    def begin(self, keep: Iterable[str]) -> None:
        """Another search begins: whoever was decided to go meanwhile is no candidate any more.

        Args:
            keep: keys of groups of which nothing may be evicted in it.
        """
        self._banned = set(keep)
        evicted = list(self._session.evicted.values())[self._synced :]
        self._synced += len(evicted)
        for eviction in evicted:
            workload = self.workloads.get(eviction.group)
            member = None if workload is None else workload.active.get(eviction.uid)
            if workload is not None and member is not None and self.has(member):
                self._take(member)

    def has(self, member: Member) -> bool:
        """Tell whether a pod is still there to be evicted."""
        return member.pod.uid in self.on_row.get(self._row(member), ())

    def ban(self, group: str) -> None:
        """No more of a group may be evicted in this search."""
        self._banned.add(group)

    def unit(self, member: Member) -> Unit | None:
        """Return what is evicted with a pod, as things stand; None if it may not be."""
        if self._is_kept(member.group):
            return None
        unit = self._of(member)
        if unit is None or unit.shrinks or member.group not in self._session.given.needed_by:
            return unit
        # One of those may be about to start, and has nothing yet that could be evicted.
        return None if any(self._is_kept(other.group.key) for other in self._needing(member.group)) else unit

    def _of(self, member: Member) -> Unit | None:
        """Return what would be evicted with a pod, whoever must be kept at the moment."""
        known = self._units.setdefault(member.group, {})
        uid = member.pod.uid
        if uid not in known:
            known[uid] = self._unit(member)
        return known[uid]

    def _is_kept(self, group: str) -> bool:
        """Whether nothing may be taken from a group, as things stand."""
        return group in self._banned or self._session.is_growing(group)

    def _unit(self, member: Member) -> Unit | None:
        workload = self.workloads[member.group]
        gone = self._evicted.get(member.group, {})
        counts = {leaf: count - gone.get(leaf, 0) for leaf, count in workload.counts.items()}
        members = workload.unit(member, counts)
        shrinks = len(members) < len(workload.active) - sum(gone.values()) and workload.satisfied(counts)
        if not shrinks and member.group in self._protected:
            return None
        parts = [(workload, self._still_there(members))]
        if self._session.given.needed_by.get(member.group) and not workload.satisfied(_less(counts, workload, members)):
            for other in self._needing(member.group):
                there = self._whole(other)
                if there is None:
                    return None
                if there:
                    parts.append((other, there))
        everybody = tuple(other for _, part in parts for other in part)
        cost = cost_of(
            rank=sum(self._ranks[one.group.priority] for one, _ in parts),
            ending=self._ending(everybody, shrinks=shrinks),
            pods=len(everybody),
            size=sum(self._session.size_of(other) for other in everybody),
            minutes=sum(minutes_run(other.running_since, now=self._session.given.now) for other in everybody),
        )
        return Unit(tuple(parts), everybody, cost, shrinks)

    def _ending(self, members: Sequence[Member], *, shrinks: bool) -> Ending:
        if self._session.failures.refuse(members):
            return Ending.FAILS
        return Ending.SHRINKS if shrinks else Ending.ENDS

    def _needing(self, group: str) -> list[Workload]:
        """Return the groups that do not go on without one, nor without one of those."""
        given = self._session.given
        keys = [group]
        for key in keys:
            keys += [other for other in sorted(given.needed_by.get(key, ())) if other not in keys]
        return [given.workloads[key] for key in keys[1:]]

    def _whole(self, workload: Workload) -> tuple[Member, ...] | None:
        """Return all running pods of a group; None if not all of them may be evicted."""
        key = workload.group.key
        left = tuple(member for uid, member in workload.active.items() if uid not in self._session.evicted)
        if left and key not in self.workloads:
            return None
        there = self._still_there(left)
        return None if there and key in self._protected else there

    def _still_there(self, members: Iterable[Member]) -> tuple[Member, ...]:
        there = (member for member in members if self.has(member))
        return tuple(sorted(there, key=name_of))

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
        for member in unit.members:
            self._take(member)

    def _take(self, member: Member) -> None:
        self._changed(member.group)
        self._gone(self.workloads[member.group], member)
        del self.on_row[self._row(member)][member.pod.uid]

    def _gone(self, workload: Workload, member: Member) -> None:
        gone = self._evicted.setdefault(workload.group.key, {})
        leaf = workload.leaf(member)
        gone[leaf] = gone.get(leaf, 0) + 1

    def put_back(self, unit: Unit) -> None:
        """The pods of a unit stay."""
        for workload, members in unit.parts:
            key = workload.group.key
            self._changed(key)
            gone = self._evicted[key]
            for member in members:
                gone[workload.leaf(member)] -= 1
                self.on_row[self._row(member)][member.pod.uid] = member

    def _changed(self, group: str) -> None:
        """A group has other pods now: what goes with whom may be another for it, and for all that it cannot be without.

        Of those some may have been asked about for its sake.
        """
        self._sums = None
        for key in self._session.started_with([group]):
            self._units.pop(key, None)

    def sums(self) -> tuple[Ints, Ints, dict[int, int]]:
        """Return by row what all candidates hold (rows, resources), the most that one holds, and the least cost."""
        if self._sums is not None:
            return self._sums
        columns = self._session.future.trail.columns
        total = np.zeros_like(columns.used)
        most = np.zeros_like(columns.used)
        least: dict[int, int] = {}
        vectors = {}
        rows, held = [], []
        for row, members in self.on_row.items():
            for member in members.values():
                # Another search may keep others, so whoever may ever go counts.
                unit = self._of(member)
                if unit is None:
                    continue
                if member.class_key not in vectors:
                    vectors[member.class_key] = columns.vector(member.requests)
                rows.append(row)
                held.append(vectors[member.class_key])
                least[row] = min(unit.cost, least.get(row, unit.cost))
        if rows:
            index = np.array(rows, np.int64)
            amounts = np.array(held)
            np.add.at(total, index, amounts)
            np.maximum.at(most, index, amounts)
        self._sums = total, most, least
        return self._sums

    def _row(self, member: Member) -> int:
        return self._session.trail.columns.rows[member.node]


def _less(counts: Counts, workload: Workload, members: Iterable[Member]) -> Counts:
    """Return pods by leaf without some."""
    left = dict(counts)
    for member in members:
        left[workload.leaf(member)] -= 1
    return left
