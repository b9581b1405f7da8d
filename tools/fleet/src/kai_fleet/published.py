"""A node's kubelet, derived from what the node publishes: its Node and its NodeResourceTopology.

Nothing publishes single CPUs and devices, sockets, SMT, or the CPU manager's options. So CPUs are numbered zone by
zone with two threads a core where all figures are even, half of the zones are on each of two sockets, devices are
numbered, and every option is off. A device that counts in several zones is seen by this: the zones have more of it
than the node.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kaicore.errors import InvalidQuantity

from kai_fleet.kubelet import Device, Kubelet, KubeletConfig, Machine
from kai_fleet.kubelet.bitsets import bits
from kai_fleet.kubelet.cpu_assignment import packed
from kai_fleet.kubelet.machine import MEMORY, TopologyPolicy, TopologyScope, is_memory_type
from kai_fleet.nrt import legacy_policy
from kai_fleet.profile import MOST_ZONES
from kai_fleet.quantity import parse_amount

Json = dict[str, Any]

_ZONE = re.compile(r"node-(\d+)", re.ASCII)
_POLICIES: tuple[TopologyPolicy, ...] = ("none", "best-effort", "restricted", "single-numa-node")
_SCOPES: tuple[TopologyScope, ...] = ("container", "pod")
_PREFER_CLOSEST = "topologymanageroptionpreferclosestnumanodes"
_LOCAL, _REMOTE = 10, 21

#: The most devices of a resource, and CPUs of a zone, that are modelled.
MOST_DEVICES = MOST_CPUS = 4096


@dataclass(slots=True)
class PublishedKubelet:
    """A kubelet, the names of its zones in order, and what had to be guessed beyond what the module says."""

    kubelet: Kubelet
    zones: tuple[str, ...]
    guesses: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Zone:
    name: str
    capacity: dict[str, int]
    allocatable: dict[str, int]
    costs: dict[str, int]


def kubelet_of(node: Json, topology: Json | None) -> PublishedKubelet:
    """Make a kubelet out of a Node and its NodeResourceTopology, both already known to be well-formed."""
    name, status = node["metadata"]["name"], node.get("status") or {}
    capacity = _amounts(status.get("capacity"), f"Node {name}")
    allocatable = _amounts(status.get("allocatable"), f"Node {name}")
    zones = _zones(topology or {}, name)
    guesses: list[str] = []
    if len(zones) > MOST_ZONES:
        guesses.append(f"Node {name}: {len(zones)} zones are more than are modelled; its kubelet aligns nothing")
        zones = []
    policy, scope, closest = _policy(topology or {})
    if not zones:
        policy = "none"
        zones = [_Zone("node-0", {}, {}, {})]
    published = {resource for zone in zones for resource in zone.allocatable}
    static_cpus, static_memory = "cpu" in published, MEMORY in published
    machine = Machine(
        zone_cpus=_cpus(zones, capacity.get("cpu", 0), published=static_cpus),
        zone_memory=_memory(zones, capacity, published=static_memory),
        sockets=2 if len(zones) % 2 == 0 else 1,
        distances=_distances(zones),
        devices={
            resource: _devices(zones, resource, total=allocatable.get(resource), node=name, guesses=guesses)
            for resource in sorted(published)
            if resource != "cpu" and not is_memory_type(resource)
        },
    )
    machine = replace(machine, threads_per_core=_threads(zones, machine))
    config = KubeletConfig(
        topology_policy=policy,
        topology_scope=scope,
        prefer_closest=closest,
        static_cpus=static_cpus,
        static_memory=static_memory,
        reserved_cpus=_reserved(zones, machine) if static_cpus else 0,
        reserved_memory=tuple(_kept(zone, held) for zone, held in zip(zones, machine.zone_memory, strict=True))
        if static_memory
        else (),
        allocatable=allocatable,
        labels={**(node["metadata"].get("labels") or {}), "metadata.name": name},
    )
    return PublishedKubelet(Kubelet(machine, config), tuple(zone.name for zone in zones), guesses)


def _amounts(quantities: Json | None, subject: str) -> dict[str, int]:
    return {
        resource: parse_amount(resource, quantity, subject=subject, field="status")
        for resource, quantity in (quantities or {}).items()
    }


def _zones(topology: Json, name: str) -> list[_Zone]:
    zones: dict[int, _Zone] = {}
    for zone in _parts(topology.get("zones")):
        match = _ZONE.fullmatch(_text(zone.get("name")))
        if match is None or zone.get("type") != "Node":
            continue
        capacity: dict[str, int] = {}
        allocatable: dict[str, int] = {}
        for item in _parts(zone.get("resources")):
            free, total = item.get("allocatable"), item.get("capacity")
            free, total = str(total if free is None else free), str(free if total is None else total)
            subject, resource = f"NodeResourceTopology {name}", _text(item.get("name"))
            try:
                most = parse_amount(resource, total, subject=subject, field="capacity")
                amount = parse_amount(resource, free, subject=subject, field="allocatable")
            except InvalidQuantity:
                # The zone has nothing to give of a resource whose figures are none.
                continue
            capacity[resource] = most
            # A zone that has nothing to give still shows its CPUs; that is no static CPU manager.
            if amount:
                allocatable[resource] = amount
        costs = {
            cost["name"]: cost["value"]
            for cost in _parts(zone.get("costs"))
            if isinstance(cost.get("name"), str) and type(cost.get("value")) is int
        }
        zones[int(match[1])] = _Zone(zone["name"], capacity, allocatable, costs)
    return [zones[number] for number in sorted(zones)]


def _parts(items: object) -> list[Json]:
    """Return the items of a list that can be read: a bad part of a published object costs itself only."""
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _policy(topology: Json) -> tuple[TopologyPolicy, TopologyScope, bool]:
    attributes = {
        _text(item.get("name")): _text(item.get("value")) for item in reversed(_parts(topology.get("attributes")))
    }
    words = topology.get("topologyPolicies")
    word = _text(words[0]) if isinstance(words, list) and words else "None"
    legacy: dict[str, tuple[TopologyPolicy, TopologyScope]] = {
        legacy_policy(policy, scope): (policy, scope) for scope in _SCOPES for policy in _POLICIES
    }
    legacy |= {name.removesuffix("ContainerLevel"): both for name, both in legacy.items() if both[1] == "container"}
    policy, scope = legacy.get(word, ("none", "container"))
    for one in _POLICIES:
        policy = one if attributes.get("topologyManagerPolicy") == one else policy
    for level in _SCOPES:
        scope = level if attributes.get("topologyManagerScope") == level else scope
    closest = any(name.lower() == _PREFER_CLOSEST and value == "true" for name, value in attributes.items())
    return policy, scope, closest


def _cpus(zones: list[_Zone], total_milli: int, *, published: bool) -> tuple[int, ...]:
    """Number the CPUs: those of each zone, or the node's divided evenly among them."""
    share, rest = divmod(total_milli // 1000, len(zones))
    result, first = [], 0
    for number, zone in enumerate(zones):
        count = zone.capacity.get("cpu", 0) // 1000 if published else share + (number < rest)
        count = min(max(count, 1), MOST_CPUS)
        result.append(bits(range(first, first + count)))
        first += count
    return tuple(result)


def _threads(zones: list[_Zone], machine: Machine) -> int:
    counts = [cpus.bit_count() for cpus in machine.zone_cpus]
    counts += [zone.allocatable.get("cpu", 0) // 1000 for zone in zones]
    return 2 if all(count % 2 == 0 for count in counts) else 1


def _reserved(zones: list[_Zone], machine: Machine) -> int:
    reserved = 0
    for zone, cpus in zip(zones, machine.zone_cpus, strict=True):
        kept = cpus.bit_count() - zone.allocatable.get("cpu", 0) // 1000
        reserved |= packed(machine.cpus, cpus, max(kept, 0))
    return reserved


def _memory(zones: list[_Zone], total: dict[str, int], *, published: bool) -> tuple[dict[str, int], ...]:
    """What each zone has of each memory type; `memory` includes hugepages."""
    if not published:
        share = total.get(MEMORY, 0) // len(zones)
        return tuple({MEMORY: share} for _ in zones)
    result = []
    for zone in zones:
        kinds = {name: max(zone.capacity[name], zone.allocatable.get(name, 0)) for name in zone.capacity}
        pages = {name: amount for name, amount in kinds.items() if is_memory_type(name) and name != MEMORY}
        memory = max(kinds.get(MEMORY, 0), zone.allocatable.get(MEMORY, 0) + sum(pages.values()))
        result.append({MEMORY: memory, **pages})
    return tuple(result)


def _kept(zone: _Zone, held: Mapping[str, int]) -> dict[str, int]:
    """What the memory manager keeps from pods in a zone."""
    pages = {name: amount for name, amount in held.items() if name != MEMORY}
    kept = {name: amount - zone.allocatable.get(name, 0) for name, amount in pages.items()}
    return {MEMORY: held[MEMORY] - sum(pages.values()) - zone.allocatable.get(MEMORY, 0), **kept}


def _distances(zones: list[_Zone]) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(one.costs.get(other.name, _LOCAL if one is other else _REMOTE) for other in zones) for one in zones
    )


def _devices(
    zones: list[_Zone], resource: str, *, total: int | None, node: str, guesses: list[str]
) -> tuple[Device, ...]:
    """Number the devices of a resource, so that zones and node come to what they publish."""
    counts = [zone.allocatable.get(resource, 0) for zone in zones]
    whole = sum(counts) if total is None else total
    if max(whole, sum(counts)) > MOST_DEVICES:
        guesses.append(f"Node {node}: {whole} {resource} are more than are modelled; its kubelet aligns none")
        return ()
    masks: list[int] = []
    if whole >= sum(counts):
        masks = [1 << zone for zone, count in enumerate(counts) for _ in range(count)]
        # What no zone has, no plugin said where it is.
        masks += [0] * (whole - sum(counts))
    else:
        having = [zone for zone, count in enumerate(counts) if count]
        width = sum(counts) // whole if whole and sum(counts) % whole == 0 else 0
        if width and len(set(counts)) <= 2 and len(having) % width == 0 and len({counts[z] for z in having}) == 1:
            for first in range(0, len(having), width):
                masks += [bits(having[first : first + width])] * counts[having[first]]
        else:
            guesses.append(f"Node {node}: which zones its {whole} {resource} belong to cannot be told; taken in order")
            masks = [1 << zone for zone, count in enumerate(counts) for _ in range(count)][:whole]
    return tuple(Device(f"{resource.rpartition('/')[2]}-{number:03}", mask) for number, mask in enumerate(masks))
