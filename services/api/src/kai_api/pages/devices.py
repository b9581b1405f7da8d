"""Devices of resource claims: which a node has and who has them, and what the claims of a pod have."""

from dataclasses import dataclass

from kaicore.rules.devices.allocation import NUMA_NODE
from kaicore.rules.devices.pools import PooledDevice
from kaicore.rules.model.device import AllocatedDevice, DeviceRequest, PodClaim
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.quantity import MEMORY, format_amount
from kaicore.rules.state.registries.device_registry import resource_claim_keys
from kaicore.rules.state.views import FleetView

#: Devices of a node that are shown.
MOST_DEVICES = 200
#: Taints with one of these effects keep requests off.
_KEEPS_OFF = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """A claim that has a device.

    Attributes:
        key: the claim's `namespace/name`.
        pods: that use it, as namespace and name.
        recorded: whether the claim's own status says so, and not only a decision.
        share: what it takes of a shared device, for people; empty where it has all of it.
    """

    key: str
    pods: tuple[tuple[str, str], ...]
    recorded: bool
    share: str


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device that pods on a node can use.

    Attributes:
        zones: NUMA zones that it is close to, as its driver says; empty where it does not.
        uses: who has it; empty when it is free.
        remarks: what keeps it from being given out.
    """

    name: str
    driver: str
    pool: str
    zones: str
    uses: tuple[ClaimUse, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The devices of a node.

    Attributes:
        rows: the first of `total`.
        taken: how many any claim has.
        problems: of pools from which nothing is given out.
    """

    rows: tuple[DeviceRow, ...]
    total: int
    taken: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClaimLine:
    """A claim of a pod.

    Attributes:
        name: by which the pod's containers name it.
        claim: the object's name; empty as long as it is not made.
        asks: for what, for people.
        devices: that it has, each with its zones.
        standing: `allocated`, `decided, not yet written`, or `has nothing yet`.
    """

    name: str
    claim: str
    asks: str
    devices: tuple[str, ...]
    standing: str


def node_devices(state: FleetView, row: int) -> NodeDevices | None:
    """Return the devices that claims can have on a node; None where none are published for it."""
    node = state.columns.facts[row]
    assert node is not None
    pools = state.columns.devices.pools(node)
    if not pools:
        return None
    uses = _uses(state)
    every = [device for pool in pools for device in pool.devices]
    return NodeDevices(
        rows=tuple(_row(device, uses) for device in every[:MOST_DEVICES]),
        total=len(every),
        taken=sum(device.id in uses for device in every),
        problems=tuple(pool.problem for pool in pools if pool.problem),
    )


def claimed(state: FleetView) -> tuple[int, int]:
    """Return of how many devices any claim has some, and how many are published."""
    registry = state.constraints.devices
    published = {
        (one.driver, one.pool, device.name) for one in registry.slices.slices.values() for device in one.devices
    }
    return len(published & _uses(state).keys()) if published else 0, len(published)


def claim_lines(state: FleetView, pod: Pod) -> tuple[ClaimLine, ...]:
    """Return what the claims of a pod have."""
    return tuple(_claim_line(state, pod, use) for use in pod.resource_claims)


def asked_of_claims(state: FleetView, pod: Pod) -> str:
    """Write what a pod's claims ask for, in short; empty without claims."""
    return ", ".join(f"{line.asks} by claim" for line in claim_lines(state, pod) if line.asks)


def _claim_line(state: FleetView, pod: Pod, use: PodClaim) -> ClaimLine:
    registry = state.constraints.devices
    key = f"{pod.namespace}/{use.claim}"
    claim = registry.claims.get(key) if use.claim else None
    if claim is None:
        standing = f"is not made yet from template {use.template}" if use.template else "does not exist"
        return ClaimLine(use.name, use.claim, "", (), "needs none" if use.needless else standing)
    allocation = registry.allocation(key)
    standing = "has nothing yet"
    if allocation is not None:
        standing = "allocated" if claim.allocation is not None else "decided, not yet in the claim's status"
    return ClaimLine(
        name=use.name,
        claim=use.claim,
        asks=", ".join(map(_asked, claim.requests)),
        devices=() if allocation is None else tuple(_device_text(state, one) for one in allocation.devices),
        standing=standing,
    )


def _asked(request: DeviceRequest) -> str:
    if request.alternatives:
        return " or ".join(map(_asked, request.alternatives))
    count = "all" if request.mode == "All" else str(request.count)
    return f"{count} {request.device_class}"


def _device_text(state: FleetView, one: AllocatedDevice) -> str:
    zones = _zones_of(one.numa) or _published_zones(state, one)
    return f"{one.device} of {one.pool}" + (f", NUMA {zones}" if zones else "")


def _published_zones(state: FleetView, one: AllocatedDevice) -> str:
    """The zones of a claim's devices: the claim has none, so they come from the device's slice."""
    for published in state.columns.devices.slices_of_pool((one.driver, one.pool)):
        for device in published.slice.devices:
            if device.name == one.device and NUMA_NODE in device.attributes:
                return _zones_of(device.attributes[NUMA_NODE].values)
    return ""


def _zones_of(values: tuple[object, ...]) -> str:
    return "/".join(map(str, values))


def _row(of: PooledDevice, uses: dict[tuple[str, str, str], list[ClaimUse]]) -> DeviceRow:
    device = of.device
    attribute = device.attributes.get(NUMA_NODE)
    taints = [f"taint {one.key}:{one.effect}" for one in device.taints if one.effect in _KEEPS_OFF]
    return DeviceRow(
        name=device.name,
        driver=of.slice.driver,
        pool=of.slice.pool,
        zones="" if attribute is None else _zones_of(attribute.values),
        uses=tuple(uses.get(of.id, ())),
        remarks=tuple(taints),
    )


def _uses(state: FleetView) -> dict[tuple[str, str, str], list[ClaimUse]]:
    """Return who has which devices."""
    registry = state.constraints.devices
    pods: dict[str, list[tuple[str, str]]] = {}
    for entry in state.pods.values():
        if entry.pod.resource_claims:
            for key in resource_claim_keys(entry.pod):
                pods.setdefault(key, []).append((entry.pod.namespace, entry.pod.name))
    uses: dict[tuple[str, str, str], list[ClaimUse]] = {}
    for key, claim in sorted(registry.claims.items()):
        allocation = registry.allocation(key)
        for one in () if allocation is None else allocation.devices:
            share = ", ".join(f"{_amount(amount)} {name}" for name, amount in (one.consumed or {}).items())
            users = tuple(sorted(pods.get(key, ())))
            uses.setdefault(one.id, []).append(ClaimUse(key, users, claim.allocation is not None, share))
    return uses


def _amount(thousandths: int) -> str:
    """Write an amount of a capacity; from 1 MiB on it is one of bytes."""
    if thousandths >= 1000 * 2**20:
        return format_amount(MEMORY, thousandths // 1000)
    return f"{thousandths / 1000:g}"
