"""ProvisioningRequests: pods for which an autoscaler is asked for nodes, and its progress with them.

Source: kubernetes/autoscaler, cluster-autoscaler/apis/provisioningrequest/autoscaling.x-k8s.io/v1/types.go (1.34).
"""

import msgspec

#: Types of conditions. An autoscaler attempts the request; all is there; it cannot be had; what was there is no longer
#: kept, or no longer valid.
ACCEPTED = "Accepted"
PROVISIONED = "Provisioned"
FAILED = "Failed"
BOOKING_EXPIRED = "BookingExpired"
CAPACITY_REVOKED = "CapacityRevoked"

#: The conditions with which a request has come to its end, the one that says most first.
ENDS = (FAILED, CAPACITY_REVOKED, BOOKING_EXPIRED)

#: Why the API server made none: it knows no ProvisioningRequests.
NOT_SERVED = "NotServed"

#: By this annotation an object that groups pods, or a pod, chooses the ProvisioningClass of its requests.
PROVISIONING_CLASS_ANNOTATION = "kai.scheduler/provisioning-class"

#: The choice of no class.
NO_CLASS = "none"

#: Most pod sets of a request.
MOST_POD_SETS = 32

#: Annotations of a pod: the request that made its nodes, and that request's class.
CONSUMED_REQUEST_ANNOTATION = "autoscaling.x-k8s.io/consume-provisioning-request"
CONSUMED_CLASS_KEY = "autoscaling.x-k8s.io/provisioning-class-name"


class ProvisioningCondition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A condition of a ProvisioningRequest.

    Attributes:
        type: see above; classes of clouds may have others.
        met: whether its status is True.
    """

    type: str
    met: bool = False
    reason: str = ""
    message: str = ""


class ProvisioningRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A ProvisioningRequest, ours or another program's, reduced to how it fares.

    Attributes:
        provisioning_class: `spec.provisioningClassName`.
        conditions: in order of their types.
    """

    uid: str
    namespace: str
    name: str
    resource_version: str
    provisioning_class: str = ""
    conditions: tuple[ProvisioningCondition, ...] = ()

    def condition(self, name: str) -> ProvisioningCondition | None:
        """Return the condition of a type; None where it is not known."""
        return next((condition for condition in self.conditions if condition.type == name), None)

    @property
    def end(self) -> ProvisioningCondition | None:
        """The condition with which it has come to its end; None where it has not."""
        conditions = (self.condition(name) for name in ENDS)
        return next((condition for condition in conditions if condition is not None and condition.met), None)
