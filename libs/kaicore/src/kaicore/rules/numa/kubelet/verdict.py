"""A verdict of a kubelet about a pod: the zones and amounts of each container, or the reason of the refusal.

An admission gives the placement for the record, by zone names, and the charge, by zone indices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, SpanAmount, ZoneAmount
from kaicore.rules.model.pod import Amounts, ContainerKind
from kaicore.rules.numa.kubelet.masks import Hints, zones_of
from kaicore.rules.numa.kubelet.memory_manager import MemoryBlock
from kaicore.rules.numa.kubelet.requests import AlignedContainer
from kaicore.rules.numa.kubelet.zones import NodeZones, ZoneCharge, summed

TOPOLOGY_AFFINITY = "TopologyAffinityError"
UNEXPECTED_ADMISSION = "UnexpectedAdmissionError"
SMT_ALIGNMENT = "SMTAlignmentError"
EMPTY_POD_SHARED_POOL = "EmptyPodSharedPoolError"
POD_LEVEL_RESOURCES = "PodLevelResourcesNotSupported"


class Holding(msgspec.Struct, gc=False):
    """A container's predicted zones.

    Attributes:
        mask: the merged hint under which it is allocated, 0 for any zones.
        amounts: CPUs and devices by resource and zone, lent ones included.
        uncertain: resources of which only the sum over the zones is certain.
    """

    container: AlignedContainer
    mask: int
    amounts: dict[str, list[int]] = msgspec.field(default_factory=dict)
    blocks: list[MemoryBlock] = msgspec.field(default_factory=list)
    uncertain: set[str] = msgspec.field(default_factory=set)


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """The kubelet would admit the pod.

    Attributes:
        holdings: by container, in order; those that nothing is bound of included.
        lent: CPUs and devices of ordinary init containers that no container took over, by resource and zone: they stay
            with the pod to its end.
        perhaps: what may stay of them besides: with other cores broken than is likely, later containers take CPUs that
            were not lent.
    """

    holdings: tuple[Holding, ...]
    lent: dict[str, list[int]]
    perhaps: dict[str, list[int]] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rejected:
    """The kubelet would reject the pod.

    Attributes:
        reason: as in the pod's status.
        message: the cause, in the kubelet's words.
        asking: the container in turn; under pod scope and before any allocation, the pod.
        hints: the providers' hints for it, if it failed by them.
        node: what was free at that moment.
        lent: what init containers lent at that moment.
        crowded: what containers of the pod use up of its own resources, though others need some (KEP-5526).
    """

    reason: str
    message: str
    asking: AlignedContainer
    hints: tuple[Hints, ...]
    node: NodeZones
    lent: dict[str, list[int]]
    crowded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """An admitted container's known zones.

    Attributes:
        masks: the affinity masks that it can have got, as a set of places.
        amounts: its CPUs and devices by resource and zone, lent ones included; those of other resources are worked out.
    """

    masks: int
    amounts: Mapping[str, Sequence[int]] = field(default_factory=dict)


class PredictedPlacement(msgspec.Struct, frozen=True, gc=False):
    """A pod's predicted zones on one node: by name for the record, by index for the accounts."""

    placement: Placement
    charge: ZoneCharge


def predicted_placement(admitted: Admitted, zone_names: Sequence[str]) -> PredictedPlacement | None:
    """Write an admission down; None when nothing of the pod is bound to zones.

    What ordinary init containers lent and no container took stays with the pod; it is recorded under the last of them,
    and what may stay besides as a span of each zone.
    """
    containers = []
    amounts: list[tuple[int, str, int]] = []
    holdings = admitted.holdings
    inits = [place for place, item in enumerate(holdings) if item.container.kind is ContainerKind.INIT]
    perhaps = _spans(admitted, zone_names) if admitted.perhaps else ()
    for place, holding in enumerate(holdings):
        held = {**holding.amounts}
        if inits and place == inits[-1]:
            held |= admitted.lent
        by_zone: list[Amounts] = [{} for _ in zone_names]
        for resource, figures in held.items():
            for zone, amount in enumerate(figures):
                if amount:
                    by_zone[zone][resource] = amount
                    amounts.append((zone, resource, amount))
        for block in holding.blocks:
            for zone, amount in block.drawn:
                by_zone[zone][block.resource] = by_zone[zone].get(block.resource, 0) + amount
        spans = perhaps if inits and place == inits[-1] else ()
        if not any(by_zone) and not holding.blocks and not spans:
            continue
        init = holding.container.kind is ContainerKind.INIT
        wide = any(block.mask & (block.mask - 1) for block in holding.blocks)
        containers.append(
            ContainerPlacement(
                container=holding.container.name,
                mask=_names(holding.mask, zone_names),
                zones=tuple(
                    ZoneAmount(zone_names[zone], {name: held_here[name] for name in sorted(held_here)})
                    for zone, held_here in enumerate(by_zone)
                    if held_here
                ),
                blocks=tuple(
                    SpanAmount(_names(block.mask, zone_names), {block.resource: block.size})
                    for block in holding.blocks
                    if init or wide
                ),
                spans=spans,
                uncertain=tuple(sorted(holding.uncertain.union(*(span.amount for span in spans)))),
            )
        )
    if not containers:
        return None
    uncertain = tuple(sorted({name for container in containers for name in container.uncertain}))
    blocks = tuple(block for holding in holdings for block in holding.blocks)
    perhaps_kept = admitted.perhaps.items()
    repeated = summed((zone, name, kept) for name, figures in perhaps_kept for zone, kept in enumerate(figures) if kept)
    charge = ZoneCharge(summed((*amounts, *repeated)), blocks, uncertain, repeated)
    return PredictedPlacement(Placement(Provenance.PREDICTED, tuple(containers)), charge)


def _spans(admitted: Admitted, zone_names: Sequence[str]) -> tuple[SpanAmount, ...]:
    by_zone: list[Amounts] = [{} for _ in zone_names]
    for resource, figures in sorted(admitted.perhaps.items()):
        for zone, amount in enumerate(figures):
            if amount:
                by_zone[zone][resource] = amount
    return tuple(SpanAmount((name,), amounts) for name, amounts in zip(zone_names, by_zone, strict=True) if amounts)


def _names(mask: int, zone_names: Sequence[str]) -> tuple[str, ...]:
    return tuple(zone_names[zone] for zone in zones_of(mask))
