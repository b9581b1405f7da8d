"""Changes to pods: one obstacle after another is removed from their specs."""

from collections.abc import Iterator
from functools import partial

from kaicore.analysis.counterfactuals.amendment import Amendment
from kaicore.analysis.counterfactuals.asked import Asked, edited
from kaicore.rules.groups.gang import GANG
from kaicore.rules.groups.kueue_pod_group import TOTAL_COUNT
from kaicore.rules.groups.making import PREEMPTIBILITY_LABEL
from kaicore.rules.model.pod import GPU_SHARE, Pod, Toleration
from kaicore.rules.model.pod_rules import PodRules
from kaicore.rules.numa.pod_policy import POLICY_ANNOTATION, RESOURCES_ANNOTATION
from kaicore.rules.reasons.devices import (
    DevicesTaken,
    NoMatchingDevices,
    ResourceClaimNotReady,
    ResourceClaimOutOfReach,
)
from kaicore.rules.reasons.eviction import NeverPreempts
from kaicore.rules.reasons.group import Malformed, SchedulingGated, Unsupported
from kaicore.rules.reasons.node import NodeAffinityMismatch, NodeSelectorMismatch, UntoleratedTaint
from kaicore.rules.reasons.numa import NumaPolicyNeverKept, NumaPolicyNotKept, NumaPolicyUntold
from kaicore.rules.reasons.pods_nearby import HostPortTaken, PodAffinity, PodAntiAffinity, TopologySpread
from kaicore.rules.reasons.queue import NonPreemptibleOverQuota
from kaicore.rules.reasons.reason import Reason

_GPU = "nvidia.com/gpu"


def pod_amendments(asked: Asked) -> Iterator[Amendment]:
    """Yield edits of what the pods ask for."""
    for reason in asked.reasons:
        yield from _of_itself(asked, reason)
        yield from _of_nodes(asked, reason)
        yield from _of_devices(asked, reason)
        yield from _of_pods_nearby(asked, reason)


def _of_itself(asked: Asked, reason: Reason) -> Iterator[Amendment]:
    pod = asked.pod
    match reason:
        case SchedulingGated():
            words = f"take the scheduling gate {reason.gates} off pod {pod.subject}"
            yield asked.edit_pods("ungate", words, lambda one: edited(one, scheduling_gates=()))
        case Malformed():
            count = len(asked.fellows)
            words = f"correct what is not valid of pod {pod.subject}: {reason.problem}"
            yield asked.edit_pods("correct", words, lambda one: _corrected(one, reason.problem, count))
        case Unsupported(group="") if any(feature.startswith(GPU_SHARE) for feature in pod.unsupported):
            words = f"request a whole GPU ({_GPU}: 1) instead of a share of one in {pod.subject}"
            yield asked.edit_pods("whole-gpu", words, _whole_gpu)
        case Unsupported(group=""):
            words = f"take from pod {pod.subject} what is not supported: {reason.features}"
            yield asked.edit_pods("do-without", words, lambda one: edited(one, unsupported=()))
        case NonPreemptibleOverQuota():
            words = f"let pod {pod.subject} be preempted: label {PREEMPTIBILITY_LABEL}=preemptible"
            yield asked.edit_pods("make-preemptible", words, _preemptible, evicts=True)
        case NeverPreempts():
            words = f"let pod {pod.subject} preempt: preemptionPolicy PreemptLowerPriority"
            policy = "PreemptLowerPriority"
            yield asked.edit_pods("let-preempt", words, lambda one: edited(one, preemption_policy=policy), evicts=True)
        case _:
            pass


def _preemptible(pod: Pod) -> Pod:
    return edited(pod, labels={**pod.labels, PREEMPTIBILITY_LABEL: "preemptible"})


def _whole_gpu(pod: Pod) -> Pod:
    """Return a pod that requests a GPU instead of a share of one."""
    *others, main = pod.containers
    requests, limits = ({**amounts, _GPU: max(amounts.get(_GPU, 0), 1)} for amounts in (main.requests, main.limits))
    kept = tuple(feature for feature in pod.unsupported if not feature.startswith(GPU_SHARE))
    return edited(pod, unsupported=kept, containers=(*others, edited(main, requests=requests, limits=limits)))


