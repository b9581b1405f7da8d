"""The kubelet's walk over a pod: compute, admit and allocate one container after another, for many nodes at once.

Container scope looks at each container in order, init containers and sidecars first, and allocates it before the next.
What an ordinary init container holds is lent to later containers: its CPUs and devices must be used by them, its memory
only under the very same mask. Pod scope asks once, for the whole pod.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kaicore.model.node import TopologyPolicy, TopologyScope
from kaicore.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount
from kaicore.model.pod import ContainerKind
from kaicore.model.quantity import CPU
from kaicore.numa.columns import POLICIES, SCOPES, Flags, Ints, ZoneCharge, ZoneColumns
from kaicore.numa.evaluators import EVALUATORS, Merged
from kaicore.numa.hints import Headroom, provider_hints
from kaicore.numa.masks import zones_of
from kaicore.numa.requests import AlignedContainer, AlignedRequest, is_memory


@dataclass(frozen=True, slots=True)
class PredictedPlacement:
    """A pod's predicted zones on one node: by name for the record, by index for the accounts."""

    placement: Placement
    charge: ZoneCharge


@dataclass(frozen=True, slots=True)
class Step:
    """One container's turn.

    Attributes:
        before: what was free as its turn came, on the rows that had admitted all containers before it.
        merged: the verdict on those rows.
        taken: what it newly takes, on the rows that admit it; shape (rows, zones, resources).
    """

    container: AlignedContainer
    before: Headroom
    merged: Merged
    taken: Ints


def admitted(
    columns: ZoneColumns,
    rows: Ints,
    request: AlignedRequest,
    *,
    ignore: frozenset[str] = frozenset(),
    reconstruct: bool = True,
) -> Flags:
    """Tell for each row whether its kubelet would admit the pod on its zones; shape (rows,).

    A node without a NodeResourceTopology lets everything pass.

    Args:
        columns: the zones of all nodes.
        rows: which nodes to ask.
        request: what is aligned of the pod.
        ignore: resources that the operator knows not to be aligned.
        reconstruct: see `Headroom.of`.
    """
    verdict = np.ones(len(rows), np.bool_)
    request = without(request, ignore)
    if request.empty:
        return verdict
    for policy, scope, zones, which in grouped_rows(columns, rows):
        headroom = Headroom.of(columns, rows[which], zones=zones, reconstruct=reconstruct)
        alive = np.arange(len(which))
        for step in walk(headroom, request, policy, scope):
            verdict[which[alive[~step.merged.admit]]] = False
            alive = alive[step.merged.admit]
            if not len(alive):
                break
    return verdict


def predict(
    columns: ZoneColumns,
    row: int,
    request: AlignedRequest,
    *,
    zone_names: tuple[str, ...],
    ignore: frozenset[str] = frozenset(),
    reconstruct: bool = True,
) -> PredictedPlacement | None:
    """Predict which zones an admitted pod gets on one node; None when nothing of it is bound to zones.

    Splits over several zones are an assumption where the kubelet leaves them open: memory fills zones in ascending
    order (as the memory manager does), CPUs take entirely free zones first and then the fullest (as the static policy
    packs), devices ascending.
    """
    request = without(request, ignore)
    rows = np.array([row], np.int64)
    groups = list(grouped_rows(columns, rows))
    if request.empty or not groups:
        return None
    policy, scope, zones, _ = groups[0]
    headroom = Headroom.of(columns, rows, zones=zones, reconstruct=reconstruct)
    names = {column: name for name, column in columns.resources.items()}
    containers: list[ContainerPlacement] = []
    amounts: list[tuple[int, str, int]] = []
    masks: list[int] = []
    for step in walk(headroom, request, policy, scope):
        if not step.merged.admit[0]:
            return None
        mask = int(step.merged.mask[0])
        if not mask:
            continue
        taken = step.taken[0]
        by_zone = []
        for zone in range(zones):
            amount = {names[column]: int(taken[zone, column]) for column in np.flatnonzero(taken[zone]).tolist()}
            amounts += [(zone, name, held) for name, held in sorted(amount.items())]
            if amount:
                by_zone.append(ZoneAmount(zone_names[zone], dict(sorted(amount.items()))))
        if any(is_memory(name) and need for name, need in step.container.amounts if _reported(columns, row, name)):
            masks.append(mask)
        containers.append(
            ContainerPlacement(step.container.name, tuple(zone_names[zone] for zone in zones_of(mask)), tuple(by_zone))
        )
    if not containers:
        return None
    return PredictedPlacement(
        Placement(Provenance.PREDICTED, tuple(containers)), ZoneCharge(tuple(amounts), tuple(masks))
    )


