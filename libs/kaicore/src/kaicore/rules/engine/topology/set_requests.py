"""Requests of groups to the topology search: their pods in order of rank, and the present places of their running pods.

A group's constraints refer to one tree. The rank of a pod is its own among the pods of its set, or its order of
arrival. Pods that this log placed have the ranks of its decisions. For others, as in a cluster that is adopted while
jobs run, the rank in the pod itself counts. Where that is missing too, slices are derived from the places of their
pods.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.placement.placer import Assignment
from kaicore.rules.engine.work.pending_group import PendingGroup
from kaicore.rules.engine.work.workload import Member, Workload
from kaicore.rules.groups.labels import NO_RANK, own_rank, placed_rank, rank_order
from kaicore.rules.model.group import RankSource
from kaicore.rules.model.selector import Requirement, meets
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.topology.placing.request import NO_LEVEL, GroupTopology, LevelConstraint, PodsByRow, SetRequest


def ranked(
    waiting: Sequence[Member], held: Iterable[int], source: RankSource | None, known: Mapping[str, int]
) -> tuple[list[Member], Mapping[str, int]]:
    """Return pods of a leaf in order of their ranks, and their ranks by uid.

    Where a pod that waits names no rank, or the same as another, none counts: then they take the lowest ranks that
    running pods leave, in the order given (Kueue pkg/controller/tas/topology_ungater.go, v0.20.0-devel). Where only the
    order of the numbers counts, they take those ranks in that order. A pod that is placed anew keeps the rank that it
    has.

    Args:
        waiting: to be placed, in order of age and name.
        held: ranks of the pods of the leaf that stay where they are.
        known: the ranks of pods that have a place or had one, by uid.
    """
    if source is not None and source.order_only:
        waiting = sorted(waiting, key=lambda member: rank_order(member.pod, source))
    elif source is not None:
        own_ranks = [own_rank(member.pod, source) for member in waiting]
        if NO_RANK not in own_ranks and len(set(own_ranks)) == len(own_ranks):
            order = sorted(range(len(own_ranks)), key=own_ranks.__getitem__)
            return [waiting[index] for index in order], {waiting[index].pod.uid: own_ranks[index] for index in order}
    ranks: dict[str, int] = {}
    taken = set(held)
    for member in waiting:
        own = known.get(member.pod.uid, NO_RANK)
        if own != NO_RANK and own not in taken:
            ranks[member.pod.uid] = own
            taken.add(own)
    rank = 0
    for member in waiting:
        if member.pod.uid not in ranks:
            while rank in taken:
                rank += 1
            ranks[member.pod.uid] = rank
            rank += 1
    return sorted(waiting, key=lambda member: ranks[member.pod.uid]), ranks


def known_ranks(
    active: Sequence[Member], leaving: Sequence[Member], waiting: Sequence[Member], source: RankSource | None
) -> dict[str, int]:
    """Return the ranks of a leaf's pods that have a place, by uid: by the log, else by what they name themselves.

    What an earlier log wrote on a pod comes before the pod's index. A rank that several pods name is nobody's; a pod
    that leaves may have the rank of its successor.
    """
    ranks = {member.pod.uid: member.rank for member in (*active, *leaving) if member.rank != NO_RANK}
    if len(ranks) == len(active) + len(leaving):
        return ranks
    places: dict[int, int] = {}
    if source is not None and source.order_only:
        indexes = {own_rank(member.pod, source) for member in (*active, *leaving, *waiting)} - {NO_RANK}
        places = {index: place for place, index in enumerate(sorted(indexes))}

    def named(member: Member) -> int:
        written, index = placed_rank(member.pod), own_rank(member.pod, source)
        return written if written != NO_RANK else places.get(index, index)

    for members in (active, leaving):
        uids = [member.pod.uid for member in members]
        names = {uid: named(member) for uid, member in zip(uids, members, strict=True) if uid not in ranks}
        times = Counter([*names.values(), *(ranks[uid] for uid in uids if uid in ranks)])
        ranks.update((uid, rank) for uid, rank in names.items() if rank != NO_RANK and times[rank] == 1)
    return ranks


def ranks_by_place(
    places: Mapping[str, Sequence[int]], known: Mapping[str, int], sizes: Sequence[int]
) -> dict[str, int]:
    """Return ranks for pods that name none, so that the pods of a slice share its domains; by uid.

    Slices that have begun in a pod's domain are filled first, then those that have no pod yet.

    Args:
        places: of the leaf's pods that have a place, by uid: the domain of each layer of slices, the widest first.
        sizes: pods of a slice, of each layer.
    """
    ranks: dict[str, int] = {}
    used = set(known.values())
    #: Of each layer and slice, the domain that its pods are in.
    domains: dict[tuple[int, int], int] = {}

    def parts(rank: int, place: Sequence[int]) -> list[tuple[tuple[int, int], int]]:
        return [((layer, rank // size), place[layer]) for layer, size in enumerate(sizes)]

    def shared(rank: int, place: Sequence[int]) -> int:
        return sum(domains.get(part) == domain for part, domain in parts(rank, place))

    for uid, rank in known.items():
        domains.update(parts(rank, places[uid]))
    widest, fresh = sizes[0], 0
    begun = {number for layer, number in domains if layer == 0}
    for uid in sorted(places.keys() - known.keys(), key=lambda uid: (*places[uid], uid)):
        place = places[uid]
        while fresh in begun:
            fresh += 1
        free = [
            rank
            for number in (*(number for number in begun if domains[0, number] == place[0]), fresh)
            for rank in range(number * widest, (number + 1) * widest)
            if rank not in used and all(domains.get(part, domain) == domain for part, domain in parts(rank, place))
        ]
        rank = ranks[uid] = max(free, key=lambda rank: (shared(rank, place), -rank))
        used.add(rank)
        begun.add(rank // widest)
        domains.update(parts(rank, place))
    return ranks


#: Between the key of a group and the name of one of its sets.
OF_GROUP = ":"


@dataclass(frozen=True, slots=True)
class HeldPod:
    """A pod of a group that has its place already. `rank`: its place among the pods of its set; `NO_RANK` for none."""

    member: Member
    row: int
    rank: int


@dataclass(frozen=True, slots=True)
class GroupPart:
    """The part of one group that is to be placed.

    Attributes:
        waiting: the pods that are to be placed, in order of age.
        ranks: of the group's pods that have a place or had one, by uid.
        among: of sets of which a domain may not hold too many: rows to try in turn (`SetRequest.among`).
    """

    workload: Workload
    topology: GroupTopology
    waiting: Sequence[Member]
    held: Sequence[HeldPod]
    ranks: Mapping[str, int]
    among: Mapping[str, tuple[Flags, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class PlacingRequest:
    """The request of all that is to be placed in one go.

    Attributes:
        members: the pods of sets that a constraint is on, themselves or around them; by number.
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
    """Return the root of a group that shares its constraint with others: of its own are only the slices."""
    slices = request.constraint.slices if request.constraint is not None else ()
    return replace(request, constraint=LevelConstraint(slices=slices) if slices else None)


