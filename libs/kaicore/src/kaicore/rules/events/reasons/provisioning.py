"""Reasons of a group that waits for missing nodes: the progress of a ProvisioningRequest."""

from typing import ClassVar

from kaicore.rules.events.reasons.base import CodedReason, plural, time_text


class WaitsForProvisioning(CodedReason, frozen=True, kw_only=True):
    """A ProvisioningRequest was made for the group, and an autoscaler is at it.

    Another node would help, but not one that an autoscaler adds for each pod that is unschedulable: the group would get
    its nodes twice.

    Attributes:
        request: `<namespace>/<name>` of the request.
        provisioning_class: its class.
        pods: for how many pods it is.
        stage: how far it is: `requested`, `created`, `accepted`, `provisioned`.
        message: what the autoscaler says to that; empty for nothing.
        since: when it was decided, microseconds since the epoch.
    """

    of_nodes: ClassVar[bool] = False
    request: str
    provisioning_class: str
    pods: int
    stage: str
    message: str = ""
    since: int

    def __str__(self) -> str:
        message = f": {self.message}" if self.message else ""
        return (
            f"waits for new nodes for {plural(self.pods, 'pod')}: ProvisioningRequest {self.request} of class "
            f"{self.provisioning_class} is {self.stage} (since {time_text(self.since)}){message}"
        )


class ProvisioningRetried(CodedReason, frozen=True, kw_only=True):
    """The group's ProvisioningRequest came to nothing, and another one will be made.

    Attributes:
        request: `<namespace>/<name>` of the request.
        attempt: how many requests there have been.
        ended: how it ended: `Failed`, `CapacityRevoked`, `BookingExpired` or `Deleted`.
        message: what was said to that; empty for nothing.
        retry_at: when the next one is made, microseconds since the epoch.
    """

    of_nodes: ClassVar[bool] = False
    request: str
    attempt: int
    ended: str
    message: str = ""
    retry_at: int

    def __str__(self) -> str:
        message = f": {self.message}" if self.message else ""
        return (
            f"got no new nodes: ProvisioningRequest {self.request}, attempt {self.attempt}, ended as {self.ended}"
            f"{message}; the next is made at {time_text(self.retry_at)}"
        )


class ProvisioningImpossible(CodedReason, frozen=True, kw_only=True):
    """No ProvisioningRequest can be made for the group; nodes that are added otherwise still help.

    Attributes:
        problem: why, in words for people.
        retry_at: when it is tried again, microseconds since the epoch; 0 for not until the group changes.
    """

    problem: str
    retry_at: int = 0

    def __str__(self) -> str:
        again = f"; it is tried again at {time_text(self.retry_at)}" if self.retry_at else ""
        return f"no ProvisioningRequest can be made for it: {self.problem}{again}"


class ProvisioningClassNotAllowed(CodedReason, frozen=True, kw_only=True):
    """The group names a ProvisioningClass that the scheduler's settings do not have.

    Attributes:
        provisioning_class: the one that it names.
        allowed: those that there are.
    """

    of_nodes: ClassVar[bool] = False
    provisioning_class: str
    allowed: str = ""

    def __str__(self) -> str:
        return (
            f"asks for new nodes by ProvisioningClass {self.provisioning_class}, which the scheduler's settings do not "
            f"allow; they allow {self.allowed}"
        )
