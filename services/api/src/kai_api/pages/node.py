"""A node: what is held, releasing and free, by zone and by whom; the parts of shared GPUs; devices of claims."""

from dataclasses import dataclass, replace
from functools import partial

from kaicore.analysis.ask.answers import Why
from kaicore.analysis.ask.explanations import why_node
from kaicore.analysis.ask.listing import is_there, pod_status
from kaicore.analysis.life.placements import shared_gpus_on
from kaicore.analysis.life.why_answers import SharedGpuAnswer
from kaicore.errors import UnknownSubject
from kaicore.rules.devices.allocation import NUMA_NODE
from kaicore.rules.devices.pools import PooledDevice
from kaicore.rules.model.device import AllocatedDevice, DeviceRequest, PodClaim
from kaicore.rules.model.gpu_share import GPU, WHOLE, gpus_text
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.quantity import CPU, MEMORY, PODS, format_amount
from kaicore.rules.numa.columns import Ints
from kaicore.rules.queues.tree import gpus_per_unit
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.registries.device_registry import resource_claim_keys
from kaicore.rules.state.views import ClusterView, FleetView
from kaicore.spelling import did_you_mean

from kai_api.pages.frame import Part, parts, use_parts
from kai_api.pages.problems import problems_of_node

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
    """The devices of a node (`rows`: the first of `total`)."""

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


@dataclass(frozen=True, slots=True)
class PartOfBar:
    """A pod's part of a GPU, as a decimal number."""

    namespace: str
    name: str
    part: str


@dataclass(frozen=True, slots=True)
class GpuBar:
    """A GPU.

    Attributes:
        name: by its index or UUID, or its group; for GPUs that are not shared no record has one.
        free: of it, as a decimal number.
        reservation: namespace and name of the pod that reserves it; empty where none is there.
    """

    name: str
    bar: tuple[Part, ...]
    holders: tuple[PartOfBar, ...]
    free: str
    reservation: tuple[str, ...] = ()
    remark: str = ""


def gpu_bars(state: FleetView, node: str) -> tuple[GpuBar, ...]:
    """Return a node's GPUs: shared ones by index, then those that pods hold whole, then the free ones."""
    shared = [_shared(state, answer) for answer in shared_gpus_on(state, node)]
    columns = state.columns
    row, place = columns.row(node), columns.resources.get(GPU)
    if place is None:
        return ()
    whole = [
        _whole(entry)
        for entry in state.charges.held_on(node)
        if not state.shared_gpus.is_reservation(entry.pod.uid)
        for _ in range(entry.requests.get(GPU, 0))
    ]
    free = max(0, int(columns.allocatable[row, place] - columns.used[row, place]))
    empty = GpuBar("whole GPU", parts(1, [("free", "free", 1, "1")]), (), "1")
    return (*shared, *whole, *([empty] * free))


def _shared(state: FleetView, answer: SharedGpuAnswer) -> GpuBar:
    group = state.shared_gpus.groups[answer.group]
    entries = sorted(
        ((state.pods[uid], part.milli) for uid, part in group.parts.items() if uid in state.pods),
        key=lambda one: (one[0].pod.subject, one[0].pod.uid),
    )
    held = [(_kind(entry), f"of {entry.pod.subject}", milli, gpus_text(milli)) for entry, milli in entries]
    rest = WHOLE - sum(milli for _, milli in entries)
    kind, label = ("out", "not given out") if answer.free == "0" else ("free", "free")
    return GpuBar(
        name=answer.name,
        bar=parts(WHOLE, [*held, (kind, label, rest, gpus_text(rest))]),
        holders=tuple(PartOfBar(entry.pod.namespace, entry.pod.name, gpus_text(milli)) for entry, milli in entries),
        free=answer.free,
        # A pod that is not there yet has no story.
        reservation=tuple(answer.reservation.split("/")) if answer.reservation and not group.planned else (),
        remark=answer.remark,
    )


def _whole(entry: PodEntry) -> GpuBar:
    pod = entry.pod
    bar = parts(1, [(_kind(entry), f"of {pod.subject}", 1, "1")])
    return GpuBar("whole GPU", bar, (PartOfBar(pod.namespace, pod.name, "1"),), "0")