class _Builder:
    """The sets of one group as the search has them."""

    def __init__(self, part: GroupPart, whole: PlacingRequest, *, prefix: str) -> None:
        self._topology = part.topology
        self._known = part.ranks
        self._among = part.among
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
            # Where pods of the set are already, the others follow.
            among=self._among.get(name, ()) if held is None else (),
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


def _by_domain(of_rows: Sequence[NDArray[np.int32]], level: int, places: Sequence[Sequence[int]]) -> Ints:
    """Return by row in how many places there is anything of its domain; above the widest level there is one domain."""
    if level < 0:
        return np.full(len(of_rows[0]), len(places), np.int64)
    counts = np.zeros(int(of_rows[level].max(initial=-1)) + 2, np.int64)
    for rows in places:
        counts[np.unique(of_rows[level][list(rows)])] += 1
    counts[-1] = 0
    by_row: Ints = counts[of_rows[level]]
    return by_row


def _by_row(rows: Sequence[int], count: int) -> PodsByRow | None:
    """Return how many pods each row has; None for none at all."""
    if not rows:
        return None
    counts: PodsByRow = np.bincount(rows, minlength=count)
    return counts


class CycleTopologies:
    """Looks up the requests of groups, and the pods of them that have a place."""

    def __init__(
        self,
        cycle_input: CycleInput,
        *,
        pending_groups: Mapping[str, PendingGroup],
        reserved: Mapping[str, Sequence[Assignment]],
        evicted: Collection[str],
    ) -> None:
        """Args:
        pending_groups: groups with waiting pods, by key.
        reserved: the room that is reserved for nominated pods, by group.
        evicted: uids of the pods that the cycle evicts.
        """
        self._input = cycle_input
        self._pending_groups = pending_groups
        self._reserved = reserved
        self._evicted = evicted
        self._ranks: dict[str, Mapping[str, int]] = {}

    def of(self, workload: Workload) -> GroupTopology | None:
        """Return what a group asks of its topology; None where it asks for nothing, or nothing that there is."""
        looked_up = self._input.topology_of(workload.group) if workload.constrained else None
        return looked_up if isinstance(looked_up, GroupTopology) else None

    def placed(self, workload: Workload) -> Iterator[HeldPod]:
        """Yield the pods of a group that have a place: that run and stay, that were placed, and with reserved room."""
        rows, ranks = self._input.columns.rows, self.ranks(workload)
        for uid, member in workload.active.items():
            if uid not in self._evicted:
                yield HeldPod(member, rows[member.node], ranks.get(uid, NO_RANK))
        key = workload.group.key
        pending_group = self._pending_groups.get(key)
        if pending_group is not None:
            for assignment in (*pending_group.assignments, *self._reserved.get(key, ())):
                yield HeldPod(assignment.member, assignment.row, assignment.member.rank)

    def spread(self, workload: Workload, topology: GroupTopology) -> dict[str, tuple[Flags, ...]]:
        """Return, of sets of which a domain may not hold too many, rows to try in turn (`SetRequest.among`).

        A domain with more than its part of the like work is left out, or comes last. Domains with some come before
        those with none, as in Kueue 0.20 (`pkg/cache/scheduler`, TASTopologySpreading).
        """
        spread = {name: one for name, one in topology.constraints.items() if one.spread}
        return {name: self._in_turn(workload, topology, name, one) for name, one in spread.items()}

    def _in_turn(
        self, workload: Workload, topology: GroupTopology, name: str, constraint: LevelConstraint
    ) -> tuple[Flags, ...]:
        of_rows = topology.tree.of_rows
        places = [rows for rows in self._like_work(workload, name, constraint.spread_with) if len(rows)]
        allowed = np.ones(len(of_rows[0]), np.bool_)
        order: list[Ints] = []
        for limit in constraint.spread:
            count, above = (_by_domain(of_rows, level, places) for level in (limit.level, limit.level - 1))
            over = count * 1000 > above * limit.most_milli
            if not limit.preferred:
                allowed &= ~over
            order += [np.where(over, 2, count == 0), np.where(over, count, 0)]
        keys = np.stack(order, axis=1)
        turns = np.unique(keys[allowed], axis=0)
        return tuple(allowed & (keys == turn).all(axis=1) for turn in turns) or (allowed,)

    def _like_work(self, workload: Workload, name: str, asked: Sequence[Requirement]) -> Iterator[Sequence[int]]:
        """Yield the rows of the same set of other groups that are like one: of the same object, or by their labels."""
        group = workload.group
        for other in self._by_namespace.get(group.namespace, ()):
            if other is workload:
                continue
            members = next((of for of in (other.active, other.waiting) if of), {})
            if asked:
                alike = any(meets(member.pod.labels, asked) for member in members.values())
            else:
                alike = other.group.uid == group.uid != ""
            if alike:
                yield [pod.row for pod in self.placed(other) if name in other.sets_around(pod.member)]

    @cached_property
    def _by_namespace(self) -> dict[str, list[Workload]]:
        found: dict[str, list[Workload]] = {}
        for one in self._input.workloads.values():
            found.setdefault(one.group.namespace, []).append(one)
        return found

    def may_stay(self, workload: Workload) -> Iterator[HeldPod]:
        """Yield the pods of a group that are to be evicted and are not ending yet: where that fails, they stay."""
        rows, ranks = self._input.columns.rows, self.ranks(workload)
        for members, evicted in ((workload.active, self._evicted), (workload.leaving, workload.leaving)):
            for uid, member in members.items():
                if uid in evicted and member.pod.deletion_at is None:
                    yield HeldPod(member, rows[member.node], ranks.get(uid, NO_RANK))

    def ranks(self, workload: Workload) -> Mapping[str, int]:
        """Return the ranks of a group's pods that have a place, as the cycle found them, by uid."""
        kept = self._ranks.get(workload.group.key)
        if kept is None:
            kept = self._ranks[workload.group.key] = self._read_ranks(workload)
        return kept

    def _read_ranks(self, workload: Workload) -> dict[str, int]:
        by_leaf: dict[str, tuple[list[Member], list[Member], list[Member]]] = {}
        for number, members in enumerate((workload.active, workload.leaving, workload.waiting)):
            for member in members.values():
                by_leaf.setdefault(workload.leaf(member), ([], [], []))[number].append(member)
        topology = self.of(workload)
        ranks: dict[str, int] = {}
        for leaf, (active, leaving, waiting) in by_leaf.items():
            known = known_ranks(active, leaving, waiting, workload.rank_source(leaf))
            ranks |= known
            if topology is not None and any(member.pod.uid not in known for member in active):
                ranks |= self._ranks_by_place(topology, leaf, active, known)
        return ranks

    def _ranks_by_place(
        self, topology: GroupTopology, leaf: str, active: Sequence[Member], known: Mapping[str, int]
    ) -> dict[str, int]:
        """Return the ranks of pods that name none, by the domains that slices have to be in."""
        constraint = topology.constraints.get(leaf)
        layers = [one for one in constraint.slices if one.required != NO_LEVEL] if constraint is not None else []
        if not layers:
            return {}
        rows, of_rows = self._input.columns.rows, topology.tree.of_rows
        places = {
            member.pod.uid: [int(of_rows[layer.required][rows[member.node]]) for layer in layers] for member in active
        }
        of_active = {uid: rank for uid, rank in known.items() if uid in places}
        return ranks_by_place(places, of_active, [layer.size for layer in layers])