def _corrected(pod: Pod, problem: str, count: int) -> Pod:
    """Return a pod without what is not valid; what is told of its group is how many pods there are."""
    named = {key for key in pod.annotations if key in problem}
    if POLICY_ANNOTATION in named:
        named.add(RESOURCES_ANNOTATION)
    annotations = {key: value for key, value in pod.annotations.items() if key not in named}
    for key in (f"{GANG}/min-available", TOTAL_COUNT):
        if key in problem:
            annotations[key] = str(count)
    return edited(pod, malformed="", annotations=annotations)


def _of_nodes(asked: Asked, reason: Reason) -> Iterator[Amendment]:
    pod = asked.pod
    match reason:
        case NodeSelectorMismatch():
            selector = ", ".join(f"{key}={value}" for key, value in sorted(pod.node_selector.items()))
            words = f"take the nodeSelector {selector} off pod {pod.subject}"
            yield asked.edit_pods("relax", words, lambda one: edited(one, node_selector={}))
        case NodeAffinityMismatch():
            words = f"take the required node affinity off pod {pod.subject}"
            yield asked.edit_pods("relax", words, lambda one: edited(one, node_affinity=()))
        case UntoleratedTaint():
            key, _, effect = reason.taint.rpartition(":")
            key, _, value = key.partition("=")
            toleration = Toleration(key, "Equal" if value else "Exists", value, effect)
            words = f"let pod {pod.subject} tolerate {reason.taint}"
            yield asked.edit_pods("tolerate", words, lambda one: _tolerating(one, toleration))
        case NumaPolicyUntold() | NumaPolicyNeverKept() | NumaPolicyNotKept():
            was = pod.annotations.get(POLICY_ANNOTATION, "")
            words = f"relax {POLICY_ANNOTATION} of pod {pod.subject} from {was} to best-effort"
            yield asked.edit_pods("relax", words, _best_effort)
        case _:
            pass


def _of_devices(asked: Asked, reason: Reason) -> Iterator[Amendment]:
    if not isinstance(reason, ResourceClaimNotReady | ResourceClaimOutOfReach | NoMatchingDevices | DevicesTaken):
        return
    for claim in asked.pod.resource_claims:
        words = f"take the resource claim {claim.name} off pod {asked.pod.subject}"
        yield asked.edit_pods("relax", words, partial(_without_claim, name=claim.name))


def _without_claim(pod: Pod, name: str) -> Pod:
    return edited(pod, resource_claims=tuple(claim for claim in pod.resource_claims if claim.name != name))


def _tolerating(pod: Pod, toleration: Toleration) -> Pod:
    return edited(pod, tolerations=(*pod.tolerations, toleration))


def _best_effort(pod: Pod) -> Pod:
    return edited(pod, annotations={**pod.annotations, POLICY_ANNOTATION: "best-effort"})


def _of_pods_nearby(asked: Asked, reason: Reason) -> Iterator[Amendment]:
    subject = asked.pod.subject
    match reason:
        case TopologySpread():
            words = f"raise maxSkew of pod {subject} by {reason.topology_key} from {reason.max_skew} to {reason.skew}"
            yield asked.edit_pods("relax", words, lambda one: _with_skew(one, reason), amount=reason.skew)
        case PodAffinity():
            words = f"take the required pod affinity by {reason.topology_key} off pod {subject}"
            yield asked.edit_pods("relax", words, lambda one: _with_rules(one, affinity=()))
        case PodAntiAffinity():
            words = f"take the required pod anti-affinity by {reason.topology_key} off pod {subject}"
            yield asked.edit_pods("relax", words, lambda one: _with_rules(one, anti_affinity=()))
        case HostPortTaken():
            words = f"do without host port {reason.port} in pod {subject}"
            yield asked.edit_pods("relax", words, lambda one: _with_rules(one, host_ports=()))
        case _:
            pass


def _with_skew(pod: Pod, reason: TopologySpread) -> Pod:
    rules = pod.rules or PodRules()
    spread = tuple(
        edited(one, max_skew=max(one.max_skew, reason.skew)) if one.topology_key == reason.topology_key else one
        for one in rules.spread
    )
    return _with_rules(pod, spread=spread)


def _with_rules(pod: Pod, **fields: object) -> Pod:
    return edited(pod, rules=edited(pod.rules or PodRules(), **fields))
