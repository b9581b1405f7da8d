"""Affinity masks: bit sets of zones, in the order in which the kubelet prefers them.

Of two masks the kubelet prefers the one with fewer zones, and of equally many the one with the smaller value as a
number (`IsNarrowerThan`): {1,2} before {0,3}. Sets of masks are themselves bit sets, over the places of the masks in
that order, so that the lowest bit of a set is its most preferred mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

#: Nodes with more zones have only their masks of one and two zones, and of all zones, looked at. The kubelet itself
#: refuses to start with a Topology Manager policy on more than 8, unless max-allowable-numa-nodes says otherwise.
MAX_ENUMERATED_ZONES = 8

#: In place of the rest of a mask: it has no more zones; or it is not enumerated, for the mask is that of all zones.
_NOTHING, _ALL = -1, -2


@dataclass(frozen=True, slots=True)
class MaskTable:
    """All masks over `zones` zones, most preferred first.

    Attributes:
        masks: each mask as a number.
        places: where a mask stands in `masks`.
        zones_of: the zones of each mask, ascending.
        steps: how to sum over each mask: the place of the mask without its lowest zone, and that zone.
        of_width: set of the masks of each number of zones, 0 included.
        containing: set of the masks that contain each zone.
        slices: where the masks of each number of zones lie in `masks`.
    """

    zones: int
    masks: tuple[int, ...]
    places: dict[int, int]
    zones_of: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[int, int], ...]
    of_width: tuple[int, ...]
    containing: tuple[int, ...]
    slices: tuple[slice, ...]

    def __len__(self) -> int:
        return len(self.masks)

    @property
    def full(self) -> int:
        """The mask of all zones."""
        return (1 << self.zones) - 1

    def reaching(self, figures: Sequence[int], need: int) -> int:
        """Return the set of the masks with zones over which a figure sums to at least `need`."""
        reached, bit = 0, 1
        sums: list[int] = []
        for part, zone in self.steps:
            total = figures[zone] + (sums[part] if part >= 0 else 0)
            if part == _ALL:
                total = sum(figures)
            sums.append(total)
            if total >= need:
                reached |= bit
            bit <<= 1
        return reached

    def first_width(self, masks: int) -> int:
        """Return the fewest zones of any mask of a set; of an empty one, the number of all zones."""
        return self.zones if not masks else self.masks[lowest_place(masks)].bit_count()

    def with_all(self, zones: Sequence[int]) -> int:
        """Return the set of the masks that contain all of some zones."""
        containing_all = (1 << len(self.masks)) - 1
        for zone in zones:
            containing_all &= self.containing[zone]
        return containing_all


class Hints(msgspec.Struct, frozen=True, gc=False):
    """One provider's answer, as sets of masks; a provider without an opinion gives none.

    Attributes:
        resource: what it is about; the memory manager's carries the first of its resources.
        feasible: masks of zones with enough free.
        preferred: those of them with `width` zones.
        width: the fewest zones that could ever serve the request.
    """

    resource: str
    feasible: int
    preferred: int
    width: int


@lru_cache(maxsize=64)
def mask_table(zones: int) -> MaskTable:
    """Return the masks over a number of zones."""
    if zones <= MAX_ENUMERATED_ZONES:
        values = set(range(1, 1 << zones))
    else:
        ones = [1 << zone for zone in range(zones)]
        pairs = [low | high for index, low in enumerate(ones) for high in ones[index + 1 :]]
        values = {*ones, *pairs, (1 << zones) - 1}
    masks = tuple(sorted(values, key=lambda mask: (mask.bit_count(), mask)))
    of_width, containing = [0] * (zones + 1), [0] * zones
    for place, mask in enumerate(masks):
        of_width[mask.bit_count()] |= 1 << place
        for zone in zones_of(mask):
            containing[zone] |= 1 << place
    counts = [mask.bit_count() for mask in masks]
    places = {mask: place for place, mask in enumerate(masks)}
    return MaskTable(
        zones=zones,
        masks=masks,
        places=places,
        steps=tuple(
            (places.get(mask & (mask - 1), _ALL if mask & (mask - 1) else _NOTHING), lowest_place(mask))
            for mask in masks
        ),
        zones_of=tuple(zones_of(mask) for mask in masks),
        of_width=tuple(of_width),
        containing=tuple(containing),
        slices=tuple(
            slice(counts.index(width), counts.index(width) + counts.count(width)) if width in counts else slice(0, 0)
            for width in range(zones + 1)
        ),
    )


def lowest_place(masks: int) -> int:
    """Return the place of the most preferred mask of a set, -1 of an empty one."""
    return (masks & -masks).bit_length() - 1


def spread(distances: Sequence[Sequence[int]], zones: Sequence[int]) -> int:
    """Sum the distances over all ordered pairs of zones; among masks of equally many zones it ranks as the mean."""
    return sum(distances[one][other] for one in zones for other in zones)


@lru_cache(maxsize=4096)
def zones_of(mask: int) -> tuple[int, ...]:
    """Return the zones of a mask, ascending."""
    return tuple(zone for zone in range(mask.bit_length()) if mask >> zone & 1)
