"""Fields that objects of several kinds share, converted into the model."""

from datetime import datetime

from kaicore.errors import InvalidObject, InvalidQuantity
from kaicore.kube.losses import Lost
from kaicore.kube.objects import ObjectMeta, Quantities
from kaicore.rules.model.pod import Amounts, Owner
from kaicore.rules.model.quantity import read_amount

_INT32 = range(-(2**31), 2**31)


def amount(text: str | float, *, resource: str, subject: str, field: str, lost: Lost) -> int:
    """Parse a quantity into canonical units; of one that is too large to be believed the most that is.

    Raises:
        InvalidQuantity: it is no quantity, or is negative.
    """
    units, problem = read_amount(str(text), resource=resource, subject=subject, field=field)
    if problem is not None:
        lost(problem)
    return units


def amounts(quantities: Quantities | None, *, subject: str, field: str, lost: Lost) -> Amounts:
    """Parse quantities by resource name into canonical units, without those that are none."""
    amounts_by_name: Amounts = {}
    for name, text in (quantities or {}).items():
        try:
            amounts_by_name[name] = amount(text, resource=name, subject=subject, field=f"{field}[{name}]", lost=lost)
        except InvalidQuantity as error:
            lost(error)
    return amounts_by_name


def int32(value: int, *, subject: str, field: str, lost: Lost) -> int:
    """Return a number as the schemas of Kubernetes bound it: the nearest one of 32 bits."""
    if value in _INT32:
        return value
    lost(InvalidObject(subject, field, value, "is no 32-bit integer"))
    return _INT32[0] if value < 0 else _INT32[-1]


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
