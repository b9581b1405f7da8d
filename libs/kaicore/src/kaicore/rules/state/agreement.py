"""Comparison of an observed placement with the predicted one: container by container, zone by zone."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from kaicore.rules.model.placement import ContainerPlacement, Placement, SpanAmount, ZoneAmount
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import is_memory


class Agreement(StrEnum):
    """How an observed placement compares with the predicted one."""

    EXACT = "exact"
    SAME_ZONES = "same-zones"
    DIFFERENT = "different"


def compare(predicted: Placement, observed: Placement) -> Agreement:
    """Compare placements: by amounts per zone, then by which zones serve each resource.

    Memory that is bound to several zones counts by its mask, for podresources shows no more of it. What it does not
    show at all, ordinary init containers, is left out of the prediction first.
    """
    if told_as_predicted(predicted, observed):
        return Agreement.EXACT
    expected_of, actual_of = comparable_containers(predicted, observed)
    expected, actual = holdings(expected_of), holdings(actual_of)
    if expected == actual:
        return Agreement.EXACT
    return Agreement.SAME_ZONES if _zones(expected) == _zones(actual) else Agreement.DIFFERENT


def told_as_predicted(predicted: Placement, observed: Placement) -> bool:
    """Tell whether an observation says word for word what was predicted, and leaves nothing open; most do."""
    return observed.containers == predicted.containers and not any(
        item.spans or item.uncertain for item in observed.containers
    )


def comparable_containers(
    predicted: Placement, observed: Placement
) -> tuple[tuple[ContainerPlacement, ...], tuple[ContainerPlacement, ...]]:
    """Return the containers of both that can be compared: those that an observation shows, if it tells them apart.

    A device that several zones reach is on each of them: where one of those was predicted, it is told as that. Memory
    of init containers comes and goes, and is left out; so is what a prediction says of them that they perhaps keep.
    """
    predicted, observed = _without_init_memory(predicted, observed.init), _without_init_memory(observed, observed.init)
    predicted, observed = without_uncertain_spans(predicted), without_uncertain_spans(observed)
    shown = {container.container for container in observed.containers}
    told_apart = "" not in shown and all(container.container for container in predicted.containers)
    kept = tuple(item for item in predicted.containers if not told_apart or item.container in shown)
    seen = tuple(
        _on_predicted_zones(item, [other for other in kept if other.container == item.container or not told_apart])
        for item in observed.containers
    )
    return kept, seen


def without_uncertain_spans(placement: Placement) -> Placement:
    """Return a placement less what is perhaps held: spans of what a container is uncertain about."""
    if not any(item.uncertain and item.spans for item in placement.containers):
        return placement
    containers = []
    for item in placement.containers:
        spans = [
            SpanAmount(span.zones, {name: part for name, part in span.amount.items() if name not in item.uncertain})
            for span in item.spans
        ]
        containers.append(msgspec.structs.replace(item, spans=tuple(span for span in spans if span.amount)))
    return msgspec.structs.replace(placement, containers=tuple(containers))


def _without_init_memory(placement: Placement, init: tuple[str, ...] | None) -> Placement:
    if not init:
        return placement

    def less(amount: Amounts) -> Amounts:
        return {name: part for name, part in amount.items() if not is_memory(name)}

    containers = tuple(
        msgspec.structs.replace(
            item,
            zones=tuple(ZoneAmount(zone.zone, less(zone.amount)) for zone in item.zones),
            spans=tuple(SpanAmount(span.zones, less(span.amount)) for span in item.spans),
            blocks=(),
        )
        if item.container in init
        else item
        for item in placement.containers
    )
    return msgspec.structs.replace(placement, containers=containers)


def _on_predicted_zones(observed: ContainerPlacement, predicted: Sequence[ContainerPlacement]) -> ContainerPlacement:
    zones, spans = list(observed.zones), []
    for span in observed.spans:
        left: Amounts = {}
        for resource, amount in span.amount.items():
            expected = [
                (zone.zone, zone.amount[resource])
                for container in predicted
                for zone in container.zones
                if resource in zone.amount and zone.zone in span.zones
            ]
            if is_memory(resource) or sum(part for _, part in expected) != amount:
                left[resource] = amount
            else:
                zones += [ZoneAmount(zone, {resource: part}) for zone, part in expected]
        if left:
            spans.append(SpanAmount(span.zones, left))
    return msgspec.structs.replace(observed, zones=tuple(zones), spans=tuple(spans))


#: Amounts by zones and resource.
Holdings = dict[tuple[tuple[str, ...], str], int]


def holdings(containers: Iterable[ContainerPlacement]) -> Holdings:
    """Sum containers' holdings by zones and resource; a memory block counts by all its zones."""
    held: Holdings = {}
    for container in containers:
        parts: list[tuple[tuple[str, ...], Amounts]] = [((zone.zone,), zone.amount) for zone in container.zones]
        parts += [(tuple(sorted(span.zones)), span.amount) for span in container.spans]
        mask = tuple(sorted(container.mask)) if len(container.mask) > 1 else ()
        for zones, amounts in parts:
            for resource, amount in amounts.items():
                memory = is_memory(resource)
                if memory and container.blocks:
                    continue
                key = mask if memory and mask else zones, resource
                held[key] = held.get(key, 0) + amount
        for block in container.blocks:
            for resource, amount in block.amount.items():
                key = tuple(sorted(block.zones)), resource
                held[key] = held.get(key, 0) + amount
    return {key: amount for key, amount in held.items() if amount}


def _zones(held: Holdings) -> dict[str, frozenset[str]]:
    zones: dict[str, frozenset[str]] = {}
    for names, resource in held:
        zones[resource] = zones.get(resource, frozenset()) | frozenset(names)
    return zones
