"""Reasons in nodes that cannot take a pod because of the pods there, or because of volumes."""

from typing import ClassVar

from msgspec import field

from kaicore.rules.events.reasons.base import CodedReason, NodeReason


class NoTopologyLabel(NodeReason, frozen=True, kw_only=True):
    """Nodes without a label by which the pod is to be spread, or to be near other pods.

    Attributes:
        label: its key; several with commas.
    """

    lasting: ClassVar[bool] = True
    label: str = field(name="detail")

    def __str__(self) -> str:
        return self._nodes(f"without the topology label {self.label}")


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

    def __str__(self) -> str:
        return self._nodes(
            f"where pods would not be spread by {self.topology_key}: skew {self.skew} with it, {self.max_skew} allowed"
        )


class PodAffinity(NodeReason, frozen=True, kw_only=True):
    """Nodes away from the pods that the pod has to be near.

    Attributes:
        topology_key: of the affinity; several with commas.
    """

    topology_key: str = field(name="detail")

    def __str__(self) -> str:
        return self._nodes(f"without the pods that its pod affinity asks for, by {self.topology_key}")


class PodAntiAffinity(NodeReason, frozen=True, kw_only=True):
    """Nodes near pods that the pod's own anti-affinity excludes.

    Attributes:
        topology_key: of the anti-affinity.
    """

    topology_key: str = field(name="detail")

    def __str__(self) -> str:
        return self._nodes(f"with pods that its pod anti-affinity excludes, by {self.topology_key}")


class AntiAffinityOfOthers(NodeReason, frozen=True, kw_only=True):
    """Nodes near pods with an anti-affinity that excludes the pod.

    Attributes:
        topology_key: of their anti-affinity.
    """

    topology_key: str = field(name="detail")

    def __str__(self) -> str:
        return self._nodes(f"with pods that exclude it by their own anti-affinity, by {self.topology_key}")


class HostPortTaken(NodeReason, frozen=True, kw_only=True):
    """Nodes where another pod holds a host port that the pod asks for.

    Attributes:
        port: protocol and number.
    """

    port: str = field(name="detail")

    def __str__(self) -> str:
        return self._nodes(f"where host port {self.port} is taken")


class VolumeOutOfReach(NodeReason, frozen=True, kw_only=True):
    """Nodes where the pod's volumes cannot be used.

    Attributes:
        constraint: what ties which volume.
    """

    constraint: str = field(name="detail")

    def __str__(self) -> str:
        return self._nodes(f"where its volumes cannot be used: {self.constraint}")


class NoVolumeLeft(NodeReason, frozen=True, kw_only=True):
    """Nodes for which no volume is left that the pod's claims could be bound to.

    Attributes:
        storage_class: that the claims ask for.
    """

    lasting: ClassVar[bool] = True
    storage_class: str = field(name="detail")

    def __str__(self) -> str:
        return self._nodes(f"for which no fitting volume of storage class {self.storage_class} is left")


class VolumeInUse(NodeReason, frozen=True, kw_only=True):
    """A `ReadWriteOncePod` claim of the pod is in use by another pod, so no node is for it.

    Attributes:
        claim: `namespace/name`.
    """

    of_nodes: ClassVar[bool] = False
    claim: str = field(name="detail")

    def __str__(self) -> str:
        return f"claim {self.claim} is ReadWriteOncePod and in use by another pod"


class VolumeNotReady(CodedReason, frozen=True, kw_only=True):
    """Something has to happen to claims of the pod first.

    Attributes:
        waits_for: what of which claims.
    """

    lasting: ClassVar[bool] = True
    of_nodes: ClassVar[bool] = False
    waits_for: str = field(name="detail")

    def __str__(self) -> str:
        return f"waits for its volumes: {self.waits_for}"
