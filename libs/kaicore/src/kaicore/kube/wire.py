"""The base class of all objects that are decoded from JSON."""

import msgspec


class Wire(msgspec.Struct, gc=False, rename="camel"):
    """Base of everything that comes as JSON; field names are in camel case there."""
