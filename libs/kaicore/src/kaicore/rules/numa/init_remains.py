"""Resources that a pod's ordinary init containers keep until the pod ends, from the observed zones of its other
containers.

No podresources API shows them. They are predicted again by the kubelet's walk over the pod
(`numa.kubelet.admission`), with the observed containers fixed to their observed zones. The part that an init
container lends must lie within the zones of every later container that asks for the same resource. So where those are
known there is hardly a choice: under `single-numa-node` and `restricted` the kubelet's own preference settles the rest.
Under `none` and `best-effort` CPUs and devices may come from outside of any mask. Where several answers agree with the
observation, the kept part may be on each zone. The likeliest answer is returned as `zones`, and the amounts that a zone
may hold beyond it as `spans`.
"""

from collections.abc import Callable, Iterable

from kaicore.rules.model.node import TopologyPolicy
from kaicore.rules.model.placement import ContainerPlacement, Placement, SpanAmount
from kaicore.rules.model.pod import ContainerKind
from kaicore.rules.model.quantity import is_memory
from kaicore.rules.numa.kubelet.admission import admit
from kaicore.rules.numa.kubelet.masks import MaskTable
from kaicore.rules.numa.kubelet.requests import AlignedRequest
from kaicore.rules.numa.kubelet.verdict import Admitted, Seen, predicted_placement
from kaicore.rules.numa.kubelet.zones import NodeZones

#: Amounts by zone and resource.
_Sums = dict[tuple[str, str], int]

_LOOSE = (TopologyPolicy.NONE, TopologyPolicy.BEST_EFFORT)


def init_remains(
    nodes: Iterable[Callable[[], NodeZones]],
    request: AlignedRequest,
    observed: Placement,
    zone_names: tuple[str, ...],
) -> tuple[ContainerPlacement, ...]:
    """Return what the ordinary init containers of an admitted pod hold beyond what the observed containers do.

    Args:
        nodes: make the node's zones as they may have been without the pod, the likeliest first; each is asked until one
            explains what was seen.
        observed: what its other containers hold; those of which less was seen than they asked for are not held to it.
        zone_names: the node's, in the order of their numbers.
    """
    inits = [item.name for item in request.containers if item.kind is ContainerKind.INIT and item.amounts]
    if not inits:
        return ()
    for make in nodes:
        worlds = _worlds(make, request, inits, observed, zone_names)
        if worlds:
            sums = [_sums(world, inits, zone_names) for world in worlds]
            likely = _of_inits(worlds[0], inits, zone_names)
            return likely if all(each == sums[0] for each in sums) else _anywhere(likely, sums, inits, zone_names)
    return ()


def _worlds(
    make: Callable[[], NodeZones],
    request: AlignedRequest,
    inits: list[str],
    observed: Placement,
    zone_names: tuple[str, ...],
) -> list[Admitted]:
    """Return the ways in which the kubelet can have come to what was seen; under a strict policy only its first."""
    node = make()
    loose = node.settings.policy in _LOOSE
    seen = _seen(node.table, observed, zone_names, bound=not loose)
    kept: list[Admitted] = []
    tries = [seen]
    if loose or not node.settings.pod_scope:
        tries += [seen | dict.fromkeys(inits, Seen(1 << place)) for place in range(len(node.table))]
    if node.settings.policy is TopologyPolicy.NONE:
        # No mask binds anything: what is not lent to a container that was seen can be of any zone that has it.
        tries = [seen, *(seen | _from(inits, request, zone, len(zone_names)) for zone in range(len(zone_names)))]
    if loose:
        tries = [_taken_over(inits, request, seen, len(zone_names)), *tries]
    for hints in tries:
        walked = admit(make(), request, seen=hints)
        if isinstance(walked, Admitted):
            kept.append(walked)
            if not loose:
                break
    # What is lent is taken again before anything else, so where least is kept is the likeliest.
    return sorted(kept, key=lambda walked: sum(_sums(walked, inits, zone_names).values()))


