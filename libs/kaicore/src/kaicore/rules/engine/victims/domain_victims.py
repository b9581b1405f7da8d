"""Victims for a group with a topology constraint: domain by domain, the cheapest first, each proven by the search.

In a domain the search sees the free amounts of all rows. On the rows with the lowest eviction cost it also sees the
amounts of their victims. It puts the pods on trial, and where a row lacks room victims go as they are needed. Rows are
added, the cheapest first, until all pods fit or all rows of the domain are in. So the result is placed, with its zones,
on the future nodes. KAI-Scheduler v0.17.0 cannot do this in a packed domain (issue 1591).
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from kaicore.rules.engine.placement.placer import Assignment
from kaicore.rules.engine.topology.trial import PlacerRoom
from kaicore.rules.engine.topology.unit_trial import UnitTrial
from kaicore.rules.engine.victims.candidates import Candidates
from kaicore.rules.engine.victims.victim_set import VictimSet, name_of
from kaicore.rules.engine.workload import Member
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.topology.placing.request import NO_LEVEL, PodsByRow

#: So many domains are tried at most once one will do, as long as others may be cheaper.
_MORE_DOMAINS = 8


class Evictions(Protocol):
    """The placements and evictions of a search for victims so far, and its way to do more."""

    @property
    def cost(self) -> int:
        """Of all victims so far."""

    @property
    def exhausted(self) -> bool:
        """True if this cycle may try no more."""

    def savepoint(self) -> int:
        """Return where to roll back to later."""

    def rollback(self, savepoint: int) -> None:
        """Take back all that was placed and evicted since a savepoint."""

    def place_evicting(self, member: Member, row: int) -> Assignment | None:
        """Place a pod on a row and evict there what costs least; None if that cannot be."""


class DomainVictims:
    """Victims for the pods of one trial."""

    def __init__(self, trial: UnitTrial, evictions: Evictions, candidates: Candidates) -> None:
        """Args:
        trial: of the pods, on the nodes as they will be.
        evictions: of the search so far.
        candidates: the pods that may be evicted.
        """
        self._trial = trial
        self._evictions = evictions
        self._candidates = candidates
        self._rooms = _Capacities(trial, candidates)

    def place(self) -> list[Assignment] | None:
        """Place the pods where evicting costs least.

        Returns:
            where they go; None, and nothing is changed, if no domain takes them whatever is evicted.
        """
        begin = self._evictions.savepoint()
        before = self._evictions.cost
        best: tuple[int, Ints] | None = None
        more = 0
        for estimate, rows in self._domains():
            if self._evictions.exhausted or (best is not None and (estimate >= best[0] or more >= _MORE_DOMAINS)):
                break
            more += best is not None
            if self._place_in(rows) is not None:
                cost = self._evictions.cost - before
                if best is None or cost < best[0]:
                    best = cost, rows
            self._evictions.rollback(begin)
        return None if best is None else self._place_in(best[1])

    def _domains(self) -> list[tuple[int, Ints]]:
        """Return the rows of each domain that may do, the cheapest first, by what it costs about."""
        level = self._trial.topology.required_level
        everything = np.flatnonzero(self._rooms.present)
        if level == NO_LEVEL:
            domains = [everything]
        else:
            of_rows = self._trial.topology.tree.of_rows[level]
            held = self._trial.asked.request.held
            numbers = np.unique(of_rows[everything] if held is None else of_rows[np.flatnonzero(held)])
            domains = [np.flatnonzero(of_rows == number) for number in numbers.tolist() if number >= 0]
        costs = [(self._rooms.cost(rows), rows) for rows in domains if self._rooms.may_take(rows)]
        return sorted(costs, key=lambda item: item[0])

    def _place_in(self, rows: Ints) -> list[Assignment] | None:
        """Place the pods on some rows, with victims of as few of these as will do."""
        begin = self._evictions.savepoint()
        for evicting in self._rooms.growing(rows):
            room = _EvictingRoom(self._trial, self._evictions, self._rooms, rows, evicting)
            if self._trial.search_in(room) is None:
                return room.assignments
            self._evictions.rollback(begin)
            if self._evictions.exhausted:
                break
        return None


class _Capacities:
    """The pods that rows take and the cost of that, as the nodes are when it is made."""

    def __init__(self, trial: UnitTrial, candidates: Candidates) -> None:
        self._candidates = candidates
        room = PlacerRoom(trial.placer, trial.asked.members, trial.kept_counts)
        self.samples = room.samples
        self._wanted = [room.classes.count(number) for number in range(len(room.samples))]
        self._placer = trial.placer
        self._free = [room.counts(number) for number in range(len(room.samples))]
        self._after = [self.after(number) for number in range(len(room.samples))]
        #: The class with the most pods, by which rows are counted and ordered.
        self._main = self._wanted.index(max(self._wanted))
        self.present: Flags = trial.placer.statement.columns.present
        self._victims: dict[int, list[VictimSet]] = {}

    def after(self, pod_class: int) -> PodsByRow:
        """Return how many pods of a class rows take at most if all candidates there are gone, zones aside."""
        feasible = self._placer.feasible_nodes(self._placer.class_of(self.samples[pod_class]))
        columns = self._placer.statement.columns
        room = columns.allocatable - columns.used + self._candidates.sums()[0]
        requested = np.flatnonzero(feasible.need)
        counts: PodsByRow = (room[:, requested] // feasible.need[requested]).min(axis=1)
        return np.where(feasible.eligible, np.maximum(counts, 0), 0)

    def may_take(self, rows: Ints) -> bool:
        """Tell whether rows take all pods by counts, each class for itself, if all candidates there are gone."""
        numbers = range(len(self._wanted))
        return all(
            int(np.maximum(self._after[one], self._free[one])[rows].sum()) >= self._wanted[one] for one in numbers
        )

    def cost(self, rows: Ints) -> int:
        """Return what it costs about that rows take all pods: the victims on the cheapest, each set once."""
        lacking = self._wanted[self._main] - int(self._free[self._main][rows].sum())
        total, counted = 0, set[tuple[str, ...]]()
        for row, gain in self._by_cost(rows):
            if lacking <= 0:
                break
            lacking -= gain
            for victim_set in self._victims_of(row):
                if victim_set.key[1:] not in counted:
                    counted.add(victim_set.key[1:])
                    total += victim_set.cost
        return total

    def growing(self, rows: Ints) -> Iterator[Ints]:
        """Yield rows where pods may be evicted: the fewest of the cheapest that may do, then more, at last all."""
        ordered = [row for row, _ in self._by_cost(rows)]
        lacking = self._wanted[self._main] - int(self._free[self._main][rows].sum())
        first = 0
        for _, gain in self._by_cost(rows):
            if lacking <= 0:
                break
            lacking -= gain
            first += 1
        count = max(first, 1)
        while count < len(ordered):
            yield np.array(ordered[:count], np.int64)
            count *= 2
        yield np.array(ordered, np.int64)

    def _by_cost(self, rows: Ints) -> list[tuple[int, int]]:
        """Return the rows where evicting may help, with how many more pods each takes; cheapest for a pod first."""
        order = self._placer.statement.columns.name_order()
        gains = np.maximum(self._after[self._main] - self._free[self._main], 0)
        costs = []
        for row in rows.tolist():
            victims = self._victims_of(row)
            if victims:
                gain = int(gains[row])
                costs.append((sum(one.cost for one in victims) // max(gain, 1), int(order[row]), row, gain))
        return [(row, gain) for _, _, row, gain in sorted(costs)]

    def _victims_of(self, row: int) -> list[VictimSet]:
        """Return the distinct sets that have pods on a row."""
        if row not in self._victims:
            distinct: dict[tuple[str, ...], VictimSet] = {}
            for member in sorted(self._candidates.on_row.get(row, {}).values(), key=name_of):
                victim_set = self._candidates.victim_set(member)
                if victim_set is not None:
                    distinct.setdefault(victim_set.key[1:], victim_set)
            self._victims[row] = list(distinct.values())
        return self._victims[row]


class _EvictingRoom(PlacerRoom):
    """Rows of which some evict what holds their room."""

    def __init__(self, trial: UnitTrial, evictions: Evictions, rooms: _Capacities, rows: Ints, evicting: Ints) -> None:
        among = np.zeros(len(rooms.present), np.bool_)
        among[rows] = True
        super().__init__(trial.placer, trial.asked.members, trial.kept_counts, among=among)
        self._evictions = evictions
        self._rooms = rooms
        self._evicting: Flags = np.zeros(len(rooms.present), np.bool_)
        self._evicting[evicting] = True

    def savepoint(self) -> int:
        return self._evictions.savepoint()

    def remaining(self) -> None:
        """See `Room.remaining`; more than that where pods are evicted."""

    def _count(self, pod_class: int) -> PodsByRow:
        free = super()._count(pod_class)
        return np.where(self._evicting, np.maximum(free, self._rooms.after(pod_class)), free)

    def _place(self, member: Member, row: int) -> Assignment | None:
        if self._evicting[row]:
            return self._evictions.place_evicting(member, row)
        return super()._place(member, row)

    def _undo(self, savepoint: int) -> None:
        self._evictions.rollback(savepoint)
