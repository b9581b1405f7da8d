"""Exchanges: one or two running pods change places so that a waiting pod fits, where a plain search finds no victims.

On full nodes what is left is stranded: GPUs beside too few CPUs, and CPUs beside no GPU. A pod that goes there fits
nowhere else either, so the cheapest victims of one node rarely help. An exchange looks at both ends. The waiting pod
goes to `row`, in place of the first pod. That one goes to another row, if need be in place of the second pod, which
takes what is left on `row`.

One of both rows has idle devices, or what the waiting pod asks for would still be missing. So one end is sought among
the few rows that have some, and the other one among all pods at once, by amounts. The caller makes sure of the rest:
zones, devices, rules about other pods, queues and budgets.

Only pods count that go alone and lose less work than the start wins; the exchange that loses least comes first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest

import numpy as np

from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.victims.candidates import Candidates
from kaicore.rules.engine.victims.moving import lost_by_moving
from kaicore.rules.engine.victims.victim_set import VictimSet, name_of
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.queues.tree import gpus_per_unit

#: Rows with idle devices that are looked at, those with the most first.
_MOST_ROWS = 32
#: Partners of one first pod that are compared.
_MOST_PARTNERS = 4


@dataclass(frozen=True, slots=True)
class Exchange:
    """Pods that change places.

    Attributes:
        row: where the waiting pod goes.
        victim_sets: the first pod, and the second if there is one.
        lost: the work that they lose, in GPU-seconds.
    """

    row: int
    victim_sets: tuple[VictimSet, ...]
    lost: int

    @property
    def key(self) -> tuple[int, int, tuple[tuple[str, str, str], ...]]:
        """Order in which exchanges are preferred: by lost work, fewer pods first, then by name."""
        return self.lost, len(self.victim_sets), tuple(name_of(one.members[0]) for one in self.victim_sets)


class Exchanges:
    """The exchanges for one waiting pod, by amounts, on the future's nodes."""

    def __init__(self, session: Session, candidates: Candidates, member: Member, *, won: int, most_pods: int) -> None:
        """Args:
        session: the cycle.
        candidates: the pods that may be moved.
        member: the waiting pod.
        won: what its start wins, in GPU-seconds.
        most_pods: how many pods may be moved.
        """
        self._placer = session.nodes.future
        self._columns = columns = self._placer.statement.columns
        self._won, self._most_pods = won, most_pods
        self._sets: list[VictimSet] = []
        members: list[Member] = []
        lost: list[int] = []
        for one in sorted((one for on_row in candidates.on_row.values() for one in on_row.values()), key=name_of):
            victim_set = candidates.victim_set(one)
            if victim_set is None or len(victim_set.members) > 1:
                continue
            loss = lost_by_moving(session, victim_set)
            if loss < won:
                self._sets.append(victim_set)
                members.append(one)
                lost.append(loss)
        self._members = members
        self._rows: Ints = np.array([columns.rows[one.node] for one in members], np.int64)
        self._lost: Ints = np.array(lost, np.int64)
        vectors = {one.class_key: columns.vector(one.requests) for one in members}
        feasible = self._placer.feasible_nodes(self._placer.class_of(member))
        self._need: Ints = feasible.need
        self._eligible: Flags = feasible.eligible
        self._idle: Ints = columns.allocatable - columns.used
        self._held: Ints = np.zeros((len(members), columns.used.shape[1]), np.int64)
        for index, one in enumerate(members):
            self._held[index] = vectors[one.class_key]

    def cheapest(self, most: int) -> Sequence[Exchange]:
        """Return exchanges, at most so many, the one that loses least first."""
        if not self._members:
            return ()
        return nsmallest(most, self._all(), key=lambda exchange: exchange.key)

    def _all(self) -> Iterator[Exchange]:
        for row in self._rows_with_devices():
            yield from self._to(row)
            if self._most_pods > 1:
                yield from self._on(row)

    def _rows_with_devices(self) -> list[int]:
        """Return the rows with any idle devices of those that the pod asks for; the most first, equal ones by name."""
        asked = [index for name, index in self._columns.resources.items() if gpus_per_unit(name) and self._need[index]]
        idle = np.where(self._eligible, self._idle[:, asked].sum(axis=1), 0)
        rows = np.flatnonzero(idle > 0)
        places = self._columns.name_order()[rows]
        return [int(row) for row in rows[np.lexsort((places, -idle[rows]))[:_MOST_ROWS]]]

    def _to(self, row: int) -> Iterator[Exchange]:
        """Yield how one pod goes to a row from another one, which then takes the waiting pod."""
        fits = (self._held <= self._idle[row]).all(axis=1) & self._makes_room()
        for index in np.flatnonzero(fits & (self._rows != row)):
            if self._may_be_on(int(index), row):
                yield Exchange(int(self._rows[index]), (self._sets[index],), int(self._lost[index]))

    def _makes_room(self) -> Flags:
        """Return of each pod whether the waiting one fits in its place."""
        room: Flags = (self._need <= self._idle[self._rows] + self._held).all(axis=1) & self._eligible[self._rows]
        return room

    def _on(self, row: int) -> Iterator[Exchange]:
        """Yield how a pod of a row makes way for the waiting one, and another one for it."""
        makes_room = self._makes_room()
        for first in np.flatnonzero((self._rows == row) & makes_room):
            feasible = self._placer.feasible_nodes(self._placer.class_of(self._members[first]))
            left = self._idle[row] + self._held[first] - self._need
            fits = (feasible.need <= self._idle[self._rows] + self._held).all(axis=1) & (self._held <= left).all(axis=1)
            lost = self._lost + self._lost[first]
            fits &= feasible.eligible[self._rows] & (self._rows != row) & (lost < self._won)
            found = np.flatnonzero(fits)
            others = [one for one in found[np.argsort(lost[found], kind="stable")] if self._may_be_on(int(one), row)]
            for other in others[:_MOST_PARTNERS]:
                yield Exchange(row, (self._sets[first], self._sets[other]), int(lost[other]))

    def _may_be_on(self, index: int, row: int) -> bool:
        feasible = self._placer.feasible_nodes(self._placer.class_of(self._members[index]))
        return bool(feasible.eligible[row])
