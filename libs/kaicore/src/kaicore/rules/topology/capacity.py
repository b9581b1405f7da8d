"""Remaining capacity of rows of nodes, and of the domains of a topology: slots for pods of one shape, whole nodes."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def slots(free: Ints, request: Ints, takes: NDArray[np.bool_]) -> Ints:
    """Return how many pods of one shape each row takes, by amounts alone.

    Args:
        free: amounts by row and resource; less than nothing counts as nothing.
        request: of one pod, by resource; at least one is more than 0.
        takes: rows that take pods at all.

    Raises:
        ValueError: a pod that asks for nothing.
    """
    asked = request > 0
    if not asked.any():
        raise ValueError("a pod that asks for nothing fits any number of times")
    fitting = np.maximum(free[:, asked], 0) // request[asked]
    return np.where(takes, fitting.min(axis=1), 0).astype(np.int64)


def segments(idle: Ints, size: int) -> Ints:
    """Return how many disjoint segments of `size` idle nodes each domain has, by how many idle nodes it has."""
    return idle // size


def sizes_to_show(most: int) -> tuple[int, ...]:
    """Return the sizes of segments that are worth a look: powers of two, from 2 up to the largest domain's nodes."""
    return tuple(1 << power for power in range(1, most.bit_length()))
