"""The NodeResourceTopology of a node, as the publisher on it would write it (facts sections 1.1 to 1.6).

Two personalities: `rte` (resource-topology-exporter) and `nfd` (node-feature-discovery's topology-updater) differ in
what they count, in how they count devices and memory of several zones, and in the fingerprint. Both take allocatable
from the podresources API: without the static CPU manager there is no `cpu`, without the static memory manager no
memory.

By the *pods fingerprint*, over namespaces and names, a scheduler can tell which pods an object counts.
"""

from collections.abc import Iterable
from typing import Any

import xxhash

from kai_fleet.kubelet import Kubelet, Pod
from kai_fleet.kubelet.kubelet import Held, ZoneMap, allocatable, held_by, subtract_held
from kai_fleet.kubelet.machine import members
from kai_fleet.profiles.nodes import NodeSpec

_SEED = 0


def pods_fingerprint(pods: Iterable[tuple[str, str]]) -> str:
    """Return the fingerprint, `pfp0v001` and 16 hex digits, of (namespace, name) pairs; their order does not matter."""
    hashes = sorted(
        xxhash.xxh64_intdigest(name.encode(), seed=xxhash.xxh64_intdigest(namespace.encode(), seed=_SEED))
        for namespace, name in pods
    )
    content = b"".join(value.to_bytes(8, "little") for value in hashes)
    return f"pfp0v001{xxhash.xxh64_hexdigest(content, seed=_SEED)}"


Json = dict[str, Any]

API_VERSION = "topology.node.k8s.io/v1alpha2"
PATH = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"

_EXCLUSIVE_ONLY = "with-exclusive-resources"

_LEGACY_NAMES = {"single-numa-node": "SingleNUMANode", "restricted": "Restricted", "best-effort": "BestEffort"}


def legacy_policy(policy: str, scope: str) -> str:
    """Return the one word of the deprecated field `topologyPolicies` for a policy and a scope."""
    name = _LEGACY_NAMES.get(policy)
    return "None" if name is None else f"{name}{'Pod' if scope == 'pod' else 'Container'}Level"


class NrtBuilder:
    """Builds the object of one node; what does not change is made once."""

    def __init__(self, spec: NodeSpec, kubelet: Kubelet) -> None:
        self._spec = spec
        self._publisher = spec.group.nrt
        #: NFD reads what there is once, when it starts (NFD#1897); RTE each time.
        self._at_start = allocatable(kubelet)

    def build(self, kubelet: Kubelet, *, wrong_fingerprint: bool = False) -> Json:
        """Return the object's contents, without apiVersion, kind and metadata other than annotations."""
        nfd = self._publisher.publisher == "nfd"
        holding = [(pod, list(held_by(kubelet, pod))) for pod in kubelet.pods.values()]
        total = self._at_start if nfd else allocatable(kubelet)
        left = {resource: list(row) for resource, row in total.items()}
        for pod, containers in holding:
            for held in containers:
                if nfd:
                    _subtract_as_nfd(left, kubelet, pod, held)
                else:
                    _subtract_as_rte(left, kubelet, held)
        body = {
            "topologyPolicies": [legacy_policy(kubelet.config.topology_policy, kubelet.config.topology_scope)],
            "attributes": [
                {"name": "topologyManagerPolicy", "value": kubelet.config.topology_policy},
                {"name": "topologyManagerScope", "value": kubelet.config.topology_scope},
            ],
            "zones": self._zones(kubelet, total, left),
        }
        if self._publisher.fingerprint:
            self._add_fingerprint(body, holding, wrong=wrong_fingerprint)
        return body

    def _zones(self, kubelet: Kubelet, total: ZoneMap, left: ZoneMap) -> list[Json]:
        machine = self._spec.machine
        zones: list[Json] = []
        for zone in range(machine.zones):
            resources = [
                {
                    "name": resource,
                    "capacity": str(_capacity(kubelet, resource, zone, row[zone])),
                    "allocatable": str(row[zone]) if resource != "cpu" else str(row[zone] // 1000),
                    "available": _available(resource, left[resource][zone]),
                }
                for resource, row in sorted(total.items())
                if resource not in self._publisher.exclude and row[zone]
            ]
            if not resources:
                # Facts row 1: a zone with nothing at all to give still shows its CPUs.
                cpus = str(machine.zone_cpus[zone].bit_count())
                resources = [{"name": "cpu", "capacity": cpus, "allocatable": "0", "available": "0"}]
            zones.append(
                {
                    "name": f"node-{zone}",
                    "type": "Node",
                    "costs": [
                        {"name": f"node-{other}", "value": distance}
                        for other, distance in enumerate(machine.distances[zone])
                    ],
                    "resources": resources,
                }
            )
        return zones

    def _add_fingerprint(self, body: Json, holding: list[tuple[Pod, list[Held]]], *, wrong: bool) -> None:
        """RTE prints pods with exclusive resources and says so; NFD prints all and says nothing."""
        nfd = self._publisher.publisher == "nfd"
        pods = [(pod.namespace, pod.name) for pod, containers in holding if nfd or _is_exclusive(containers)]
        print_ = pods_fingerprint([*pods, ("", "nobody")] if wrong else pods)
        body["attributes"].append({"name": "nodeTopologyPodsFingerprint", "value": print_})
        if not nfd:
            body["attributes"].append({"name": "nodeTopologyPodsFingerprintMethod", "value": _EXCLUSIVE_ONLY})
            body["metadata"] = {"annotations": {"topology.node.k8s.io/fingerprint": print_}}


def _capacity(kubelet: Kubelet, resource: str, zone: int, allocatable: int) -> int:
    """Hardware totals for CPU and memory; publishers know of no device but the healthy ones."""
    if resource == "cpu":
        return kubelet.machine.zone_cpus[zone].bit_count()
    return kubelet.machine.zone_memory[zone].get(resource, allocatable)


def _available(resource: str, amount: int) -> str:
    return str(max(0, amount // 1000 if resource == "cpu" else amount))


def _is_exclusive(containers: Iterable[Held]) -> bool:
    return any(held.cpus or held.blocks or any(held.devices.values()) for held in containers)


def _subtract_as_rte(left: ZoneMap, kubelet: Kubelet, held: Held) -> None:
    """Devices and memory blocks of several zones count in full in each of them (facts section 1.4)."""
    subtract_held(left, kubelet, Held(held.container, held.cpus, held.devices, []))
    for block in held.blocks:
        for zone in members(block.zones):
            left[block.type][zone] -= block.size


def _subtract_as_nfd(left: ZoneMap, kubelet: Kubelet, pod: Pod, held: Held) -> None:
    """Only Guaranteed pods and pods with devices count; a device of several zones on the last of them alone."""
    cpus = held.cpus if pod.qos == "Guaranteed" else 0
    subtract_held(left, kubelet, Held(held.container, cpus, {}, held.blocks))
    for resource, devices in held.devices.items():
        if resource not in left:
            continue
        pool = kubelet.managers.devices.pools[resource]
        for number in members(devices):
            if zones := pool.devices[number].zones:
                left[resource][zones.bit_length() - 1] -= 1
