"""The static CPU manager's choice of CPUs, as far as counts determine it: packed, or spread over zones.

Spreading is the option `distribute-cpus-across-numa`.

Source: Kubernetes v1.36 and v1.37, `pkg/kubelet/cm/cpumanager/cpu_assignment.go`, takeByTopology and
takeByTopologyNUMADistributed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import floor, inf, sqrt


def pack(available: Mapping[int, int], capacity: Sequence[int], need: int, *, threads: int) -> dict[int, int]:
    """Split a number of CPUs over zones, as the packing does.

    Whole zones first, if none of their CPUs is taken or reserved and they are not more than is needed; then whole
    cores, from the zone with the fewest CPUs available; then single CPUs, in the same order.

    Args:
        available: millicores by zone, of the zones that may be used.
        capacity: millicores of each zone, reserved CPUs included.
        need: millicores; not more than is available.
        threads: CPUs per core.
    """
    taken = dict.fromkeys(available, 0)
    if len(available) == 1:
        return dict.fromkeys(available, need)

    def scarcest() -> list[int]:
        return sorted(taken, key=lambda zone: (available[zone] - taken[zone], zone))

    for zone in scarcest():
        if available[zone] == capacity[zone] <= need:
            taken[zone] = available[zone]
            need -= available[zone]
    for unit in dict.fromkeys((threads * 1000, 1000)):
        for zone in scarcest():
            part = min(need, available[zone] - taken[zone]) // unit * unit
            taken[zone] += part
            need -= part
    return {zone: amount for zone, amount in taken.items() if amount}


@dataclass(slots=True)
class CoreCounts:
    """The CPUs of one zone that a pod may have, by what is left of their cores; counts of CPUs, two to a core.

    Which CPUs an init container lends decides what later containers take over: an even request takes whole cores and
    leaves a lent half of a broken one alone. No API shows CPU ids of init containers, so how many cores are broken is
    not known for certain; each number that is possible makes a world of its own (decision 0004).

    Attributes:
        free_whole, free_single: free, with and without their sibling.
        lent_whole, lent_single: lent by an init container, with their sibling, or without.
        mixed: number of cores of which one CPU is lent and one free.
    """

    free_whole: int
    free_single: int
    lent_whole: int = 0
    lent_single: int = 0
    mixed: int = 0

    @classmethod
    def worlds(cls, free: int, *, broken: int, most: int) -> "list[CoreCounts]":
        """Return what `free` CPUs can be, the likeliest first: with as few broken cores as there must be.

        Args:
            broken: of how many cores at most one CPU is taken.
            most: so many broken cores matter at most.
        """
        least = free % 2
        single = range(least, max(least, min(free, broken, most)) + 1, 2)
        return [cls(free - count, count) for count in single]

    @property
    def left(self) -> int:
        """The number of CPUs to take."""
        return self.free_whole + self.free_single + self.lent_whole + self.lent_single + 2 * self.mixed

    @property
    def lent(self) -> int:
        """The number of CPUs that are lent and not taken."""
        return self.lent_whole + self.lent_single + self.mixed

    def take(self, need: int, *, lend: bool) -> int:
        """Take CPUs, whole cores first; returns how many of them were lent before.

        Args:
            need: not more than there are.
            lend: an init container takes them, and lends them on.
        """
        cores = min(need // 2, (self.lent_whole + self.free_whole) // 2 + self.mixed)
        lent = min(cores, self.lent_whole // 2)
        mixed = min(cores - lent, self.mixed)
        self.lent_whole -= 2 * lent
        self.mixed -= mixed
        self.free_whole -= 2 * (cores - lent - mixed)
        singles = need - 2 * cores
        lent_singles = min(singles, self.lent_single)
        free_singles = min(singles - lent_singles, self.free_single)
        self.lent_single -= lent_singles
        self.free_single -= free_singles
        again = 2 * lent + mixed + lent_singles
        if singles > lent_singles + free_singles:
            again += self._break_core(lend=lend)
        if lend:
            # Only now: a container does not take over what it has just taken itself.
            self.lent_whole += 2 * cores
            self.lent_single += lent_singles + free_singles
        return again

    def _break_core(self, *, lend: bool) -> bool:
        """Take one CPU of a whole core, that of the lowest id: of a lent core, then the lent one of a mixed core."""
        if self.lent_whole:
            self.lent_whole -= 0 if lend else 2
            self.lent_single += not lend
            return True
        if self.mixed:
            self.mixed -= not lend
            self.free_single += not lend
            return True
        self.free_whole -= 2
        self.mixed += lend
        self.free_single += not lend
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Spreading:
    """The unit by which a kubelet spreads.

    Attributes:
        group: CPUs that are taken together: those of a core with `full-pcpus-only`, else 1.
        threads: CPUs per core.
        at_least: zones that are taken at least, where there are so many: those of the affinity mask since 1.38
            (kubernetes/kubernetes#139456), before that 0.
        zones_per_socket: zones of a socket, which are numbered one after another.
        keeps_socket: zones of one socket go before others (`align-by-socket`, looked at here since 1.37,
            kubernetes/kubernetes#139778).
    """

    group: int
    threads: int
    at_least: int = 0
    zones_per_socket: int = 1
    keeps_socket: bool = False


def distribute(available: Mapping[int, int], capacity: Sequence[int], need: int, *, by: Spreading) -> dict[int, int]:
    """Split a number of CPUs over zones: evenly over as few as can have it, and so that what is left is even.

    Args:
        available: millicores by zone, of the zones that may be used and have some.
        capacity: millicores of each zone, reserved CPUs included.
        need: millicores; not more than is available.
    """
    if need // 1000 % by.group:
        return pack(available, capacity, need, threads=by.threads)
    taken = _Spread({zone: amount // 1000 for zone, amount in available.items()}, need // 1000, by).taken(capacity)
    if taken is None:
        return pack(available, capacity, need, threads=by.threads)
    return {zone: 1000 * count for zone, count in sorted(taken.items()) if count}


@dataclass(frozen=True, slots=True)
class _Choice:
    """Zones, how many each gives first, those that give the rest in turns, and how uneven that leaves all zones."""

    zones: tuple[int, ...]
    each: int
    rest: tuple[int, ...]
    unevenness: float


class _Spread:
    def __init__(self, free: Mapping[int, int], need: int, by: Spreading) -> None:
        self._free, self._need, self._by = free, need, by
        self._order = sorted(free, key=self._rank)

    def _rank(self, zone: int) -> tuple[int, ...]:
        """Zones with little free come first, where a socket has several after the socket with little free."""
        per_socket, own = self._by.zones_per_socket, (self._free[zone], zone)
        if per_socket == 1:
            return own
        socket = zone // per_socket
        return (sum(count for other, count in self._free.items() if other // per_socket == socket), socket, *own)

    def taken(self, capacity: Sequence[int]) -> dict[int, int] | None:
        group = self._by.group
        groups = (sum(capacity) // 1000 - 1) // group + 1
        per_zone = (groups - 1) // len(capacity) + 1
        needed = (self._need - 1) // group + 1
        first, last = (needed - 1) // per_zone + 1, min(needed, len(self._order))
        if first < self._by.at_least <= len(self._order):
            first = self._by.at_least
        for count in range(first, last + 1):
            choice = self._best(count)
            if choice is not None:
                left = dict(self._free)
                for zone in choice.zones:
                    left[zone] -= choice.each
                self._hand_out(left, choice.rest, self._need - choice.each * count)
                return {zone: self._free[zone] - left[zone] for zone in choice.zones}
        return None

    def _best(self, count: int) -> _Choice | None:
        best: _Choice | None = None
        together = False
        for zones in combinations(self._order, count):
            if best is not None and not best.unevenness and (not self._by.keeps_socket or together):
                break
            choice = self._choice(zones)
            if choice is None:
                continue
            same = self._by.keeps_socket and len({zone // self._by.zones_per_socket for zone in zones}) == 1
            better = choice.unevenness < (inf if best is None else best.unevenness)
            if same if same != together else better:
                best, together = choice, same
        return best

    def _choice(self, zones: tuple[int, ...]) -> _Choice | None:
        group, free = self._by.group, self._free
        if sum(free[zone] // group for zone in zones) * group < self._need:
            return None
        each = self._need // len(zones) // group * group
        if self._by.keeps_socket:
            each = min(each, *(free[zone] // group * group for zone in zones))
        if any(free[zone] < each for zone in zones):
            return None
        after = dict(free)
        for zone in zones:
            after[zone] -= each
        rest = self._need - each * len(zones)
        if not rest:
            return _Choice(zones, each, (), _deviation(after.values()))
        best: tuple[float, tuple[int, ...]] = inf, ()
        giving = [zone for zone in zones if after[zone] >= group]
        for count in range(len(giving), 0, -1):
            for some in combinations(giving, count):
                if sum(after[zone] for zone in some) >= rest:
                    left = dict(after)
                    self._hand_out(left, some, rest)
                    unevenness = _deviation(left.values())
                    if unevenness < best[0]:
                        best = unevenness, some
        return _Choice(zones, each, best[1], best[0]) if best[1] else None

    def _hand_out(self, left: dict[int, int], zones: tuple[int, ...], rest: int) -> None:
        """Take the rest from zones in turns, a group at a time."""
        group = self._by.group
        while rest > 0 and any(left[zone] >= group for zone in zones):
            for zone in zones:
                if rest > 0 and left[zone] >= group:
                    left[zone] -= group
                    rest -= group


def _deviation(counts: Iterable[int]) -> float:
    """The standard deviation, to three places as the kubelet rounds it (half up)."""
    figures = [float(count) for count in counts]
    mean = floor(sum(figures) / len(figures) * 1000 + 0.5) / 1000
    return floor(sqrt(sum((figure - mean) ** 2 for figure in figures) / len(figures)) * 1000 + 0.5) / 1000
