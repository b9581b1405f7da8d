"""Why the kubelets of some nodes would not admit a pod: which resource, on which zone, and how much is missing."""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from kaicore.model.node import TopologyPolicy
from kaicore.model.quantity import CPU
from kaicore.numa.admission import grouped_rows, walk, without
from kaicore.numa.columns import Flags, Ints, ZoneColumns
from kaicore.numa.hints import Headroom, Hints, provider_hints
from kaicore.numa.requests import AlignedContainer, AlignedRequest, is_memory


class NumaRefusal(StrEnum):
    """Why a pod cannot be aligned on a node.

    The first two no other pod's end will change: so it is even on an empty node.
    """

    NEVER_FITS = "NumaNeverFits"
    WIDTHS_DIFFER = "NumaWidthsDiffer"
    ZONE_SHORT = "NumaZoneShort"
    ZONES_APART = "NumaZonesApart"
    MEMORY_GROUPS = "NumaMemoryGroups"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One node's refusal.

    Attributes:
        row: the node's row.
        resource: what is short, or what the detail speaks of first.
        zone: index of the zone that comes closest, -1 where no single zone is meant.
        need: how much the container needs of the resource.
        free: how much is free (for `NEVER_FITS`: installed) there.
        container: which container, empty for the whole pod.
        detail: for people.
    """

    row: int
    code: NumaRefusal
    resource: str
    zone: int
    need: int
    free: int
    container: str
    detail: str = ""


def explain(
    columns: ZoneColumns,
    rows: Ints,
    request: AlignedRequest,
    *,
    ignore: frozenset[str] = frozenset(),
    reconstruct: bool = True,
) -> list[Refusal]:
    """Explain for each of the rows why `admitted` says no; rows that would admit the pod are left out.

    Rows that are alike are looked at once.
    """
    alike: dict[object, list[int]] = {}
    for row in rows.tolist():
        alike.setdefault(columns.likeness(row), []).append(row)
    return _for_all(alike, _explained(columns, alike, without(request, ignore), reconstruct=reconstruct, empty=False))


def explain_never(
    columns: ZoneColumns, rows: Ints, request: AlignedRequest, *, ignore: frozenset[str] = frozenset()
) -> list[Refusal]:
    """Explain for those of the rows that would refuse the pod even if they had no other pods."""
    alike: dict[object, list[int]] = {}
    for row in rows.tolist():
        alike.setdefault(int(columns.shape[row]), []).append(row)
    refusals = _explained(columns, alike, without(request, ignore), reconstruct=True, empty=True)
    lasting = [
        refusal if refusal.code is NumaRefusal.WIDTHS_DIFFER else replace(refusal, code=NumaRefusal.NEVER_FITS)
        for refusal in refusals
    ]
    return _for_all(alike, lasting)


def _for_all(alike: dict[object, list[int]], refusals: list[Refusal]) -> list[Refusal]:
    others = {rows[0]: rows for rows in alike.values()}
    return [replace(refusal, row=row) for refusal in refusals for row in others[refusal.row]]


def _explained(
    columns: ZoneColumns, alike: dict[object, list[int]], request: AlignedRequest, *, reconstruct: bool, empty: bool
) -> list[Refusal]:
    rows = np.array([members[0] for members in alike.values()], np.int64)
    refusals: list[Refusal] = []
    if not len(rows) or request.empty:
        return refusals
    for policy, scope, zones, which in grouped_rows(columns, rows):
        headroom = Headroom.of(columns, rows[which], zones=zones, reconstruct=reconstruct, empty=empty)
        for step in walk(headroom, request, policy, scope):
            refused = np.flatnonzero(~step.merged.admit)
            if len(refused):
                refusals += _refusals(step.before.take(refused), step.container, policy)
    return refusals


def _refusals(headroom: Headroom, container: AlignedContainer, policy: TopologyPolicy) -> list[Refusal]:
    hints = [hint for hint in provider_hints(headroom, container.amounts) if not hint.silent.all()]
    if policy not in (TopologyPolicy.SINGLE_NUMA_NODE, TopologyPolicy.RESTRICTED):
        hints = [hint for hint in hints if is_memory(hint.resource)]
    needs = dict(container.amounts)
    single = policy is TopologyPolicy.SINGLE_NUMA_NODE
    widths = headroom.table.widths
    allowed: Flags = widths == 1 if single else np.ones(len(widths), np.bool_)
    alone = [(hint.preferred & allowed).any(axis=1) | hint.silent for hint in hints]
    impossible = [~hint.silent & (hint.width > (1 if single else len(widths))) for hint in hints]
    refusals = []
    for index in range(len(headroom.rows)):
        never = next((hint for hint, flags in zip(hints, impossible, strict=True) if flags[index]), None)
        short = next((hint for hint, flags in zip(hints, alone, strict=True) if not flags[index]), None)
        asked = [hint for hint in hints if not hint.silent[index]]
        if never is not None:
            refusals.append(_at_zone(headroom, index, never, container, NumaRefusal.NEVER_FITS))
        elif policy is TopologyPolicy.RESTRICTED and len({int(hint.width[index]) for hint in asked}) > 1:
            detail = ", ".join(f"{hint.resource} needs {int(hint.width[index])}" for hint in asked)
            widest = max(asked, key=lambda hint: int(hint.width[index]))
            refusals.append(
                Refusal(
                    row=int(headroom.rows[index]),
                    code=NumaRefusal.WIDTHS_DIFFER,
                    resource=widest.resource,
                    zone=-1,
                    need=needs[widest.resource],
                    free=0,
                    container=container.name,
                    detail=f"zones: {detail}",
                )
            )
        elif short is not None:
            refusals.append(_at_zone(headroom, index, short, container, NumaRefusal.ZONE_SHORT))
        else:
            first = asked[0] if asked else hints[0]
            detail = " and ".join(hint.resource for hint in asked)
            refusals.append(
                Refusal(
                    row=int(headroom.rows[index]),
                    code=NumaRefusal.ZONES_APART,
                    resource=first.resource,
                    zone=-1,
                    need=needs[first.resource],
                    free=0,
                    container=container.name,
                    detail=f"{detail} are free, but not on the same zones",
                )
            )
    return refusals


def _at_zone(
    headroom: Headroom,
    index: int,
    hint: Hints,
    container: AlignedContainer,
    code: NumaRefusal,
) -> Refusal:
    """Name the resource of the provider that is really short, and the zone that has most of it."""
    needs = dict(container.amounts)
    resources = [name for name in needs if is_memory(name)] if is_memory(hint.resource) else [hint.resource]
    resources = [name for name in resources if name in headroom.columns.resources]
    figures = []
    for resource in resources:
        column = headroom.columns.resources[resource]
        if code is NumaRefusal.NEVER_FITS:
            have = headroom.capacity_of(column, hardware=resource == CPU)[index]
        else:
            have = np.maximum(headroom.free[index, :, column] + headroom.reusable[index, :, column], 0)
        zone = int(have.argmax())
        figures.append((int(have[zone]) - needs[resource], resource, zone, int(have[zone]), int(have.sum())))
    margin, resource, zone, free, total = min(figures)
    if margin >= 0 and code is NumaRefusal.ZONE_SHORT:
        code = NumaRefusal.MEMORY_GROUPS if is_memory(resource) else NumaRefusal.ZONES_APART
    return Refusal(
        row=int(headroom.rows[index]),
        code=code,
        resource=resource,
        zone=zone,
        need=needs[resource],
        free=free,
        container=container.name,
        detail=_DETAILS[code].format(total=total),
    )


_DETAILS = {
    NumaRefusal.NEVER_FITS: "the largest zone is too small",
    NumaRefusal.ZONE_SHORT: "no zone has enough free",
    NumaRefusal.ZONES_APART: "free, but not on zones that may serve together",
    NumaRefusal.MEMORY_GROUPS: "enough is free, but the zones are grouped by other pods' memory",
    NumaRefusal.WIDTHS_DIFFER: "",
}
