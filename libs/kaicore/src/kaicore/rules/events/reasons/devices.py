"""Reasons of pods that use resource claims (dynamic resource allocation), or ask for a share of a GPU."""

from typing import ClassVar

from msgspec import field

from kaicore.rules.events.reasons.base import CodedReason, NodeReason, plural
from kaicore.rules.model.gpu_share import gpus_text


class ResourceClaimNotReady(CodedReason, frozen=True, kw_only=True):
    """Something has to happen to resource claims of the pod, or to their device classes, first.

    Attributes:
        waits_for: what of which claims.
    """

    lasting: ClassVar[bool] = True
    of_nodes: ClassVar[bool] = False
    waits_for: str = field(name="detail")

    def __str__(self) -> str:
        return f"waits for its resource claims: {self.waits_for}"


class NoMatchingDevices(NodeReason, frozen=True, kw_only=True):
    """Nodes that do not have the devices that the pod's resource claims ask for, in use or not.

    Attributes:
        wanted: what is asked for, and what is wrong with it on the example.
    """

    lasting: ClassVar[bool] = True
    wanted: str = field(name="detail")

    def __str__(self) -> str:
        return self._nodes(f"without devices for its resource claims: {self.wanted}")


class DevicesTaken(NodeReason, frozen=True, kw_only=True):
    """Nodes where other claims have the devices that the pod's resource claims ask for.

    Attributes:
        wanted: what is asked for.
    """

    wanted: str = field(name="detail")

    def __str__(self) -> str:
        return self._nodes(f"where other claims hold the devices for its resource claims: {self.wanted}")


class ResourceClaimOutOfReach(NodeReason, frozen=True, kw_only=True):
    """Nodes where a resource claim of the pod, which has its devices, cannot be used.

    Attributes:
        constraint: which claim.
    """

    constraint: str = field(name="detail")

    def __str__(self) -> str:
        return self._nodes(f"where its resource claims cannot be used: {self.constraint}")


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
