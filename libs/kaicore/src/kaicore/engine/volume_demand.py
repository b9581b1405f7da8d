"""What a pod's volumes ask of its node, worked out from claims, volumes and storage classes."""

import msgspec

from kaicore.model.selector import Requirement


class VolumeDemand(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a pod's volumes let it go.

    Claims are named only where they tell pods apart, so that alike pods with volumes of their own stay one class.

    Attributes:
        waits: what has to happen to the pod's claims before it can go anywhere.
        places: node selector terms, any of which must hold; each with what asks for it.
        exclusive: claims, `namespace/name`, that one pod at a time may use (`ReadWriteOncePod`).
        together: claims that are not bound yet and that several pods use: the first decides where.
    """

    waits: tuple[str, ...] = ()
    places: tuple[tuple[str, tuple[tuple[Requirement, ...], ...]], ...] = ()
    exclusive: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
