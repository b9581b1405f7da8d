"""A trial of pods that are placed together in a network topology: by the search, at their planned or nominated places.

The places are checked against a request's topology constraints, from the places alone.

Its nodes are a placer's rows, on which pods are put on trial.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kaicore.rules.engine.placement.placer import Assignment, Placer, in_placement_order
from kaicore.rules.engine.topology.set_requests import GroupPart, HeldPod, placing_request
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.topology.placing.request import (
    NO_LEVEL,
    GroupTopology,
    PodsByRow,
    Refused,
    Room,
    SetRequest,
    TopologyStrategy,
)
from kaicore.rules.topology.placing.search import search
from kaicore.rules.topology.tree import TopologyColumns


class PlacerRoom:
    """A placer's rows as `kaicore.rules.topology.placing.request.Room`; pods are numbers in the order given.

    Attributes:
        classes: of each pod, as a number.
        samples: a pod of each class.
    """

    def __init__(self, placer: Placer, members: Sequence[Member], *, among: Flags | None = None) -> None:
        """Args:
        placer: on the nodes at one time.
        among: rows that may take pods; None for all.
        """
        self.classes: list[int] = []
        self.samples: list[Member] = []
        self.placer = placer
        self._members = members
        self._among = among
        #: Where pods were put, each with the savepoint before it.
        self._trail: list[tuple[int, Assignment]] = []
        #: Counts by class, as long as no pod is put or taken off.
        self._counts: dict[int, PodsByRow] = {}
        #: By class, as they were when they were asked for first.
        self._preferences: dict[int, PodsByRow | None] = {}
        numbers: dict[str, int] = {}
        for member in members:
            number = numbers.setdefault(placer.class_of(member).key, len(numbers))
            if number == len(self.samples):
                self.samples.append(member)
            self.classes.append(number)

    @property
    def assignments(self) -> list[Assignment]:
        """The places of pods now, in the order in which they were put there."""
        return [assignment for _, assignment in self._trail]

    def counts(self, pod_class: int) -> PodsByRow:
        """See `Room.counts`."""
        counts = self._counts.get(pod_class)
        if counts is None:
            counts = self._count(pod_class)
            if self._among is not None:
                counts = np.where(self._among, counts, 0)
            self._counts[pod_class] = counts
        return counts

    def preferences(self, pod_class: int) -> PodsByRow | None:
        """See `Room.preferences`."""
        if pod_class not in self._preferences:
            feasible = self.placer.feasible_nodes(self.placer.class_of(self.samples[pod_class]))
            self._preferences[pod_class] = feasible.preferences()
        return self._preferences[pod_class]

    def remaining(self) -> Ints | None:
        """See `Room.remaining`."""
        columns = self.placer.statement.columns
        remaining: Ints = np.maximum(columns.allocatable - columns.used, 0)
        return remaining

    def takes(self, pod_class: int) -> Ints:
        """See `Room.takes`."""
        return self.placer.feasible_nodes(self.placer.class_of(self.samples[pod_class])).need

    def put(self, pods: Sequence[int], row: int) -> int:
        """See `Room.put`."""
        self._counts.clear()
        for place, pod in enumerate(pods):
            before = self.savepoint()
            assignment = self._place(self._members[pod], row)
            if assignment is None:
                return place
            self._trail.append((before, assignment))
        return len(pods)

    def savepoint(self) -> int:
        """See `Room.savepoint`."""
        return self.placer.statement.savepoint()

    def rollback(self, savepoint: int) -> None:
        """See `Room.rollback`."""
        self._counts.clear()
        self._undo(savepoint)
        while self._trail and self._trail[-1][0] >= savepoint:
            self._trail.pop()

    def _count(self, pod_class: int) -> PodsByRow:
        return self.placer.kept_counts(self.samples[pod_class])

    def _place(self, member: Member, row: int) -> Assignment | None:
        return self.placer.place_on(member, row)

    def _undo(self, savepoint: int) -> None:
        self.placer.statement.rollback(savepoint)


def keeps(request: SetRequest, tree: TopologyColumns, rows: Mapping[int, int]) -> bool:
    """Tell whether all that is required holds: of a set's domain, of its slices, and of domains that are not shared.

    Slices are looked at where none of the set's pods had a place before.

    Args:
        request: with the pods that had a place before.
        rows: where the pods are, by number.
    """
    children = request.children
    if not all(keeps(child, tree, rows) for child in children):
        return False
    exclusive = [child for child in children if child.constraint is not None and child.constraint.exclusive]
    taken = [(one.constraint.required, *_domains(one, tree, rows)) for one in exclusive if one.constraint is not None]
    if len(set(taken)) < len(taken):
        return False
    constraint = request.constraint
    if constraint is None:
        return True
    if constraint.required != NO_LEVEL and len(_domains(request, tree, rows)) > 1:
        return False
    if request.held is not None:
        return True
    return all(
        _in_slices(request, layer.size, tree.of_rows[layer.required], rows)
        for layer in constraint.slices
        if layer.required != NO_LEVEL
    )


def _in_slices(request: SetRequest, size: int, of_rows: NDArray[np.int32], rows: Mapping[int, int]) -> bool:
    """Tell whether the pods of each slice share a domain."""
    pods = list(_pods(request))
    ranks = request.ranks or range(len(pods))
    slices: dict[int, set[int]] = {}
    for pod, rank in zip(pods, ranks, strict=True):
        slices.setdefault(rank // size, set()).add(int(of_rows[rows[pod]]))
    return all(len(domains) == 1 and -1 not in domains for domains in slices.values())


def _domains(request: SetRequest, tree: TopologyColumns, rows: Mapping[int, int]) -> set[int]:
    """Return the domains of a set's required level that its pods are in; -1 for a node outside the topology."""
    assert request.constraint is not None, "asked for sets with a constraint"
    if request.constraint.required == NO_LEVEL:
        return set()
    of_rows = tree.of_rows[request.constraint.required]
    numbers = {int(of_rows[rows[pod]]) for pod in _pods(request)}
    if request.held is not None:
        numbers |= set(of_rows[np.flatnonzero(request.held)].tolist())
    return numbers


