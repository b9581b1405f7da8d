"""Kubelets without a cluster: they answer pods that another program simulates (`kai simulate --kubelet`).

Objects come as JSON and plain data goes back; the caller is not imported and need not be known. The kubelets are the
model of the fleet. A node's hardware and configuration are taken from the fleet's profile where the node is of one.
Otherwise they are derived from its Node and NodeResourceTopology (`kai_fleet.offline`).

A node's kubelet, derived from what the node publishes: its Node and its NodeResourceTopology.

Nothing publishes single CPUs and devices, sockets, SMT, or the CPU manager's options. So CPUs are numbered zone by
zone with two threads a core where all figures are even, half of the zones are on each of two sockets, devices are
numbered, and every option is off. A device that counts in several zones is seen by this: the zones have more of it
than the node.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import msgspec
from kaicore.errors import InvalidObject, InvalidQuantity

from kai_fleet.kubelet import Container, Device, Kubelet, KubeletConfig, Machine, Pod
from kai_fleet.kubelet.cpus import exclusive_cpus, packed
from kai_fleet.kubelet.hints import NO_AFFINITY, Affinity
from kai_fleet.kubelet.kubelet import Held, held_by
from kai_fleet.kubelet.machine import MEMORY, TopologyPolicy, TopologyScope, bits, is_memory_type, members
from kai_fleet.kubelet.pod import AdmissionError
from kai_fleet.kubelet.quantity import parse_amount
from kai_fleet.node import objects as node_objects
from kai_fleet.node.nrt import API_VERSION, NrtBuilder, legacy_policy
from kai_fleet.node.pod_conversion import PodObject, convert_pod
from kai_fleet.profiles.nodes import NodeSpec, expand
from kai_fleet.profiles.profile import MOST_ZONES, load_profile

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
    guesses: list[str] = []
    capacity, allocatable = (
        _amounts(status.get(field) or {}, f"Node {name}", f"status.{field}", guesses)
        for field in ("capacity", "allocatable")
    )
    zones = _zones(topology or {}, name)
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


def _amounts(quantities: Json, subject: str, field: str, guesses: list[str]) -> dict[str, int]:
    """Return amounts of resources without those that no kubelet could have."""
    amounts: dict[str, int] = {}
    for resource, quantity in quantities.items():
        try:
            amounts[resource] = parse_amount(resource, quantity, subject=subject, field=f"{field}[{resource}]")
        except InvalidObject as error:
            guesses.append(f"{error}; its kubelet has none of it")
    return amounts


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
                # The zone has nothing to give of a resource without usable figures.
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
    """Each zone's amount of each memory type; `memory` includes hugepages."""
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
    """The memory of a zone that the memory manager keeps from pods."""
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
            guesses.append(f"Node {node}: which zones its {whole} {resource} belong to is not known: taken in order")
            masks = [1 << zone for zone, count in enumerate(counts) for _ in range(count)][:whole]
    return tuple(Device(f"{resource.rpartition('/')[2]}-{number:03}", mask) for number, mask in enumerate(masks))


_decode_pod = msgspec.json.Decoder(PodObject).decode
_encode = msgspec.json.Encoder().encode


_GPU_TOLERATION = '[{"key": "nvidia.com/gpu", "operator": "Exists"}]'


class OfflineKubelets:
    """Kubelets of the nodes of one simulation."""

    def __init__(self, profile: str | None = None) -> None:
        """Args:
        profile: name or file of the fleet's profile that nodes may be of.

        Raises:
            ConfigurationError: the profile cannot be read, or says something impossible.
        """
        specs = [] if profile is None else expand(load_profile(profile), source=profile)
        self._specs: dict[str, NodeSpec] = {spec.name: spec for spec in specs}
        self._kubelets: dict[str, Kubelet] = {}
        self._zones: dict[str, tuple[str, ...]] = {}

    def objects(self) -> list[Json]:
        """Return Node and NodeResourceTopology of each node of the profile, as they are before anything runs.

        With them the namespace of which a demonstration's pods get tolerations (docs/reference/simulator.md).
        """
        annotations = {"scheduler.alpha.kubernetes.io/defaultTolerations": _GPU_TOLERATION}
        metadata: Json = {"name": "playground", "annotations": annotations}
        shown: list[Json] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}] if self._specs else []
        for spec in self._specs.values():
            kubelet = Kubelet(spec.machine, spec.config)
            node: Json = msgspec.json.decode(node_objects.node_object(spec, kubelet, now=0))
            shown.append(node)
            if spec.group.nrt.publisher != "none":
                body = NrtBuilder(spec, kubelet).build(kubelet)
                metadata = {**body.pop("metadata", {}), "name": spec.name}
                shown.append({"apiVersion": API_VERSION, "kind": "NodeResourceTopology", "metadata": metadata, **body})
        return shown

    def add_node(self, node: Json, topology: Json | None) -> list[str]:
        """Take up a node; returns what of it had to be guessed, one line each."""
        name = node["metadata"]["name"]
        spec = self._specs.get(name)
        if spec is not None:
            self._kubelets[name] = Kubelet(spec.machine, spec.config)
            self._zones[name] = tuple(f"node-{zone}" for zone in range(spec.machine.zones))
            return []
        made = kubelet_of(node, topology)
        self._kubelets[name], self._zones[name] = made.kubelet, made.zones
        return made.guesses

    def add_running(self, pod: Json, zones: list[Json]) -> list[str]:
        """Take up a pod that runs already, on the zones that are known of it; returns warnings."""
        wire = _decode_pod(_encode(pod))
        name = wire.spec.node_name
        kubelet = self._kubelets.get(name)
        if kubelet is None:
            return []
        try:
            converted = convert_pod(wire)
        except InvalidObject as error:
            return [f"{error}; its node's kubelet takes no account of it"]
        index = {zone: number for number, zone in enumerate(self._zones[name])}
        record = {index[item["zone"]]: dict(item["amount"]) for item in zones if item["zone"] in index}
        if _take_up(kubelet, converted, record):
            return []
        return [f"{wire} runs on {name}; the simulated kubelet there could not have taken it so: no zones"]

    def held(self, pod: Json) -> Json:
        """Return what the containers of a running pod hold by zone; nothing of one that it takes no account of."""
        wire = _decode_pod(_encode(pod))
        name = wire.spec.node_name
        return {"containers": self._records(name, convert_pod(wire)) if name in self._kubelets else []}

    def _records(self, node: str, pod: Pod) -> list[Json]:
        kubelet, zones = self._kubelets[node], self._zones[node]
        return [_exporter_record(kubelet, held, zones) for held in held_by(kubelet, pod)]

    def admit(self, pod: Json) -> Json:
        """Decide on a pod that was bound to `spec.nodeName`: its refusal, or what its containers hold by zone."""
        wire = _decode_pod(_encode(pod))
        name = wire.spec.node_name
        kubelet = self._kubelets[name]
        try:
            converted = convert_pod(wire)
        except InvalidObject as error:
            return {"refusal": {"reason": "UnexpectedAdmissionError", "message": str(error)}}
        rejection = kubelet.admit(converted)
        if rejection is not None:
            return {"refusal": {"reason": rejection.reason, "message": rejection.message}}
        kubelet.containers_started(converted.uid)
        return {"containers": self._records(name, converted)}

    def remove(self, pod: Json) -> None:
        """Take note that a pod on `spec.nodeName` is gone."""
        kubelet = self._kubelets.get(pod["spec"]["nodeName"])
        if kubelet is not None:
            kubelet.terminated(pod["metadata"]["uid"])


