"""Comparison of an observed placement with the predicted one: container by container, zone by zone.

Settling an open part of a prediction is no contradiction. An observation is also compared with the pod's present
charge, because only a difference moves the node's stream. Most observations equal the prediction, and a decision that
was taken without them is as good as with them. So the state's charges of the pod, with and without the observation, are
compared. Memory is drawn from the zones in the order in which pods came, so it is compared by its blocks.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from kaicore.rules.model.node import NodeTopology
from kaicore.rules.model.placement import ContainerPlacement, Placement, SpanAmount, ZoneAmount
from kaicore.rules.model.pod import Amounts, ContainerKind, Pod
from kaicore.rules.model.quantity import is_memory
from kaicore.rules.numa.columns import ZoneColumns
from kaicore.rules.numa.kubelet.zones import ZoneCharge
from kaicore.rules.state.pods.resolve import zone_charge


class Agreement(StrEnum):
    """The comparison of an observed placement with the predicted one."""

    EXACT = "exact"
    SAME_ZONES = "same-zones"
    DIFFERENT = "different"


def compare(predicted: Placement, observed: Placement) -> Agreement:
    """Compare placements: by amounts per zone, then by which zones serve each resource.

    Memory that is bound to several zones counts by its mask, for podresources shows no more of it. What it does not
    show at all, ordinary init containers, is left out of the prediction first.
    """
    if seen_as_predicted(predicted, observed):
        return Agreement.EXACT
    expected_of, actual_of = comparable_containers(predicted, observed)
    expected, actual = holdings(expected_of), holdings(actual_of)
    if expected == actual:
        return Agreement.EXACT
    return Agreement.SAME_ZONES if _zones(expected) == _zones(actual) else Agreement.DIFFERENT


def seen_as_predicted(predicted: Placement, observed: Placement) -> bool:
    """Tell whether an observation says word for word what was predicted, and leaves nothing open; most do."""
    return observed.containers == predicted.containers and not any(
        item.spans or item.uncertain for item in observed.containers
    )


def comparable_containers(
    predicted: Placement, observed: Placement
) -> tuple[tuple[ContainerPlacement, ...], tuple[ContainerPlacement, ...]]:
    """Return the containers of both that can be compared: those that an observation shows, if it tells them apart.

    A device that several zones reach is on each of them: where one of those was predicted, it counts as it. Memory
    of init containers comes and goes, and is left out; so is what a prediction says of them that they perhaps keep.
    """
    predicted, observed = _without_init_memory(predicted, observed.init), _without_init_memory(observed, observed.init)
    predicted, observed = without_uncertain_spans(predicted), without_uncertain_spans(observed)
    shown = {container.container for container in observed.containers}
    distinct = "" not in shown and all(container.container for container in predicted.containers)
    kept = tuple(item for item in predicted.containers if not distinct or item.container in shown)
    seen = tuple(
        _on_predicted_zones(item, [other for other in kept if other.container == item.container or not distinct])
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


class MissCause(StrEnum):
    """The contradiction between a placement and its prediction; a kubelet's rejection has its own reason as cause.

    Attributes:
        ZONES: other zones.
        AMOUNTS: other amounts of the same zones.
        INIT_KEPT: ordinary init containers hold more or less, and later containers and pods what follows from that.
            Which of their CPUs later containers take over depends on cores, which a node need not report.
        RELEASED_EARLIER: the zones that the kubelet gives after it released pods before the API reported their end.
        HALF_READ: the whole, reported later, is as predicted.
        OLDEST_FIRST: the zones that the kubelet gives when pods that were bound together are admitted oldest first, all
            or some of them; those of the same second come in any order.
        NOT_OBSERVED_YET: the zones that the kubelet gives with the pods before it where they are; when it was decided
            on, some were not observed and counted on other zones, too.
    """

    ZONES = "zones"
    AMOUNTS = "amounts"
    INIT_KEPT = "InitKept"
    RELEASED_EARLIER = "ReleasedEarlier"
    HALF_READ = "HalfRead"
    OLDEST_FIRST = "OldestFirst"
    NOT_OBSERVED_YET = "NotObservedYet"


#: Causes that say nothing against a prediction: the kubelet was ahead of the API or has an order of its own, or a
#: report came too early or too late.
NO_FAULT = frozenset(
    {MissCause.RELEASED_EARLIER, MissCause.HALF_READ, MissCause.OLDEST_FIRST, MissCause.NOT_OBSERVED_YET}
)


def contradiction(predicted: Placement, observed: Placement) -> MissCause | None:
    """Compare an observed placement with its prediction; None where it is as predicted.

    Resources with an uncertain split in the prediction are compared by their sum only, and that it lies where it could;
    what init containers perhaps keep may be in the sum or not.
    """
    if seen_as_predicted(predicted, observed):
        return None
    expected_of, actual_of = comparable_containers(predicted, observed)
    shown = [item for item in predicted.containers if item.container in {one.container for one in expected_of}]
    difference = _difference(expected_of, actual_of, shown)
    init = observed.init or ()
    if difference is not None and init:
        lasting = [[item for item in side if item.container not in init] for side in (expected_of, actual_of, shown)]
        if _difference(*lasting) is None:
            return MissCause.INIT_KEPT
    return difference


def _difference(
    expected_of: Sequence[ContainerPlacement],
    actual_of: Sequence[ContainerPlacement],
    shown: Sequence[ContainerPlacement],
) -> MissCause | None:
    """Tell how containers hold otherwise than expected; `shown` are those that are expected with all that is perhaps
    theirs.
    """
    open_ = {name for container in expected_of for name in container.uncertain}
    expected, actual = holdings(expected_of), holdings(actual_of)
    fixed = [{key: amount for key, amount in side.items() if key[1] not in open_} for side in (expected, actual)]
    if fixed[0] != fixed[1]:
        return MissCause.AMOUNTS if _zones(fixed[0]) == _zones(fixed[1]) else MissCause.ZONES
    least, most, observed_totals = _totals(expected_of), _totals(shown), _totals(actual_of)
    for resource in sorted(open_):
        possible = _possible(expected_of, resource)
        if possible is not None and not _zones(actual).get(resource, frozenset()) <= possible:
            return MissCause.ZONES
        if not least.get(resource, 0) <= observed_totals.get(resource, 0) <= most.get(resource, least.get(resource, 0)):
            return MissCause.AMOUNTS
    return None


def falls_short(predicted: Placement, observed: Placement) -> bool:
    """Tell whether less was observed of some container's resource than predicted: as in the middle of an admission.

    A kubelet gives a container all that it asks for, resource by resource, and podresources shows it as it goes on.
    """
    expected_of, actual_of = comparable_containers(predicted, observed)
    seen = {item.container: _totals([item]) for item in actual_of}
    return any(
        seen.get(item.container, {}).get(resource, 0) < amount
        for item in expected_of
        if item.container not in (observed.init or ())
        for resource, amount in _totals([item]).items()
    )


def _totals(containers: Iterable[ContainerPlacement]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for (_, resource), amount in holdings(containers).items():
        totals[resource] = totals.get(resource, 0) + amount
    return totals


def _possible(containers: Iterable[ContainerPlacement], resource: str) -> frozenset[str] | None:
    """The zones from which a resource may come; None for any."""
    zones: set[str] = set()
    for container in containers:
        held = {zone.zone for zone in container.zones if zone.amount.get(resource)}
        if held and not container.mask:
            return None
        if held:
            zones |= held | set(container.mask)
    return frozenset(zones)


def observation_charges(
    topology: NodeTopology | None,
    pod: Pod,
    *,
    predicted: Placement | None,
    before: Placement | None,
    observed: Placement,
    resources: Iterable[str] = (),
) -> bool:
    """Tell whether an observation changes what a pod is charged with.

    Args:
        topology: of its node; None where it has none.
        before: as they were observed the last time, None where they were not.
        resources: those that zones of any node are known to have.
    """
    columns = ZoneColumns()
    own = (name for zone in (topology.zones if topology else ()) for name in zone.resources)
    columns.reserve(rows=0, resources=(*resources, *own))

    def charge(seen: Placement | None) -> ZoneCharge | None:
        return zone_charge(columns, topology, pod=pod, predicted=predicted, observed=seen)

    if _comparable(charge(before)) != _comparable(charge(observed)):
        return True
    keeps = any(container.kind is ContainerKind.INIT for container in pod.containers)
    return keeps and (_foreseen(predicted, before) or _foreseen(predicted, observed))


def _foreseen(predicted: Placement | None, seen: Placement | None) -> bool:
    """Tell whether what init containers keep is predicted again, which depends on all that the node holds then."""
    if seen is None or seen.init is not None:
        return False
    return predicted is None or contradiction(predicted, seen) is MissCause.ZONES


def _comparable(charge: ZoneCharge | None) -> object:
    if charge is None:
        return None
    blocks = Counter((block.resource, block.mask, block.size, block.init) for block in charge.blocks)
    return charge.amounts, blocks
