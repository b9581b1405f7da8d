"""A state as bytes and back: a cache for a fast start, which can be deleted at any time.

The schema is part of a snapshot's name: a program never reads a snapshot of another schema, but folds from further
back.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from kaicore.rules.engine.config import ENGINE_VERSION
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import PriorityClassObserved
from kaicore.rules.events.quarantine import QuarantinedEvent
from kaicore.rules.model.device import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from kaicore.rules.model.group import GroupSource
from kaicore.rules.model.node import HyperNode, Node, NodeTopology, TopologyDefinition
from kaicore.rules.model.pod import Namespace, PodDisruptionBudget
from kaicore.rules.model.quantity import is_memory
from kaicore.rules.model.reservation import NodeReservation
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim, StorageClass
from kaicore.rules.state.charges.early_release import PodHolding
from kaicore.rules.state.charges.prediction_misses import ExplainedMiss, OpenMiss
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.counters import Counters
from kaicore.rules.state.indexes.node_trials import NodeReadiness, NodeTrials, RejectionIndex
from kaicore.rules.state.indexes.past_runs import GpuUse, GpuUseRecord, RecentWork, RunsOfKind, RunTimes, SeenWork
from kaicore.rules.state.indexes.recorded_reasons import RecordedReasons, ShadowBook
from kaicore.rules.state.indexes.repairs import RepairLedger
from kaicore.rules.state.indexes.workload_index import WorkloadRecord
from kaicore.rules.state.pods.pod_entry import Home, PodEntry, Sharing
from kaicore.rules.state.registries.policy_inputs import PolicyInput, PolicyInputs
from kaicore.rules.state.registries.provisioning_registry import ProvisioningRecord
from kaicore.rules.state.registries.queue_registry import QueueRegistry, QueueRegistryRecord
from kaicore.rules.state.shared_gpus import GpuGroup

#: Raised with every change of what a state consists of, or of how it is folded.
SNAPSHOT_SCHEMA = f"state-33-engine-{ENGINE_VERSION}"


class _NodeRecord(msgspec.Struct):
    name: str
    node: Node | None
    topology: NodeTopology | None
    published: list[list[int]]
    memory_used: dict[str, list[int]]
    assignments: list[int]
    cells: list[int]


class _StateRecord(msgspec.Struct):
    cluster: str
    position: int
    recorded_at: int
    zone_resources: list[str]
    nodes: list[_NodeRecord]
    pods: list[PodEntry]
    classes: list[tuple[PodClass, bytes, int]]
    priority_classes: list[PriorityClassObserved]
    versions: dict[str, int]
    freed_at: dict[str, int]
    rejections: RejectionIndex
    configs: dict[str, dict[str, Any]]
    reasons: RecordedReasons
    counters: Counters
    workloads: list[WorkloadRecord]
    repairs: RepairLedger
    moved_at: dict[str, int]
    config_digest: str
    group_sources: list[GroupSource]
    queue_registry: QueueRegistryRecord
    topology_definitions: list[TopologyDefinition]
    hyper_nodes: list[HyperNode]
    namespaces: list[Namespace]
    claims: list[PersistentVolumeClaim]
    volumes: list[PersistentVolume]
    storage_classes: list[StorageClass]
    budgets: list[PodDisruptionBudget]
    device_slices: list[ResourceSlice]
    device_classes: list[DeviceClass]
    device_taint_rules: list[DeviceTaintRule]
    resource_claims: list[ResourceClaim]
    last_cycles: dict[str, tuple[str, int]]
    ended: dict[str, list[PodHolding]]
    open_misses: list[OpenMiss]
    explained_misses: list[ExplainedMiss]
    node_readiness: NodeReadiness
    provisioning: ProvisioningRecord
    replicas: dict[str, tuple[str, ...]]
    shadows: ShadowBook = msgspec.field(default_factory=ShadowBook)
    quarantined: list[QuarantinedEvent] = msgspec.field(default_factory=list)
    recent_work: list[SeenWork] = msgspec.field(default_factory=list)
    run_times: list[RunsOfKind] = msgspec.field(default_factory=list)
    moved_pods: list[tuple[int, int]] = msgspec.field(default_factory=list)
    homes: dict[str, list[Home]] = msgspec.field(default_factory=dict)
    gpu_groups: list[GpuGroup] = msgspec.field(default_factory=list)
    gpu_use: GpuUseRecord = msgspec.field(default_factory=GpuUseRecord)
    policy_inputs: list[PolicyInput] = msgspec.field(default_factory=list)
    reservations: list[NodeReservation] = msgspec.field(default_factory=list)
    node_trials: NodeTrials = msgspec.field(default_factory=NodeTrials)


#: Parts that are plain data: a record has them as they are.
_PLAIN = (
    *("config_digest", "configs", "freed_at", "homes", "moved_at", "node_readiness", "node_trials"),
    *("reasons", "rejections", "repairs", "replicas", "shadows"),
)

_Fact = TypeVar("_Fact")
_Key = TypeVar("_Key", bound=str | tuple[str, ...])
_encoder = msgspec.msgpack.Encoder(order="deterministic")


class _RestoredRecord(_StateRecord):
    """A record with pods that are still encoded: decoded all at once, they would take their memory twice."""

    pods: list[msgspec.Raw]  # type: ignore[assignment]


_decoder = msgspec.msgpack.Decoder(_RestoredRecord)
_pod_decoder = msgspec.msgpack.Decoder(PodEntry)
#: Kinds of values that pods have in common, while a state is restored.
_MOST_SHARED = 200_000


def encode_state(state: ClusterState) -> bytes:  # long: one line for each part of the state
    """Encode a state; equal states give equal bytes, whatever way they came about."""
    columns, zones = state.columns, state.columns.zones
    resources = sorted(zones.resources)
    indices = [zones.resources[name] for name in resources]
    nodes = []
    for name in sorted(columns.rows):
        row = columns.rows[name]
        node, topology = columns.facts[row], columns.topologies[row]
        if node is None and topology is None and name not in state.charges.on_node:
            continue
        count = len(topology.zones) if topology is not None else 0
        published = zones.published[row, :count][:, indices].tolist()
        nodes.append(
            _NodeRecord(
                name,
                node,
                topology,
                published,
                {
                    resource: zones.used[row, :count, index].tolist()
                    for resource, index in zip(resources, indices, strict=True)
                    if is_memory(resource)
                },
                zones.assignments[row, :count].tolist(),
                zones.cells[row, :count].tolist(),
            )
        )
    return _encoder.encode(
        _StateRecord(
            cluster=state.cluster,
            position=state.position,
            recorded_at=state.recorded_at,
            zone_resources=resources,
            nodes=nodes,
            pods=[state.pods[uid] for uid in sorted(state.pods)],
            classes=[(state.classes[key], *state.class_registry.record(key)) for key in sorted(state.classes)],
            priority_classes=[state.priority_classes[name] for name in sorted(state.priority_classes)],
            # In order: msgspec 0.22 sorts keys in quadratic time when they come in runs, as streams do (20,000: 1.1 s).
            versions=dict(sorted(state.versions.items())),
            counters=state.counters,
            workloads=state.workload_index.records(),
            group_sources=[source for _, source in sorted(state.group_table.sources.items())],
            queue_registry=state.queue_registry.record(),
            topology_definitions=_sorted(state.network_topologies.definitions),
            hyper_nodes=_sorted(state.network_topologies.hyper_nodes),
            namespaces=_sorted(state.constraints.namespaces),
            claims=_sorted(state.constraints.volumes.claims),
            volumes=_sorted(state.constraints.volumes.volumes),
            storage_classes=_sorted(state.constraints.volumes.storage_classes),
            budgets=_sorted(state.constraints.budgets),
            device_slices=_sorted(state.constraints.devices.slices.slices),
            device_classes=_sorted(state.constraints.devices.classes),
            device_taint_rules=_sorted(state.constraints.devices.slices.rules),
            resource_claims=_sorted(state.constraints.devices.claims),
            last_cycles=state.last_cycles,
            ended=dict(sorted(state.early_releases.ended.items())),
            open_misses=list(state.misses.open.values()),
            explained_misses=list(state.misses.explained.values()),
            provisioning=state.provisioning.record(),
            quarantined=list(state.quarantined.values()),
            recent_work=state.recent_work.record(),
            run_times=state.run_times.record(),
            moved_pods=sorted(state.moved_pods.items()),
            gpu_groups=[state.shared_gpus.groups[name] for name in sorted(state.shared_gpus.groups)],
            gpu_use=state.gpu_use.record(),
            policy_inputs=state.policy_inputs.record(),
            reservations=_sorted(state.reservations),
            **{name: getattr(state, name) for name in _PLAIN},
        )
    )


def decode_state(body: bytes) -> ClusterState:  # long: one line for each part of the state
    """Restore a state.

    Raises msgspec.DecodeError: the bytes are no state of `SNAPSHOT_SCHEMA`.
    """
    record = _decoder.decode(body)
    state = ClusterState(record.cluster)
    context = state.context
    context.position, context.recorded_at, context.last_cycles = record.position, record.recorded_at, record.last_cycles
    for name in _PLAIN:
        setattr(state, name, getattr(record, name))
    state.versions, state.moved_pods = record.versions, dict(record.moved_pods)
    state.counters.restore(record.counters)
    state.early_releases.ended = record.ended
    state.misses.restore(record.open_misses, record.explained_misses)
    state.provisioning.restore(record.provisioning)
    state.queue_registry = QueueRegistry.restored(record.queue_registry)
    for definition in record.topology_definitions:
        state.network_topologies.definition_seen(definition)
    for hyper_node in record.hyper_nodes:
        state.network_topologies.hyper_node_seen(hyper_node)
    for source in record.group_sources:
        state.group_table.source_seen(source)
    for item in record.priority_classes:
        state.group_table.priority_class(item.priority_class.name, item.priority_class.value)
    state.priority_classes = {item.priority_class.name: item for item in record.priority_classes}
    for fact in _facts(record):
        state.constraints.take(fact)
    for pod_class, identity, references in record.classes:
        state.class_registry.restore(pod_class, identity, references)
    columns, zones = state.columns, state.columns.zones
    zones.reserve(rows=0, resources=record.zone_resources)
    for node in record.nodes:
        row = columns.row(node.name)
        columns.set_node(node.node, row)
        if node.node is not None:
            state.network_topologies.node_seen(node.name, node.node.labels)
        columns.set_topology(node.topology, row)
        for zone, figures in enumerate(node.published):
            for name, figure in zip(record.zone_resources, figures, strict=True):
                zones.published[row, zone, zones.resources[name]] = figure
        zones.restore_memory(row, node.memory_used, node.assignments, node.cells)
    share = Sharing(_MOST_SHARED)
    for pod in record.pods:
        state.restore(_pod_decoder.decode(pod), share)
    state.shared_gpus.restore(record.gpu_groups)
    state.group_table.changed.clear()
    state.workload_index.restore(record.workloads)
    state.quarantined = {event.position: event for event in record.quarantined}
    state.recent_work, state.run_times = RecentWork(record.recent_work), RunTimes(record.run_times)
    state.gpu_use, state.policy_inputs = GpuUse(record.gpu_use), PolicyInputs(record.policy_inputs)
    state.reservations = {one.name: one for one in record.reservations}
    for event in record.quarantined:
        state.close_quarantined(event.stream)
    return state


def _facts(record: _StateRecord) -> Iterator[payloads.Payload]:
    """Yield what a record has of the objects that constrain pods, as the facts that it came by."""
    yield from map(payloads.NamespaceObserved, record.namespaces)
    yield from map(payloads.PersistentVolumeClaimObserved, record.claims)
    yield from map(payloads.PersistentVolumeObserved, record.volumes)
    yield from map(payloads.StorageClassObserved, record.storage_classes)
    yield from map(payloads.PodDisruptionBudgetObserved, record.budgets)
    yield from map(payloads.DeviceTaintRuleObserved, record.device_taint_rules)
    yield from map(payloads.ResourceSliceObserved, record.device_slices)
    yield from map(payloads.DeviceClassObserved, record.device_classes)
    yield from map(payloads.ResourceClaimObserved, record.resource_claims)


def _sorted(facts: dict[_Key, _Fact]) -> list[_Fact]:
    return [facts[key] for key in sorted(facts)]
