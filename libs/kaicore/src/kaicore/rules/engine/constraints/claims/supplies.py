"""Supplies of nodes for claims: free devices and existing volumes, as a cycle gives them out and takes them back.

`NodeColumns` has the supplies beside its marks. Facts and decisions of earlier cycles define them at the beginning of a
cycle. In its own copy a cycle gives devices and volumes to the pods that it places, and takes them back when it undoes
a placement. Where pods use no claims they are empty and never read.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from kaicore.rules.devices.pools import Holdings, Pool, PoolId, PoolSlice, pool_slice, pools_of_node
from kaicore.rules.model.device import AllocatedDevice, Allocation, ExtendedClaim, ResourceSlice
from kaicore.rules.model.node import Node
from kaicore.rules.model.volume import PersistentVolume
from kaicore.rules.numa.columns import Ints

_Key = TypeVar("_Key")


class GivenClaim(NamedTuple):
    """The devices that a claim of a pod gets in a cycle.

    Attributes:
        claim: `namespace/name` of a claim that several pods use; empty otherwise.
    """

    allocation: Allocation
    claim: str = ""


class PodDevices(NamedTuple):
    """The devices of a placed pod's claims.

    Attributes:
        given: what claims are to be allocated, by name.
        reserved: names of those that are allocated already.
        extended: of `given`, the claim that is to be made for the pod's extended resources; None for none.
    """

    given: dict[str, Allocation]
    reserved: tuple[str, ...] = ()
    extended: ExtendedClaim | None = None


class DeviceSupply:
    """Slices, and what claims have of their devices."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[str, PoolSlice]] = {}
        self._network: dict[str, PoolSlice] = {}
        self._by_pool: dict[PoolId, dict[str, PoolSlice]] = {}
        self._pools: dict[str, tuple[Node | None, tuple[Pool, ...]]] = {}
        self._held = Holdings()
        #: Devices that are free again once a pod has ended, by the pod's uid: those of claims that are its own.
        self._of_pod: dict[str, tuple[AllocatedDevice, ...]] = {}
        #: Claims that several pods use and that this cycle gave devices to, with how many pods use them.
        self._given: dict[str, tuple[Allocation, int]] = {}
        #: Pools of which this copy gave devices out or took them back, in order.
        self.changes: list[PoolId] = []

    def copy(self) -> "DeviceSupply":
        """Return a supply that a cycle can give out."""
        other = copy(self)
        # A cycle changes far less than there is.
        other._held = Holdings(self._held)  # noqa: SLF001 - of the same class
        other._given = dict(self._given)  # noqa: SLF001
        other.changes = list(self.changes)
        return other

    # As facts and decisions have it.

    def set_slice(self, of: ResourceSlice) -> None:
        """Know a slice as it is now."""
        made = pool_slice(of)
        self._by_pool.setdefault((of.driver, of.pool), {})[of.name] = made
        if of.nodes is not None and of.nodes.node:
            self._by_node.setdefault(of.nodes.node, {})[of.name] = made
        else:
            self._network[of.name] = made
        self._forget_pools(of)

    def forget_slice(self, of: ResourceSlice) -> None:
        """Know a slice no more; harmless where it is not known.

        Args: of: the slice as it was known, or another version of it of the same pool and node.
        """
        self._network.pop(of.name, None)
        _drop(self._by_pool, (of.driver, of.pool), of.name)
        if of.nodes is not None and of.nodes.node:
            _drop(self._by_node, of.nodes.node, of.name)
        self._forget_pools(of)

    def slices_of_pool(self, pool: PoolId) -> Sequence[PoolSlice]:
        """Return every slice of a pool, whichever nodes it is for."""
        return list(self._by_pool.get(pool, {}).values())

    def slices_of_node(self, node: str) -> Sequence[PoolSlice]:
        """Return the slices with devices that a node alone can use."""
        return list(self._by_node.get(node, {}).values())

    def hold(self, devices: Iterable[AllocatedDevice], *, sign: int = 1) -> None:
        """A claim has devices by a fact or a decision, or has them no more (`sign=-1`)."""
        self._held.change(devices, sign=sign)

    def set_own(self, uid: str, devices: tuple[AllocatedDevice, ...]) -> None:
        """Know which devices are free again once a pod has ended."""
        if devices:
            self._of_pod[uid] = devices
        else:
            self._of_pod.pop(uid, None)

    def is_of_one_node(self, pool: PoolId) -> bool:
        """Tell whether one node alone can use a pool's devices; then what is given of them is guarded by its stream."""
        nodes = {
            "" if one.slice.nodes is None else one.slice.nodes.node for one in self._by_pool.get(pool, {}).values()
        }
        return len(nodes) == 1 and "" not in nodes

    @property
    def nodes_with_devices(self) -> Iterable[str]:
        """Names of nodes with slices of their own, in no particular order."""
        return self._by_node

    # In a cycle.

    @property
    def held(self) -> Holdings:
        """The holdings of claims as they are now."""
        return self._held

    def pools(self, node: Node) -> tuple[Pool, ...]:
        """Return the pools of a node, in the order in which they are tried."""
        kept = self._pools.get(node.name)
        if kept is not None and kept[0] is node:
            return kept[1]
        local = self._by_node.get(node.name, {})
        slices = [*local.values(), *self._network.values()]
        pools = pools_of_node(node.name, node.labels, slices, self.slices_of_pool)
        self._pools[node.name] = node, pools
        return pools

    def given_to(self, claim: str) -> Allocation | None:
        """Return what this cycle has given to a claim that several pods use; None if nothing."""
        given = self._given.get(claim)
        return None if given is None else given[0]

    def give(self, claims: Iterable[GivenClaim], *, sign: int = 1) -> None:
        """Give devices to claims of a pod, or take them back with `sign=-1`."""
        for given in claims:
            if given.claim:
                before = self._given.get(given.claim)
                count = (0 if before is None else before[1]) + sign
                if count:
                    self._given[given.claim] = (given.allocation if before is None else before[0]), count
                else:
                    del self._given[given.claim]
                if (before is not None and sign > 0) or (sign < 0 and count):
                    continue
            self._change(given.allocation.devices, sign)

    def leave(self, uid: str, *, sign: int) -> None:
        """A pod that has devices of its own is evicted in this cycle (`sign=-1`), or stays after all."""
        self._change(self._of_pod.get(uid, ()), sign)

    @property
    def may_be_freed(self) -> bool:
        """True if the end of any pod frees devices."""
        return bool(self._of_pod)

    def _change(self, devices: Sequence[AllocatedDevice], sign: int) -> None:
        self._held.change(devices, sign=sign)
        self.changes += dict.fromkeys((device.driver, device.pool) for device in devices)

    def _forget_pools(self, of: ResourceSlice) -> None:
        if of.nodes is not None and of.nodes.node and not self._network:
            self._pools.pop(of.nodes.node, None)
        else:
            self._pools.clear()


def _drop(slices: dict[_Key, dict[str, PoolSlice]], key: _Key, name: str) -> None:
    of_key = slices.get(key, {})
    of_key.pop(name, None)
    if not of_key:
        slices.pop(key, None)


@dataclass(frozen=True, slots=True)
class Reach:
    """The volumes of a storage class that each row can use, as a cycle begins.

    Attributes:
        groups: per row, the number of the group of rows that can use the same volumes.
        volumes: per group, its volumes, the smallest first, of equals by name.
    """

    groups: Ints
    volumes: list[list[PersistentVolume]]
    groups_of: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class GivenVolume:
    """The volume that a claim of a pod gets in a cycle.

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