def _take_up(kubelet: Kubelet, pod: Pod, record: dict[int, dict[str, int]]) -> bool:
    """Give a running pod what it holds; False where that is not to be had, and the pod counts with its totals alone."""
    if not record:
        if kubelet.admit(pod) is None:
            return True
        kubelet.sweep()
        kubelet.restore(pod, {container.name: NO_AFFINITY for container in pod.containers})
        return False
    managers, affinities = kubelet.managers, {}
    kubelet.sweep()
    taken = True
    for container in pod.containers:
        affinity = _affinity(kubelet, pod, container, record)
        affinities[container.name] = affinity
        try:
            managers.devices.allocate(pod, container, affinity)
            managers.cpus.allocate(pod, container, affinity)
            managers.memory.allocate(pod, container, affinity)
        except AdmissionError:
            taken = False
    if not taken:
        managers.release(pod.uid)
    kubelet.restore(pod, affinities)
    if pod.containers:
        kubelet.containers_started(pod.uid)
    return taken


def _affinity(kubelet: Kubelet, pod: Pod, container: Container, record: dict[int, dict[str, int]]) -> Affinity:
    """Return the narrowest zones of a pod's record that can be the container's, and take its share from the record."""
    wanted = {name: amount for name, amount in container.limits.items() if name in kubelet.managers.devices.pools}
    wanted["cpu"] = exclusive_cpus(pod, container) * 1000
    wanted |= {name: amount for name, amount in container.requests.items() if is_memory_type(name)}
    recorded = {name for held in record.values() for name in held}
    wanted = {name: amount for name, amount in wanted.items() if amount and name in recorded}
    if not wanted:
        return NO_AFFINITY
    zones = sorted(record)
    subsets = [subset for size in range(1, len(zones) + 1) for subset in combinations(zones, size)]
    for subset in subsets:
        if all(sum(record[zone].get(name, 0) for zone in subset) >= amount for name, amount in wanted.items()):
            break
    else:
        subset = tuple(zones)
    if container.kind != "init":
        for name, amount in wanted.items():
            left = amount
            for zone in subset:
                part = min(left, record[zone].get(name, 0))
                record[zone][name] = record[zone].get(name, 0) - part
                left -= part
    return Affinity(bits(subset), preferred=True)


def _exporter_record(kubelet: Kubelet, held: Held, zones: tuple[str, ...]) -> Json:
    """Return what a container holds, as an exporter tells it: by zone, or by zones where it lies in several."""
    amounts: dict[int, dict[str, int]] = {}

    def add(mask: int, resource: str, amount: int) -> None:
        if amount and mask:
            into = amounts.setdefault(mask, {})
            into[resource] = into.get(resource, 0) + amount

    for zone, cpus in enumerate(kubelet.machine.zone_cpus):
        add(1 << zone, "cpu", (held.cpus & cpus).bit_count() * 1000)
    for resource, devices in held.devices.items():
        pool = kubelet.managers.devices.pools[resource]
        for number in members(devices):
            add(pool.devices[number].zones, resource, 1)
    for block in held.blocks:
        add(block.zones, block.type, block.size)
    single = [mask for mask in sorted(amounts) if mask.bit_count() == 1]
    several = [mask for mask in sorted(amounts) if mask.bit_count() > 1]
    return {
        "name": held.container.name,
        "zones": [{"zone": zones[mask.bit_length() - 1], "amount": amounts[mask]} for mask in single],
        "spans": [{"zones": [zones[zone] for zone in members(mask)], "amount": amounts[mask]} for mask in several],
    }
