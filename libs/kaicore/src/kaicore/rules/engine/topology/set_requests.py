"""Requests of groups to the topology search: their pods in order of rank, and their running pods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kaicore.rules.engine.topology.group_topology import GroupTopology
from kaicore.rules.engine.topology.ranks import ranked
from kaicore.rules.engine.workload import Member, Workload
from kaicore.rules.groups.ranks import NO_RANK
from kaicore.rules.topology.placing.request import LevelConstraint, PodsByRow, SetRequest

#: Between the key of a group and the name of one of its sets.
OF_GROUP = ":"


@dataclass(frozen=True, slots=True)
class HeldPod:
    """A pod of a group that has its place already.

    Attributes:
        member: the pod.
        row: its node.
        rank: its place among the pods of its set; `NO_RANK` for none.
    """

    member: Member
    row: int
    rank: int


@dataclass(frozen=True, slots=True)
class GroupPart:
    """What of one group is to be placed.

    Attributes:
        workload: the group.
        topology: what it asks for.
        waiting: the pods that are to be placed, in order of age.
        held: the pods of the group that have a place.
        ranks: of the group's pods that have a place or had one, by uid.
    """

    workload: Workload
    topology: GroupTopology
    waiting: Sequence[Member]
    held: Sequence[HeldPod]
    ranks: Mapping[str, int]


@dataclass(slots=True)
class PlacingRequest:
    """What is to be placed in one go.

    Attributes:
        members: the pods of sets that a constraint is on, themselves or around them; by number.
        plain: the other pods.
        request: for the search; of `members`.
        ranks: of all pods, by uid.
    """

    members: list[Member] = field(default_factory=list)
    plain: list[Member] = field(default_factory=list)
    request: SetRequest = field(default_factory=SetRequest)
    ranks: dict[str, int] = field(default_factory=dict)


def placing_request(parts: Sequence[GroupPart], also_held: Sequence[HeldPod] = ()) -> PlacingRequest:
    """Return what is to be placed of groups on one tree.

    Args:
        parts: one group, or several that share the constraint of their roots.
        also_held: pods of other groups to which that constraint applies as well.
    """
    whole = PlacingRequest()
    built = [_Builder(part, whole, prefix=part.workload.group.key if len(parts) > 1 else "").root() for part in parts]
    requests = [one for one in built if one is not None]
    if not requests:
        return whole
    first = requests[0]
    if len(parts) > 1:
        shared = first.constraint
        first = SetRequest(children=tuple(map(_within, requests)), constraint=shared and replace(shared, slices=()))
    held = [*(pod.row for part in parts for pod in part.held), *(pod.row for pod in also_held)]
    whole.request = replace(first, held=_by_row(held, len(parts[0].topology.tree.of_rows[0])))
    return whole


def _within(request: SetRequest) -> SetRequest:
    """Return the root of a group whose constraint several share: of its own are only the slices."""
    slices = request.constraint.slices if request.constraint is not None else ()
    return replace(request, constraint=LevelConstraint(slices=slices) if slices else None)


class _Builder:
    """The sets of one group as the search has them."""

    def __init__(self, part: GroupPart, whole: PlacingRequest, *, prefix: str) -> None:
        self._topology = part.topology
        self._known = part.ranks
        self._whole = whole
        self._prefix = prefix
        self._sets = {one.name: one for one in part.topology.sets}
        self._children: dict[str, list[str]] = {}
        for one in part.topology.sets[1:]:
            self._children.setdefault(one.parent, []).append(one.name)
        self._waiting: dict[str, list[Member]] = {}
        for member in part.waiting:
            self._waiting.setdefault(part.workload.leaf(member), []).append(member)
        self._held: dict[str, list[HeldPod]] = {}
        for pod in part.held:
            self._held.setdefault(part.workload.leaf(pod.member), []).append(pod)

    def root(self) -> SetRequest | None:
        return self._build(self._topology.sets[0].name)

    def _build(self, name: str) -> SetRequest | None:
        """Return a set's request; None where nothing of it is to be placed, or no constraint is on it."""
        below = [one for child in self._children.get(name, ()) if (one := self._build(child)) is not None]
        pods = self._number(name)
        if not pods and not below:
            return None
        rows = len(self._topology.tree.of_rows[0])
        held = _by_row([pod.row for leaf in self._inside(name) for pod in self._held.get(leaf, ())], rows)
        shown = f"{self._prefix}{OF_GROUP}{name}" if self._prefix else name
        running = self._held.get(name, ())
        return SetRequest(
            shown,
            pods,
            tuple(below),
            self._topology.constraints.get(name),
            held,
            ranks=tuple(self._whole.ranks[self._whole.members[pod].pod.uid] for pod in pods),
            held_ranks={pod.rank: pod.row for pod in running if pod.rank != NO_RANK},
        )

    def _number(self, name: str) -> tuple[int, ...]:
        """Give the pods of a leaf that are to be placed their ranks, and numbers if a constraint is on them."""
        waiting = self._waiting.get(name)
        if not waiting:
            return ()
        whole = self._whole
        held = (pod.rank for pod in self._held.get(name, ()))
        waiting, ranks = ranked(waiting, held, self._sets[name].rank, self._known)
        whole.ranks.update(ranks)
        if name not in self._topology.bound_leaves:
            whole.plain += waiting
            return ()
        first = len(whole.members)
        whole.members += waiting
        return tuple(range(first, first + len(waiting)))

    def _inside(self, name: str) -> list[str]:
        names = [name]
        for one in names:
            names += self._children.get(one, ())
        return names


def _by_row(rows: Sequence[int], count: int) -> PodsByRow | None:
    """Return how many pods each row has; None for none at all."""
    if not rows:
        return None
    counts: PodsByRow = np.bincount(rows, minlength=count)
    return counts
