"""What a pod holds of a node's NUMA zones."""

from enum import StrEnum

import msgspec

from kaicore.errors import InvalidObject
from kaicore.model.pod import Amounts
from kaicore.model.quantity import canonical_quantity, parse_amount

#: The placement records of the seed, as annotations on the pod.
PREDICTED_ANNOTATION = "kai.scheduler/numa-placement-predicted"
OBSERVED_ANNOTATION = "kai.scheduler/numa-placement-observed"


class Provenance(StrEnum):
    """Where a placement is known from; `OBSERVED` beats `PREDICTED`, and nothing else is ever believed."""

    PREDICTED = "predicted"
    OBSERVED = "observed"


class ZoneAmount(msgspec.Struct, frozen=True, omit_defaults=True):
    """Amounts taken from one zone, named as the NodeResourceTopology names it."""

    zone: str
    amount: Amounts = {}


class SpanAmount(msgspec.Struct, frozen=True, omit_defaults=True):
    """Amounts known to lie somewhere in a set of zones: a memory block or a device of two zones in podresources."""

    zones: tuple[str, ...]
    amount: Amounts = {}


class ContainerPlacement(msgspec.Struct, frozen=True, omit_defaults=True):
    """One container's share: the zones of its affinity mask, and the amounts taken from each zone.

    The mask is kept beside the amounts because a zone of the mask may hold nothing and still be bound to the others
    (the memory manager's groups).

    Attributes:
        container: its name; empty for a record that does not tell the pod's containers apart.
        mask: zones of the merged hint, empty when unknown or when nothing of the container is aligned.
        zones: amounts whose zone is known.
        spans: amounts of which only a set of zones is known.
        blocks: memory as the memory manager keeps it, where the amounts in `zones` do not tell (predictions only):
            blocks of several zones, whose split they are, and those of init containers, whose size may be 0.
        uncertain: resources whose split over the zones the kubelet leaves open: their sum is certain, and that they
            come from the mask where it has enough.
    """

    container: str
    mask: tuple[str, ...] = ()
    zones: tuple[ZoneAmount, ...] = ()
    spans: tuple[SpanAmount, ...] = ()
    blocks: tuple[SpanAmount, ...] = ()
    uncertain: tuple[str, ...] = ()


class Placement(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a pod holds on a node, container by container; empty when nothing of it is bound to a zone.

    Attributes:
        init: names of those of the containers that are ordinary init containers, with what they keep beyond what the
            others took over. None where an observation does not tell of them; predictions always do.
    """

    provenance: Provenance
    containers: tuple[ContainerPlacement, ...] = ()
    init: tuple[str, ...] | None = None

    @property
    def lasting(self) -> tuple[ContainerPlacement, ...]:
        """The containers without those that `init` names."""
        return tuple(item for item in self.containers if item.container not in (self.init or ()))

    def zone_amounts(self) -> tuple[ZoneAmount, ...]:
        """Sum the containers' amounts per zone, zones in order of name, empty amounts left out."""
        totals: dict[str, Amounts] = {}
        for container in self.containers:
            for zone in container.zones:
                into = totals.setdefault(zone.zone, {})
                for resource, amount in zone.amount.items():
                    into[resource] = into.get(resource, 0) + amount
        return tuple(
            ZoneAmount(zone=zone, amount={name: held[name] for name in sorted(held) if held[name]})
            for zone, held in sorted(totals.items())
            if any(held.values())
        )


class _AnnotatedZone(msgspec.Struct):
    zone: str
    amount: dict[str, str | int]


_decoder = msgspec.json.Decoder(list[_AnnotatedZone])


def encode_annotation(zones: tuple[ZoneAmount, ...]) -> str:
    """Write a placement record as the seed's annotations carry it.

    For example `[{"zone":"node-0","amount":{"cpu":"8","nvidia.com/gpu":"2"}}]`.
    """
    document = [
        {
            "zone": zone.zone,
            "amount": {name: canonical_quantity(name, zone.amount[name]) for name in sorted(zone.amount)},
        }
        for zone in zones
    ]
    return msgspec.json.encode(document).decode()


def decode_annotation(text: str, *, subject: str, annotation: str) -> tuple[ZoneAmount, ...]:
    """Read a placement record from an annotation.

    Raises:
        InvalidObject: when it is not that format, names a zone twice, or holds an impossible quantity.
    """
    field = f"metadata.annotations[{annotation}]"
    try:
        document = _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidObject(subject, field, text, f"not a placement record ({error})") from error
    zones: dict[str, ZoneAmount] = {}
    for entry in document:
        if not entry.zone or entry.zone in zones:
            raise InvalidObject(subject, field, text, f"zone {entry.zone!r} is empty or named twice")
        amount = {
            name: parse_amount(value, resource=name, subject=subject, field=f"{field}.{entry.zone}.{name}")
            for name, value in sorted(entry.amount.items())
        }
        zones[entry.zone] = ZoneAmount(zone=entry.zone, amount=amount)
    return tuple(zones[name] for name in sorted(zones))
