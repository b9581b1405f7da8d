"""Base of all objects that are decoded from JSON, and fields that objects of all kinds share.

msgspec decodes objects straight from bytes and skips fields that are not read. Every field has a default, because an
API server leaves out empty fields. No object can be part of a reference cycle, hence `gc=False`.
"""

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from kaicore.errors import InvalidObject, Lost


class Wire(msgspec.Struct, gc=False, rename="camel"):
    """Base of everything that comes as JSON; field names are in camel case there."""


class SelectorRequirement(Wire):
    """An expression over a label, or a field of a node."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class LabelSelector(Wire):
    """Labels that all have to be there, and expressions that all have to hold; empty, it selects everything."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[SelectorRequirement] | None = None


#: A point in time as Kubernetes writes it, RFC 3339 with a zone.
Time = Annotated[datetime, msgspec.Meta(tz=True)]


def kubernetes_time(at: int) -> str:
    """Write a time, in microseconds since the epoch, as `metav1.Time` does."""
    return datetime.fromtimestamp(at // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class OwnerReference(Wire):
    """An owner of an object; one owner at most is its controller."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool | None = None


class ManagedFields(Wire):
    """The time of the object's last change: the API server's own clock, to the second."""

    time: str | None = None


class ObjectMeta(Wire):
    """The metadata of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    managed_fields: list[ManagedFields] | None = None


class KubernetesObject(Wire):
    """The common fields of all objects."""

    metadata: ObjectMeta


class PlainObject(KubernetesObject):
    """An object as it comes; what reads it takes the fields that it needs (`kaicore.rules.objects.mappings.Fields`)."""

    spec: dict[str, Any] | None = None
    status: Any = None


#: Of pods that name none: the API server's (`k8s.io/api/core/v1`, `DefaultSchedulerName`).
DEFAULT_SCHEDULER = "default-scheduler"

_INT32 = range(-(2**31), 2**31)
_MOST_DIGITS = 10


def int32(value: int, *, subject: str, field: str, lost: Lost) -> int:
    """Return a number as the schemas of Kubernetes bound it: the nearest one of 32 bits."""
    if value in _INT32:
        return value
    lost(InvalidObject(subject, field, value, "is no 32-bit integer"))
    return _INT32[0] if value < 0 else _INT32[-1]


def said_count(value: object) -> int:
    """Return a count that a status says; what is no count says nothing."""
    return min(max(int(value), 0), _INT32[-1]) if isinstance(value, int) else 0


def number_in(text: str, *, digits: int) -> int | None:
    """Return the whole number that a text says; None where it is none, or one of more digits."""
    # Python reads no number of thousands of digits.
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits else None


def count_in(text: str) -> int | None:
    """Return the count that a text says; None where it is none, or beyond 32 bits."""
    number = number_in(text, digits=_MOST_DIGITS)
    return number if number is not None and number in _INT32 else None


def seconds(time: datetime | None) -> int | None:
    """Return a time as whole seconds since the epoch."""
    return None if time is None else int(time.timestamp())


def subject_of(kind: str, namespace: str, name: str) -> str:
    """Name an object in an error: `Pod default/train-0`, `Node n1`."""
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"
