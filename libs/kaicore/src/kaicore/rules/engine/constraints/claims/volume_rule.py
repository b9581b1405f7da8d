"""Volumes for claims that wait for their first consumer: the rows that have some left, and the volumes of a pod there.

Source: kube-scheduler's plugin VolumeBinding. On a node, claims that ask for less choose first. Each takes the smallest
sufficient volume, of equals the first by name. A claim that finds none is provisioned, where its class does that.

Rows from which the same volumes can be used are one group and evaluated once. A volume that is given out affects only
its groups.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from kaicore.rules.engine.constraints.claims.demands import Terms, WantedVolume, volume_places
from kaicore.rules.engine.constraints.claims.supplies import GivenVolume, Reach
from kaicore.rules.engine.constraints.node_filter import MaskFilter
from kaicore.rules.engine.constraints.node_matching import affine
from kaicore.rules.engine.constraints.pod_marks import settled_mark
from kaicore.rules.engine.constraints.pod_rules import NO_LIMIT
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.events.reasons.node import NoVolumeLeft, VolumeOutOfReach
from kaicore.rules.model.volume import PersistentVolume
from kaicore.rules.numa.columns import Flags, Ints


class VolumeRule:
    """The wishes of a class for volumes of one storage class, on the rows as they are now.

    Attributes:
        binding: whether there is a row where the storage class provisions nothing.
    """

    def __init__(self, wanted: Sequence[WantedVolume], columns: NodeColumns) -> None:
        """Args:
        wanted: of one storage class, at least one.
        """
        self._wanted = tuple(wanted)
        self._columns = columns
        first = wanted[0]
        self._name = first.storage_class
        self._provides = first.provisioned
        rows = len(columns.present)
        self._provided: Flags = affine(columns, first.topologies) if first.provisioned else np.zeros(rows, np.bool_)
        self._reach = columns.volumes.reach(self._name, lambda volumes: _reach(columns, volumes))
        self.binding = not self._provided.all()
        self._active: tuple[WantedVolume, ...] | None = None
        self._served: Flags = np.zeros(len(self._reach.volumes), np.bool_)
        self._seen = 0
        self._reachable: Flags = self._provided
        if self.binding:
            own = [item for item in self._wanted if not item.claim]
            served = [all(_chosen(own, volumes, lambda _: False)) for volumes in self._reach.volumes]
            self._reachable = self._provided | np.array(served, np.bool_)[self._reach.groups]

    def choose(self, row: int) -> list[GivenVolume]:
        """Return for each that is wanted what it gets on a row."""
        supply, active = self._columns.volumes, self._now_wanted()
        volumes = self._reach.volumes[int(self._reach.groups[row])]
        chosen = iter(_chosen(active, volumes, supply.is_given))
        given: list[GivenVolume] = []
        for item in self._wanted:
            if item in active:
                given.append(GivenVolume(next(chosen), item.claim))
            elif self._is_settled(item):
                given.append(GivenVolume(""))
            else:
                given.append(GivenVolume(supply.given_to(item.claim) or "", item.claim))
        return given

    def filters(self) -> list[MaskFilter]:
        """See `PodRule.filters`."""
        return [self._filter(~self._serving())]

    def limits(self) -> Ints:
        """See `PodRule.limits`; how many volumes are left is not looked at."""
        return np.where(self._serving(), NO_LIMIT, 0)

    def _serving(self) -> Flags:
        self._catch_up()
        serving: Flags = self._provided | self._served[self._reach.groups]
        return serving

    @property
    def unreachable(self) -> MaskFilter:
        """Rows that had nothing for it as the cycle began: nothing in a cycle makes them fewer."""
        return self._filter(~self._reachable)

    def _filter(self, mask: Flags) -> MaskFilter:
        if self._provides:
            detail = {"constraint": f"topologies of storage class {self._name}"}
            return MaskFilter(self._columns, VolumeOutOfReach, mask, detail)
        return MaskFilter(self._columns, NoVolumeLeft, mask, {"storage_class": self._name})

    def _now_wanted(self) -> tuple[WantedVolume, ...]:
        given_to = self._columns.volumes.given_to
        return tuple(
            item
            for item in self._wanted
            if not (item.claim and (self._is_settled(item) or given_to(item.claim) is not None))
        )

    def _is_settled(self, item: WantedVolume) -> bool:
        """Tell whether a pod that was placed before this cycle uses the claim, so that its volume is decided."""
        return bool(item.claim and self._columns.marks.counts(settled_mark(item.claim)))

    def _catch_up(self) -> None:
        supply, active = self._columns.volumes, self._now_wanted()
        changed: Iterable[int] = range(len(self._served))
        if active == self._active:
            groups_of = self._reach.groups_of
            changed = {group for name in supply.changes[self._seen :] for group in groups_of.get(name, ())}
        self._active, self._seen = active, len(supply.changes)
        for group in changed:
            self._served[group] = all(_chosen(active, self._reach.volumes[group], supply.is_given))


def _chosen(
    wanted: Sequence[WantedVolume], volumes: Sequence[PersistentVolume], is_given: Callable[[str], bool]
) -> list[str]:
    """Return for each that is wanted the volume that it gets, empty for none.

    Args:
        wanted: of one storage class, those that ask for less first.
        volumes: the smallest first.
        is_given: whether a volume is another pod's already.
    """
    chosen: list[str] = []
    for item in wanted:
        left = (volume for volume in volumes if not is_given(volume.name) and volume.name not in chosen)
        chosen.append(next((volume.name for volume in left if item.fits(volume)), ""))
    return chosen


def _reach(columns: NodeColumns, volumes: Sequence[PersistentVolume]) -> Reach:
    by_places: dict[tuple[Terms, ...], list[int]] = {}
    for number, volume in enumerate(volumes):
        places = tuple(terms for _, terms in volume_places(volume, what=""))
        by_places.setdefault(places, []).append(number)
    lookup = _Lookup(columns)
    rows = [lookup.rows(places) for places in by_places]
    held = list(by_places.values())
    of_row: dict[int, list[int]] = {}
    for number, usable_from in enumerate(rows):
        for row in usable_from.tolist():
            of_row.setdefault(row, []).append(number)
    numbers: dict[tuple[int, ...], int] = {(): 0}
    groups = np.zeros(len(columns.present), np.int64)
    for row, kinds in of_row.items():
        groups[row] = numbers.setdefault(tuple(kinds), len(numbers))
    volumes_of: list[list[PersistentVolume]] = []
    groups_of: dict[str, list[int]] = {}
    for group, kinds_of in enumerate(numbers):
        # Numbers of volumes ascend from small to large.
        members = [volumes[number] for number in sorted(number for kind in kinds_of for number in held[kind])]
        volumes_of.append(members)
        for volume in members:
            groups_of.setdefault(volume.name, []).append(group)
    return Reach(groups, volumes_of, groups_of)


class _Lookup:
    """Finds the rows of many places; there may be one for every node, so that most are looked up by label value."""

    def __init__(self, columns: NodeColumns) -> None:
        self._columns = columns
        self._by_value: dict[str, dict[str, Ints]] = {}

    def rows(self, places: tuple[Terms, ...]) -> Ints:
        """Return the rows where all places' terms hold, ascending."""
        common: Ints | None = None
        for terms in places:
            rows = self._rows(terms)
            common = rows if common is None else np.intersect1d(common, rows, assume_unique=True)
        return np.arange(len(self._columns.present)) if common is None else common

    def _rows(self, terms: Terms) -> Ints:
        if len(terms) == 1 and len(terms[0]) == 1 and terms[0][0].operator == "In" and not terms[0][0].field:
            (requirement,) = terms[0]
            by_value = self._values(requirement.key)
            rows = [by_value[value] for value in requirement.values if value in by_value]
            return np.sort(np.concatenate(rows)) if rows else np.zeros(0, np.int64)
        return np.flatnonzero(affine(self._columns, terms))

    def _values(self, key: str) -> dict[str, Ints]:
        rows_by_value = self._by_value.get(key)
        if rows_by_value is None:
            codes, values = self._columns.label_values(key)
            order = np.argsort(codes, kind="stable")
            starts = np.searchsorted(codes[order], np.arange(len(values) + 1))
            rows_by_value = self._by_value[key] = {
                value: order[starts[code] : starts[code + 1]] for code, value in enumerate(values)
            }
        return rows_by_value
