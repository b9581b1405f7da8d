"""Prints by which a scheduler can tell which pods a NodeResourceTopology counts (facts sections 1.5 and 1.6).

The *pods fingerprint* is over namespaces and names. *numaplacement* says which container is on which NUMA node, in few
characters: a container is its rank among the sorted hashes of all, a node's ranks are written as differences.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import xxhash

_SEED = 0
#: ASCII 0x21 to 0x7E without characters that JSON or HTML would escape: 64 terminals, then 25 continuations.
_ALPHABET = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"&<>\\')
_TERMINALS, _CONTINUATIONS = 64, 25


def pods_fingerprint(pods: Iterable[tuple[str, str]]) -> str:
    """Return the fingerprint, `pfp0v001` and 16 hex digits, of (namespace, name) pairs; their order does not matter."""
    hashes = sorted(
        xxhash.xxh64_intdigest(name.encode(), seed=xxhash.xxh64_intdigest(namespace.encode(), seed=_SEED))
        for namespace, name in pods
    )
    content = b"".join(value.to_bytes(8, "little") for value in hashes)
    return f"pfp0v001{xxhash.xxh64_hexdigest(content, seed=_SEED)}"


def container_hash(namespace: str, pod: str, container: str) -> int:
    """Return the hash by which numaplacement ranks a container."""
    return xxhash.xxh64_intdigest(f"{namespace}\0{pod}\0{container}".encode(), seed=_SEED)


def leb89(value: int) -> str:
    """Write a number in numaplacement's alphabet; below 64 in one character."""
    if value < _TERMINALS:
        return _ALPHABET[value]
    rest, last = divmod(value - _TERMINALS, _TERMINALS)
    text = ""
    while True:
        rest, digit = divmod(rest, _CONTINUATIONS)
        text = _ALPHABET[_TERMINALS + digit] + text
        if not rest:
            return text + _ALPHABET[last]


def placement_vectors(zone_of: Mapping[int, int], zones: int) -> tuple[int, dict[int, str]]:
    """Return the busiest zone, and the vectors of all others.

    Args:
        zone_of: container hash → zone.
        zones: how many zones there are.
    """
    ranks = {value: rank for rank, value in enumerate(sorted(zone_of))}
    members: list[list[int]] = [[] for _ in range(zones)]
    for value, zone in zone_of.items():
        members[zone].append(ranks[value])
    busiest = max(range(zones), key=lambda zone: (len(members[zone]), -zone))
    return busiest, {zone: _vector(sorted(held)) for zone, held in enumerate(members) if zone != busiest}


def _vector(ranks: Sequence[int]) -> str:
    return "".join(leb89(rank - before) for before, rank in pairwise([0, *ranks]))
