"""`--publish-nrt`: a node's NodeResourceTopology and its object in the API server, where no other publisher does it.

Figures are those of podresources: what is allocatable by `GetAllocatableResources`, what is available by subtracting
what `List` shows. Capacities and distances are sysfs's. Devices and memory of several NUMA nodes count in full on each,
and the fingerprint is over pods with exclusive resources (`k8stopologyawareschedwg/podfingerprint`).

Attributes tell what else the kubelet is set to, by the convention that the watcher reads:
`topologyManagerOption<Name>`, `cpuManagerOption<Name>`, `kubeletFeatureGate<Name>`.

The kubelet's configuration file counts as far as admission depends on it (source: Kubernetes v1.37,
`staging/src/k8s.io/kubelet/config/v1beta1/types.go`). Flags of the kubelet's command line go before the file and are
not seen here.

From time to time the publisher looks at the kubelet, and writes what has changed. An object is ours if it carries our
annotation and still has the contents that we wrote, by their digest. Any other one is another publisher's, and is left
alone; so is one of ours that somebody else has written to since. Writes name the resourceVersion that was read, so two
of us cannot undo each other. The object belongs to its Node and goes with it.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import xxhash
import yaml
from kaicore.backoff import backoff, jittered
from kaicore.errors import ApiStatus, ConfigurationError, InvalidObject, KaiError
from kaicore.runtime.agent.api_server import ApiServer
from kaicore.runtime.agent.process import Log, jitter
from kaicore.yaml_text import fault_text, load_yaml

from kai_exporter.checkpoints import numa_nodes, read_cpu_topology
from kai_exporter.exporter import ExporterMetrics
from kai_exporter.kubelet import PodResourcesClient, decode_allocatable, decode_pod, pod_messages
from kai_exporter.wire import AllocatableResources, ContainerDevices, PodResources


class KubeletConfig(msgspec.Struct, frozen=True, rename="camel"):
    """The relevant part of a KubeletConfiguration; absent fields have the kubelet's defaults."""

    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    topology_manager_policy_options: dict[str, str] = {}
    cpu_manager_policy_options: dict[str, str] = {}
    feature_gates: dict[str, bool] = {}


def read_kubelet_config(path: Path) -> KubeletConfig:
    """Read a KubeletConfiguration, such as `/var/lib/kubelet/config.yaml`.

    Raises ConfigurationError: it cannot be read, or a field has the wrong type; names file and field.
    """
    try:
        document = load_yaml(path.read_text("utf-8"))
        return msgspec.convert(document, KubeletConfig)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"kubelet configuration {path}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"kubelet configuration {path}: {fault_text(error)}") from error
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"kubelet configuration {path}: {error}") from error


Json = dict[str, Any]

_WORDS = {"single-numa-node": "SingleNUMANode", "restricted": "Restricted", "best-effort": "BestEffort"}
_HUGEPAGES = re.compile(r"hugepages-(\d+)kB", re.ASCII)
_SEED = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """A node's hardware, as sysfs shows it.

    Attributes:
        numa_node_of_cpu: by CPU id.
        memory: by NUMA node, bytes of memory and of hugepages.
        distances: by NUMA node, to each NUMA node in order of ids.
    """

    numa_node_of_cpu: Mapping[int, int]
    memory: Mapping[int, Mapping[str, int]]
    distances: Mapping[int, Sequence[int]]


def read_machine(sysfs_root: Path, *, subject: str) -> Machine:
    """Read what sysfs tells of a node. Raises InvalidObject: it does not list NUMA nodes as Linux does."""
    memory: dict[int, dict[str, int]] = {}
    distances: dict[int, list[int]] = {}
    try:
        for number, entry in numa_nodes(sysfs_root):
            memory[number] = _memory_of(entry)
            distance = entry / "distance"
            if distance.exists():
                distances[number] = [int(part) for part in distance.read_text("ascii").split()]
    except (OSError, ValueError) as error:
        raise InvalidObject(subject, "sysfs", str(sysfs_root), f"cannot be read ({error})") from error
    return Machine(read_cpu_topology(sysfs_root, subject=subject), memory, distances)


