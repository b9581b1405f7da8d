"""Affinity masks: bit sets of zones, in the order in which the kubelet prefers them.

Of two masks the kubelet prefers the one with fewer zones, and of equally many the one with the smaller value as a
number (`IsNarrowerThan`): {1,2} before {0,3}.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

#: Nodes with more zones have only their masks of one and two zones, and of all zones, looked at. The kubelet itself
#: refuses to start with a Topology Manager policy on more than 8, unless max-allowable-numa-nodes says otherwise.
MAX_ENUMERATED_ZONES = 8


@dataclass(frozen=True, slots=True)
class MaskTable:
    """All masks over `zones` zones, most preferred first.

    Attributes:
        bits: each mask as a number; shape (masks,).
        members: 1 where a zone belongs to a mask; shape (masks, zones).
        widths: number of zones of each mask; shape (masks,).
    """

    zones: int
    bits: npt.NDArray[np.int64]
    members: npt.NDArray[np.int64]
    widths: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bits)


@lru_cache(maxsize=64)
def mask_table(zones: int) -> MaskTable:
    """Return the masks over a number of zones."""
    if zones <= MAX_ENUMERATED_ZONES:
        values = range(1, 1 << zones)
    else:
        ones = [1 << zone for zone in range(zones)]
        pairs = [low | high for index, low in enumerate(ones) for high in ones[index + 1 :]]
        values = [*ones, *pairs, (1 << zones) - 1]  # type: ignore[assignment]
    ordered = sorted(values, key=lambda mask: (mask.bit_count(), mask))
    members = np.array([[mask >> zone & 1 for zone in range(zones)] for mask in ordered], dtype=np.int64)
    members = members.reshape(len(ordered), zones)
    return MaskTable(zones, np.array(ordered, dtype=np.int64), members, members.sum(axis=1))


def zones_of(mask: int) -> tuple[int, ...]:
    """Return the zones of a mask, ascending."""
    return tuple(zone for zone in range(mask.bit_length()) if mask >> zone & 1)
