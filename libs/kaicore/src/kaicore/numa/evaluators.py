"""Will the kubelet admit the pod, and on which zones: one evaluator per Topology Manager policy, behind one interface.

An evaluator merges the providers' hints for one container (or pod) into a mask. The walk over the containers, each
allocated before the next is looked at, is the same for all policies (`kaicore.numa.admission`).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kaicore.model.node import TopologyPolicy
from kaicore.numa.columns import Flags, Ints
from kaicore.numa.hints import Headroom, Hints
from kaicore.numa.requests import is_memory


@dataclass(frozen=True, slots=True)
class Merged:
    """The merge for one container on some nodes.

    Attributes:
        admit: whether the kubelet would go on; shape (rows,).
        mask: zones of the merged hint, 0 for any; shape (rows,).
        aligned: whether CPUs and devices are taken within the mask; where not, only memory is; shape (rows,).
    """

    admit: Flags
    mask: Ints
    aligned: Flags


class NumaEvaluator(Protocol):
    """A Topology Manager policy's verdict."""

    def merge(self, headroom: Headroom, hints: list[Hints]) -> Merged:
        """Merge the providers' hints."""
        ...


class SingleNumaNodeEvaluator:
    """`single-numa-node`: one zone must have it all; the lowest such zone is taken."""

    def merge(self, headroom: Headroom, hints: list[Hints]) -> Merged:
        """See `NumaEvaluator`."""
        table = headroom.table
        return _first_common(headroom, hints, np.broadcast_to(table.widths == 1, (len(headroom.rows), len(table))))


class RestrictedEvaluator:
    """`restricted`: one mask must be a preferred hint of every provider (the seed's reduction of the hint merge)."""

    def merge(self, headroom: Headroom, hints: list[Hints]) -> Merged:
        """See `NumaEvaluator`."""
        return _first_common(headroom, hints, np.ones((len(headroom.rows), len(headroom.table)), np.bool_))


class BestEffortEvaluator:
    """`best-effort`: aligned where a common preferred mask exists; otherwise only a memory manager can still refuse."""

    def merge(self, headroom: Headroom, hints: list[Hints]) -> Merged:
        """See `NumaEvaluator`."""
        aligned = RestrictedEvaluator().merge(headroom, hints)
        alone = NonePolicyEvaluator().merge(headroom, hints)
        return Merged(
            aligned.admit | alone.admit,
            np.where(aligned.admit, aligned.mask, alone.mask),
            aligned.admit,
        )


class NonePolicyEvaluator:
    """`none`: nothing is aligned, but a Static memory manager refuses what no mask of zones can hold."""

    def merge(self, headroom: Headroom, hints: list[Hints]) -> Merged:
        """See `NumaEvaluator`."""
        unaligned = np.zeros(len(headroom.rows), np.bool_)
        memory = next((hint for hint in hints if is_memory(hint.resource)), None)
        if memory is None:
            return Merged(~unaligned, np.zeros(len(headroom.rows), np.int64), unaligned)
        # The narrowest feasible mask, of those the lowest: the masks are in that order.
        first = memory.feasible.argmax(axis=1)
        admit = memory.feasible.any(axis=1) | memory.silent
        mask = np.where(memory.silent | ~admit, 0, headroom.table.bits[first])
        return Merged(admit, mask, unaligned)


def _first_common(headroom: Headroom, hints: list[Hints], allowed: Flags) -> Merged:
    common = allowed.copy()
    silent = np.ones(len(headroom.rows), np.bool_)
    for hint in hints:
        common &= hint.preferred | hint.silent[:, None]
        silent &= hint.silent
    admit = common.any(axis=1) | silent
    mask = np.where(silent | ~admit, 0, headroom.table.bits[common.argmax(axis=1)])
    return Merged(admit, mask, ~silent)


EVALUATORS: dict[TopologyPolicy, NumaEvaluator] = {
    TopologyPolicy.SINGLE_NUMA_NODE: SingleNumaNodeEvaluator(),
    TopologyPolicy.RESTRICTED: RestrictedEvaluator(),
    TopologyPolicy.BEST_EFFORT: BestEffortEvaluator(),
    TopologyPolicy.NONE: NonePolicyEvaluator(),
}
