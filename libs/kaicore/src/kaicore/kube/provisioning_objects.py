"""ProvisioningRequests on the wire, reduced to the fields that are read, and their API paths."""

import msgspec

from kaicore.kube.objects import KubernetesObject
from kaicore.kube.resources import OptionalResource
from kaicore.kube.wire import Wire


class ProvisioningRequestSpec(Wire):
    """What is asked for; what of it is asked is known from the decision."""

    provisioning_class_name: str = ""


class ConditionOfRequest(Wire):
    """A condition, as `metav1.Condition` has it."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class ProvisioningRequestStatus(Wire):
    """How an autoscaler gets on with it."""

    conditions: list[ConditionOfRequest] | None = None


class ProvisioningRequestObject(KubernetesObject):
    """An `autoscaling.x-k8s.io` ProvisioningRequest."""

    spec: ProvisioningRequestSpec = msgspec.field(default_factory=ProvisioningRequestSpec)
    status: ProvisioningRequestStatus = msgspec.field(default_factory=ProvisioningRequestStatus)


#: Both versions have the same fields (cluster-autoscaler 1.34).
PROVISIONING_REQUESTS = OptionalResource(
    "ProvisioningRequest.autoscaling.x-k8s.io",
    "autoscaling.x-k8s.io",
    "provisioningrequests",
    ("v1", "v1beta1"),
    ProvisioningRequestObject,
)
