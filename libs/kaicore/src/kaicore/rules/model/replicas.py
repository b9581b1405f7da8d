"""Replicas of a shard: their names, their liveness, and the owner of each group.

The list of a shard's replicas is in the log (`ReplicasChanged`), and every cycle's append names its version. So within
one version each group has one owner, and decisions by an older version are refused as a whole. Liveness only shows when
the list should change.

**Liveness.** A replica renews its record again and again. An observer counts it as live until it has not seen the
record renewed for the record's duration, by the observer's own clock. No two clocks are compared, so a wrong clock does
no harm; only a wrong rate does, by as much as it is off. A record that the store lost counts like one that is not
renewed.

**Owners.** Each replica has a weight for each key, and the greatest weight owns the key (rendezvous hashing). All who
see the same replicas agree without asking each other. When one goes, only its own keys move, and they spread over the
others. When one joins, it takes an equal part from each.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

#: Seconds after the end of a member's time at which an observer looks whether it was renewed after all.
JUST_AFTER_S = 0.01

#: What waits for a record's end looks at the record so many times in its duration. A renewal that is seen late counts
#: from then, so it would see the end late by as much, and a withdrawal too.
LOOKS = 8

#: How often a record is renewed in its duration.
RENEWALS = 3


class Sighting(NamedTuple):
    """A member's record as it was read.

    Attributes:
        member: the replica's name.
        revision: of the record; another one with each renewal.
        duration_s: how long it counts without being renewed; 0 for a record that was withdrawn.
    """

    member: str
    revision: int
    duration_s: float


class Liveness:
    """An observer's view of members' records."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}

    def observe(self, sightings: Iterable[Sighting], *, now: float) -> None:
        """Take what was read.

        Args:
            now: the observer's monotonic clock **after** reading, seconds; so no record counts for less than its time.
        """
        for member, revision, duration_s in sightings:
            if duration_s <= 0:
                self._seen.pop(member, None)
            elif self._seen.get(member, (0, 0.0))[0] != revision:
                self._seen[member] = (revision, now + duration_s)

    def live(self, *, now: float) -> tuple[str, ...]:
        """Return the members that count as live, sorted."""
        return tuple(sorted(member for member, (_, until) in self._seen.items() if now < until))

    def next_end(self, *, now: float) -> float:
        """Return when the next of the live members will count no more if it is not seen renewed; infinity for never."""
        return min((until for _, until in self._seen.values() if now < until), default=float("inf"))


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


#: Between a shard's name and a replica's, in the name under which a replica records its cycles.
_SEPARATOR = "/"


def replica_shard(shard: str, replica: str) -> str:
    """Return the name under which a replica records its cycles; the shard's own where it is the only one."""
    return f"{shard}{_SEPARATOR}{replica}" if replica else shard


def split_shard(name: str) -> tuple[str, str]:
    """Return a shard's name and its replica's, from the name under which cycles are recorded."""
    shard, _, replica = name.partition(_SEPARATOR)
    return shard, replica


def replicas_stream(shard: str) -> str:
    """Return the stream of a shard's lists of replicas."""
    return f"replicas/{shard}"


def promoted_shadow(shard: str) -> str:
    """Return the name under which a list says that a shard's shadow is promoted: as long as it is not empty.

    It is a list like others because the release before knows these: it would stop at an event of another type.
    """
    return f"{shard}@shadow"


def due_replicas(
    listed: Collection[str],
    live: Collection[str],
    *,
    replica: str,
    fresh: bool = True,
    unlike_s: float,
) -> tuple[str, ...] | None:
    """Return the list that a replica is to record in place of the one in the log; None as long as it leaves that be.

    A replica that is not listed lists itself at once. Those that are no longer live are taken off by the first of the
    live ones, by name; each further one waits a second longer, in case those before it do not come to it. As long as
    none can be seen the list stays as it is, unless it is empty: one that cannot see the others leaves them their work.

    Args:
        live: the replicas that count as live, this one among them.
        fresh: whether it is known who is live.
        unlike_s: for how long the two have been unlike, seconds.
    """
    if not fresh:
        return None if listed else (replica,)
    if set(listed) == set(live):
        return None
    if replica in listed:
        gone = set(listed) - set(live)
        if not gone or unlike_s < sorted(live).index(replica):
            return None
        return tuple(sorted(live))
    # It takes none off by the way: two that begin at once do not see each other yet.
    return tuple(sorted({*listed, replica}))