def _memory_of(entry: Path) -> dict[str, int]:
    held: dict[str, int] = {}
    meminfo = entry / "meminfo"
    if meminfo.exists():
        total = re.search(r"MemTotal:\s+(\d+) kB", meminfo.read_text("ascii"))
        held["memory"] = int(total[1]) * 1024 if total is not None else 0
    for pages in sorted((entry / "hugepages").glob("hugepages-*kB")):
        if (match := _HUGEPAGES.fullmatch(pages.name)) is not None:
            size = int(match[1]) * 1024
            held[f"hugepages-{_quantity(size)}"] = size * int((pages / "nr_hugepages").read_text("ascii"))
    return held


def _quantity(size: int) -> str:
    unit, shift = next(one for one in (("Gi", 30), ("Mi", 20), ("Ki", 10)) if size % (1 << one[1]) == 0)
    return f"{size >> shift}{unit}"


def node_topology(
    allocatable: AllocatableResources, pods: Sequence[PodResources], machine: Machine, config: KubeletConfig
) -> Json:
    """Return the contents of a node's object, without metadata."""
    total = _amounts(allocatable.cpu_ids, allocatable.devices, allocatable.memory, machine)
    left = {zone: dict(amounts) for zone, amounts in total.items()}
    for pod in pods:
        cpus = {cpu for container in pod.containers for cpu in container.cpu_ids} | set(pod.cpu_ids)
        devices = [entry for container in pod.containers for entry in container.devices]
        memory = pod.memory or [block for container in pod.containers for block in container.memory]
        for zone, amounts in _amounts(cpus, devices, memory, machine).items():
            for name, amount in amounts.items():
                if name in left.get(zone, {}):
                    left[zone][name] -= amount
    zones = sorted({*machine.memory, *machine.numa_node_of_cpu.values()})
    print_ = pods_fingerprint((pod.namespace, pod.name) for pod in pods if _is_exclusive(pod))
    attributes = [
        ("topologyManagerPolicy", config.topology_manager_policy),
        ("topologyManagerScope", config.topology_manager_scope),
        ("nodeTopologyPodsFingerprint", print_),
        ("nodeTopologyPodsFingerprintMethod", "with-exclusive-resources"),
        *_settings(config),
    ]
    return {
        "topologyPolicies": [_legacy(config)],
        "attributes": [{"name": name, "value": value} for name, value in attributes],
        "zones": [_zone(zone, zones, total.get(zone, {}), left.get(zone, {}), machine) for zone in zones],
    }


def _settings(config: KubeletConfig) -> list[tuple[str, str]]:
    options = [("topologyManagerOption", name, value) for name, value in config.topology_manager_policy_options.items()]
    options += [("cpuManagerOption", name, value) for name, value in config.cpu_manager_policy_options.items()]
    named = [
        ("topologyManagerMaxNUMANodes", value)
        if name == "max-allowable-numa-nodes"
        else (prefix + "".join(word.capitalize() for word in name.split("-")), value)
        for prefix, name, value in options
    ]
    named += [(f"kubeletFeatureGate{name}", str(on).lower()) for name, on in config.feature_gates.items()]
    return sorted(named)


def _legacy(config: KubeletConfig) -> str:
    word = _WORDS.get(config.topology_manager_policy)
    return "None" if word is None else f"{word}{'Pod' if config.topology_manager_scope == 'pod' else 'Container'}Level"


