"""Exchanges: one or two running pods change places so that a waiting pod fits, by the work that they lose.

On full nodes what is left is stranded: GPUs beside too few CPUs, CPUs beside no GPU, and parts of GPUs that are smaller
than what is asked for. A pod that goes there fits nowhere else either, so the cheapest victims of one node rarely help.
An exchange looks at both ends. The waiting pod goes to `row`, in place of the first pod. That one goes to another row,
if need be in place of the second pod, which takes what is left on `row`.

A first pod that another row takes as it is needs no second one: all pods are compared at once, by amounts and by parts
of GPUs. Otherwise `row` is one of the few with the most idle devices, and the second pod is sought among all. The
caller makes sure of the rest: zones, devices, rules about other pods, queues and budgets.

Only pods count that go alone and lose less work than the start wins; the exchange that loses least comes first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest

import numpy as np

from kaicore.rules.engine.placement.feasible_nodes import FeasibleNodes
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.victims.candidates import Candidates
from kaicore.rules.engine.victims.victim_set import VictimSet, name_of
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.model.gpu_share import GPU, WHOLE
from kaicore.rules.model.quantity import PODS
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.queues.tree import gpus_per_unit

#: Rows with idle devices that are looked at for two pods, those with the most first.
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
        self._candidates = candidates
        self._placer = session.nodes.future
        self._columns = columns = self._placer.statement.columns
        self._won, self._most_pods = won, most_pods
        self._asked = self._placer.feasible_nodes(self._placer.class_of(member))
        members, lost = candidates.losses()
        known = np.flatnonzero(lost < won)
        self._members = [members[index] for index in known.tolist()]
        self._lost: Ints = lost[known]
        self._rows: Ints = np.array([columns.rows[one.node] for one in self._members], np.int64)
        numbers: dict[str, int] = {}
        self._classes: Ints = np.array(
            [numbers.setdefault(one.class_key, len(numbers)) for one in self._members], np.int64
        )
        examples = {one.class_key: one for one in self._members}
        self._feasible = [self._placer.feasible_nodes(self._placer.class_of(examples[key])) for key in numbers]
        vectors = [columns.vector(examples[key].requests) for key in numbers]
        self._idle: Ints = columns.allocatable - columns.used
        self._held: Ints = np.array(vectors).reshape(len(numbers), self._idle.shape[1])[self._classes]
        #: What of its row is free once a pod is gone, and the largest part of a GPU then, in thousandths.
        self._left: Ints = self._idle[self._rows] + self._held
        self._part_left: Ints = columns.gpus.largest(len(columns.present))[self._rows]
        self._let_go_of_parts()
        gpu = columns.resources.get(GPU)
        #: The largest part of a GPU that is to be had, by row; `WHOLE` where a GPU can be opened.
        self._part: Ints = columns.gpus.largest(len(columns.present)).copy()
        if gpu is not None:
            self._part[self._idle[:, gpu] > 0] = WHOLE
            self._part_left[self._left[:, gpu] > 0] = WHOLE

    def _let_go_of_parts(self) -> None:
        """Count what pods leave of the GPUs that they share; with the last pod, the whole GPU is free."""
        gpus, resources = self._columns.gpus, self._columns.resources
        for index, one in enumerate(self._members):
            for part in one.gpus:
                self._part_left[index] = max(self._part_left[index], WHOLE - gpus.used(part.group) + part.milli)
                if gpus.pods(part.group) == 1 and gpus.is_open(part.group):
                    self._left[index, [resources[GPU], resources[PODS]]] += 1

    def cheapest(self, most: int) -> Sequence[Exchange]:
        """Return exchanges, at most so many, the one that loses least first."""
        if not self._members:
            return ()
        makes_room = self._fit(self._asked, self._left, self._part_left, self._rows)
        return nsmallest(most, self._all(makes_room), key=lambda exchange: exchange.key)

    def _all(self, makes_room: Flags) -> Iterator[Exchange]:
        yield from self._alone(makes_room)
        if self._most_pods > 1:
            for row in self._rows_with_devices():
                yield from self._on(row, makes_room)

    @staticmethod
    def _fit(feasible: FeasibleNodes, left: Ints, part: Ints, rows: Ints) -> Flags:
        """Tell whether a pod of a class fits on rows with so much left, and so large a part of a GPU."""
        fits: Flags = (feasible.need <= left).all(axis=1) & feasible.eligible[rows]
        if feasible.share is not None:
            fits &= feasible.share.parts[rows] <= part
        return fits

    def _alone(self, makes_room: Flags) -> Iterator[Exchange]:
        """Yield how one pod goes to any row that takes it as it is, and the waiting pod in its place."""
        every = np.arange(len(self._idle))
        for number in np.unique(self._classes[makes_room]).tolist():
            taking = np.flatnonzero(self._fit(self._feasible[number], self._idle, self._part, every))
            for index in np.flatnonzero(makes_room & (self._classes == number)).tolist() if len(taking) else ():
                if len(taking) > 1 or int(taking[0]) != int(self._rows[index]):
                    yield from self._exchange(int(self._rows[index]), index)

    def _rows_with_devices(self) -> list[int]:
        """Return the rows with any idle devices of those that the pod asks for; the most first, equal ones by name."""
        need, share = self._asked.need, self._asked.share
        asked = [index for name, index in self._columns.resources.items() if gpus_per_unit(name) and need[index]]
        free = self._idle[:, asked].sum(axis=1) if share is None else self._part
        idle = np.where(self._asked.eligible, free, 0)
        rows = np.flatnonzero(idle > 0)
        places = self._columns.name_order()[rows]
        return [int(row) for row in rows[np.lexsort((places, -idle[rows]))[:_MOST_ROWS]]]

    def _on(self, row: int, makes_room: Flags) -> Iterator[Exchange]:
        """Yield how a pod of a row makes way for the waiting one, and another one for it."""
        for first in np.flatnonzero((self._rows == row) & makes_room).tolist():
            feasible = self._feasible[int(self._classes[first])]
            fits = (self._held <= self._left[first] - self._asked.need).all(axis=1) & (self._rows != row)
            lost = self._lost + self._lost[first]
            fits &= lost < self._won
            fits &= self._fit(feasible, self._left, self._part_left, self._rows)
            found = np.flatnonzero(fits)
            others = [one for one in found[np.argsort(lost[found], kind="stable")].tolist() if self._takes(row, one)]
            for other in others[:_MOST_PARTNERS]:
                yield from self._exchange(row, first, other)

    def _takes(self, row: int, index: int) -> bool:
        """Tell whether a row may take a pod; of its GPUs, whether a part is to be had that is large enough."""
        feasible = self._feasible[int(self._classes[index])]
        part = 0 if feasible.share is None else int(feasible.share.parts[row])
        return bool(feasible.eligible[row]) and part <= int(self._part[row])

    def _exchange(self, row: int, *indexes: int) -> Iterator[Exchange]:
        """Yield the exchange of these pods, if each of them may go, and goes alone."""
        victim_sets = tuple(self._candidates.victim_set(self._members[index]) for index in indexes)
        alone = tuple(one for one in victim_sets if one is not None and len(one.members) == 1)
        if len(alone) == len(indexes):
            yield Exchange(row, alone, sum(int(self._lost[index]) for index in indexes))
