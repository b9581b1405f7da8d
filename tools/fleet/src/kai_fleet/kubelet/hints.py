"""Topology hints and how the topology manager merges them into one affinity (`topologymanager/policy*.go`).

The kubelet walks the Cartesian product of all hints. Its comparison has one best element in any order, so this finds
it directly. A merged hint is preferred only if every resource has *the same* mask as a preferred one. Hence the
preferred candidates are the intersection of the preferred masks. Only when there is none do the bitwise ANDs of all
combinations matter.
"""

from dataclasses import dataclass
from typing import Protocol

from kai_fleet.kubelet.machine import Machine, TopologyPolicy


@dataclass(frozen=True, slots=True)
class Hints:
    """Sets of zones from which one resource could be served; none at all means that it cannot be.

    In the place of `Hints`, `None` stands for a resource without preference: any zones will do, and are preferred.
    """

    masks: tuple[int, ...]
    preferred: tuple[int, ...]


IMPOSSIBLE = Hints((), ())


@dataclass(frozen=True, slots=True)
class Affinity:
    """A merged hint: the zones to allocate from (None: any) and whether it is a preferred one."""

    mask: int | None
    preferred: bool


#: What the topology manager knows of a container that it never looked at (policy none).
NO_AFFINITY = Affinity(None, preferred=False)


class _Key(Protocol):
    def __call__(self, mask: int, /) -> tuple[float, ...]: ...


def narrow(mask: int) -> tuple[int, int]:
    """Sort key of `bitmask.IsNarrowerThan`: fewest zones, then the lowest value."""
    return mask.bit_count(), mask


def merge(hints: list[Hints | None], *, policy: TopologyPolicy, machine: Machine, prefer_closest: bool) -> Affinity:
    """Merge one entry per resource (or per provider without an opinion) as the policy does; not for policy none."""
    everywhere = machine.all_zones
    if policy == "single-numa-node":
        merged = _single_zone(hints, everywhere)
        # The whole machine as an affinity says nothing: `policy_single_numa_node.go`.
        return Affinity(None, merged.preferred) if merged.mask == everywhere else merged
    key: _Key = narrow
    if prefer_closest:

        def key(mask: int, /) -> tuple[float, ...]:
            return mask.bit_count(), machine.distance(mask), mask

    return _merge(hints, everywhere, key)


def _single_zone(hints: list[Hints | None], everywhere: int) -> Affinity:
    common = everywhere
    opinions = False
    for hint in hints:
        if hint is None:
            continue
        opinions = True
        single = 0
        for mask in hint.preferred:
            if mask & (mask - 1) == 0:
                single |= mask
        common &= single
    if not opinions:
        return Affinity(everywhere, preferred=True)
    return Affinity(common & -common, preferred=True) if common else Affinity(everywhere, preferred=False)


def _merge(hints: list[Hints | None], everywhere: int, key: _Key) -> Affinity:
    opinions = [hint for hint in hints if hint is not None]
    if not opinions:
        return Affinity(everywhere, preferred=True)
    first, *others = opinions
    preferred = set(first.preferred).intersection(*(hint.preferred for hint in others))
    if preferred:
        return Affinity(min(preferred, key=key), preferred=True)
    return Affinity(_best_non_preferred(opinions, everywhere, key), preferred=False)


def _best_non_preferred(opinions: list[Hints], everywhere: int, key: _Key) -> int:
    """As many zones as the neediest resource's narrowest hint, or else the nearest number below, or else above."""
    merged = {everywhere}
    wanted = 0
    for hint in opinions:
        if not hint.masks:
            continue
        merged = {both for one in merged for other in hint.masks if (both := one & other)}
        wanted = max(wanted, min(mask.bit_count() for mask in hint.masks))
    if not merged:
        return everywhere
    not_above = [mask for mask in merged if mask.bit_count() <= wanted]
    if not not_above:
        return min(merged, key=key)
    width = max(mask.bit_count() for mask in not_above)
    return min((mask for mask in not_above if mask.bit_count() == width), key=key)