def _pods(request: SetRequest) -> Iterator[int]:
    yield from request.pods
    for child in request.children:
        yield from _pods(child)


class UnitTrial:
    """Pods that are placed in one go on the nodes of one time.

    Attributes:
        parts: what of each group is to be placed; groups of one trial share a constraint.
        asked: the same, as one request.
    """

    def __init__(
        self,
        placer: Placer,
        parts: Sequence[GroupPart],
        also_held: Sequence[HeldPod],
        strategy: TopologyStrategy,
    ) -> None:
        self.placer = placer
        self.asked = placing_request(parts, also_held)
        self.parts = parts
        self._also_held = also_held
        self._tree = parts[0].topology.tree
        self._strategy = strategy

    @property
    def topology(self) -> GroupTopology:
        """The topology that the first group asks for."""
        return self.parts[0].topology

    def search(self, among: Flags | None = None) -> list[Assignment] | Refused:
        """Place the pods by the search, on some rows or on any; where it refuses, nothing is changed."""
        room = PlacerRoom(self.placer, self.asked.members, among=among)
        refused = self.search_in(room)
        return room.assignments if refused is None else refused

    def search_in(self, room: Room) -> Refused | None:
        """Place the pods by the search in a room of theirs; where it refuses, nothing is changed."""
        savepoint = room.savepoint()
        outcome = search(self.asked.request, self._tree, room, self._strategy)
        if not isinstance(outcome, Refused):
            return None
        room.rollback(savepoint)
        return outcome

    def is_as_close(self, assignments: Sequence[Assignment]) -> bool:
        """Tell whether pods of running groups share as narrow a domain where they are put as where they are now."""
        rows = self.placer.statement.columns.rows
        stay = [pod.row for part in self.parts for pod in part.held]
        before = [rows[member.node] for member in self.asked.members]
        after = [assignment.row for assignment in assignments]
        return self._shared_level([*stay, *after]) >= self._shared_level([*stay, *before])

    def _shared_level(self, rows: Sequence[int]) -> int:
        """Return the narrowest level at which rows share a domain; `NO_LEVEL` for none."""
        for level in reversed(range(len(self._tree.levels))):
            domains = set(self._tree.of_rows[level][rows].tolist())
            if len(domains) == 1 and -1 not in domains:
                return level
        return NO_LEVEL

    def on_rows(self, rows: Mapping[str, int]) -> list[Assignment] | None:
        """Place the pods on rows by their uids; None, and nothing is changed, where not all can be there."""
        savepoint = self.placer.statement.savepoint()
        assignments: list[Assignment] = []
        for member, _ in in_placement_order(self.asked.members, self.placer.class_of):
            row = rows.get(member.pod.uid)
            assignment = None if row is None else self.placer.place_on(member, row)
            if assignment is None:
                break
            assignments.append(assignment)
        if len(assignments) == len(self.asked.members) and self.is_kept(_rows(assignments)):
            return assignments
        self.placer.statement.rollback(savepoint)
        return None

    def as_nominated(self) -> list[Assignment] | None:
        """Place the pods that are nominated where room is reserved for them, and the others near them.

        Returns:
            where they go; None, and nothing is changed, where none is nominated, or not all can be placed so.
        """
        rows = self.placer.statement.columns.rows
        nominated = {
            member.pod.uid: rows[member.nomination.node]
            for member in self.asked.members
            if member.nomination is not None and member.nomination.node in rows
        }
        if not nominated:
            return None
        halves = zip(*(_split(part, nominated, self.asked.ranks) for part in self.parts), strict=True)
        first, rest = (UnitTrial(self.placer, parts, self._also_held, self._strategy) for parts in halves)
        savepoint = self.placer.statement.savepoint()
        placed = first.on_rows(nominated)
        if placed is not None:
            others = rest.search() if rest.asked.members else []
            if not isinstance(others, Refused) and self.is_kept(_rows([*placed, *others])):
                return [*placed, *others]
        self.placer.statement.rollback(savepoint)
        return None

    def is_kept(self, row_of: Mapping[str, int]) -> bool:
        """Tell whether pods are on rows, by their uids, where all that is required holds."""
        rows = {number: row_of[member.pod.uid] for number, member in enumerate(self.asked.members)}
        return keeps(self.asked.request, self._tree, rows)


def _rows(assignments: Sequence[Assignment]) -> dict[str, int]:
    return {assignment.member.pod.uid: assignment.row for assignment in assignments}


def _split(part: GroupPart, nominated: Mapping[str, int], ranks: Mapping[str, int]) -> tuple[GroupPart, GroupPart]:
    """Return a part with the nominated pods alone, and one with the others, for which those have their places."""
    first = [member for member in part.waiting if member.pod.uid in nominated]
    rest = [member for member in part.waiting if member.pod.uid not in nominated]
    held = [*part.held, *(HeldPod(member, nominated[member.pod.uid], ranks[member.pod.uid]) for member in first)]
    return replace(part, waiting=first), replace(part, waiting=rest, held=held)
