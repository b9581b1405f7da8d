"""The fields of pods and nodes that a kubelet reads, decoded straight from the API server's bytes."""

import msgspec
from kaicore.kube.wire.objects import Affinity, PodClaimReference, PodClaimStatus, Quantities, ResourceRequirements
from kaicore.kube.wire.resources import Resource
from kaicore.rules.objects.wire import KubernetesObject, ObjectMeta, Wire


class PodMeta(ObjectMeta):
    """`metadata` of a pod."""

    deletion_grace_period_seconds: int | None = None
    finalizers: list[str] | None = None


class Port(Wire, rename={"host_port": "hostPort", "host_ip": "hostIP"}):
    """A container's port; without host port it is no concern of the node."""

    host_port: int | None = None
    host_ip: str | None = None
    protocol: str | None = None


class ContainerSpec(Wire):
    """A container, or an init container."""

    name: str = ""
    image: str = ""
    command: list[str] | None = None
    resources: ResourceRequirements | None = None
    restart_policy: str | None = None
    ports: list[Port] | None = None


class PodSpec(Wire):
    """`spec` of a pod."""

    containers: list[ContainerSpec] = msgspec.field(default_factory=list)
    node_name: str = ""
    init_containers: list[ContainerSpec] | None = None
    restart_policy: str = "Always"
    overhead: Quantities | None = None
    resources: ResourceRequirements | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    resource_claims: list[PodClaimReference] | None = None


class PodStatus(Wire):
    """`status` of a pod."""

    phase: str = "Pending"
    resource_claim_statuses: list[PodClaimStatus] | None = None
    extended_resource_claim_status: PodClaimStatus | None = None


class PodObject(KubernetesObject):
    """A pod."""

    metadata: PodMeta
    spec: PodSpec
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    def __str__(self) -> str:
        return f"pod {self.metadata.namespace}/{self.metadata.name}"


class NodeInfo(Wire):
    """`status.nodeInfo` of a node; without a version no kubelet ever reported it."""

    kubelet_version: str = ""


class NodeCondition(Wire):
    """A condition of a node."""

    type: str = ""
    status: str = ""


class NodeStatus(Wire):
    """`status` of a node."""

    node_info: NodeInfo = msgspec.field(default_factory=NodeInfo)
    conditions: list[NodeCondition] | None = None


class NodeObject(KubernetesObject):
    """A node; the fleet knows the rest better."""

    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


#: Pods of all namespaces that are bound to a node.
BOUND_PODS = Resource("Pod", "/api/v1/pods?fieldSelector=spec.nodeName!%3D", PodObject)
NODES = Resource("Node", "/api/v1/nodes", NodeObject)
