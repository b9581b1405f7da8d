"""Explanation of a placed pod: the ranking of the nodes, the predicted zones, and the outcome.

The zones are predicted with the version of a kubelet, which the node reports or the settings name. GPUs that are opened
for sharing are answers, too: who holds which part, what is free, which pod reserves each.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kaicore.analysis.json_spelling import time_text
from kaicore.analysis.life.attempts import PlacementScores
from kaicore.analysis.life.why_answers import GpuPartAnswer, NodeScore, PartHolder, PlacementAnswer, SharedGpuAnswer
from kaicore.policy import MOST, PolicyBand
from kaicore.rules.deciding.why import miss_notes, zones_text
from kaicore.rules.engine.config import KubeletOverride
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import PodPlaced
from kaicore.rules.model.gpu_share import GPU_GROUP_LABEL, WHOLE, GpuPart, gpus_text
from kaicore.rules.model.node import Node
from kaicore.rules.model.quantity import is_native
from kaicore.rules.numa.kubelet.versions import GATES, kubelet_model, versioned_model
from kaicore.rules.state.pods.agreement import Agreement
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.shared_gpus import GpuGroup
from kaicore.rules.state.views import FleetView, PodsView


def part_answers(state: PodsView, entry: PodEntry) -> list[GpuPartAnswer]:
    """Return the parts of GPUs that a pod holds; of a reservation pod the GPU that it reserves."""
    if not entry.charged:
        return []
    groups = state.shared_gpus.groups
    parts = [
        GpuPartAnswer(
            group=part.group, gpu=groups[part.group].index if part.group in groups else "", part=gpus_text(part.milli)
        )
        for part in entry.gpus
    ]
    if state.shared_gpus.is_reservation(entry.pod.uid):
        name = entry.pod.labels[GPU_GROUP_LABEL]
        parts.append(GpuPartAnswer(group=name, gpu=groups[name].index, reserves=True))
    return parts


def shared_gpus_of(state: FleetView, parts: Iterable[GpuPart], uid: str) -> list[SharedGpuAnswer]:
    """Return the GPUs of which a pod has parts.

    Args:
        state: as of the answer; it may know a group no more.
        uid: the pod's; it is not named as a holder.
    """
    groups = state.shared_gpus.groups
    return [
        _shared(state, groups[part.group], part=gpus_text(part.milli), uid=uid)
        if part.group in groups
        else SharedGpuAnswer(group=part.group, part=gpus_text(part.milli), free="0", remark="not opened any more")
        for part in parts
    ]


def shared_gpus_on(state: FleetView, node: str) -> list[SharedGpuAnswer]:
    """Return the GPUs of a node that are opened for sharing, by index, those without one last."""
    groups = [group for group in state.shared_gpus.groups.values() if group.opened.node == node]
    return [_shared(state, group) for group in sorted(groups, key=_by_index)]


def _by_index(group: GpuGroup) -> tuple[bool, int, str, str]:
    number = int(group.index) if group.index.isdecimal() else 0
    return not group.index, number, group.index, group.opened.group


def _shared(state: FleetView, group: GpuGroup, *, part: str = "", uid: str = "") -> SharedGpuAnswer:
    opened, supply = group.opened, state.columns.gpus
    holders = sorted(
        (state.pods[holder].pod.subject, gpus_text(held.milli))
        for holder, held in group.parts.items()
        if holder != uid and holder in state.pods
    )
    remark = "its reservation pod is not there any more"
    if group.closed:
        remark = f"closed: {group.closed}"
    elif group.planned:
        remark = "its reservation pod is not there yet"
    elif group.uid:
        remark = "" if supply.is_offered(opened.group) else "its reservation pod is being deleted"
    return SharedGpuAnswer(
        group=opened.group,
        gpu=group.index,
        part=part,
        free=gpus_text(WHOLE - supply.used(opened.group)) if supply.is_offered(opened.group) else "0",
        held_by=[PartHolder(pod=subject, part=held) for subject, held in holders],
        reservation=f"{opened.namespace}/{opened.name}" if group.uid else "",
        remark=remark,
    )


def kubelet_text(state: FleetView, name: str) -> str:
    """Say as which kubelet a node's zones are predicted; empty for a node without any.

    Args:
        state: with the node, and the configuration of its shard.
    """
    row = state.columns.rows.get(name)
    topology = None if row is None else state.columns.topologies[row]
    if row is None or topology is None:
        return ""
    node = state.columns.facts[row]
    text = kubelet_model(node).text()
    configured = [] if node is None else [one for one in state.config().kubelets if _is_for(one, node)]
    for override in configured:
        if override.version is not None:
            text = f"as kubelet 1.{versioned_model(override.version).minor} (as configured)"
    published = {gate: on for gate, on in topology.feature_gates.items() if gate in GATES}
    text += _gates_text(published, "as is published")
    gates = {gate: on for one in configured for gate, on in (one.feature_gates or {}).items()}
    return text + _gates_text(gates, "as configured")


def _gates_text(gates: Mapping[str, bool], by: str) -> str:
    listed = ", ".join(f"{gate} {'on' if on else 'off'}" for gate, on in sorted(gates.items()))
    return f", with {listed}, {by}" if listed else ""


def _is_for(override: KubeletOverride, node: Node) -> bool:
    return all(node.labels.get(key) == value for key, value in override.match_labels.items())


_COMPARED = {
    Agreement.EXACT: "as predicted, to the amount",
    Agreement.SAME_ZONES: "on the predicted zones, in other shares",
    Agreement.DIFFERENT: "not as predicted",
}
#: Parts of a score, the most important first, with how they are called.
_PARTS = {
    "preference": "the pod's preferences",
    "leaves_devices": "leaving devices alone that it does not ask for",
    "avoided": "not being avoided",
    "keeps_policy": "keeping its own NUMA policy",
    "turn": "being no other replica's first",
    "choices": "earlier alternatives of its claims",
    "near": "devices of its claims that are close to its CPUs",
    "zones": "zones",
    "whole": "not breaking up what is whole for its claims",
    "room_taken": "leaving more room for recent work",
    "opened": "opening fewer GPUs for sharing",
    "idle_devices": "leaving fewer free devices beside it",
    "full": "how full it gets",
}
#: Parts that a policy's band comes right after, or takes the place of.
_PLACES = {band: "preference" if band is PolicyBand.PREFERRED else band.value for band in PolicyBand}


@dataclass(frozen=True, slots=True)
class DecidedPlacement:
    """The decision that placed a pod, with what its cycle knew.

    Attributes:
        scores: None where the cycle was not run again, or not so; `not_ranked` says why.
        by_cycle: whether a cycle decided it; otherwise the event only says so.
    """

    event: Event
    decision: PodPlaced
    scores: PlacementScores | None = None
    not_ranked: str = ""
    by_cycle: bool = True


def placement_answer(state: FleetView, entry: PodEntry | None, placed: DecidedPlacement) -> PlacementAnswer:
    """Return why a pod was placed where it is (`entry`: the pod as it is now; None for one that is gone)."""
    decision, scores = placed.decision, placed.scores
    nodes = (
        []
        if scores is None
        else [
            NodeScore.copied(one, node=name, chosen=name == decision.node, policies=dict(one.policies))
            for name, one in scores.ranked
        ]
    )
    observed = "" if entry is None else zones_text(entry.observed).removeprefix(" zones ")
    agreement = None if entry is None else entry.agreement
    devices = entry is not None and any(not is_native(name) for name in entry.requests)
    return PlacementAnswer(
        node=decision.node,
        cycle=decision.cycle if placed.by_cycle else "",
        position=placed.event.position,
        at=time_text(placed.event.recorded_at),
        because=_because(nodes, decision, scores),
        nodes=nodes,
        able=0 if scores is None else scores.able,
        ruled_out=[] if scores is None else [str(reason) for reason in scores.ruled_out],
        not_ranked=placed.not_ranked,
        strategy=state.config().strategy(devices=devices).value if nodes else "",
        predicted=zones_text(decision.placement).removeprefix(" zones "),
        kubelet=kubelet_text(state, decision.node),
        observed=observed,
        agreement="" if agreement is None else _COMPARED[agreement],
        cause="; ".join(miss_notes(decision.uid, state)),
        domains=decision.domains,
        rank=decision.rank,
        gpus=shared_gpus_of(state, decision.gpus, decision.uid),
    )


def _because(nodes: list[NodeScore], decision: PodPlaced, scores: PlacementScores | None) -> str:
    """Say in what the chosen node was better than the next one."""
    chosen = next((one for one in nodes if one.chosen), None)
    if chosen is None or scores is None:
        return ""
    if scores.doubtful:
        first, *others = scores.doubtful
        more = f" and {len(others)} more" if others else ""
        return (
            f"it fits here in every open case; {first}{more} ranked higher, but may refuse such a pod, "
            "because pods there are just starting or ending"
        )
    able = scores.able
    if able == 1:
        return "no other node could take it"
    if not nodes[0].chosen:
        domains = [f"{level} {name}" for level, name in decision.domains.items() if name != decision.node]
        instead = f"its group goes to {domains[-1]}" if domains else "it goes where room was kept for it"
        return f"{instead}; for this pod alone {nodes[0].node} ranked higher"
    second = nodes[1]
    filled = {_PLACES[band]: [one for one, of in scores.bands.items() if of is band] for band in _PLACES}
    for part, words in _PARTS.items():
        # Replicas' turns are in no answer.
        mine, theirs = getattr(chosen, part, 0), getattr(second, part, 0)
        text = "" if mine == theirs else f"{words}: {_text(part, mine)} against {_text(part, theirs)}"
        if policies := filled.get(part):
            # What policies prefer is added up to a most.
            by_policies = _by_policies(chosen, second, policies, most=MOST if part == "preference" else None)
            text = (text if part == "preference" else "") or by_policies
        if text:
            return f"{text} on {second.node}, the next of {able} nodes"
    return f"{able} nodes could take it, the best of them equal: the first by name was taken"


def _by_policies(chosen: NodeScore, second: NodeScore, policies: Sequence[str], *, most: int | None) -> str:
    """Name the policies of one band by which a node is better than another one; empty where they do not decide."""
    mine, theirs = ([one.policies.get(name, 0) for name in policies] for one in (chosen, second))
    sums = sum(mine), sum(theirs)
    if sums[0] == sums[1] or (most is not None and min(sums) >= most):
        return ""
    pairs = zip(policies, mine, theirs, strict=True)
    said = [f"{name}: {own} against {other}" for name, own, other in pairs if own != other]
    return f"{'policy' if len(said) == 1 else 'policies'} {', '.join(said)}"


def _text(part: str, value: int) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if part == "near" and value < 0:
        return "not known"
    if part == "room_taken":
        return f"{value / 100:.2f} devices less"
    return f"{value / 10:.1f} %" if part == "full" else f"{value} %" if part in ("near", "whole") else str(value)