def _amounts(
    cpus: Iterable[int], devices: Iterable[ContainerDevices], memory: Iterable[Any], machine: Machine
) -> dict[int, dict[str, int]]:
    """Return CPUs, devices and bytes by NUMA node; what is on several counts in full on each."""
    amounts: dict[int, dict[str, int]] = {}

    def add(zone: int, name: str, amount: int) -> None:
        held = amounts.setdefault(zone, {})
        held[name] = held.get(name, 0) + amount

    for cpu in cpus:
        if cpu in machine.numa_node_of_cpu:
            add(machine.numa_node_of_cpu[cpu], "cpu", 1)
    seen = {
        (entry.resource_name, device, node)
        for entry in devices
        for device in entry.device_ids
        for node in entry.numa_nodes
        if node >= 0
    }
    for name, _, zone in seen:
        add(zone, name, 1)
    for block in memory:
        for node in block.numa_nodes:
            add(node, block.memory_type, block.size)
    return amounts


def _zone(zone: int, zones: Sequence[int], total: Mapping[str, int], left: Mapping[str, int], machine: Machine) -> Json:
    cpus = sum(node == zone for node in machine.numa_node_of_cpu.values())
    capacity = {"cpu": cpus, **machine.memory.get(zone, {})}
    figures = total or {"cpu": 0}
    distances = machine.distances.get(zone, ())
    return {
        "name": f"node-{zone}",
        "type": "Node",
        "costs": [{"name": f"node-{other}", "value": value} for other, value in zip(zones, distances, strict=False)],
        "resources": [
            {
                "name": name,
                "capacity": str(max(capacity.get(name, amount), amount)),
                "allocatable": str(amount),
                "available": str(max(left.get(name, 0), 0)),
            }
            for name, amount in sorted(figures.items())
        ],
    }


def _is_exclusive(pod: PodResources) -> bool:
    return bool(pod.cpu_ids or pod.memory) or any(
        container.cpu_ids
        or any(node >= 0 for block in container.memory for node in block.numa_nodes)
        or any(node >= 0 for entry in container.devices for node in entry.numa_nodes)
        for container in pod.containers
    )


def pods_fingerprint(pods: Iterable[tuple[str, str]]) -> str:
    """Return the print of (namespace, name) pairs: XXH64 of their sorted hashes, `pfp0v001` and 16 hex digits."""
    hashes = sorted(
        xxhash.xxh64_intdigest(name.encode(), seed=xxhash.xxh64_intdigest(namespace.encode(), seed=_SEED))
        for namespace, name in pods
    )
    content = b"".join(value.to_bytes(8, "little") for value in hashes)
    return f"pfp0v001{xxhash.xxh64_hexdigest(content, seed=_SEED)}"


PATH = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
API_VERSION = "topology.node.k8s.io/v1alpha2"

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGER = "kai-exporter"
DIGEST_ANNOTATION = "kai.scheduler/published-digest"

_NOT_FOUND, _CONFLICT = 404, 409


class Published(StrEnum):
    """The result for an object: written, unchanged, another's, or changed by others just now."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"
    OTHERS = "others"
    CONFLICT = "conflict"


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct, rename="camel"):
    metadata: _Metadata
    topology_policies: list[str] = []
    attributes: list[Json] = []
    zones: list[Json] = []


@dataclass(frozen=True, slots=True)
class TopologyPublisher:
    """Writes one node's object."""

    client: ApiServer
    node: str

    async def publish(self, contents: Json) -> Published:
        """Write an object's contents, unless it has them or is another's.

        Raises:
            ApiStatus: the API server refuses: no CustomResourceDefinition, no right, no such node.
            ClusterUnavailable: it does not answer, or cannot now.
        """
        digest = _digest(contents)
        current = await self._read()
        if current is None:
            return await self._create(contents, digest)
        if not _is_ours(current):
            return Published.OTHERS
        annotations = current.metadata.annotations or {}
        if annotations[DIGEST_ANNOTATION] == digest:
            return Published.UNCHANGED
        metadata = {"resourceVersion": current.metadata.resource_version, "annotations": {DIGEST_ANNOTATION: digest}}
        try:
            await self.client.patch(f"{PATH}/{self.node}", {"metadata": metadata, **contents})
        except ApiStatus as error:
            if error.code in (_CONFLICT, _NOT_FOUND):
                return Published.CONFLICT
            raise
        return Published.WRITTEN

    async def _read(self) -> _Object | None:
        try:
            return msgspec.json.decode(await self.client.get(f"{PATH}/{self.node}"), type=_Object)
        except ApiStatus as error:
            if error.code == _NOT_FOUND and error.reason == "NotFound":
                return None
            raise

    async def _create(self, contents: Json, digest: str) -> Published:
        node = msgspec.json.decode(await self.client.get(f"/api/v1/nodes/{self.node}"), type=_Object)
        metadata = {
            "name": self.node,
            "labels": {MANAGED_BY_LABEL: MANAGER},
            "annotations": {DIGEST_ANNOTATION: digest},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": node.metadata.uid},
            ],
        }
        body = {"apiVersion": API_VERSION, "kind": "NodeResourceTopology", "metadata": metadata, **contents}
        try:
            await self.client.post(PATH, body)
        except ApiStatus as error:
            if error.code == _CONFLICT:
                return Published.CONFLICT
            raise
        return Published.WRITTEN


