"""Details that a recorded reason leaves out: the requested amount, the object concerned, the closest node.

A reason is recorded once for thousands of pods, so it cannot name what differs from pod to pod. The details are added
when one pod is asked about.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from kaicore.analysis.ask.counterfactuals.asked import Asked
from kaicore.rules.deciding.cycle_input import retry_at
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.events.reasons.base import CodedReason, NodeReason, named_amount, time_text
from kaicore.rules.events.reasons.group import GangDoesNotFit, GangIncomplete, WaitsAfterFailedBinds
from kaicore.rules.events.reasons.node import (
    HistoryIncomplete,
    InsufficientResource,
    NodeAffinityMismatch,
    NodeSelectorMismatch,
    NodeTooSmall,
    NoNodes,
)
from kaicore.rules.events.reasons.numa import NumaNeverFits, NumaZoneShort
from kaicore.rules.events.reasons.pods_nearby import PodAffinity, PodAntiAffinity
from kaicore.rules.events.reasons.queue import BoundReason
from kaicore.rules.groups.membership import display_key
from kaicore.rules.model.gpu_share import GPU, GpuShare, gpus_text
from kaicore.rules.model.pod import Amounts, Pod, PodTerm
from kaicore.rules.model.quantity import PODS
from kaicore.rules.model.selector import Requirement
from kaicore.rules.state.pods.pod_entry import PodEntry

#: These say themselves how much is asked for.
_WITH_AMOUNT = (NodeTooSmall, InsufficientResource, NumaNeverFits, NumaZoneShort, BoundReason)
#: Reasons of a group as a whole, with sentences that do not name the group.
_OF_GROUP = (GangIncomplete, GangDoesNotFit)


def details(asked: Asked, reason: CodedReason) -> list[str]:
    """Return what a reason itself does not say: resource, amount, object and place, as far as they are lacking."""
    return list(_details(asked, reason))


def asks_for(requests: Amounts, share: GpuShare | None = None) -> str:
    """Write what a pod asks for."""
    amounts = [named_amount(name, amount) for name, amount in sorted(requests.items()) if amount and name != PODS]
    return ", ".join([*amounts, *([] if share is None else [str(share)])])


def frees(asked: Asked, entries: Iterable[PodEntry | Member]) -> str:
    """Write what pods hold of what a pod asks for; empty where they hold nothing of it."""
    names = {*asked.requests, *([] if asked.pod.gpu_share is None else [GPU])}
    total: Counter[str] = Counter()
    parts = 0
    for one in entries:
        total.update({name: amount for name, amount in one.requests.items() if name in names})
        parts += sum(part.milli for part in one.gpus)
    shared = [f"{gpus_text(parts)} of GPUs"] if parts and asked.pod.gpu_share is not None else []
    return ", ".join([*filter(None, [asks_for(total)]), *shared])


def _details(asked: Asked, reason: CodedReason) -> Iterator[str]:
    pod = asked.pod
    if isinstance(reason, _OF_GROUP):
        yield f"the group is {display_key(asked.entry.group)}"
    yield from _wanted_of_nodes(pod, reason)
    if isinstance(reason, WaitsAfterFailedBinds):
        yield f"until {time_text(max(retry_at(one, asked.config) for one in asked.fellows))}"
    if isinstance(reason, HistoryIncomplete):
        row = asked.state.columns.rows.get(reason.example)
        unseen = [one.pod.subject for one in asked.state.charges.held_on(reason.example) if one.unrecorded]
        if row is not None and unseen:
            yield f"not observed there: {', '.join(unseen[:_MOST_NAMES])}"
    if not isinstance(reason, _WITH_AMOUNT):
        yield f"{pod.subject} asks for {asks_for(asked.requests, pod.gpu_share) or 'nothing'}"
    if _lacks_place(reason) and (closest := _closest(asked)):
        yield closest


#: Names that are shown of several.
_MOST_NAMES = 3


def _wanted_of_nodes(pod: Pod, reason: CodedReason) -> Iterator[str]:
    """Yield what the pod asks of nodes or of pods near it, where a reason is about that."""
    match reason:
        case NodeSelectorMismatch():
            yield "nodeSelector " + ", ".join(f"{key}={value}" for key, value in sorted(pod.node_selector.items()))
        case NodeAffinityMismatch():
            yield "node affinity " + " or ".join(_requirements(term) for term in pod.node_affinity)
        case PodAffinity() if pod.rules is not None:
            yield "pod affinity to " + _terms(pod.rules.affinity)
        case PodAntiAffinity() if pod.rules is not None:
            yield "pod anti-affinity to " + _terms(pod.rules.anti_affinity)
        case _:
            pass


def _terms(terms: Sequence[PodTerm]) -> str:
    parts = []
    for term in terms:
        labels = _requirements(term.selector.labels or ()) or "any pod"
        where = f" in namespace {', '.join(term.selector.namespaces)}" if term.selector.namespaces else ""
        parts.append(f"{labels}{where}")
    return " and ".join(parts)


def _requirements(requirements: Sequence[Requirement]) -> str:
    return ", ".join(f"{one.key} {one.operator} {'|'.join(one.values)}".strip() for one in requirements)


def _lacks_place(reason: CodedReason) -> bool:
    """Tell whether a reason that other nodes would remove names none, nor anything else."""
    if isinstance(reason, NodeReason | NoNodes):
        return False
    return reason.of_nodes and not (reason.named_example and reason.affected_nodes)


def _closest(asked: Asked) -> str:
    if not asked.obstacles:
        return ""
    first = asked.obstacles[0]
    name = asked.columns.names[first.row]
    if not first.reasons:
        return f"node {name} could take one of its pods"
    return f"the closest node is {name}: {first.reasons[0]}"