def _taken_over(inits: list[str], request: AlignedRequest, seen: dict[str, Seen], zones: int) -> dict[str, Seen]:
    """Have each init container draw what the containers after it were seen with, as far as they were."""
    drawn = dict[str, Seen]()
    for place, item in enumerate(request.containers):
        if item.name not in inits:
            continue
        amounts: dict[str, list[int]] = {}
        for resource, need in item.amounts:
            later = [0] * zones
            for other in request.containers[place + 1 :]:
                figures = seen[other.name].amounts.get(resource, ()) if other.name in seen else ()
                for zone, amount in enumerate(figures):
                    later[zone] += amount
            if is_memory(resource) or not any(later):
                continue
            left, most = need, later.index(max(later))
            amounts[resource] = [0] * zones
            for zone, amount in enumerate(later):
                amounts[resource][zone] = min(amount, left)
                left -= amounts[resource][zone]
            amounts[resource][most] += left
        drawn[item.name] = Seen(-1, amounts)
    return seen | drawn


def _from(inits: list[str], request: AlignedRequest, zone: int, zones: int) -> dict[str, Seen]:
    """Have each init container draw all that it asks for from one zone."""
    return {
        item.name: Seen(
            -1,
            {
                resource: [amount if number == zone else 0 for number in range(zones)]
                for resource, amount in item.amounts
                if not is_memory(resource)
            },
        )
        for item in request.containers
        if item.name in inits
    }


def _seen(table: MaskTable, observed: Placement, zone_names: tuple[str, ...], *, bound: bool) -> dict[str, Seen]:
    """Return what is known of the containers that were observed.

    Args:
        bound: whether CPUs and devices come from within the affinity mask.
    """
    index = {name: number for number, name in enumerate(zone_names)}
    seen = {}
    for container in observed.containers:
        amounts: dict[str, list[int]] = {}
        memory: set[int] = set()
        for zone in container.zones:
            if zone.zone not in index:
                continue
            for resource, amount in zone.amount.items():
                if is_memory(resource):
                    memory.add(index[zone.zone])
                else:
                    amounts.setdefault(resource, [0] * len(zone_names))[index[zone.zone]] += amount
        within = {number for figures in amounts.values() for number, amount in enumerate(figures) if amount}
        masks = table.with_all(sorted(within or memory)) if bound else -1
        seen[container.container] = Seen(masks, amounts)
    return seen


def _of_inits(admitted: Admitted, inits: list[str], zone_names: tuple[str, ...]) -> tuple[ContainerPlacement, ...]:
    predicted = predicted_placement(admitted, zone_names)
    if predicted is None:
        return ()
    return tuple(item for item in predicted.placement.containers if item.container in inits)


def _sums(admitted: Admitted, inits: list[str], zone_names: tuple[str, ...]) -> _Sums:
    """CPUs and devices that init containers keep, by zone and resource: what tells two worlds apart."""
    kept: dict[tuple[str, str], int] = {}
    for container in _of_inits(admitted, inits, zone_names):
        for zone in container.zones:
            for resource, amount in zone.amount.items():
                if not is_memory(resource):
                    kept[zone.zone, resource] = kept.get((zone.zone, resource), 0) + amount
    return kept


def _anywhere(
    likely: tuple[ContainerPlacement, ...], sums: list[_Sums], inits: list[str], zone_names: tuple[str, ...]
) -> tuple[ContainerPlacement, ...]:
    """Return what is likely kept, and under the last container what may be kept besides, by any of the sums."""
    keys = sorted({key for each in sums for key in each})
    more = {key: max(each.get(key, 0) for each in sums) - sums[0].get(key, 0) for key in keys}
    besides = (
        (zone, {name: more[at, name] for at, name in keys if at == zone and more[at, name]}) for zone in zone_names
    )
    spans = tuple(SpanAmount((zone,), amounts) for zone, amounts in besides if amounts)
    unsure = ContainerPlacement(inits[-1], spans=spans, uncertain=tuple(sorted({name for _, name in keys})))
    return (*likely, unsure)
