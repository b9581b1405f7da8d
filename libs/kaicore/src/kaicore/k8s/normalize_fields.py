"""Fields that objects of several kinds share, in the model's words."""

from datetime import datetime

from kaicore.k8s.objects import ObjectMeta, Quantities
from kaicore.model.pod import Amounts, Owner
from kaicore.model.quantity import parse_amount


def amounts(quantities: Quantities | None, *, subject: str, field: str) -> Amounts:
    """Parse quantities by resource name into canonical units.

    Raises:
        InvalidQuantity: naming the resource whose quantity is none.
    """
    if not quantities:
        return {}
    return {
        name: parse_amount(
            text if isinstance(text, str) else str(text), resource=name, subject=subject, field=f"{field}[{name}]"
        )
        for name, text in quantities.items()
    }


def seconds(time: datetime | None) -> int | None:
    """Return a time as whole seconds since the epoch."""
    return None if time is None else int(time.timestamp())


def changed_at(metadata: ObjectMeta) -> int:
    """Return when the object was last written by the API server's clock, microseconds since the epoch; 0 if unknown.

    Source: `metadata.managedFields[].time`, which every write of a manager stamps, to the second.
    """
    latest = max((entry.time for entry in metadata.managed_fields or () if entry.time), default="")
    try:
        written = datetime.fromisoformat(latest) if latest else metadata.creation_timestamp
    except ValueError:
        written = metadata.creation_timestamp
    if written is None or written.tzinfo is None:
        return 0
    return int(written.timestamp()) * 1_000_000


def controller(metadata: ObjectMeta) -> Owner | None:
    """Return the owner that controls an object, None where there is none."""
    for owner in metadata.owner_references or ():
        if owner.controller:
            return Owner(kind=owner.kind, name=owner.name, uid=owner.uid, api_version=owner.api_version)
    return None
