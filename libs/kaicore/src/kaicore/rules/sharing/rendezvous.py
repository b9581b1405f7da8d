"""Ownership of keys among several members, by rendezvous hashing.

Each member has a weight for each key, and the greatest weight owns the key. All who see the same members agree without
asking each other. When a member goes, only its own keys move, and they spread over the others; when one joins, it takes
an equal part from each.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

_MASK = 2**64 - 1
#: Of the finalizer of SplitMix64 (Steele, Lea, Flood, 2014): shifts, and what is multiplied by.
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


@lru_cache(maxsize=1 << 18)
def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def weight(member: str, key: str) -> int:
    """Return a member's weight for a key: 64 bits that look random, and are the same on every machine."""
    mixed = _digest(f"member {member}") ^ _digest(key)
    for shift, factor in _STEPS:
        mixed = (mixed ^ mixed >> shift) * factor & _MASK
    return mixed


@lru_cache(maxsize=1 << 18)
def owner(key: str, members: tuple[str, ...]) -> str:
    """Return the member that owns a key; empty where there is no member. Of equal weights the last name counts."""
    return max(members, key=lambda member: (weight(member, key), member), default="")


def turns(keys: Sequence[str], members: Sequence[str], member: str) -> npt.NDArray[np.int64]:
    """Return for each key before how many members a member comes short: 0 for keys that it owns.

    No two members have the same turn at a key: one that takes its keys in the order of turns is alone with them as long
    as the others are not further on.
    """
    mine = _weights(keys, member)
    before = np.zeros(len(keys), np.int64)
    for other in members:
        theirs = _weights(keys, other) if other != member else mine
        before += (theirs > mine) | ((theirs == mine) & (other > member))
    return before


def _weights(keys: Sequence[str], member: str) -> npt.NDArray[np.uint64]:
    mixed = np.fromiter((_digest(key) for key in keys), np.uint64, len(keys)) ^ np.uint64(_digest(f"member {member}"))
    for shift, factor in _STEPS:
        mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    return mixed
