"""Admissions to one zone: a pod that gets all of one zone gets the same wherever the providers give the same hints.

A cycle takes nodes through states that no node was in before, and a walk over each costs a tenth of a millisecond. What
is free matters to the hints only through the masks that have enough of it. Where all of a container comes from one
zone, it matters to the allocation in no other way: `kaicore.rules.numa.kubelet.admission` splits nothing then.
"""

from kaicore.rules.model.pod import ContainerKind
from kaicore.rules.numa.columns import ZoneColumns
from kaicore.rules.numa.kubelet.masks import mask_table
from kaicore.rules.numa.kubelet.memory_manager import open_masks
from kaicore.rules.numa.kubelet.requests import AlignedRequest
from kaicore.rules.numa.kubelet.verdict import Admitted, Rejected


def may_come_from_one(request: AlignedRequest) -> bool:
    """Tell whether a pod is one container that every kubelet aligns alike."""
    alone = len(request.containers) == 1 and request.containers[0].kind is not ContainerKind.INIT
    return alone and not (request.others or request.asks_without_memory or request.refused or request.budget)


def hints_key(columns: ZoneColumns, row: int, request: AlignedRequest, *, reconstruct: bool) -> tuple[int, ...] | None:
    """Return a key that is equal for rows with equal hints for a pod (`may_come_from_one`); None where more matters.

    Args: reconstruct: see `ZoneColumns.free`.
    """
    settings = columns.kubelet_of(row)
    if columns.unknown[row] or settings.aligns_by_socket or settings.spreading is not None:
        return None
    if columns.uncertain[row].any() or columns.repeated[row].any():
        return None
    zones, of_resource = int(columns.zone_count[row]), columns.resources
    table, free = mask_table(zones), columns.free(row, zones=zones, reconstruct=reconstruct).T.tolist()
    enough = [table.reaching(free[of_resource[name]], need) for name, need in request.pod if name in of_resource]
    groups = open_masks(columns.cells[row, :zones].tolist(), table)
    return int(columns.shape[row]), int(columns.kubelet[row]), groups, *enough


def is_from_one(verdict: Admitted | Rejected) -> bool:
    """Tell whether a pod gets all that is bound to zones from the one zone of its mask."""
    if isinstance(verdict, Rejected) or verdict.perhaps or verdict.lent:
        return False
    (holding,) = verdict.holdings
    zone, mask = holding.mask.bit_length() - 1, holding.mask
    amounts = holding.amounts.values()
    return (
        mask.bit_count() == 1
        and not holding.uncertain
        and all(figures[zone] == sum(figures) for figures in amounts)
        and all(block.mask == mask for block in holding.blocks)
    )
