"""Reasons in nodes that cannot take a pod: the node rules of Kubernetes, and room."""

from typing import ClassVar

from msgspec import field

from kaicore.rules.events.reasons.base import CodedReason, NodeReason
from kaicore.rules.model.quantity import format_amount


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

    def __str__(self) -> str:
        return self._nodes("not ready")


class NodeUnschedulable(NodeReason, frozen=True, kw_only=True):
    """Nodes that are cordoned."""

    def __str__(self) -> str:
        return self._nodes("cordoned")


class NodeSelectorMismatch(NodeReason, frozen=True, kw_only=True):
    """Nodes without the labels that the pod's node selector asks for."""

    lasting: ClassVar[bool] = True

    def __str__(self) -> str:
        return self._nodes("without the labels of the pod's node selector")


class NodeAffinityMismatch(NodeReason, frozen=True, kw_only=True):
    """Nodes that the pod's required node affinity leaves out."""

    lasting: ClassVar[bool] = True

    def __str__(self) -> str:
        return self._nodes("outside the pod's required node affinity")


class NodeFlavorMismatch(NodeReason, frozen=True, kw_only=True):
    """Nodes of none of the ResourceFlavors that the pod's queue has for what it requests.

    Attributes:
        flavors: the queue, the resources, and the flavors that it has for them.
    """

    lasting: ClassVar[bool] = True
    flavors: str = field(name="detail")

    def __str__(self) -> str:
        return self._nodes(f"not of the flavors of its queue {self.flavors}")


class UntoleratedTaint(NodeReason, frozen=True, kw_only=True):
    """Nodes with a taint that the pod does not tolerate.

    Attributes:
        taint: `key=value:effect`; `key:effect` without a value.
    """

    lasting: ClassVar[bool] = True
    taint: str = field(name="detail")

    def __str__(self) -> str:
        return self._nodes(f"with the untolerated taint {self.taint}")


class RejectedByKubelet(NodeReason, frozen=True, kw_only=True):
    """Nodes with a kubelet that rejected such a pod, where nothing has changed since.

    Attributes:
        rejection: the kubelet's reason.
    """

    rejection: str = field(name="detail", default="")

    def __str__(self) -> str:
        return self._nodes(f"that rejected such a pod before ({self.rejection}) and have not changed since")


class HistoryIncomplete(NodeReason, frozen=True, kw_only=True):
    """Nodes where it is not known which zones some pods hold.

    Attributes:
        gap: since which position of the log, and of how many pods.
    """

    gap: str = field(name="detail", default="")

    def __str__(self) -> str:
        return self._nodes(f"with pods of unknown holdings: {self.gap}")


class NotObservedYet(NodeReason, frozen=True, kw_only=True):
    """Nodes that may refuse the pod, by what pods there hold that have just started or are about to end."""

    def __str__(self) -> str:
        return self._nodes("that may refuse the pod, because pods there are just starting or ending")


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
        requested = format_amount(self.resource, self.requested)
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
        requested, free = format_amount(self.resource, self.requested), self._most(self.resource, self.free)
        more = f", {self.releasing}" if self.releasing else ""
        return self._nodes(f"short of {self.resource}: {requested} needed, {free} free{more}")
