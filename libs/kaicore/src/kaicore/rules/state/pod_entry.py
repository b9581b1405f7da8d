"""A pod in the state: what is known of it, and what it is charged with."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from kaicore.rules.engine.workload import Nomination
from kaicore.rules.events.payloads import WaitingPod
from kaicore.rules.model.placement import ContainerPlacement, Placement, SpanAmount, ZoneAmount
from kaicore.rules.model.pod import Amounts, Pod
from kaicore.rules.model.quantity import is_memory
from kaicore.rules.numa.zone_charge import ZoneCharge
from kaicore.rules.reasons.reason import Reason
from kaicore.rules.state.queue_book import Bill


class Stage(StrEnum):
    """How far a pod has come.

    ```
    WAITING ──PodPlaced──▶ PLACED ──PodBound / nodeName seen──▶ BOUND ──phase──▶ FINISHED
       ▲                      │                                   ▲
       └──────BindFailed──────┘        (other schedulers' pods) ──┘
    ```
    """

    WAITING = "waiting"
    PLACED = "placed"
    BOUND = "bound"
    FINISHED = "finished"


class Agreement(StrEnum):
    """How an observed placement compares with the predicted one."""

    EXACT = "exact"
    SAME_ZONES = "same-zones"
    DIFFERENT = "different"


class PodEntry(msgspec.Struct):
    """A pod and its charges.

    Attributes:
        class_key: of its class.
        node: where it is placed or bound; empty while it waits.
        requests: what it takes of a node as a whole.
        charged: whether `requests` and `zone_charge` are charged to `node`.
        releasing: whether they are charged as being released.
        zone_charge: what it is charged with on zones, from `observed` if that is usable, else from `predicted`.
        kept: what its ordinary init containers keep, predicted again given the zones on which the others were
            observed; None while the first prediction stands.
        otherwise: other placements that the kubelet may have given it, as far as nobody has observed it: it found freed
            what the log did not know to be free when it was decided on.
        decided_at: the position that the cycle which placed it knew.
        charged_at: position of the event that charged it: the order in which pods came to a node.
        unrecorded: it has something bound to zones of its node, and no record tells which.
        bind_failures: failed binds so far; `failed_at` is the last one's recorded time.
        cycle: the cycle that placed it.
        placed_at: the clock of that cycle, microseconds since the epoch.
        gone: the API server no longer knows it, as a failed bind told.
        started_at: when it was first seen running, by the record of that; 0 before.
        missed: what of its observed placement is not as its own NUMA policy asks; empty when nothing is.
        missed_at: when that was recorded.
        disbelieved: why its last observation is not believed; empty when it is, or there is none.
        healing: its eviction was decided, and has not failed.
        heal_failures: failed evictions so far; `heal_failed_at` is the last one's recorded time.
        nomination: the room that is kept for it while it waits.
        nominated_for: the node of the last room that was kept for it, as long as its status may still tell of that.
        volumes: volumes that its claims get by the decision that placed it, by the claim's name.
        evicting: its eviction for another group's sake was decided, and has not failed.
        healed_from: it stands for a pod that was evicted from this node; no such pod is evicted again.
        group: key of the group that it belongs to.
        pod_set: name of the set in that group that it counts for.
        group_problem: why its group cannot be decided on with it (`kaicore.rules.reasons.group`); None if it can.
        reported: as what it was last recorded to be left waiting; None while it does not wait.
        bill: what it is counted under in the accounts of queues; None while it neither runs nor can start.
    """

    pod: Pod
    class_key: str
    requests: Amounts
    stage: Stage = Stage.WAITING
    node: str = ""
    charged: bool = False
    releasing: bool = False
    predicted: Placement | None = None
    observed: Placement | None = None
    zone_charge: ZoneCharge = ZoneCharge()
    kept: tuple[ContainerPlacement, ...] | None = None
    otherwise: tuple[Placement, ...] = ()
    decided_at: int = 0
    charged_at: int = 0
    unrecorded: bool = False
    agreement: Agreement | None = None
    bind_failures: int = 0
    failed_at: int = 0
    cycle: str = ""
    placed_at: int = 0
    gone: bool = False
    started_at: int = 0
    missed: str = ""
    missed_at: int = 0
    disbelieved: str = ""
    healing: bool = False
    heal_failures: int = 0
    heal_failed_at: int = 0
    healed_from: str = ""
    group: str = ""
    pod_set: str = ""
    group_problem: Reason | None = None
    bill: Bill | None = None
    nomination: Nomination | None = None
    nominated_for: str = ""
    reported: WaitingPod | None = None
    evicting: bool = False
    volumes: dict[str, str] = {}

    @property
    def running_since(self) -> int:
        """See `kaicore.rules.engine.workload.Member`."""
        return self.pod.start_time * 1_000_000 or self.placed_at or self.pod.created_at * 1_000_000

    @property
    def leaving(self) -> bool:
        """Whether it is on its way out, though it may still hold its node."""
        return self.pod.deletion_at is not None or self.evicting or self.healing


def compare(predicted: Placement, observed: Placement) -> Agreement:
    """Compare placements: by amounts per zone, then by which zones serve each resource.

    Memory that is bound to several zones counts by its mask, for podresources shows no more of it. What it does not
    show at all, ordinary init containers, is left out of the prediction first.
    """
    expected_of, actual_of = told_alike(predicted, observed)
    expected, actual = holdings(expected_of), holdings(actual_of)
    if expected == actual:
        return Agreement.EXACT
    return Agreement.SAME_ZONES if _zones(expected) == _zones(actual) else Agreement.DIFFERENT


def told_alike(
    predicted: Placement, observed: Placement
) -> tuple[tuple[ContainerPlacement, ...], tuple[ContainerPlacement, ...]]:
    """Return the containers of both that can be compared: those that an observation shows, if it tells them apart.

    A device that several zones reach is on each of them: where one of those was predicted, it is told as that. Memory
    of init containers comes and goes, and is left out; so is what a prediction says of them that they perhaps keep.
    """
    predicted, observed = _without_init_memory(predicted, observed.init), _without_init_memory(observed, observed.init)
    predicted, observed = without_perhaps(predicted), without_perhaps(observed)
    shown = {container.container for container in observed.containers}
    told_apart = "" not in shown and all(container.container for container in predicted.containers)
    kept = tuple(item for item in predicted.containers if not told_apart or item.container in shown)
    seen = tuple(
        _on_predicted_zones(item, [other for other in kept if other.container == item.container or not told_apart])
        for item in observed.containers
    )
    return kept, seen


def without_perhaps(placement: Placement) -> Placement:
    """Return a placement less what is perhaps held: spans of what a container is uncertain about."""
    if not any(item.uncertain and item.spans for item in placement.containers):
        return placement
    containers = []
    for item in placement.containers:
        spans = [
            SpanAmount(span.zones, {name: part for name, part in span.amount.items() if name not in item.uncertain})
            for span in item.spans
        ]
        containers.append(msgspec.structs.replace(item, spans=tuple(span for span in spans if span.amount)))
    return msgspec.structs.replace(placement, containers=tuple(containers))


def _without_init_memory(placement: Placement, init: tuple[str, ...] | None) -> Placement:
    if not init:
        return placement

    def less(amount: Amounts) -> Amounts:
        return {name: part for name, part in amount.items() if not is_memory(name)}

    containers = tuple(
        msgspec.structs.replace(
            item,
            zones=tuple(ZoneAmount(zone.zone, less(zone.amount)) for zone in item.zones),
            spans=tuple(SpanAmount(span.zones, less(span.amount)) for span in item.spans),
            blocks=(),
        )
        if item.container in init
        else item
        for item in placement.containers
    )
    return msgspec.structs.replace(placement, containers=containers)


def _on_predicted_zones(observed: ContainerPlacement, predicted: Sequence[ContainerPlacement]) -> ContainerPlacement:
    zones, spans = list(observed.zones), []
    for span in observed.spans:
        left: Amounts = {}
        for resource, amount in span.amount.items():
            expected = [
                (zone.zone, zone.amount[resource])
                for container in predicted
                for zone in container.zones
                if resource in zone.amount and zone.zone in span.zones
            ]
            if is_memory(resource) or sum(part for _, part in expected) != amount:
                left[resource] = amount
            else:
                zones += [ZoneAmount(zone, {resource: part}) for zone, part in expected]
        if left:
            spans.append(SpanAmount(span.zones, left))
    return msgspec.structs.replace(observed, zones=tuple(zones), spans=tuple(spans))


#: Amounts by zones and resource.
Holdings = dict[tuple[tuple[str, ...], str], int]


def holdings(containers: Iterable[ContainerPlacement]) -> Holdings:
    """Sum containers' holdings by zones and resource; a memory block counts by all its zones."""
    held: Holdings = {}
    for container in containers:
        parts: list[tuple[tuple[str, ...], Amounts]] = [((zone.zone,), zone.amount) for zone in container.zones]
        parts += [(tuple(sorted(span.zones)), span.amount) for span in container.spans]
        for zones, amounts in parts:
            for resource, amount in amounts.items():
                if is_memory(resource) and container.blocks:
                    continue
                bound = tuple(sorted(container.mask)) if is_memory(resource) and len(container.mask) > 1 else zones
                held[bound, resource] = held.get((bound, resource), 0) + amount
        for block in container.blocks:
            for resource, amount in block.amount.items():
                key = tuple(sorted(block.zones)), resource
                held[key] = held.get(key, 0) + amount
    return {key: amount for key, amount in held.items() if amount}


def _zones(held: Holdings) -> dict[str, frozenset[str]]:
    zones: dict[str, frozenset[str]] = {}
    for names, resource in held:
        zones[resource] = zones.get(resource, frozenset()) | frozenset(names)
    return zones
