"""The device manager: devices of device plugins, for pods of every QoS class.

`devicemanager/manager.go`, `devicemanager/topology_hints.go`.
"""

from dataclasses import dataclass, field
from functools import lru_cache

from kai_fleet.kubelet.hints import IMPOSSIBLE, Affinity, Hints
from kai_fleet.kubelet.machine import Device, KubeletConfig, Machine, bits, highest, lowest, members, nonempty_subsets
from kai_fleet.kubelet.pod import Container, Pod, allocation_failed


class DevicePool:
    """The devices of one resource, numbered in the order of their ids; sets of devices are bit sets of numbers."""

    def __init__(self, devices: tuple[Device, ...]) -> None:
        self.devices = tuple(sorted(devices, key=lambda device: device.id))
        self.healthy = bits(number for number, device in enumerate(self.devices) if device.healthy)
        hosting = 0
        for device in self.devices:
            hosting |= device.zones
        self.with_topology = bits(number for number, device in enumerate(self.devices) if device.zones)
        #: Set of zones that host devices → the devices with at least one zone in it.
        self.touching = {
            mask: bits(number for number, device in enumerate(self.devices) if device.zones & mask)
            for mask in (nonempty_subsets(hosting) if hosting else ())
        }
        self.of_zone = {zone: self.touching[1 << zone] for zone in members(hosting)}
        self.hosting = hosting

    def ids(self, devices: int) -> list[str]:
        """Return the ids of a set of devices, sorted."""
        return [self.devices[number].id for number in members(devices)]

    def numbers(self, ids: list[str]) -> int:
        """Return the set of the devices with these ids; unknown ones are left out."""
        wanted = set(ids)
        return bits(number for number, device in enumerate(self.devices) if device.id in wanted)


