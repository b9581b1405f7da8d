"""The results of an admission: the placement for the record, by zone names, and the charge, by zone indices."""

from collections.abc import Sequence

import msgspec

from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, SpanAmount, ZoneAmount
from kaicore.rules.model.pod import Amounts, ContainerKind
from kaicore.rules.numa.kubelet.masks import zones_of
from kaicore.rules.numa.kubelet.verdict import Admitted
from kaicore.rules.numa.kubelet.zone_charge import ZoneCharge


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
    repeated = _summed(
        [(zone, name, kept) for name, figures in perhaps_kept for zone, kept in enumerate(figures) if kept]
    )
    charge = ZoneCharge(_summed([*amounts, *repeated]), blocks, uncertain, repeated)
    return PredictedPlacement(Placement(Provenance.PREDICTED, tuple(containers)), charge)


def _spans(admitted: Admitted, zone_names: Sequence[str]) -> tuple[SpanAmount, ...]:
    by_zone: list[Amounts] = [{} for _ in zone_names]
    for resource, figures in sorted(admitted.perhaps.items()):
        for zone, amount in enumerate(figures):
            if amount:
                by_zone[zone][resource] = amount
    return tuple(SpanAmount((name,), amounts) for name, amounts in zip(zone_names, by_zone, strict=True) if amounts)


def _summed(amounts: list[tuple[int, str, int]]) -> tuple[tuple[int, str, int], ...]:
    total: dict[tuple[int, str], int] = {}
    for zone, resource, amount in amounts:
        total[zone, resource] = total.get((zone, resource), 0) + amount
    return tuple((zone, resource, amount) for (zone, resource), amount in sorted(total.items()))


def _names(mask: int, zone_names: Sequence[str]) -> tuple[str, ...]:
    return tuple(zone_names[zone] for zone in zones_of(mask))
