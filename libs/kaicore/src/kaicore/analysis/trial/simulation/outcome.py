"""The outcome of a simulation, pod by pod, and the document that reports it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kaicore.rules.deciding.why import StateRemedies, one_by_one, pending_reasons
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.victims.eviction_cost import failures_text
from kaicore.rules.events.payloads import EvictionDecided, PodPlaced, RepairRequested
from kaicore.rules.events.reasons.base import CodedReason
from kaicore.rules.groups.labels import NO_RANK
from kaicore.rules.groups.membership import display_key
from kaicore.rules.model.gpu_share import GpuPart, gpus_text
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import Amounts, is_kubelet_rejection
from kaicore.rules.model.quantity import add_amounts, quantities
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
from kaicore.rules.state.views import CycleView, WorkView


class Phase(StrEnum):
    """A pod's final state."""

    BOUND = "Bound"
    PENDING = "Pending"
    NOMINATED = "Nominated"
    EVICTED = "Evicted"
    REJECTED = "Rejected"


@dataclass(frozen=True, slots=True)
class WhyNot:
    """A reason, as a person reads it; `nodes` says how many gave it, `example` names one of them."""

    code: str
    message: str
    nodes: int = 0
    example: str = ""


@dataclass(frozen=True, slots=True)
class PodOutcome:
    """The outcome of one pod.

    Attributes:
        node: where it is; None where it is nowhere.
        zones: what it is known or predicted to hold, by zone; several zones joined by `+` where it is not known which.
        placed: whether this simulation placed it, and not the input.
        owner: `Kind/name` of its controller.
        rank: its place among the pods of its set, where the simulation placed it and its group has a topology
            constraint; None for none.
        domains: of such a pod, its node's domain at each level of the topology, by the level's name, the widest first.
    """

    namespace: str
    name: str
    node: str | None
    phase: Phase
    zones: tuple[tuple[str, Amounts], ...] = ()
    reasons: tuple[WhyNot, ...] = ()
    placed: bool = False
    owner: str = ""
    rank: int | None = None
    domains: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[GpuPart, ...] = ()


