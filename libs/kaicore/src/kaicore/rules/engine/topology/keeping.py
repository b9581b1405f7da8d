"""Check that the places of pods satisfy a request's topology constraints, from the places alone."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from kaicore.rules.topology.placing.request import NO_LEVEL, SetRequest
from kaicore.rules.topology.tree import TopologyColumns


def keeps(request: SetRequest, tree: TopologyColumns, rows: Mapping[int, int]) -> bool:
    """Tell whether all that is required holds: of a set's domain, of its slices, and of domains that are not shared.

    Slices are looked at where none of the set's pods had a place before.

    Args:
        request: with the pods that had a place before.
        tree: over the rows.
        rows: where the pods are, by number.
    """
    children = request.children
    if not all(keeps(child, tree, rows) for child in children):
        return False
    exclusive = [child for child in children if child.constraint is not None and child.constraint.exclusive]
    taken = [(one.constraint.required, *_domains(one, tree, rows)) for one in exclusive if one.constraint is not None]
    if len(set(taken)) < len(taken):
        return False
    constraint = request.constraint
    if constraint is None:
        return True
    if constraint.required != NO_LEVEL and len(_domains(request, tree, rows)) > 1:
        return False
    if request.held is not None:
        return True
    return all(
        _in_slices(request, layer.size, tree.of_rows[layer.required], rows)
        for layer in constraint.slices
        if layer.required != NO_LEVEL
    )


def _in_slices(request: SetRequest, size: int, of_rows: NDArray[np.int32], rows: Mapping[int, int]) -> bool:
    """Tell whether the pods of each slice share a domain."""
    pods = list(_pods(request))
    ranks = request.ranks or range(len(pods))
    slices: dict[int, set[int]] = {}
    for pod, rank in zip(pods, ranks, strict=True):
        slices.setdefault(rank // size, set()).add(int(of_rows[rows[pod]]))
    return all(len(domains) == 1 and -1 not in domains for domains in slices.values())


def _domains(request: SetRequest, tree: TopologyColumns, rows: Mapping[int, int]) -> set[int]:
    """Return the domains of a set's required level that its pods are in; -1 for a node outside the topology."""
    assert request.constraint is not None, "asked for sets with a constraint"
    if request.constraint.required == NO_LEVEL:
        return set()
    of_rows = tree.of_rows[request.constraint.required]
    numbers = {int(of_rows[rows[pod]]) for pod in _pods(request)}
    if request.held is not None:
        numbers |= set(of_rows[np.flatnonzero(request.held)].tolist())
    return numbers


def _pods(request: SetRequest) -> Iterator[int]:
    yield from request.pods
    for child in request.children:
        yield from _pods(child)
