"""Certainty of admission: whether a kubelet admits a pod for every possible outcome of the pods before it.

A kubelet is ahead of the known state. It frees a pod's resources before the API reports the pod's end, and a pod that
is not observed yet may have found that room. Pods that reach it together are not handled in the order of the decisions:
it takes them oldest first (`kubelet.go`, HandlePodAdditions). So until they are observed, pods may be on other zones
than predicted. A pod with several containers may find room for one where the others cannot follow.

The possible outcomes are followed zone by zone, not pod by pod. Each container goes to the lowest zone that has room
(`policy_single_numa_node.go`; `restricted` among masks of one zone), or to a lower one where pods that may end leave it
room. Such a zone has at least as much as the container takes, and counting exactly that is safe: no kubelet has less,
and a container that fits then fits always. So it does not matter which of the pods end, and when.

Under `best-effort` and `none` no zone needs to have room for all. A kubelet refuses where no zone has the memory, and
where the node has too few CPUs: of these, init containers that came before may keep more than is accounted (decision
0004). A best-effort kubelet goes to the lowest zone that has room for all. Where there is none, it goes to any zone
that has room for the memory. CPUs and devices come from anywhere then, and the remaining amounts per zone are not known
any more. `none` takes memory of the lowest zone that has it, and the zones of CPUs do not matter.

Source: Kubernetes v1.36, `pkg/kubelet/kubelet.go`, `pkg/kubelet/cm/topologymanager/policy_single_numa_node.go` and
`policy_best_effort.go`, `pkg/kubelet/cm/memorymanager/policy_static.go`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kaicore.rules.model.node import TopologyPolicy
from kaicore.rules.model.pod import ContainerKind
from kaicore.rules.model.quantity import CPU, is_memory
from kaicore.rules.numa.kubelet.masks import zones_of
from kaicore.rules.numa.kubelet.requests import AlignedContainer, AlignedRequest
from kaicore.rules.numa.kubelet.settings import KubeletSettings
from kaicore.rules.numa.kubelet.zones import NodeZones, ZoneCharge

#: What is free, by zone and resource.
_World = tuple[tuple[int, ...], ...]

#: So many are kept apart; of more, what is least free in any of them.
_MOST_WORLDS = 16

#: Of more arrivals only their own order and that by age are looked at.
_MOST_SPLIT = 6


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A pod that was decided on, and of which it is not certain what its kubelet gives it.

    Attributes:
        charge: what it is accounted to hold.
        created_at: seconds since the epoch.
        shaken: something was freed since it was decided on: it may have come before that or after.
        may_end: it is bound, so by the time the next pod comes to the kubelet it may have ended.
    """

    request: AlignedRequest
    charge: ZoneCharge
    created_at: int = 0
    shaken: bool = False
    may_end: bool = False

    @property
    def zones(self) -> frozenset[int]:
        """The node's row where it is accounted."""
        blocks = (zone for block in self.charge.blocks for zone in zones_of(block.mask))
        return frozenset([*(zone for zone, _, _ in self.charge.amounts), *blocks])


#: Policies under which pods are refused for CPUs and devices, too.
_STRICT = (TopologyPolicy.SINGLE_NUMA_NODE, TopologyPolicy.RESTRICTED)


def applies_to(settings: KubeletSettings) -> bool:
    """Tell whether a kubelet's choices are followed here: not where CPUs of one socket are as good as of one zone."""
    return not settings.aligns_by_socket


def has_stages(request: AlignedRequest, settings: KubeletSettings) -> bool:
    """Tell whether a pod is aligned in several steps, so that room for one may lead away from room for the next."""
    containers = request.on(settings).containers
    return not settings.pod_scope and sum(any(n for _, n in item.amounts) for item in containers) > 1


def is_certain(
    node: NodeZones,
    arrivals: Sequence[Arrival],
    ending: Mapping[str, Sequence[int]],
    request: AlignedRequest,
    *,
    created_at: int,
) -> bool:
    """Tell whether a kubelet admits a pod, and those before it as well, in whatever order and state they find it.

    Args:
        node: its zones as they are accounted, arrivals included; not changed.
        arrivals: in the order of the decisions.
        ending: by resource and zone, what pods hold that may end at any moment.
        request: what is aligned of the pod, which a node as accounted admits.
        created_at: when the pod was created, seconds since the epoch.
    """
    is_last = all(created_at >= arrival.created_at for arrival in arrivals)
    request = request.on(node.settings)
    if node.settings.policy not in _STRICT and not _has_cpus_whatever_is_kept(node, arrivals, request, last=is_last):
        return False
    if is_last and len(request.containers) == 1 and _has_room_beside_all(node, arrivals, request):
        return True
    return _Node(node, arrivals, ending, request).admits(created_at)


