"""Reasons in nodes that cannot take a pod: the node rules of Kubernetes, room, the pods there, volumes and devices."""

from typing import ClassVar

from msgspec import field

from kaicore.rules.events.reasons.base import CodedReason, NodeReason, WorkReason, plural
from kaicore.rules.model.gpu_share import gpus_text
from kaicore.rules.model.quantity import asked_amount


class NoNodes(CodedReason, frozen=True, kw_only=True):
    """The cluster, or the node pool of the shard that decides, has no nodes.

    Attributes:
        node_pool: the shard's, empty for the nodes without the label; None where it has all nodes.
    """

    lasting: ClassVar[bool] = True
    node_pool: str | None = None

    def __str__(self) -> str:
        if self.node_pool is None:
            return "the cluster has no nodes"
        return f"no node is in node pool {self.node_pool}" if self.node_pool else "all nodes are in other node pools"


class NodeNotReady(NodeReason, frozen=True, kw_only=True):
    """Nodes that are not ready."""

    says: ClassVar[str] = "not ready"


class NodeUnschedulable(NodeReason, frozen=True, kw_only=True):
    """Nodes that are cordoned."""

    says: ClassVar[str] = "cordoned"


class NodeReserved(NodeReason, frozen=True, kw_only=True):
    """Nodes that are reserved for other work, or for maintenance, before the pod would end.

    Attributes:
        reservation: its name.
        terms: for whom it is, and its window.
    """

    terms: str = field(name="detail")
    reservation: str
    says: ClassVar[str] = "reserved by {reservation}, {terms}"


class NodeSelectorMismatch(NodeReason, frozen=True, kw_only=True):
    """Nodes without the labels that the pod's node selector asks for."""

    lasting: ClassVar[bool] = True
    says: ClassVar[str] = "without the labels of the pod's node selector"


class NodeAffinityMismatch(NodeReason, frozen=True, kw_only=True):
    """Nodes that the pod's required node affinity leaves out."""

    lasting: ClassVar[bool] = True
    says: ClassVar[str] = "outside the pod's required node affinity"


class NodeFlavorMismatch(NodeReason, frozen=True, kw_only=True):
    """Nodes of none of the ResourceFlavors that the pod's queue has for what it requests.

    Attributes:
        flavors: the queue, the resources, and the flavors that it has for them.
    """

    lasting: ClassVar[bool] = True
    flavors: str = field(name="detail")
    says: ClassVar[str] = "not of the flavors of its queue {flavors}"


class UntoleratedTaint(NodeReason, frozen=True, kw_only=True):
    """Nodes with a taint that the pod does not tolerate.

    Attributes:
        taint: `key=value:effect`; `key:effect` without a value.
    """

    lasting: ClassVar[bool] = True
    taint: str = field(name="detail")
    says: ClassVar[str] = "with the untolerated taint {taint}"


class RejectedByKubelet(NodeReason, frozen=True, kw_only=True):
    """Nodes with a kubelet that rejected such a pod, where nothing has changed since.

    Attributes:
        rejection: the kubelet's reason.
    """

    rejection: str = field(name="detail", default="")
    says: ClassVar[str] = "that rejected such a pod before ({rejection}) and have not changed since"


class NodeSuspect(NodeReason, frozen=True, kw_only=True):
    """Nodes that are suspect: pods of this kind failed there in a row, and not because of their work.

    Attributes:
        why: since when, how many failed, and when the next probe is due.
    """

    why: str = field(name="detail", default="")
    says: ClassVar[str] = "set aside as suspect: {why}"


class HistoryIncomplete(NodeReason, frozen=True, kw_only=True):
    """Nodes where it is not known which zones some pods hold.

    Attributes:
        gap: since which position of the log, and of how many pods.
    """

    gap: str = field(name="detail", default="")
    says: ClassVar[str] = "with pods of unknown holdings: {gap}"


