"""The placement of a pod: the amounts that it holds of a node's NUMA zones."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from kaicore.errors import InvalidObject
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import add_amounts, is_memory, parse_amount, quantities

#: Placement records as annotations on the pod. Their names and format are those of KAI-Scheduler v0.17,
#: docs/developer/designs/numa-topology/README.md.
PREDICTED_ANNOTATION = "kai.scheduler/numa-placement-predicted"
OBSERVED_ANNOTATION = "kai.scheduler/numa-placement-observed"

#: The memory manager's groups that a pod is to hold, and those that KAI-Scheduler's exporter saw (its issue #2013). KAI
#: gives out no memory of a node while it does not know them of every pod there. Our own record has them as `blocks`.
MEMORY_GROUPS_PREDICTED = "kai.scheduler/numa-memory-groups-predicted"
MEMORY_GROUPS_OBSERVED = "kai.scheduler/numa-memory-groups-observed"

#: A pod's rank among the pods of its set; and its node's domain at each level of the group's topology, as JSON.
RANK_ANNOTATION = "kai.scheduler/rank"
DOMAINS_ANNOTATION = "kai.scheduler/topology-domains"


class Provenance(StrEnum):
    """The source of a placement; `OBSERVED` beats `PREDICTED`, and nothing else is ever believed."""

    PREDICTED = "predicted"
    OBSERVED = "observed"


class ZoneAmount(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Amounts taken from one zone, named as the NodeResourceTopology names it."""

    zone: str
    amount: Amounts = {}


