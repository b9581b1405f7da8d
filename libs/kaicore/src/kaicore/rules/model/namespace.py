"""Namespaces, as far as selectors look at them."""

import msgspec


class Namespace(msgspec.Struct, frozen=True, omit_defaults=True):
    """A namespace and its labels."""

    uid: str
    name: str
    resource_version: str
    labels: dict[str, str] = {}
