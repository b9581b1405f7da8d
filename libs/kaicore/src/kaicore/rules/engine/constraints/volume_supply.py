"""Existing volumes without a claim, and those of them that are given out.

`NodeColumns` has the supply beside its marks. Facts and decisions of earlier cycles define the free volumes at the
beginning of a cycle. In its own copy a cycle gives volumes to the pods that it places, and takes them back when it
undoes a placement.
"""

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass

from kaicore.rules.model.volume import PersistentVolume
from kaicore.rules.numa.zone_arrays import Ints


@dataclass(frozen=True, slots=True)
class Reach:
    """Which rows can use which volumes of a storage class, as a cycle begins.

    Attributes:
        groups: per row, the number of the group of rows that can use the same volumes.
        volumes: per group, its volumes, the smallest first, of equals by name.
        groups_of: the groups that can use a volume, by its name.
    """

    groups: Ints
    volumes: list[list[PersistentVolume]]
    groups_of: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class GivenVolume:
    """What a claim of a pod gets in a cycle.

    Attributes:
        name: the volume's; empty where one is provisioned, or where it was decided before the cycle.
        claim: `namespace/name` of a claim that several pods use and that is decided in this cycle; empty otherwise.
    """

    name: str
    claim: str = ""


class VolumeSupply:
    """Volumes made beforehand, as a cycle gives them out and takes them back."""

    def __init__(self) -> None:
        self._free: dict[str, dict[str, PersistentVolume]] = {}
        self._class_of: dict[str, str] = {}
        self._promised: dict[str, int] = {}
        self._reaches: dict[str, Reach] = {}
        self._given: dict[str, int] = {}
        #: How many pods of this cycle have which volume of a claim that several use; by claim, by the volume's name.
        self._shared: dict[str, dict[str, int]] = {}
        #: Names of volumes that this copy gave or took back, in order.
        self.changes: list[str] = []

    def copy(self) -> "VolumeSupply":
        """Return a supply that a cycle can give out."""
        other = copy(self)
        other._reaches = {}  # noqa: SLF001 - of the same class
        other._given = dict(self._given)  # noqa: SLF001
        other._shared = {claim: dict(names) for claim, names in self._shared.items()}  # noqa: SLF001
        other.changes = list(self.changes)
        return other

    # As facts and decisions have it.

    def set_volume(self, volume: PersistentVolume) -> None:
        """Know a volume as it is now: free is what is available, of no claim, and not about to go."""
        self.forget(volume.name)
        if volume.phase == "Available" and not volume.claimed and not volume.deleting:
            self._free.setdefault(volume.storage_class, {})[volume.name] = volume
            self._class_of[volume.name] = volume.storage_class

    def forget(self, name: str) -> None:
        """Know a volume no more."""
        storage_class = self._class_of.pop(name, None)
        if storage_class is not None:
            volumes = self._free[storage_class]
            del volumes[name]
            if not volumes:
                del self._free[storage_class]

    def promise(self, name: str, *, sign: int = 1) -> None:
        """A decision gave a volume to a placed pod's claim, or is undone (`sign=-1`)."""
        count = self._promised.get(name, 0) + sign
        if count:
            self._promised[name] = count
        else:
            del self._promised[name]

    # In a cycle.

    def reach(self, storage_class: str, build: Callable[[list[PersistentVolume]], Reach]) -> Reach:
        """Return who can use the volumes of a class that were free as the cycle began.

        Args:
            storage_class: the class.
            build: works it out, once, for volumes that come smallest first, of equals by name.
        """
        reach = self._reaches.get(storage_class)
        if reach is None:
            volumes = self._free.get(storage_class, {})
            free = [volume for name, volume in volumes.items() if name not in self._promised]
            free.sort(key=lambda volume: (volume.capacity, volume.name))
            reach = self._reaches[storage_class] = build(free)
        return reach

    def is_given(self, name: str) -> bool:
        """Tell whether this cycle has given a volume to a pod."""
        return bool(self._given.get(name))

    def given_to(self, claim: str) -> str | None:
        """Return what this cycle has given to a claim that several pods use; None if nothing is decided for it."""
        names = self._shared.get(claim)
        return min(names) if names else None

    def give(self, volumes: Iterable[GivenVolume], *, sign: int = 1) -> None:
        """Give volumes to a pod, or take them back with `sign=-1`."""
        for volume in volumes:
            if volume.name:
                self._given[volume.name] = self._given.get(volume.name, 0) + sign
                self.changes.append(volume.name)
            if volume.claim:
                names = self._shared.setdefault(volume.claim, {})
                names[volume.name] = names.get(volume.name, 0) + sign
                if not names[volume.name]:
                    del names[volume.name]