class NotObservedYet(NodeReason, frozen=True, kw_only=True):
    """Nodes that may refuse the pod, by what pods there hold that have just started or are about to end."""

    says: ClassVar[str] = "that may refuse the pod, because pods there are just starting or ending"


class NodeTooSmall(NodeReason, frozen=True, kw_only=True):
    """Nodes that have less of a resource in all than the pod requests.

    Attributes:
        resource: which.
        requested: by the pod, in the resource's unit.
        allocatable: the most that any of these nodes has.
    """

    lasting: ClassVar[bool] = True
    resource: str
    requested: int = field(name="need")
    allocatable: int = field(name="free", default=0)

    def __str__(self) -> str:
        requested = asked_amount(self.resource, self.requested)
        allocatable = self._most(self.resource, self.allocatable)
        return self._nodes(f"too small: {self.resource}: {requested} needed, {allocatable} in all")


class InsufficientResource(NodeReason, frozen=True, kw_only=True):
    """Nodes that have less of a resource free than the pod requests.

    Attributes:
        resource: which.
        requested: by the pod, in the resource's unit.
        free: the most that any of these nodes has free.
        releasing: that it is enough with what ending pods release; empty if it is not.
    """

    resource: str
    requested: int = field(name="need")
    free: int = 0
    releasing: str = field(name="detail", default="")

    def __str__(self) -> str:
        requested, free = asked_amount(self.resource, self.requested), self._most(self.resource, self.free)
        more = f", {self.releasing}" if self.releasing else ""
        return self._nodes(f"short of {self.resource}: {requested} needed, {free} free{more}")


class ResourceClaimNotReady(WorkReason, frozen=True, kw_only=True):
    """Something has to happen to resource claims of the pod, or to their device classes, first.

    Attributes:
        waits_for: what of which claims.
    """

    lasting: ClassVar[bool] = True
    waits_for: str = field(name="detail")
    says: ClassVar[str] = "waits for its resource claims: {waits_for}"


class NoMatchingDevices(NodeReason, frozen=True, kw_only=True):
    """Nodes that do not have the devices that the pod's resource claims ask for, in use or not.

    Attributes:
        wanted: what is asked for, and what is wrong with it on the example.
    """

    lasting: ClassVar[bool] = True
    wanted: str = field(name="detail")
    says: ClassVar[str] = "without devices for its resource claims: {wanted}"


class DevicesTaken(NodeReason, frozen=True, kw_only=True):
    """Nodes where other claims have the devices that the pod's resource claims ask for.

    Attributes:
        wanted: what is asked for.
    """

    wanted: str = field(name="detail")
    says: ClassVar[str] = "where other claims hold the devices for its resource claims: {wanted}"


class ResourceClaimOutOfReach(NodeReason, frozen=True, kw_only=True):
    """Nodes where a resource claim of the pod, which has its devices, cannot be used.

    Attributes:
        constraint: which claim.
    """

    constraint: str = field(name="detail")
    says: ClassVar[str] = "where its resource claims cannot be used: {constraint}"


class NoGpuToShare(NodeReason, frozen=True, kw_only=True):
    """Nodes without GPUs of which a pod could have such parts, whoever holds them.

    Attributes:
        wanted: what the pod asks for.
        problem: why GPUs that the nodes offer are none for it; empty where they offer none, or too small ones.
    """

    lasting: ClassVar[bool] = True
    wanted: str = field(name="detail")
    problem: str = ""

    def __str__(self) -> str:
        return self._nodes(f"without GPUs for {self.wanted}{', as ' * bool(self.problem)}{self.problem}")


class NoPartOfGpu(NodeReason, frozen=True, kw_only=True):
    """Nodes where no GPU has so large a part free.

    Attributes:
        needed: the part of each GPU on the example, in thousandths.
        devices: of how many GPUs of one node.
        largest: the largest free part of all these nodes, on the example, in thousandths.
    """

    needed: int
    devices: int = 1
    largest: int = 0

    def __str__(self) -> str:
        each = "" if self.devices == 1 else f" on each of {self.devices} GPUs"
        needed = f"{gpus_text(self.needed)} of a GPU needed{each}"
        return f"{needed}; largest free part {gpus_text(self.largest)} on {self.example} ({plural(self.nodes, 'node')})"


