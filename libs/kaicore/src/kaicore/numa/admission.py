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
        after: what is free afterwards, on the rows that admit it.
        held: what it then holds, on the same rows, what it has from init containers included; shape (rows, zones,
            resources).
    """

    container: AlignedContainer
    before: Headroom
    merged: Merged
    after: Headroom
    held: Ints


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
        for step in walk(headroom, request, policy, scope, allocate_last=False):
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

    What ordinary init containers lent and nobody took stays with the pod; it is recorded under the last of them.

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

    def record(container: str, mask: int, held: Ints) -> None:
        by_zone = []
        for zone in range(zones):
            amount = {names[column]: int(held[zone, column]) for column in np.flatnonzero(held[zone]).tolist()}
            amounts.extend((zone, name, amount[name]) for name in sorted(amount))
            if amount:
                by_zone.append(ZoneAmount(zone_names[zone], {name: amount[name] for name in sorted(amount)}))
        containers.append(
            ContainerPlacement(container, tuple(zone_names[zone] for zone in zones_of(mask)), tuple(by_zone))
        )

    after = headroom
    lender = ("", 0)
    for step in walk(headroom, request, policy, scope):
        if not step.merged.admit[0]:
            return None
        after, mask = step.after, int(step.merged.mask[0])
        if not mask:
            continue
        if any(is_memory(name) and need and _reported(columns, row, name) for name, need in step.container.amounts):
            masks.append(mask)
        if step.container.kind is ContainerKind.INIT:
            lender = (step.container.name, lender[1] | mask)
        else:
            record(step.container.name, mask, step.held[0])
    if after.reusable.any():
        record(lender[0], lender[1], after.reusable[0])
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


def walk(
    headroom: Headroom,
    request: AlignedRequest,
    policy: TopologyPolicy,
    scope: TopologyScope,
    *,
    allocate_last: bool = True,
) -> Iterator[Step]:
    """Admit and allocate container after container; rows that refuse one are not looked at again.

    Args:
        headroom: rows of one policy, scope and number of zones.
        request: what to admit.
        policy: the rows' Topology Manager policy.
        scope: the rows' Topology Manager scope.
        allocate_last: whether it matters what the last container holds.
    """
    evaluator = EVALUATORS[policy]
    # Without a Topology Manager policy there is no scope: the memory manager decides per container.
    containers = units(request, scope if policy is not TopologyPolicy.NONE else TopologyScope.CONTAINER)
    for container in containers:
        before = headroom
        merged = evaluator.merge(before, provider_hints(before, container.amounts))
        staying = np.flatnonzero(merged.admit)
        headroom = before.take(staying)
        of_staying = Merged(merged.admit[staying], merged.mask[staying], merged.aligned[staying])
        wanted = allocate_last or container is not containers[-1]
        held = _allocate(headroom, container, of_staying) if wanted else headroom.free
        yield Step(container, before, merged, headroom, held)


def _allocate(headroom: Headroom, container: AlignedContainer, merged: Merged) -> Ints:
    """Take a container's amounts within its mask; return what it holds then, shape (rows, zones, resources)."""
    zones = headroom.table.zones
    taken = np.zeros_like(headroom.free)
    from_lent = np.zeros_like(headroom.free)
    inside = (merged.mask[:, None] >> np.arange(zones)) & 1
    init = container.kind is ContainerKind.INIT
    for resource, need in container.amounts:
        column = headroom.columns.resources.get(resource)
        if column is None:
            continue
        bound = headroom.columns.reported[headroom.rows, column] & (merged.mask != 0)
        if is_memory(resource):
            lent = _lent_memory(headroom, column, need * bound, inside, merged.mask)
            packed = False
        else:
            lent = _fill(need * (bound & merged.aligned), headroom.reusable[:, :, column] * inside)
            packed = resource == CPU
        wanted = need * (bound & (merged.aligned | is_memory(resource))) - lent.sum(axis=1)
        from_lent[:, :, column] = lent
        taken[:, :, column] = _fill_free(headroom, column, wanted, inside, packed=packed)
    headroom.free = headroom.free - taken
    # An ordinary init container lends all that it holds; what others have of it is lent no more.
    headroom.reusable = headroom.reusable + (taken if init else -from_lent)
    if init:
        lending = taken[:, :, _memory_columns(headroom)].any(axis=(1, 2))
        headroom.memory_lent_mask = np.where(lending, merged.mask, headroom.memory_lent_mask)
    held = [name for name, need in container.amounts if is_memory(name) and need]
    if held:
        _join_memory_groups(headroom, held, merged.mask, inside)
    return taken + from_lent


def _lent_memory(headroom: Headroom, column: int, wanted: Ints, inside: Ints, mask: Ints) -> Ints:
    same = (headroom.memory_lent_mask == mask) & (mask != 0)
    return _fill(wanted * same, headroom.reusable[:, :, column] * inside)


def _memory_columns(headroom: Headroom) -> list[int]:
    return [column for name, column in headroom.columns.resources.items() if is_memory(name)]


def _fill_free(headroom: Headroom, column: int, wanted: Ints, inside: Ints, *, packed: bool) -> Ints:
    free = headroom.free[:, :, column] * inside
    if not packed:
        return _fill(wanted, free)
    entire = (free == headroom.capacity_of(column, hardware=True)) & (free <= wanted[:, None])
    order = np.where(entire, 0, 1 + np.maximum(free, 0)) * free.shape[1] + np.arange(free.shape[1])
    return _fill(wanted, free, order)


def _join_memory_groups(headroom: Headroom, resources: list[str], mask: Ints, inside: Ints) -> None:
    columns = headroom.columns.columns_of(resources)
    bound = headroom.columns.reported[headroom.rows][:, columns].any(axis=1) & (mask != 0)
    wide = inside.sum(axis=1) > 1
    headroom.memory_single = headroom.memory_single + inside * (bound & ~wide)[:, None]
    headroom.memory_group = headroom.memory_group | (inside * mask[:, None] * (bound & wide)[:, None])


def _fill(wanted: Ints, free: Ints, order: Ints | None = None) -> Ints:
    """Draw `wanted` (rows,) from `free` (rows, zones): ascending zones, or those with the smallest `order` first."""
    sequence = None if order is None else np.argsort(order, axis=1, kind="stable")
    ordered = np.maximum(free if sequence is None else np.take_along_axis(free, sequence, axis=1), 0)
    before = np.cumsum(ordered, axis=1) - ordered
    drawn: Ints = np.clip(wanted[:, None] - before, 0, ordered)
    if sequence is None:
        return drawn
    result = np.empty_like(drawn)
    np.put_along_axis(result, sequence, drawn, axis=1)
    return result


def _reported(columns: ZoneColumns, row: int, resource: str) -> bool:
    column = columns.resources.get(resource)
    return column is not None and bool(columns.reported[row, column])
