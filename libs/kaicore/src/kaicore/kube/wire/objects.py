"""Kubernetes objects on the wire, reduced to the fields that kai-ledger reads.

msgspec decodes them straight from the response's bytes and skips everything else, which is some hundred times faster
than the generated models. Every field has a default, because an API server leaves out empty fields. A field that may be
`null` declares it. Only JSON types are checked here; `kaicore.kube.normalize` checks the rest. No object can be part
of a reference cycle, hence `gc=False`: fifty thousand pods are no load on the collector.

Pods, nodes and storage classes are here; other kinds are read by name (`kaicore.rules.objects.mappings.Fields`).
"""

from typing import Any

import msgspec

from kaicore.rules.objects.wire import KubernetesObject, SelectorRequirement, Time, Wire


class NodeSelectorTerm(Wire):
    """All of its expressions have to hold."""

    match_expressions: list[SelectorRequirement] | None = None
    match_fields: list[SelectorRequirement] | None = None


class NodeSelector(Wire):
    """Any of its terms has to hold."""

    node_selector_terms: list[NodeSelectorTerm] | None = None


class ClaimSource(Wire):
    """A volume that is a PersistentVolumeClaim of the pod's namespace."""

    claim_name: str = ""


class EphemeralSource(Wire):
    """A volume with a claim that is made for the pod, and named after pod and volume."""


class Volume(Wire):
    """A volume; only whether it is bound to certain nodes."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: EphemeralSource | None = None


#: A quantity by resource name. API servers write strings, people also numbers.
Quantities = dict[str, str | int | float]


class Identity(Wire):
    """The least that tells which object it is, for one that cannot be decoded as what it should be."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Identified(Wire):
    """An object of which only the identity is read."""

    metadata: Identity


# Lists and watches.


class ListMeta(Wire):
    """The metadata of a list; `continue_` is empty on the last page."""

    resource_version: str = ""
    continue_: str | None = msgspec.field(default="", name="continue")


class ObjectList(Wire):
    """A page of a list; its items are decoded one by one, so that one that is malformed does not spoil the others."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class WatchEvent(Wire):
    """A line of a watch: `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`; an error's object is a `Status`."""

    type: str
    object: msgspec.Raw


class DiscoveredName(Wire):
    """A name in discovery: of a group, or of a resource as it is called in paths."""

    name: str = ""
    resource: str = ""


class GroupVersion(Wire):
    """A version of an API group; aggregated discovery names its resources, `Stale` where they may be others."""

    version: str = ""
    resources: list[DiscoveredName] | None = None
    freshness: str = ""


class ApiGroup(Wire):
    """A served API group, as discovery describes it; aggregated discovery has the name in the metadata."""

    name: str = ""
    metadata: DiscoveredName | None = None
    versions: list[GroupVersion] | None = None


class ApiGroups(Wire):
    """All served API groups: `items` of aggregated discovery, `groups` of a server that has none."""

    items: list[ApiGroup] | None = None
    groups: list[ApiGroup] | None = None


class ApiResource(Wire):
    """A served resource; `name` is what it is called in paths."""

    name: str = ""
    kind: str = ""
    namespaced: bool = False


class ApiResources(Wire):
    """The served resources of a version of a group."""

    resources: list[ApiResource] | None = None


# Pods.


class ContainerPort(Wire):
    """A port of a container."""

    host_port: int | None = None
    host_ip: str | None = msgspec.field(default=None, name="hostIP")
    protocol: str | None = None


class ResourceRequirements(Wire):
    """Requests and limits of a container or, within limits, of a pod."""

    requests: Quantities | None = None
    limits: Quantities | None = None


class ContainerSpec(Wire):
    """A container; an init container with `restartPolicy: Always` is a sidecar."""

    name: str = ""
    resources: ResourceRequirements | None = None
    restart_policy: str | None = None
    ports: list[ContainerPort] | None = None


