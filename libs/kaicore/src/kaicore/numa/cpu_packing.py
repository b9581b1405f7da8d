"""From which zones the static CPU manager takes CPUs, in counts (`cpumanager/cpu_assignment.go`, takeByTopology)."""

from collections.abc import Mapping, Sequence


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