class SpanAmount(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Amounts known to lie somewhere in a set of zones: a memory block or a device of two zones in podresources."""

    zones: tuple[str, ...]
    amount: Amounts = {}


class ContainerPlacement(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One container's share: the zones of its affinity mask, and the amounts taken from each zone.

    The mask is kept beside the amounts because a zone of the mask may hold nothing and still be bound to the others
    (the memory manager's groups).

    Attributes:
        container: its name; empty for a record that does not tell the pod's containers apart.
        mask: zones of the merged hint, empty when unknown or when nothing of the container is aligned.
        zones: amounts with a known zone.
        spans: amounts of which only a set of zones is known.
        blocks: memory as the memory manager keeps it, where the amounts in `zones` do not tell (predictions only):
            blocks of several zones, with their split, and those of init containers, perhaps of size 0.
        uncertain: resources that the kubelet may split over the zones in any way: their sum is certain, and that they
            come from the mask where it has enough.
    """

    container: str
    mask: tuple[str, ...] = ()
    zones: tuple[ZoneAmount, ...] = ()
    spans: tuple[SpanAmount, ...] = ()
    blocks: tuple[SpanAmount, ...] = ()
    uncertain: tuple[str, ...] = ()


class Placement(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A pod's holdings on a node, container by container; empty when none is bound to a zone.

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
                add_amounts(totals.setdefault(zone.zone, {}), zone.amount, 1)
        return tuple(
            ZoneAmount(zone=zone, amount={name: held[name] for name in sorted(held) if held[name]})
            for zone, held in sorted(totals.items())
            if any(held.values())
        )


class _AnnotatedSpan(msgspec.Struct):
    zones: list[str]
    amount: Mapping[str, str | int]


class _AnnotatedZone(msgspec.Struct, omit_defaults=True):
    zone: str
    amount: Mapping[str, str | int]
    blocks: list[_AnnotatedSpan] = []
    spans: list[_AnnotatedSpan] = []


class _MemoryGroup(msgspec.Struct, rename="camel"):
    memory_nodes: list[str]
    amount: Mapping[str, str | int]


_decoder = msgspec.json.Decoder(list[_AnnotatedZone])
_groups_decoder = msgspec.json.Decoder(list[_MemoryGroup] | None)


def encode_annotation(placement: Placement) -> str:
    """Write a placement record as KAI-Scheduler's annotations carry it; empty when it binds nothing to a zone.

    For example `[{"zone":"node-0","amount":{"cpu":"8","nvidia.com/gpu":"2"}}]`. Where memory spans zones, the first
    entry has all of the pod's memory as `blocks` besides, `{"zones":["node-0","node-1"],"amount":{"memory":"48Gi"}}`
    each, for the zones of a block are a group however its bytes are split; devices that several zones reach are its
    `spans`. Readers of KAI-Scheduler's format (v0.17) do not look at either.
    """
    amounts = {zone.zone: zone.amount for zone in placement.zone_amounts()}
    blocks, spans = _memory_blocks(placement), _device_spans(placement)
    wide = any(len(block.zones) > 1 for block in blocks)
    names = sorted({*amounts, *(zone for span in (*(blocks if wide else ()), *spans) for zone in span.zones)})
    document = [_AnnotatedZone(name, quantities(amounts.get(name, {}))) for name in names]
    if not document:
        return ""
    if wide:
        document[0].blocks = [_AnnotatedSpan(list(block.zones), quantities(block.amount)) for block in blocks]
    document[0].spans = [_AnnotatedSpan(list(span.zones), quantities(span.amount)) for span in spans]
    return msgspec.json.encode(document).decode()


def encode_memory_groups(placement: Placement) -> str:
    """Write the memory groups of a pod as KAI-Scheduler's annotations carry them; empty when it holds no memory.

    For example `[{"memoryNodes":["node-0","node-1"],"amount":{"memory":"48Gi"}}]`, each set of zones once.
    """
    groups: dict[tuple[str, ...], Amounts] = {}
    for block in _memory_blocks(placement):
        groups.setdefault(block.zones, {}).update(block.amount)
    document = [_MemoryGroup(list(zones), quantities(amount)) for zones, amount in groups.items()]
    return msgspec.json.encode(document).decode() if document else ""


def _memory_blocks(placement: Placement) -> list[SpanAmount]:
    """Return the memory of a placement block by block, of whatever container; those of one zone put together."""
    parts: list[SpanAmount] = []
    for container in placement.containers:
        zones = (SpanAmount((zone.zone,), zone.amount) for zone in container.zones)
        parts += container.blocks or (*zones, *container.spans)
    return _summed((part, name) for part in parts for name in part.amount if is_memory(name))


def _device_spans(placement: Placement) -> list[SpanAmount]:
    """Return what several zones reach; what an init container is uncertain to keep is left out."""
    return _summed(
        (span, name)
        for container in placement.containers
        for span in container.spans
        for name in span.amount
        if not is_memory(name) and name not in container.uncertain
    )


def _summed(parts: Iterable[tuple[SpanAmount, str]]) -> list[SpanAmount]:
    """Sum some resources of spans up, by zones and resource."""
    total: dict[tuple[tuple[str, ...], str], int] = {}
    for part, name in parts:
        total[part.zones, name] = total.get((part.zones, name), 0) + part.amount[name]
    return [SpanAmount(zones, {name: amount}) for (zones, name), amount in sorted(total.items()) if amount]


def decode_annotation(text: str, *, subject: str, annotation: str, groups: str = "") -> ContainerPlacement:
    """Read a placement record from an annotation; it does not tell the pod's containers apart.

    Raises InvalidObject: when it is not that format, names a zone twice, or holds an impossible quantity.

    Args:
        groups: the annotation with memory groups beside it, for a record without blocks; empty for none. KAI's exporter
            writes `null` where it does not know them.
    """
    field = f"metadata.annotations[{annotation}]"
    try:
        document = _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidObject(subject, field, text, f"not a placement record ({error})") from error
    if groups and document and not any(entry.blocks for entry in document):
        where = f"metadata.annotations[{annotation.replace('placement', 'memory-groups')}]"
        document[0].blocks = _wide_groups(groups, subject=subject, field=where)

    def read(amount: Mapping[str, str | int], where: str) -> Amounts:
        return {
            name: parse_amount(value, resource=name, subject=subject, field=f"{field}.{where}.{name}")
            for name, value in sorted(amount.items())
        }

    zones: dict[str, ZoneAmount] = {}
    blocks: list[SpanAmount] = []
    spans: list[SpanAmount] = []
    for entry in document:
        if not entry.zone or entry.zone in zones:
            raise InvalidObject(subject, field, text, f"zone {entry.zone!r} is empty or named twice")
        zones[entry.zone] = ZoneAmount(entry.zone, read(entry.amount, entry.zone))
        for place, into in (("blocks", blocks), ("spans", spans)):
            for span in entry.blocks if place == "blocks" else entry.spans:
                named = tuple(sorted(span.zones))
                if not all(named) or len(set(named)) != len(named) or not named:
                    raise InvalidObject(subject, f"{field}.{place}", text, "a zone is empty or named twice, or none is")
                into.append(SpanAmount(named, read(span.amount, f"{place}.{'+'.join(named)}")))
    return ContainerPlacement("", (), tuple(zones[name] for name in sorted(zones)), tuple(spans), tuple(blocks))


def _wide_groups(text: str, *, subject: str, field: str) -> list[_AnnotatedSpan]:
    """Return all memory groups of a pod if any has several zones; otherwise the amounts of the zones say as much."""
    try:
        groups = _groups_decoder.decode(text) or []
    except msgspec.DecodeError as error:
        raise InvalidObject(subject, field, text, f"no memory groups ({error})") from error
    wide = any(len(group.memory_nodes) > 1 for group in groups)
    return [_AnnotatedSpan(group.memory_nodes, group.amount) for group in groups if wide]