@dataclass(slots=True)
class Outcome:
    """The outcome of a simulation.

    Attributes:
        seconds: of simulated time from the beginning to the last cycle.
        pods: all that have not ended, in order of namespace and name.
        notes: what else is to know, by `Kind namespace/name` of the group that it is about.
    """

    cycles: int
    nodes: int
    seconds: int = 0
    pods: list[PodOutcome] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return it for machines."""
        return {
            "cycles": self.cycles,
            "seconds": self.seconds,
            "pods": [
                {
                    "namespace": pod.namespace,
                    "name": pod.name,
                    "node": pod.node,
                    "phase": pod.phase.value,
                    "zones": [
                        {
                            "zone": zone,
                            "amount": quantities(held),
                        }
                        for zone, held in pod.zones
                    ],
                    "rank": pod.rank,
                    "domains": dict(pod.domains),
                    **(
                        {"gpus": [{"group": part.group, "part": gpus_text(part.milli)} for part in pod.gpus]}
                        if pod.gpus
                        else {}
                    ),
                    "reasons": [
                        {"code": why.code, "message": why.message, "nodes": why.nodes, "example": why.example}
                        for why in pod.reasons
                    ],
                }
                for pod in self.pods
            ],
            "notes": self.notes,
        }


def outcome_of(
    state: CycleView,
    *,
    cycles: int,
    config: EngineConfig,
    placed: Mapping[str, PodPlaced],
    evicted: Sequence[PodOutcome] = (),
    seconds: int = 0,
) -> Outcome:
    """Tell what came of a simulation.

    Args:
        placed: what cycles decided last of each pod that they placed, by its uid.
        seconds: of simulated time.
    """
    nodes = sum(node is not None for node in state.columns.facts)
    remedies = StateRemedies(state, config)
    pods = [
        _pod(entry, state, remedies, placed.get(entry.pod.uid))
        for entry in state.pods.values()
        if (entry.stage is not Stage.FINISHED or is_kubelet_rejection(entry.pod))
        and not state.shared_gpus.is_reservation(entry.pod.uid)
    ]
    in_order = sorted([*pods, *evicted], key=lambda pod: (pod.namespace, pod.name))
    return Outcome(cycles, nodes, seconds, in_order, _notes(state))


def _notes(state: WorkView) -> dict[str, list[str]]:
    notes = {}
    for key in sorted({state.pods[uid].group for uid in state.waiting}):
        entries = [state.pods[uid] for uid in sorted(state.group_table.pods_of(key)) if uid in state.pods]
        if said := one_by_one(state, entries):
            notes[display_key(key)] = said
    return notes


def evicted_pod(entry: PodEntry, eviction: EvictionDecided | RepairRequested) -> PodOutcome:
    """Tell what came of a pod that is evicted, and which group it made room for."""
    pod = entry.pod
    if isinstance(eviction, RepairRequested):
        why = WhyNot("Repaired", f"its zones are not what it asks for: {eviction.missed}")
    else:
        for_preemptor = f", for {eviction.preemptor}" if eviction.preemptor else ""
        again = f"; its successor fits on {eviction.fits_on}" if eviction.fits_on else ""
        counted = failures_text(eviction.failures_left)
        why = WhyNot(eviction.reason, f"evicted: {eviction.why}{for_preemptor}{again}{counted}")
    return PodOutcome(pod.namespace, pod.name, eviction.node, Phase.EVICTED, reasons=(why,), owner=_owner(entry))


def _pod(entry: PodEntry, state: WorkView, remedies: StateRemedies, placed: PodPlaced | None) -> PodOutcome:
    pod = entry.pod
    phase = Phase.BOUND
    reasons: tuple[WhyNot, ...] = ()
    match entry.stage:
        case Stage.FINISHED:
            phase = Phase.REJECTED
            reasons = (WhyNot(pod.reason, pod.message, 1, entry.node),)
        case Stage.WAITING:
            phase = Phase.PENDING if entry.nomination is None else Phase.NOMINATED
            reasons = _why_pending(entry, state, remedies)
        case _:
            pass
    held = None if phase is not Phase.BOUND else entry.observed or entry.predicted
    in_topology = placed if phase is Phase.BOUND else None
    return PodOutcome(
        namespace=pod.namespace,
        name=pod.name,
        node=entry.node or (entry.nomination.node if entry.nomination is not None else None),
        phase=phase,
        zones=zone_amounts(held),
        reasons=reasons,
        placed=bool(entry.cycle),
        owner=_owner(entry),
        rank=in_topology.rank if in_topology is not None and in_topology.rank != NO_RANK else None,
        domains=in_topology.domains if in_topology is not None else {},
        gpus=entry.gpus if phase is Phase.BOUND else (),
    )


def _owner(entry: PodEntry) -> str:
    owner = entry.pod.owner
    return f"{owner.kind}/{owner.name}" if owner is not None else ""


def _why_pending(entry: PodEntry, state: WorkView, remedies: StateRemedies) -> tuple[WhyNot, ...]:
    pod = entry.pod
    if pod.scheduler_name != remedies.config.scheduler_name:
        return (WhyNot("OtherScheduler", f"waits for another scheduler: {pod.scheduler_name}"),)
    if pod.deletion_at is not None:
        return (WhyNot("Terminating", "is being deleted before it was placed"),)
    waiting: list[CodedReason] = pending_reasons(entry, state)
    if not waiting:
        return (WhyNot("NoCycle", "no cycle has decided on it yet"),)
    listed = (*waiting, *remedies.of(entry))
    return tuple(WhyNot(reason.code, str(reason), reason.affected_nodes, reason.named_example) for reason in listed)


def zone_amounts(placement: Placement | None) -> tuple[tuple[str, Amounts], ...]:
    """Return what a placement holds by zone, in order of zone; what lies in several zones under all their names."""
    if placement is None:
        return ()
    amounts_by_zones = {item.zone: item.amount for item in placement.zone_amounts()}
    for container in placement.containers:
        for span in container.spans:
            add_amounts(amounts_by_zones.setdefault("+".join(span.zones), {}), span.amount, 1)
    return tuple((zone, amounts_by_zones[zone]) for zone in sorted(amounts_by_zones))
