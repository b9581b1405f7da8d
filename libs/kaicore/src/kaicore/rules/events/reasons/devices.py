"""Reasons of pods that use resource claims: dynamic resource allocation."""

from typing import ClassVar

from msgspec import field

from kaicore.rules.events.reasons.base import CodedReason, NodeReason


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
