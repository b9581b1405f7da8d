"""Namespaces, reduced to the fields that selectors and admission read."""

import msgspec

from kaicore.rules.model.pod import Toleration


class Namespace(msgspec.Struct, frozen=True, omit_defaults=True):
    """A namespace and its labels.

    Attributes:
        default_tolerations: that admission adds to its pods.
    """

    uid: str
    name: str
    resource_version: str
    labels: dict[str, str] = {}
    default_tolerations: tuple[Toleration, ...] = ()
