"""Kubelets without a cluster: they answer pods that another program simulates (`kai simulate --kubelet`).

Objects come as JSON and plain data goes back; the caller is not imported and need not be known. The kubelets are the
model of the fleet. A node's hardware and configuration are taken from the fleet's profile where the node is of one.
Otherwise they are derived from its Node and NodeResourceTopology (`kai_fleet.published`).
"""

from itertools import combinations
from typing import Any

import msgspec
from kaicore.errors import InvalidObject

from kai_fleet import node_objects
from kai_fleet.kubelet import Container, Kubelet, Pod
from kai_fleet.kubelet.bitsets import bits, members
from kai_fleet.kubelet.cpus import exclusive_cpus
from kai_fleet.kubelet.hints import NO_AFFINITY, Affinity
from kai_fleet.kubelet.inventory import Held, held_by
from kai_fleet.kubelet.machine import is_memory_type
from kai_fleet.kubelet.rejection import AdmissionError
from kai_fleet.nodes import NodeSpec, expand
from kai_fleet.nrt import API_VERSION, NrtBuilder
from kai_fleet.pod_conversion import convert_pod
from kai_fleet.profile import load_profile
from kai_fleet.published import kubelet_of
from kai_fleet.wire import PodObject

Json = dict[str, Any]

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
        return [f"{wire} runs on {name}, whose kubelet as simulated could not have taken it so: no zones"]

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