def _has_cpus_whatever_is_kept(
    node: NodeZones, arrivals: Sequence[Arrival], request: AlignedRequest, *, last: bool
) -> bool:
    """Tell whether a node has the CPUs in all, though init containers that come first keep the most that they may."""
    need = dict(request.pod).get(CPU, 0)
    if not need or not _aligned(node, CPU) or not node.settings.may_have_half_cores:
        return True
    kept = sum(_left_alone(one.request.on(node.settings)) for one in arrivals)
    return need + kept + (0 if last else _left_alone(request)) <= node.whole(CPU)


def _has_room_beside_all(node: NodeZones, arrivals: Sequence[Arrival], request: AlignedRequest) -> bool:
    """Tell whether a zone has room for a container even if all arrivals are there: most pods need no closer look."""
    zones = set(range(node.zones))
    strict = node.settings.policy in _STRICT
    for name, need in request.pod:
        if not need or not _aligned(node, name) or not (strict or is_memory(name)):
            continue
        free = _free(node, name)
        most = 0
        for arrival in arrivals:
            asked = arrival.request.on(node.settings)
            most += dict(asked.pod).get(name, 0)
            if name == CPU and asked.lends_cpus:
                most += 1000 * len(asked.containers)
            for zone, amount in _held(arrival, name):
                free[zone] += amount
        zones &= {zone for zone, amount in enumerate(free) if amount - most >= need}
    return bool(zones)


@dataclass(frozen=True, slots=True)
class _Step:
    """A container, or under pod scope a pod.

    Attributes:
        lends: what it takes is lent on to the steps after it.
        need: by resource.
        besides: what it may take though as much is lent: of an odd number of CPUs the last may come from a core that is
            half free (decision 0004). It is not needed.
    """

    lends: bool
    need: tuple[int, ...]
    besides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Guest:
    """A pod as it is followed."""

    steps: tuple[_Step, ...]
    created_at: int
    zones: frozenset[int] = frozenset()
    shaken: bool = False


