"""ProvisioningRequests from the wire into the model."""

from kaicore.errors import InvalidObject
from kaicore.kube.losses import Lost, unheard
from kaicore.kube.provisioning_objects import ProvisioningRequestObject
from kaicore.kube.resources import subject_of
from kaicore.rules.model.provisioning import ProvisioningCondition, ProvisioningRequest

#: So many characters of a condition's message are kept.
MOST_MESSAGE = 1000

_STATUSES = ("True", "False", "Unknown")


def normalize_provisioning_request(wire: ProvisioningRequestObject, lost: Lost = unheard) -> ProvisioningRequest:
    """Reduce a ProvisioningRequest; a condition that makes no sense is left out.

    Raises:
        InvalidObject: it has no name.
    """
    metadata = wire.metadata
    subject = subject_of("ProvisioningRequest", metadata.namespace, metadata.name)
    if not metadata.name:
        raise InvalidObject(subject, "metadata.name", metadata.name, "is empty")
    conditions: dict[str, ProvisioningCondition] = {}
    for index, condition in enumerate(wire.status.conditions or ()):
        field = f"status.conditions[{index}]"
        if not condition.type:
            lost(InvalidObject(subject, f"{field}.type", condition.type, "is missing"))
        elif condition.type in conditions:
            lost(InvalidObject(subject, f"{field}.type", condition.type, "is there twice"))
        elif condition.status not in _STATUSES:
            lost(InvalidObject(subject, f"{field}.status", condition.status, f"is none of {', '.join(_STATUSES)}"))
        else:
            conditions[condition.type] = ProvisioningCondition(
                condition.type,
                condition.status == "True",
                condition.reason or "",
                (condition.message or "")[:MOST_MESSAGE],
            )
    return ProvisioningRequest(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        resource_version=metadata.resource_version,
        provisioning_class=wire.spec.provisioning_class_name,
        conditions=tuple(conditions[name] for name in sorted(conditions)),
    )