def _kind(entry: PodEntry) -> str:
    return "releasing" if entry.releasing else "held"


@dataclass(frozen=True, slots=True)
class ZoneCell:
    """A resource of a zone, or of the node as a whole.

    Attributes:
        bar: held, releasing, free.
        heat: how full it is, from 0 (empty) to 4; -1 where the zone has none of it.
    """

    resource: str
    text: str
    bar: tuple[Part, ...]
    heat: int


@dataclass(frozen=True, slots=True)
class ZoneRow:
    """A zone and its cells, one for each resource of the node's zones."""

    name: str
    cells: tuple[ZoneCell, ...]


@dataclass(frozen=True, slots=True)
class Holding:
    """A pod's holdings on a node.

    Attributes:
        zones: of each zone, in the order of the node's zones, what it holds there, for people.
        asks: what it takes of the node as a whole.
        known_from: `observed`, `predicted`, or empty where nothing of it is bound to zones.
    """

    namespace: str
    name: str
    status: str
    queue: str
    asks: str
    zones: tuple[str, ...]
    known_from: str


@dataclass(frozen=True, slots=True)
class NodeZonesTable:
    """The zones of a node as a table."""

    name: str
    ready: bool
    schedulable: bool
    policy: str
    resources: tuple[str, ...]
    rows: tuple[ZoneRow, ...]
    whole: ZoneRow


@dataclass(frozen=True, slots=True)
class NodePage:
    """A node.

    Attributes:
        holdings: of its pods, in the order in which they came.
        kept_for: pods for which room is kept here.
        places: its domains, by topology and level.
        devices: that claims can have there; None where none are published.
        gpus: of a node where GPUs are shared.
        problems: of the node, in words.
    """

    table: NodeZonesTable
    why: Why
    holdings: tuple[Holding, ...]
    kept_for: tuple[tuple[str, str], ...]
    places: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    devices: NodeDevices | None
    gpus: tuple[GpuBar, ...]
    problems: tuple[str, ...]


def node_page(state: ClusterView, name: str, *, now: int = 0) -> NodePage:
    """Return the model of a node's page; `now` where a log goes on. Raises UnknownSubject: there is no such node."""
    why = why_node(state, name, now=now)
    if why is None:
        there_are = [node for node, row in state.columns.rows.items() if state.columns.facts[row] is not None]
        raise UnknownSubject(f"no node {name!r} at this moment{did_you_mean(name, there_are)}")
    row = state.columns.rows[name]
    kept = [
        (entry.pod.namespace, entry.pod.name)
        for entry in state.pods.values()
        if entry.nomination is not None and entry.nomination.node == name
    ]
    return NodePage(
        table=_by_pod(state, row, zones_table(state, row)),
        why=why,
        holdings=tuple(_holding(state, row, entry) for entry in state.charges.held_on(name) if is_there(entry)),
        kept_for=tuple(sorted(kept)),
        places=tuple(dict.fromkeys(_places(state, row))),
        devices=node_devices(state, row),
        gpus=gpu_bars(state, name),
        problems=problems_of_node(state, name),
    )


def zones_table(state: FleetView, row: int) -> NodeZonesTable:
    """Return the zones of a node that there is, by its row."""
    columns, zones = state.columns, state.columns.zones
    node, topology = columns.facts[row], columns.topologies[row]
    assert node is not None
    of_zones = {
        name
        for zone in (topology.zones if topology else ())
        for name, item in zone.resources.items()
        if item.allocatable
    }
    resources = sorted(
        of_zones | {CPU, MEMORY} | {name for name in node.allocatable if gpus_per_unit(name)}, key=_order
    )
    rows = []
    for index, zone in enumerate(topology.zones if topology else ()):
        cells = [
            _cell(
                name, zone.resources[name].allocatable, zones.used, zones.releasing, (row, index, zones.resources[name])
            )
            if name in zone.resources and name in zones.resources
            else ZoneCell(name, "", (), -1)
            for name in resources
        ]
        rows.append(ZoneRow(zone.name, tuple(cells)))
    whole = [
        _cell(name, node.allocatable.get(name, 0), columns.used, columns.releasing, (row, columns.resources[name]))
        if name in columns.resources
        else ZoneCell(name, "", (), -1)
        for name in resources
    ]
    return NodeZonesTable(
        name=node.name,
        ready=node.ready,
        schedulable=not node.unschedulable,
        policy="" if topology is None else topology.policy.value,
        resources=tuple(resources),
        rows=tuple(rows),
        whole=ZoneRow("whole node", tuple(whole)),
    )


