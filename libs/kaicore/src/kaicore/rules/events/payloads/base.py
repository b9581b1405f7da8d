"""The base classes of all payloads."""

from collections.abc import Iterator

import msgspec


class Payload(msgspec.Struct, frozen=True, omit_defaults=True):
    """The contents of an event."""


class NamedPayload(Payload, frozen=True):
    """Something about an object that has no namespace."""

    uid: str
    name: str


class NamespacedPayload(Payload, frozen=True):
    """Something about an object in a namespace."""

    uid: str
    namespace: str
    name: str


class PodPayload(NamespacedPayload, frozen=True):
    """Something about a pod on a node."""

    node: str


_BASES = (NamedPayload, NamespacedPayload, PodPayload)


def payload_types(base: type[Payload] = Payload) -> Iterator[type[Payload]]:
    """Yield the classes of payloads, but for those that only others are made of."""
    for below in base.__subclasses__():
        if below not in _BASES:
            yield below
        yield from payload_types(below)
