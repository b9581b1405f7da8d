"""The cost of evicting pods: one integer, so that costs add up and compare.

Four figures, each above all that come after it:

1. the rank of the priority among all candidates, times the severity of the end (`Ending`);
2. the number of pods that go;
3. their size: of each pod its largest share of any resource of the largest node, in ten-thousandths, rounded up. Pod
   slots do not count. So of two victims the smaller goes where both suffice;
4. the minutes that they have run, up to `MOST_MINUTES` for pods that go together.

Equal costs are ordered by name, first name first.
"""

from enum import IntEnum

from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.events.payloads import EvictionCost
from kaicore.rules.model.pod import Amounts

MOST_MINUTES = 2**16 - 1
#: A minute, and what is above it: each has room for the sum of many victims.
_MINUTE, _SIZE, POD = 1, 2**24, 2**52
_RANK = 2**72

#: Parts of the largest node in which sizes are told.
_PARTS = 10_000
_SLOTS = "pods"


class Ending(IntEnum):
    """How bad it is for a group that some of its pods go, as a factor."""

    SHRINKS = 1
    """It goes on without them."""
    ENDS = 2
    """It ends as a whole, and starts anew."""
    FAILS = 4
    """A Job of its pods fails for good, for it counts the evictions and bears no more failures."""


def cost_of(*, rank: int, ending: Ending, pods: int, size: int, minutes: int) -> int:
    """Return the cost of pods that go together.

    Args:
        rank: of the priority, 1 for the lowest; summed over the groups that they are of.
        ending: for those groups.
        pods: how many they are.
        size: see `PodSizes`, summed over the pods.
        minutes: that they have run, summed over the pods.
    """
    return rank * ending * _RANK + pods * POD + size * _SIZE + min(minutes, MOST_MINUTES) * _MINUTE


def cost_parts(cost: int) -> EvictionCost:
    """Return the figures of a cost, as the log records them."""
    return EvictionCost(
        rank=cost // _RANK, pods=cost % _RANK // POD, size=cost % POD // _SIZE, minutes=cost % _SIZE // _MINUTE
    )


def minutes_run(since: int, *, now: int) -> int:
    """Return for how many whole minutes something has run; both times in microseconds since the epoch."""
    return max(now - since, 0) // 60_000_000


class PodSizes:
    """How much of a cluster's largest nodes pods hold."""

    def __init__(self, columns: NodeColumns) -> None:
        largest = columns.allocatable[columns.present].max(axis=0, initial=0)
        self._largest: dict[str, int] = {
            name: int(largest[index])
            for name, index in columns.resources.items()
            if name != _SLOTS and index < len(largest) and largest[index] > 0
        }

    def of(self, requests: Amounts) -> int:
        """Return the largest part of any resource, in ten-thousandths, rounded up; what no node has does not count."""
        return max(
            (-(-amount * _PARTS // self._largest[name]) for name, amount in requests.items() if name in self._largest),
            default=0,
        )