def _by_pod(state: FleetView, row: int, table: NodeZonesTable) -> NodeZonesTable:
    """Return a table with bars of each pod's part; amounts without a recorded zone stay one part."""
    zones = state.columns.zones
    entries = state.charges.held_on(table.name)
    rows = []
    for index, zone in enumerate(table.rows):
        cells = []
        for cell in zone.cells:
            column = zones.resources.get(cell.resource)
            if cell.heat < 0 or column is None:
                cells.append(cell)
                continue
            amounts = [
                ("releasing" if entry.releasing else "held", f"{cell.resource} of {entry.pod.subject}", amount)
                for entry in entries
                if (amount := _held(entry, index, cell.resource))
            ]
            known = sum(amount for _, _, amount in amounts)
            used, there_is = (int(table[row, index, column]) for table in (zones.used, zones.allocatable))
            amounts += [("held", "held", used - known), ("free", "free", there_is - used)]
            bar = parts(
                max(there_is, known, used),
                ((kind, label, amount, format_amount(cell.resource, amount)) for kind, label, amount in amounts),
            )
            cells.append(replace(cell, bar=bar))
        rows.append(replace(zone, cells=tuple(cells)))
    return replace(table, rows=tuple(rows))


def _held(entry: PodEntry, zone: int, resource: str) -> int:
    return sum(amount for at, name, amount in entry.zone_charge.split if at == zone and name == resource)


def _order(resource: str) -> tuple[int, str]:
    return (0 if gpus_per_unit(resource) else 1 if resource == CPU else 2 if resource == MEMORY else 3), resource


def _cell(resource: str, allocatable: int, used: Ints, releasing: Ints, at: tuple[int, ...]) -> ZoneCell:
    if not allocatable:
        return ZoneCell(resource, "", (), -1)
    used_here, text = int(used[at]), partial(format_amount, resource)
    bar = use_parts(allocatable, used_here, int(releasing[at]), text)
    heat = min(4, -(-4 * used_here // allocatable))
    return ZoneCell(resource, f"{text(used_here)} of {text(allocatable)}", bar, heat)


def _holding(state: FleetView, row: int, entry: PodEntry) -> Holding:
    topology = state.columns.topologies[row]
    count = len(topology.zones) if topology else 0
    by_zone: list[dict[str, int]] = [{} for _ in range(count)]
    for zone, resource, amount in entry.zone_charge.split:
        if zone < count:
            by_zone[zone][resource] = by_zone[zone].get(resource, 0) + amount
    placement = entry.observed or entry.predicted or entry.expected
    return Holding(
        namespace=entry.pod.namespace,
        name=entry.pod.name,
        status=pod_status(entry),
        queue=state.queue_of(entry)[0],
        asks=asked_text({name: amount for name, amount in entry.requests.items() if name != PODS}),
        zones=tuple(asked_text(amounts) for amounts in by_zone),
        known_from="" if placement is None or not any(by_zone) else placement.provenance.value,
    )


def _places(state: FleetView, row: int) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    """Return, by topology, the path of a node's domains as levels and names; without the level of single nodes."""
    places = []
    for key in state.network_topologies.topologies():
        columns = state.network_topologies.columns(key, state.columns.names)
        path = [
            (level.name, domains[of_rows[row]][-1])
            for level, domains, of_rows in zip(columns.levels, columns.domains, columns.of_rows, strict=True)
            if of_rows[row] >= 0 and domains[of_rows[row]][-1] != state.columns.names[row]
        ]
        if path:
            places.append((key.text, tuple(path)))
    return places


def asked_text(amounts: dict[str, int]) -> str:
    """Write what a pod asks for, devices first."""
    order = sorted(amounts, key=lambda name: (name in (CPU, MEMORY), name))
    shown = [name for name in order if amounts[name] and name != "pods"]
    return ", ".join(f"{format_amount(name, amounts[name])} {name.rpartition('/')[2]}" for name in shown)
