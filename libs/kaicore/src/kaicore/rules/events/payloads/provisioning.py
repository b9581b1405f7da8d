"""ProvisioningRequests: facts about them, decisions of cycles about them, and the outcomes."""

import msgspec

from kaicore.rules.events.payloads.base import Payload
from kaicore.rules.model.provisioning import ProvisioningRequest


class ProvisioningRequestObserved(Payload, frozen=True):
    """The watcher saw a ProvisioningRequest that is new or has changed."""

    request: ProvisioningRequest


class ProvisioningRequestDeleted(Payload, frozen=True):
    """A ProvisioningRequest is gone."""

    uid: str
    namespace: str
    name: str


class ProvisioningPodSet(msgspec.Struct, frozen=True):
    """Pods of a request that are alike.

    Attributes:
        pod_class: key of their class.
        count: how many they are.
        uid: of one of them, which the template is made from.
        pod: the name of that one.
    """

    pod_class: str
    count: int
    uid: str
    pod: str


class ProvisioningRequested(Payload, frozen=True):
    """A cycle decided that a group needs nodes that are not there; the binder makes a ProvisioningRequest.

    Attributes:
        group: key of the group.
        namespace: of the request, as of the group.
        name: of the request; its PodTemplates are called `<name>-<number of the pod set>`.
        cycle: id of the cycle, the same as in its `CycleCompleted`.
        attempt: how many requests, this one included, have been made for what the group lacks.
        parameters: `spec.parameters`.
    """

    group: str
    namespace: str
    name: str
    cycle: str
    provisioning_class: str
    attempt: int
    pod_sets: tuple[ProvisioningPodSet, ...]
    parameters: dict[str, str] = msgspec.field(default_factory=dict)


class ProvisioningWithdrawn(Payload, frozen=True):
    """A cycle decided that a ProvisioningRequest is of no use any more; the binder deletes it and its PodTemplates.

    Attributes:
        group: key of the group that it was made for.
        reason: see `kaicore.rules.engine.decisions.WithdrawalReason`.
        pod_sets: how many it has.
    """

    group: str
    namespace: str
    name: str
    cycle: str
    reason: str
    pod_sets: int


class ProvisioningRequestCreated(Payload, frozen=True):
    """The API server took a ProvisioningRequest."""

    group: str
    namespace: str
    name: str
    attempts: int = 1


class ProvisioningRequestRemoved(Payload, frozen=True):
    """A ProvisioningRequest that was withdrawn is gone, and so are its PodTemplates."""

    group: str
    namespace: str
    name: str
    attempts: int = 1


class ProvisioningRequestRefused(Payload, frozen=True):
    """The API server refused to make, or to delete, a ProvisioningRequest, or did not do so in time.

    Attributes:
        code: HTTP status, 0 when there was none.
        reason: the API server's; `NotServed` where it knows no ProvisioningRequests.
        removing: whether it was to be deleted.
    """

    group: str
    namespace: str
    name: str
    code: int
    reason: str
    message: str = ""
    attempts: int = 1
    removing: bool = False