def without(request: AlignedRequest, ignore: frozenset[str]) -> AlignedRequest:
    """Return the request less the ignored resources."""
    if not ignore:
        return request

    def kept(amounts: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
        return tuple(item for item in amounts if item[0] not in ignore)

    return AlignedRequest(
        tuple(AlignedContainer(item.name, item.kind, kept(item.amounts)) for item in request.containers),
        kept(request.pod),
    )


def units(request: AlignedRequest, scope: TopologyScope) -> tuple[AlignedContainer, ...]:
    """Return what is asked for one after another: the containers, or under pod scope the pod as one."""
    if scope is TopologyScope.POD:
        return (AlignedContainer("", ContainerKind.APP, request.pod),)
    return request.containers


def grouped_rows(columns: ZoneColumns, rows: Ints) -> Iterator[tuple[TopologyPolicy, TopologyScope, int, Ints]]:
    """Group the rows that have zones by policy, scope and number of zones; yields indices into `rows`."""
    if not columns.capacity.size:
        return
    counts = columns.zone_count[rows]
    keys = (counts * len(POLICIES) + columns.policy[rows]) * len(SCOPES) + columns.scope[rows]
    for key in np.unique(keys[counts > 0]):
        rest, scope = divmod(int(key), len(SCOPES))
        zones, policy = divmod(rest, len(POLICIES))
        yield POLICIES[policy], SCOPES[scope], zones, np.flatnonzero(keys == key)


def walk(headroom: Headroom, request: AlignedRequest, policy: TopologyPolicy, scope: TopologyScope) -> Iterator[Step]:
    """Admit and allocate container after container; rows that refuse one are not looked at again.

    Args:
        headroom: rows of one policy, scope and number of zones.
        request: what to admit.
        policy: the rows' Topology Manager policy.
        scope: the rows' Topology Manager scope.
    """
    evaluator = EVALUATORS[policy]
    # Without a Topology Manager policy there is no scope: the memory manager decides per container.
    for container in units(request, scope if policy is not TopologyPolicy.NONE else TopologyScope.CONTAINER):
        before = headroom
        merged = evaluator.merge(before, provider_hints(before, container.amounts))
        staying = np.flatnonzero(merged.admit)
        headroom = before.take(staying)
        of_staying = Merged(merged.admit[staying], merged.mask[staying], merged.aligned[staying])
        yield Step(container, before, merged, _allocate(headroom, container, of_staying))


def _allocate(headroom: Headroom, container: AlignedContainer, merged: Merged) -> Ints:
    """Take a container's amounts within its mask; return what is newly taken, shape (rows, zones, resources)."""
    zones = headroom.table.zones
    taken = np.zeros_like(headroom.free)
    inside = (merged.mask[:, None] >> np.arange(zones)) & 1
    init = container.kind is ContainerKind.INIT
    for resource, need in container.amounts:
        column = headroom.columns.resources.get(resource)
        if column is None:
            continue
        bound = headroom.columns.reported[headroom.rows, column] & (merged.mask != 0)
        if is_memory(resource):
            _allocate_memory(headroom, column, need * bound, inside, merged.mask, init=init, taken=taken)
        else:
            wanted = need * (bound & merged.aligned)
            _allocate_countable(headroom, column, wanted, inside, packed=resource == CPU, init=init, taken=taken)
    headroom.free = headroom.free - taken
    held = [name for name, need in container.amounts if is_memory(name) and need]
    if held:
        _join_memory_groups(headroom, held, merged.mask, inside)
    return taken


def _allocate_countable(
    headroom: Headroom, column: int, wanted: Ints, inside: Ints, *, packed: bool, init: bool, taken: Ints
) -> None:
    lent = headroom.reusable[:, :, column] * inside
    from_lent = _fill(wanted, lent, np.broadcast_to(np.arange(lent.shape[1]), lent.shape))
    free = headroom.free[:, :, column] * inside
    zone = np.arange(free.shape[1])
    order = np.broadcast_to(zone, free.shape)
    if packed:
        entire = (free == headroom.capacity_of(column, hardware=True)) & (free <= wanted[:, None])
        order = np.where(entire, 0, 1 + np.maximum(free, 0)) * free.shape[1] + zone
    new = _fill(wanted - from_lent.sum(axis=1), free, order)
    taken[:, :, column] = new
    if init:
        headroom.reusable[:, :, column] += new
    else:
        headroom.reusable[:, :, column] -= from_lent


def _allocate_memory(
    headroom: Headroom, column: int, wanted: Ints, inside: Ints, mask: Ints, *, init: bool, taken: Ints
) -> None:
    lent = np.where(headroom.memory_lent_mask == mask, headroom.memory_lent[:, column], 0)
    from_lent = np.minimum(lent, wanted)
    free = headroom.free[:, :, column] * inside
    new = _fill(wanted - from_lent, free, np.broadcast_to(np.arange(free.shape[1]), free.shape))
    taken[:, :, column] = new
    if init:
        total = new.sum(axis=1)
        headroom.memory_lent[:, column] = np.where(
            headroom.memory_lent_mask == mask, headroom.memory_lent[:, column] + total, total
        )
        headroom.memory_lent_mask = np.where(total > 0, mask, headroom.memory_lent_mask)
    else:
        headroom.memory_lent[:, column] -= from_lent


def _join_memory_groups(headroom: Headroom, resources: list[str], mask: Ints, inside: Ints) -> None:
    columns = headroom.columns.columns_of(resources)
    bound = headroom.columns.reported[headroom.rows][:, columns].any(axis=1) & (mask != 0)
    wide = inside.sum(axis=1) > 1
    headroom.memory_single = headroom.memory_single + inside * (bound & ~wide)[:, None]
    headroom.memory_group = headroom.memory_group | (inside * mask[:, None] * (bound & wide)[:, None])


def _fill(wanted: Ints, free: Ints, order: Ints) -> Ints:
    """Draw `wanted` (rows,) from `free` (rows, zones), zones with the smallest `order` first."""
    sequence = np.argsort(order, axis=1, kind="stable")
    ordered = np.maximum(np.take_along_axis(free, sequence, axis=1), 0)
    before = np.cumsum(ordered, axis=1) - ordered
    drawn: Ints = np.clip(wanted[:, None] - before, 0, ordered)
    result = np.empty_like(drawn)
    np.put_along_axis(result, sequence, drawn, axis=1)
    return result


def _reported(columns: ZoneColumns, row: int, resource: str) -> bool:
    column = columns.resources.get(resource)
    return column is not None and bool(columns.reported[row, column])
