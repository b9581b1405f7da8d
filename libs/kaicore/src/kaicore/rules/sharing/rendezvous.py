"""Who of several members owns a key, by rendezvous hashing.

Each member has a weight for each key, and the greatest weight owns the key. All who see the same members agree without
asking each other. When a member goes, only its own keys move, and they spread over the others; when one joins, it takes
an equal part from each.
"""

from collections.abc import Iterable
from hashlib import blake2b


def weight(member: str, key: str) -> int:
    """Return a member's weight for a key: 64 bits that look random, and are the same on every machine."""
    digest = blake2b(f"{member}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def owner(key: str, members: Iterable[str]) -> str:
    """Return the member that owns a key; empty where there is no member. Of equal weights the last name counts."""
    return max(members, key=lambda member: (weight(member, key), member), default="")