class NoTopologyLabel(NodeReason, frozen=True, kw_only=True):
    """Nodes without a label by which the pod is to be spread, or to be near other pods.

    Attributes:
        label: its key; several with commas.
    """

    lasting: ClassVar[bool] = True
    label: str = field(name="detail")
    says: ClassVar[str] = "without the topology label {label}"


class TopologySpread(NodeReason, frozen=True, kw_only=True):
    """Nodes where the pod would make a spread constraint unmet.

    Attributes:
        max_skew: that the constraint allows, in pods.
        skew: what it would be on the example, in pods.
        topology_key: of the constraint.
    """

    max_skew: int = field(name="need", default=0)
    skew: int = field(name="free", default=0)
    topology_key: str = field(name="detail")
    says: ClassVar[str] = "where pods would not be spread by {topology_key}: skew {skew} with it, {max_skew} allowed"


class PodAffinity(NodeReason, frozen=True, kw_only=True):
    """Nodes away from the pods that the pod has to be near.

    Attributes:
        topology_key: of the affinity; several with commas.
    """

    topology_key: str = field(name="detail")
    says: ClassVar[str] = "without the pods that its pod affinity asks for, by {topology_key}"


class PodAntiAffinity(NodeReason, frozen=True, kw_only=True):
    """Nodes near pods that the pod's own anti-affinity excludes.

    Attributes:
        topology_key: of the anti-affinity.
    """

    topology_key: str = field(name="detail")
    says: ClassVar[str] = "with pods that its pod anti-affinity excludes, by {topology_key}"


class AntiAffinityOfOthers(NodeReason, frozen=True, kw_only=True):
    """Nodes near pods with an anti-affinity that excludes the pod.

    Attributes:
        topology_key: of their anti-affinity.
    """

    topology_key: str = field(name="detail")
    says: ClassVar[str] = "with pods that exclude it by their own anti-affinity, by {topology_key}"


class HostPortTaken(NodeReason, frozen=True, kw_only=True):
    """Nodes where another pod holds a host port that the pod asks for.

    Attributes:
        port: protocol and number.
    """

    port: str = field(name="detail")
    says: ClassVar[str] = "where host port {port} is taken"


class VolumeOutOfReach(NodeReason, frozen=True, kw_only=True):
    """Nodes where the pod's volumes cannot be used.

    Attributes:
        constraint: what ties which volume.
    """

    constraint: str = field(name="detail")
    says: ClassVar[str] = "where its volumes cannot be used: {constraint}"


class NoVolumeLeft(NodeReason, frozen=True, kw_only=True):
    """Nodes for which no volume is left that the pod's claims could be bound to.

    Attributes:
        storage_class: that the claims ask for.
    """

    lasting: ClassVar[bool] = True
    storage_class: str = field(name="detail")
    says: ClassVar[str] = "for which no fitting volume of storage class {storage_class} is left"


class VolumeInUse(NodeReason, frozen=True, kw_only=True):
    """A `ReadWriteOncePod` claim of the pod is in use by another pod, so no node is for it.

    Attributes:
        claim: `namespace/name`.
    """

    of_nodes: ClassVar[bool] = False
    claim: str = field(name="detail")

    def __str__(self) -> str:
        return f"claim {self.claim} is ReadWriteOncePod and in use by another pod"


class VolumeNotReady(WorkReason, frozen=True, kw_only=True):
    """Something has to happen to claims of the pod first.

    Attributes:
        waits_for: what of which claims.
    """

    lasting: ClassVar[bool] = True
    waits_for: str = field(name="detail")
    says: ClassVar[str] = "waits for its volumes: {waits_for}"
