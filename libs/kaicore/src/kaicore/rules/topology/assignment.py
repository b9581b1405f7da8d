"""The topology assignment of a set's pods, in the form of Kueue's `topologyAssignment`, and the remaining capacity.

Capacity is counted for rows of nodes and for the domains of a topology: slots for pods of one shape, whole nodes.

Source: Kueue v0.20.0-devel, apis/kueue/v1beta2/workload_types.go (`TopologyAssignment`: slices, with values stored as a
common prefix and suffix with roots) and apis/kueue/v1beta1/workload_types.go (domains one by one).
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def slots(free: Ints, request: Ints, takes: NDArray[np.bool_]) -> Ints:
    """Return how many pods of one shape each row takes, by amounts alone.

    Args:
        free: amounts by row and resource; less than nothing counts as nothing.
        request: of one pod, by resource; at least one is more than 0.

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


Document = dict[str, Any]

#: Most domains of a slice.
_MOST_DOMAINS = 100_000


class AssignedDomain(NamedTuple):
    """A domain, by its value at each level, and how many pods are in it."""

    values: tuple[str, ...]
    pods: int


def as_domains(levels: Sequence[str], domains: Iterable[AssignedDomain]) -> Document:
    """Return an assignment as v1beta1 has it, in order of the values.

    Args:
        levels: their labels, from the widest to the narrowest.
        domains: those that have pods; none twice.
    """
    counted = [{"values": list(one.values), "count": one.pods} for one in sorted(domains)]
    return {"levels": list(levels), "domains": counted}


def as_slices(levels: Sequence[str], domains: Iterable[AssignedDomain]) -> Document:
    """Return an assignment as v1beta2 has it, in order of the values.

    Args:
        levels: their labels, from the widest to the narrowest.
        domains: those that have pods; none twice.
    """
    ordered = sorted(domains)
    slices = [
        _slice(len(levels), ordered[first : first + _MOST_DOMAINS]) for first in range(0, len(ordered), _MOST_DOMAINS)
    ]
    return {"levels": list(levels), "slices": slices}


def domains_of(assignment: Document) -> list[AssignedDomain]:
    """Return the domains of an assignment of either version."""
    if "domains" in assignment:
        return [AssignedDomain(tuple(one["values"]), one["count"]) for one in assignment["domains"]]
    assigned: list[AssignedDomain] = []
    for part in assignment["slices"]:
        values = [_values(level, part["domainCount"]) for level in part["valuesPerLevel"]]
        counts = part["podCounts"]
        numbers = counts.get("individual") or [counts["universal"]] * part["domainCount"]
        assigned += map(AssignedDomain, zip(*values, strict=True), numbers)
    return assigned


def _slice(levels: int, domains: Sequence[AssignedDomain]) -> Document:
    counts = [one.pods for one in domains]
    return {
        "domainCount": len(domains),
        "valuesPerLevel": [_level([one.values[level] for one in domains]) for level in range(levels)],
        "podCounts": {"universal": counts[0]} if len(set(counts)) == 1 else {"individual": counts},
    }


def _level(values: Sequence[str]) -> Document:
    if len(set(values)) == 1:
        return {"universal": values[0]}
    prefix = _common_prefix(values)
    suffix = _common_prefix([value[len(prefix) :][::-1] for value in values])[::-1]
    # No root is empty: one value may be the beginning of another.
    if any(len(value) == len(prefix) + len(suffix) for value in values):
        suffix = ""
    if prefix in values:
        prefix = prefix[:-1]
    individual: Document = {"roots": [value[len(prefix) : len(value) - len(suffix)] for value in values]}
    if prefix:
        individual["prefix"] = prefix
    if suffix:
        individual["suffix"] = suffix
    return {"individual": individual}


def _common_prefix(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    length = next((place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return first if length is None else first[:length]


def _values(level: Document, count: int) -> list[str]:
    if "universal" in level:
        return [level["universal"]] * count
    individual = level["individual"]
    prefix, suffix = individual.get("prefix", ""), individual.get("suffix", "")
    return [f"{prefix}{root}{suffix}" for root in individual["roots"]]
