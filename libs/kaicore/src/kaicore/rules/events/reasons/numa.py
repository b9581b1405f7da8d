"""Reasons for which kubelets would not give a pod its zones: the Topology Manager's rules, and the pod's own."""

from typing import ClassVar

from msgspec import field

from kaicore.rules.events.reasons.base import NodeReason
from kaicore.rules.model.quantity import asked_amount, format_amount


class NumaNeverFits(NodeReason, frozen=True, kw_only=True):
    """Nodes with zones that could not take the pod even if the nodes had no others.

    Attributes:
        resource: which has too little in one zone.
        zone: the largest on the example; empty where no single zone is meant.
        requested: by the container, in the resource's unit.
        installed: in that zone.
        explanation: what is in the way, besides.
        rejection: the reason with which the kubelet would reject the pod.
    """

    lasting: ClassVar[bool] = True
    resource: str
    zone: str = ""
    requested: int = field(name="need", default=0)
    installed: int = field(name="free", default=0)
    explanation: str = field(name="detail", default="")
    rejection: str = ""

    def __str__(self) -> str:
        if not self.zone:
            return self._nodes(f"can never align it: {self.explanation}", rejection=self.rejection)
        requested = asked_amount(self.resource, self.requested)
        installed = f"{format_amount(self.resource, self.installed)} in the largest zone ({self.zone})"
        return self._nodes(
            f"can never align it: {self.resource}: {requested} needed, {installed}", rejection=self.rejection
        )


class NumaWidthsDiffer(NodeReason, frozen=True, kw_only=True):
    """Nodes with the policy `restricted` on which the resources of the pod need different numbers of zones.

    Attributes:
        resource: which needs the most zones.
        requested: by the container, in the resource's unit.
        widths: which resources need how many zones.
        rejection: the reason with which the kubelet would reject the pod.
    """

    lasting: ClassVar[bool] = True
    resource: str
    requested: int = field(name="need", default=0)
    widths: str = field(name="detail", default="")
    rejection: str = ""

    def __str__(self) -> str:
        return self._nodes(f"can never align it: restricted wants {self.widths}", rejection=self.rejection)


class ZonesShort(NodeReason, frozen=True, kw_only=True):
    """Nodes with zones that do not have what a container requests, as it is now.

    Attributes:
        resource: what it is about first.
        zone: the one that has most of it free, on the example; empty where no single zone is meant.
        requested: by the container, in the resource's unit.
        free: in that zone.
        explanation: what is in the way.
        rejection: the reason with which the kubelet would reject the pod.
    """

    resource: str
    zone: str = ""
    requested: int = field(name="need", default=0)
    free: int = 0
    explanation: str = field(name="detail", default="")
    rejection: str = ""

    def __str__(self) -> str:
        return self._nodes(f"cannot align it now: {self.resource}: {self.explanation}", rejection=self.rejection)


class NumaZoneShort(ZonesShort, frozen=True, kw_only=True):
    """Nodes on which no zone has enough free."""

    def __str__(self) -> str:
        requested, free = asked_amount(self.resource, self.requested), format_amount(self.resource, self.free)
        at_zone = f" on zone {self.zone}" if self.zone else ""
        what = f"with no zone that fits: {self.resource}: {requested} needed, {free} free{at_zone}"
        return self._nodes(what, rejection=self.rejection)


class NumaZonesApart(ZonesShort, frozen=True, kw_only=True):
    """Nodes with enough of each resource free, but not on zones that may serve together."""


class NumaMemoryGroups(ZonesShort, frozen=True, kw_only=True):
    """Nodes with enough memory free, but on zones that other pods' memory groups otherwise."""


class NumaWholeCores(NodeReason, frozen=True, kw_only=True):
    """Nodes with a CPU manager that gives whole cores only; the pod asks for part of one.

    Attributes:
        resource: `cpu`.
        requested: by the container, in millicores.
        message: the kubelet's.
        rejection: the reason with which the kubelet would reject the pod.
    """

    resource: str
    requested: int = field(name="need", default=0)
    message: str = field(name="detail", default="")
    rejection: str = ""

    def __str__(self) -> str:
        return self._nodes(f"that give CPUs by whole cores only: {self.message}", rejection=self.rejection)


class NumaPolicyUntold(NodeReason, frozen=True, kw_only=True):
    """Nodes that do not report by zone what the pod's own NUMA policy is about.

    Attributes:
        resource: which the policy names and the nodes do not report; empty where the policy names none.
        policy: the pod's own.
    """

    lasting: ClassVar[bool] = True
    resource: str = ""
    policy: str = field(name="detail")

    def __str__(self) -> str:
        what = self.resource or "what is asked for"
        return self._nodes(f"that do not report {what} by zone, as the pod's own policy needs ({self.policy})")


class NumaPolicyNeverKept(NodeReason, frozen=True, kw_only=True):
    """Nodes that would not keep the pod's own NUMA policy even if they had no other pods.

    Attributes:
        policy: the pod's own, and what it might get instead.
    """

    lasting: ClassVar[bool] = True
    policy: str = field(name="detail")
    says: ClassVar[str] = "that could never keep the pod's own policy ({policy})"


class NumaPolicyNotKept(NodeReason, frozen=True, kw_only=True):
    """Nodes that would not keep the pod's own NUMA policy now.

    Attributes:
        policy: the pod's own, and what it might get instead.
    """

    policy: str = field(name="detail")
    says: ClassVar[str] = "that would not keep the pod's own policy now ({policy})"