@dataclass(slots=True)
class DeviceManager:
    """The holders of devices."""

    machine: Machine
    config: KubeletConfig
    pools: dict[str, DevicePool] = field(default_factory=dict)
    #: uid → container → resource → devices.
    assigned: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    #: Resource → devices that are in use.
    in_use: dict[str, int] = field(default_factory=dict)
    _reusable: dict[str, int] = field(default_factory=dict)
    _reusable_uid: str = ""

    def __post_init__(self) -> None:
        self.pools = {resource: pool_of(devices) for resource, devices in self.machine.devices.items()}

    def set_health(self, resource: str, device_id: str, *, healthy: bool) -> None:
        """Take note of what a plugin says of one of its devices; pods that hold it keep it.

        Raises KeyError: there is no such device.
        """
        pool = self.pools[resource]
        if not any(device.id == device_id for device in pool.devices):
            raise KeyError(device_id)
        self.pools[resource] = DevicePool(
            tuple(
                Device(device.id, device.zones, healthy if device.id == device_id else device.healthy)
                for device in pool.devices
            )
        )

    def container_hints(self, pod: Pod, container: Container) -> list[Hints | None]:
        """One entry per device resource among the container's limits, one with an explicit 0 included."""
        lent = self._reusable if self._reusable_uid == pod.uid else {}
        return [
            self._hints(resource, requested, reusable=lent.get(resource, 0))
            for resource, requested in sorted(container.limits.items())
            if resource in self.pools
        ]

    def pod_hints(self, pod: Pod) -> list[Hints | None]:
        """The same for the pod's limits as a whole; overhead and pod-level resources do not count."""
        limits = pod.total(lambda container: container.limits)
        return [
            self._hints(resource, requested, reusable=0)
            for resource, requested in sorted(limits.items())
            if resource in self.pools
        ]

    def _free(self, resource: str) -> int:
        return self.pools[resource].healthy & ~self.in_use.get(resource, 0)

    def _hints(self, resource: str, requested: int, *, reusable: int) -> Hints | None:
        pool = self.pools[resource]
        if not pool.with_topology:
            return None
        free = self._free(resource)
        if (free | reusable).bit_count() < requested:
            return IMPOSSIBLE
        free |= reusable
        reusable &= pool.with_topology
        width = pool.hosting.bit_count()
        masks: list[int] = []
        for mask, devices in pool.touching.items():
            # The width counts registered devices, unhealthy ones too.
            if mask.bit_count() < width and devices.bit_count() >= requested:
                width = mask.bit_count()
            if not reusable & ~devices and (free & devices).bit_count() >= requested:
                masks.append(mask)
        return Hints(tuple(masks), tuple(mask for mask in masks if mask.bit_count() == width))

    def allocate(self, pod: Pod, container: Container, affinity: Affinity) -> None:
        """Give the container its devices: those lent by init containers, then those inside the affinity, then any.

        Raises AdmissionError: there are not enough healthy free ones.
        """
        if self._reusable_uid != pod.uid:
            self._reusable, self._reusable_uid = {}, pod.uid
        for resource, requested in sorted(container.limits.items()):
            if resource not in self.pools:
                continue
            taken = self._take(resource, requested, affinity)
            if not taken:
                continue
            self.assigned.setdefault(pod.uid, {}).setdefault(container.name, {})[resource] = taken
            self.in_use[resource] = self.in_use.get(resource, 0) | taken
            lent = self._reusable.get(resource, 0)
            self._reusable[resource] = lent | taken if container.kind == "init" else lent & ~taken

    def _take(self, resource: str, requested: int, affinity: Affinity) -> int:
        pool = self.pools[resource]
        if not pool.healthy:
            raise allocation_failed(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        taken = lowest(self._reusable.get(resource, 0), requested)
        needed = requested - taken.bit_count()
        if not needed:
            return taken
        free = self._free(resource) & ~taken
        if free.bit_count() < needed:
            raise allocation_failed(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {free.bit_count()}"
            )
        aligned, unaligned, unplaced = self._by_affinity(pool, free, affinity)
        if needed < aligned.bit_count():
            return taken | self._choose(resource, aligned, needed)
        taken |= aligned
        needed -= aligned.bit_count()
        free &= ~aligned
        if needed and resource in self.config.preferred_allocation:
            return taken | highest(free, needed)
        first = lowest(unaligned, needed)
        return taken | first | lowest(unplaced, needed - first.bit_count())

    def _choose(self, resource: str, devices: int, count: int) -> int:
        return (highest if resource in self.config.preferred_allocation else lowest)(devices, count)

    @staticmethod
    def _by_affinity(pool: DevicePool, free: int, affinity: Affinity) -> tuple[int, int, int]:
        """Split free devices into those of the affinity's zones, of other zones, and without an opinion on zones.

        A device of several zones belongs to the first of them in the order: inside the affinity, outside it.
        """
        if not pool.with_topology or affinity.mask is None:
            return 0, 0, free
        aligned = free & pool.touching.get(affinity.mask & pool.hosting, 0)
        unplaced = free & ~pool.with_topology
        return aligned, free & ~aligned & ~unplaced, unplaced

    def restore(self, uid: str, container: str, resource: str, ids: list[str]) -> None:
        """Take up an assignment from a checkpoint; devices that are gone are left out."""
        if resource not in self.pools:
            return
        devices = self.pools[resource].numbers(ids)
        self.assigned.setdefault(uid, {}).setdefault(container, {})[resource] = devices
        self.in_use[resource] = self.in_use.get(resource, 0) | devices

    def release(self, uid: str) -> None:
        """Free all devices of a pod."""
        for held in self.assigned.pop(uid, {}).values():
            for resource, devices in held.items():
                self.in_use[resource] &= ~devices


@lru_cache(maxsize=4096)
def pool_of(devices: tuple[Device, ...]) -> DevicePool:
    """Return the pool of these devices; nodes that are alike share one, since a pool never changes."""
    return DevicePool(devices)
