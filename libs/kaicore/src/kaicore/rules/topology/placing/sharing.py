"""The domains that the pods of sets share once they have been placed."""

from collections.abc import Mapping

import numpy as np

from kaicore.rules.topology.ordered import OrderedTree
from kaicore.rules.topology.placing.request import NO_LEVEL, SetRequest


def shared_domains(request: SetRequest, tree: OrderedTree, rows: Mapping[int, int]) -> dict[str, tuple[int, int]]:
    """Return, by set that has a constraint, level and number of the narrowest domain that its pods share."""
    domain_by_set: dict[str, tuple[int, int]] = {}
    _shared(request, tree, rows, domain_by_set)
    return domain_by_set


def _shared(
    request: SetRequest, tree: OrderedTree, rows: Mapping[int, int], domain_by_set: dict[str, tuple[int, int]]
) -> tuple[int, int]:
    """Fill in the domains of a set and those in it; returns the first and the last spot of its pods."""
    ends = [_shared(child, tree, rows, domain_by_set) for child in request.children]
    if request.pods:
        own = tree.spots[[rows[pod] for pod in request.pods]]
        ends.append((int(own.min()), int(own.max())))
    if request.held is not None and request.held.any():
        own = tree.spots[np.flatnonzero(request.held)]
        ends.append((int(own.min()), int(own.max())))
    low = min((end[0] for end in ends), default=len(tree.rows))
    high = max((end[1] for end in ends), default=-1)
    if request.constraint is not None and high >= 0:
        domain_by_set[request.name] = (NO_LEVEL, -1)
        for depth in range(tree.depth - 1, 0, -1):
            domain = int(tree.of[depth][low])
            if domain == int(tree.of[depth][high]) and tree.numbers[depth][domain] >= 0:
                domain_by_set[request.name] = (depth - 1, int(tree.numbers[depth][domain]))
                break
    return low, high