def _is_ours(current: _Object) -> bool:
    labels, annotations = current.metadata.labels or {}, current.metadata.annotations or {}
    contents = {"topologyPolicies": current.topology_policies, "attributes": current.attributes, "zones": current.zones}
    return labels.get(MANAGED_BY_LABEL) == MANAGER and annotations.get(DIGEST_ANNOTATION) == _digest(contents)


def _digest(contents: Json) -> str:
    return hashlib.sha256(msgspec.json.encode(contents, order="deterministic")).hexdigest()[:32]


_MAX_BACKOFF_S = 300.0


class TopologyPublishing:
    """Publishes one node's topology until its process stops."""

    def __init__(
        self,
        publisher: TopologyPublisher,
        kubelet: PodResourcesClient,
        *,
        sysfs_root: Path,
        config_file: Path,
        metrics: ExporterMetrics,
        log: Log,
    ) -> None:
        self._publisher, self._kubelet = publisher, kubelet
        self._sysfs_root, self._config_file = sysfs_root, config_file
        self._metrics, self._log = metrics, log
        self._said = ""
        self._machine: Machine | None = None

    async def run(
        self, *, every_s: float, sleep: Callable[[float], Awaitable[object]], stopped: Callable[[], bool]
    ) -> None:
        """Publish again and again.

        Args:
            every_s: seconds between two looks; more after failures.
            sleep: waits, at most until the process is to stop.
        """
        failures = 0
        while not stopped():
            try:
                outcome = await self._publisher.publish(await self._contents())
                failures = 0
                self._metrics.topologies.inc(1, outcome.value)
                self._say("" if outcome is not Published.OTHERS else "another publisher writes it; it is left alone")
            except KaiError as error:
                failures += 1
                self._metrics.topologies.inc(1, "failed")
                self._say(str(error))
            wait = backoff(failures, first=every_s, most=_MAX_BACKOFF_S) if failures else every_s
            await sleep(jittered(wait, jitter()) if failures else wait)

    async def _contents(self) -> Json:
        subject = f"Node {self._publisher.node}"
        if self._machine is None:
            self._machine = read_machine(self._sysfs_root, subject=subject)
        allocatable = decode_allocatable(await self._kubelet.allocatable(), subject=subject)
        pods = [
            decode_pod(message, subject=subject)
            for message in pod_messages(await self._kubelet.list(), subject=subject)
        ]
        # A kubelet that is set otherwise has been started anew, and so has its file perhaps.
        return node_topology(allocatable, pods, self._machine, read_kubelet_config(self._config_file))

    def _say(self, trouble: str) -> None:
        if trouble == self._said:
            return
        self._said = trouble
        if trouble:
            self._log.warning("NodeResourceTopology is not published", node=self._publisher.node, error=trouble)
        else:
            self._log.info("NodeResourceTopology is published", node=self._publisher.node)