class PodToleration(Wire):
    """A toleration."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class Named(Wire):
    """Something of which only the name is read."""

    name: str = ""


class PodClaimReference(Wire):
    """A ResourceClaim that a pod uses, or the template of one that is made for it.

    In a pod's status, the claim that was made for it; without a name none is needed.
    """

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class WorkloadReference(Wire):
    """The reference of a pod of Kubernetes 1.35 to its group."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str | None = None


class SchedulingGroup(Wire):
    """The reference of a pod of Kubernetes 1.36 and later to its group."""

    pod_group_name: str | None = None


class PodSpec(Wire):
    """A pod's spec; few pods have constraints, which `kaicore.kube.normalize.pod` reads by name."""

    node_name: str | None = None
    scheduler_name: str | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    preemption_policy: str | None = None
    node_selector: dict[str, str] | None = None
    affinity: dict[str, Any] | None = None
    tolerations: list[PodToleration] | None = None
    scheduling_gates: list[Named] | None = None
    overhead: Quantities | None = None
    resources: ResourceRequirements | None = None
    init_containers: list[ContainerSpec] | None = None
    containers: list[ContainerSpec] | None = None
    topology_spread_constraints: list[dict[str, Any]] | None = None
    volumes: list[Volume] | None = None
    resource_claims: list[PodClaimReference] | None = None
    scheduling_group: SchedulingGroup | None = None
    workload_ref: WorkloadReference | None = None
    active_deadline_seconds: int | None = None


class RunningResources(Wire):
    """A container's resources as its runtime has them."""

    requests: Quantities | None = None


class ContainerStatus(Wire):
    """A container's status: `allocated_resources` its kubelet has set aside, `resources` its runtime has."""

    name: str = ""
    allocated_resources: Quantities | None = None
    resources: RunningResources | None = None


class Condition(Wire):
    """A condition; `status` is `True`, `False` or `Unknown`.

    `reason` says of a pod's `PodResizePending` whether it is `Deferred` or `Infeasible` (since 1.33).
    """

    type: str = ""
    status: str = ""
    reason: str | None = None


class PodStatus(Wire):
    """A pod's status: `allocated_resources` and `resources` as a container's, of what the pod has for itself (1.35)."""

    allocated_resources: Quantities | None = None
    resources: RunningResources | None = None
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    qos_class: str | None = None
    nominated_node_name: str | None = None
    resource_claim_statuses: list[PodClaimReference] | None = None
    start_time: Time | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class PodObject(KubernetesObject):
    """A `v1` Pod."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


# Nodes and priority classes.


class NodeTaint(Wire):
    """A taint."""

    key: str = ""
    effect: str = ""
    value: str | None = None


class NodeSpec(Wire):
    """A node's spec."""

    taints: list[NodeTaint] | None = None
    unschedulable: bool | None = None


class NodeSystemInfo(Wire):
    """The versions of a node's software."""

    kubelet_version: str = ""


class NodeStatus(Wire):
    """A node's status, as its kubelet reports it."""

    allocatable: Quantities | None = None
    capacity: Quantities | None = None
    conditions: list[Condition] | None = None
    node_info: NodeSystemInfo | None = None
    declared_features: list[str] | None = None


class NodeObject(KubernetesObject):
    """A `v1` Node."""

    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class PriorityClassObject(KubernetesObject):
    """A `scheduling.k8s.io/v1` PriorityClass."""

    value: int = 0
    global_default: bool | None = None
    preemption_policy: str | None = None


class TopologyObject(KubernetesObject):
    """A `topology.node.k8s.io` NodeResourceTopology as it comes; v1alpha1 and v1alpha2 require other parts."""

    topology_policies: list[Any] | None = None
    attributes: list[Any] | None = None
    zones: list[Any] | None = None


class TopologySelectorLabel(Wire):
    """Values of a label that are allowed."""

    key: str = ""
    values: list[str] | None = None


class TopologySelectorTerm(Wire):
    """All of its expressions have to hold."""

    match_label_expressions: list[TopologySelectorLabel] | None = None


class StorageClassObject(KubernetesObject):
    """A `storage.k8s.io/v1` StorageClass."""

    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: list[TopologySelectorTerm] | None = None
