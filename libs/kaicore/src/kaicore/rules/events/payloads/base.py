"""The base class of all payloads."""

import msgspec


class Payload(msgspec.Struct, frozen=True, omit_defaults=True):
    """The contents of an event."""