class _Node:
    def __init__(
        self,
        node: NodeZones,
        arrivals: Sequence[Arrival],
        ending: Mapping[str, Sequence[int]],
        request: AlignedRequest,
    ) -> None:
        self._settings = node.settings
        asked = (one.on(node.settings) for one in (request, *(item.request for item in arrivals)))
        names = sorted({name for one in asked for name in one.resources if _aligned(node, name)})
        policy = node.settings.policy
        #: Whether a container may be let in though no zone has room for all that it asks for.
        self._lenient = policy not in _STRICT
        self._names = [name for name in names if policy is not TopologyPolicy.NONE or is_memory(name)]
        self._cpu = self._names.index(CPU) if CPU in self._names else -1
        self._lendable = [not is_memory(name) for name in self._names]
        self._memory = [place for place, name in enumerate(self._names) if is_memory(name)]
        columns = [_free(node, name) for name in self._names]
        more = [list(ending.get(name, ())) or [0] * node.zones for name in self._names]
        for name, amounts in zip(self._names, more, strict=True):
            for zone, amount in enumerate(node.repeated.get(name, ())):
                amounts[zone] += amount
        self._installed = [_installed(node, name) for name in self._names]
        self._newcomer = self._guest(request)
        self._guests: list[_Guest] = []
        for arrival in arrivals:
            guest = self._guest(arrival.request, arrival)
            if not guest.steps or self._is_wide(guest) or _of_several_zones(arrival):
                continue
            self._guests.append(guest)
            for name, column in zip(self._names, columns, strict=True):
                for zone, amount in _held(arrival, name):
                    column[zone] += amount
            if arrival.may_end:
                for place, needs in enumerate(zip(*(step.need for step in guest.steps), strict=True)):
                    more[place] = [amount + sum(needs) for amount in more[place]]
        self._free: _World = tuple(tuple(max(amount, 0) for amount in zone) for zone in zip(*columns, strict=True))
        self._more: _World = tuple(zip(*more, strict=True))

    def _guest(self, request: AlignedRequest, arrival: Arrival | None = None) -> _Guest:
        request = request.on(self._settings)
        containers: Iterable[AlignedContainer] = request.containers
        left_alone = 0
        if self._settings.pod_scope:
            containers = (AlignedContainer("", ContainerKind.APP, request.pod),)
            left_alone = _left_alone(request) if self._settings.may_have_half_cores else 0
        steps = []
        for container in containers:
            amounts = dict(container.amounts)
            need = tuple(amounts.get(name, 0) for name in self._names)
            besides = tuple(left_alone if name == CPU else 0 for name in self._names)
            if any(need):
                steps.append(_Step(container.kind is ContainerKind.INIT, need, besides))
        if arrival is None:
            return _Guest(tuple(steps), 0)
        return _Guest(tuple(steps), arrival.created_at, arrival.zones, arrival.shaken)

    def admits(self, created_at: int) -> bool:
        newcomer = self._newcomer
        if not newcomer.steps or self._is_wide(newcomer):
            return True
        ages = [guest.created_at for guest in self._guests]
        return all(self._holds(order) for order in _orders(ages, created_at))

    def _is_wide(self, guest: _Guest) -> bool:
        """True if a step needs more than one zone has; only the exact walk knows the split."""
        needs = (zip(step.need, self._installed, strict=True) for step in guest.steps)
        return any(amount > have for need in needs for amount, have in need)

    def _holds(self, order: Sequence[int]) -> bool:
        """Follow the pods in an order, the newcomer being the last number: whether it and those after it are let in."""
        worlds, came = [self._free], False
        for number in order:
            is_newcomer = number == len(self._guests)
            guest = self._newcomer if is_newcomer else self._guests[number]
            came |= is_newcomer
            next_worlds: dict[_World, None] = {}
            for world in worlds:
                after = self._after(world, guest, 0, tuple((0,) * len(zone) for zone in world), surely=came)
                if after is None and came:
                    return False
                # One that is not let in takes nothing.
                next_worlds |= dict.fromkeys(after or (world,))
            worlds = _few(list(next_worlds))
        return True

    def _after(self, world: _World, guest: _Guest, place: int, lent: _World, *, surely: bool) -> list[_World] | None:
        """The amounts free when a pod has everything from one of its steps on; None if none can be, or not surely."""
        if place == len(guest.steps):
            return [world]
        step = guest.steps[place]
        zones, certain = self._choices(world, guest, step.need, lent)
        if self._lenient and not certain:
            zones, certain = self._by_memory(world, guest, step.need, lent)
            world = self._memory_only(world)
        if surely and not certain:
            return None
        possible: list[_World] = []
        for zone in zones:
            for had in self._taken_over(step, lent[zone]):
                taken = zip(step.need, had, step.besides, strict=True)
                fresh = (max(amount - again, 0) + more for amount, again, more in taken)
                # Where it had no room before, it has just what it needs.
                left = tuple(max(free - amount, 0) for free, amount in zip(world[zone], fresh, strict=True))
                loans = zip(lent[zone], had, step.need, strict=True)
                loan = tuple(
                    max(loan, amount) if step.lends else loan - min(again, amount) for loan, again, amount in loans
                )
                then = _with(world, zone, left), guest, place + 1, _with(lent, zone, loan)
                after = self._after(*then, surely=surely)
                if after is None and surely:
                    return None
                possible += after or ()
        return possible or None

    def _taken_over(self, step: _Step, lent: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The part of a loan that a step may take over: of odd numbers perhaps none, but CPUs of other cores."""
        if self._cpu < 0 or step.lends or not lent[self._cpu] or not self._settings.may_have_half_cores:
            return [lent]
        if lent[self._cpu] % 2000 == step.need[self._cpu] % 2000 == 0:
            return [lent]
        return [lent, (*lent[: self._cpu], 0, *lent[self._cpu + 1 :])]

    def _choices(self, world: _World, guest: _Guest, need: tuple[int, ...], lent: _World) -> tuple[list[int], bool]:
        """Return the zones to which a step may go, and whether one of them has room though no pod ends."""
        zones, certain = list[int](), False
        for zone, (free, more) in enumerate(zip(world, self._more, strict=True)):
            if self._is_bound_elsewhere(zone, need, lent):
                continue
            fresh = tuple(max(amount - had, 0) for amount, had in zip(need, lent[zone], strict=True))
            room = all(amount <= there for amount, there in zip(fresh, free, strict=True))
            lower = not certain and (room or self._fits(fresh, free, more))
            if lower or zone in guest.zones or (room and guest.shaken):
                zones.append(zone)
            certain |= room
        return zones, certain

    def _by_memory(self, world: _World, guest: _Guest, need: tuple[int, ...], lent: _World) -> tuple[list[int], bool]:
        """Return what `_choices` does for a step that a best-effort kubelet puts where there is room for its memory."""
        zones, certain = list[int](), False
        for zone, (free, more) in enumerate(zip(world, self._more, strict=True)):
            fresh = [max(need[place] - lent[zone][place], 0) for place in self._memory]
            there, extra = ([amounts[place] for place in self._memory] for amounts in (free, more))
            room = all(amount <= have for amount, have in zip(fresh, there, strict=True))
            if room or zone in guest.zones or self._fits(fresh, there, extra):
                zones.append(zone)
            certain |= room
        return zones, certain

    def _memory_only(self, world: _World) -> _World:
        """The amounts known to be free when CPUs and devices have come from any zone."""
        return tuple(tuple(amount if at in self._memory else 0 for at, amount in enumerate(zone)) for zone in world)

    def _is_bound_elsewhere(self, zone: int, need: Sequence[int], lent: _World) -> bool:
        """True if init containers borrow a step's amount from another zone: a mask without that zone is no hint."""
        return any(
            loan and amount and lendable
            for other, loans in enumerate(lent)
            if other != zone
            for loan, amount, lendable in zip(loans, need, self._lendable, strict=True)
        )

    @staticmethod
    def _fits(need: Sequence[int], free: Sequence[int], more: Sequence[int]) -> bool:
        return all(amount <= there + extra for amount, there, extra in zip(need, free, more, strict=True))


def _orders(ages: Sequence[int], newest: int) -> set[tuple[int, ...]]:
    """The orders in which a kubelet may take pods up: as they were decided on, or oldest first in one or two bouts."""
    every = [*ages, newest]
    numbers = list(range(len(every)))
    if every == sorted(every):
        return {tuple(numbers)}
    splits = range(len(numbers)) if len(ages) <= _MOST_SPLIT else (0, len(ages))

    def by_age(some: Sequence[int]) -> list[int]:
        return sorted(some, key=every.__getitem__)

    orders = {(*by_age(numbers[:split]), *by_age(numbers[split:])) for split in splits}
    return {tuple(numbers), *orders}


def _left_alone(request: AlignedRequest) -> int:
    """Return how many millicores of what its init containers lend a pod may leave alone, for others that it takes."""
    lent, left = 0, 0
    for container in request.containers:
        cpus = dict(container.amounts).get(CPU, 0)
        if container.kind is ContainerKind.INIT:
            lent = max(lent, cpus)
        elif lent and (lent % 2000 or cpus % 2000):
            left += min(lent, cpus, 1000)
    return min(left, lent)


def _few(worlds: list[_World]) -> list[_World]:
    """Put together what is too much to be kept apart: a container that fits where least is free fits anywhere."""
    if len(worlds) <= _MOST_WORLDS:
        return worlds
    kept, others = worlds[: _MOST_WORLDS - 1], worlds[_MOST_WORLDS - 1 :]
    least = tuple(tuple(map(min, *zones)) for zones in zip(*others, strict=True))
    return [*kept, least]


def _aligned(node: NodeZones, resource: str) -> bool:
    if is_memory(resource):
        return node.settings.static_memory and resource in node.memory.free
    return resource in node.free and (resource != CPU or node.settings.static_cpu)


def _free(node: NodeZones, resource: str) -> list[int]:
    if not is_memory(resource):
        return list(node.free[resource])
    # A zone that serves a group of zones serves no single one.
    cells = enumerate(node.memory.cells)
    return [node.memory.free[resource][zone] if cell in (0, 1 << zone) else 0 for zone, cell in cells]


def _installed(node: NodeZones, resource: str) -> int:
    return max(node.memory.allocatable[resource] if is_memory(resource) else node.capacity[resource])


def _held(arrival: Arrival, resource: str) -> list[tuple[int, int]]:
    """An arrival's accounted holdings of a resource, as zones and amounts."""
    if not is_memory(resource):
        return [(zone, amount) for zone, name, amount in arrival.charge.amounts if name == resource]
    return [part for block in arrival.charge.blocks if block.resource == resource for part in block.drawn]


def _of_several_zones(arrival: Arrival) -> bool:
    """True if memory of an arrival ties zones into a group, which the walk by single zones does not follow."""
    return any(block.mask & (block.mask - 1) for block in arrival.charge.blocks)


def _with(world: _World, zone: int, amounts: tuple[int, ...]) -> _World:
    return (*world[:zone], amounts, *world[zone + 1 :])
