"""The static CPU manager's choice of CPUs, as far as counts determine it.

Source: Kubernetes v1.36, `pkg/kubelet/cm/cpumanager/cpu_assignment.go`, takeByTopology.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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
            free: CPUs.
            broken: of how many cores at most one CPU is taken.
            most: so many broken cores matter at most.
        """
        least = free % 2
        single = range(least, max(least, min(free, broken, most)) + 1, 2)
        return [cls(free - count, count) for count in single]

    @property
    def left(self) -> int:
        """How many CPUs there are to take."""
        return self.free_whole + self.free_single + self.lent_whole + self.lent_single + 2 * self.mixed

    @property
    def lent(self) -> int:
        """How many CPUs are lent and not taken."""
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
