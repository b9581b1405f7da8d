"""The story of a pod from the log alone: its events, its place, why it waits, and what would let it start."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kaicore.errors import InvalidObject
from kaicore.rules.deciding.cycle_input import is_unobserved
from kaicore.rules.deciding.cycle_run import input_to_explain
from kaicore.rules.deciding.decided_classes import decided_classes
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.explain.remedies import Remedies, Remedy
from kaicore.rules.engine.explain.waiting_reasons import single_start_kind, waiting_reasons
from kaicore.rules.engine.placement.pod_class import base_key, recorded_key
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.engine.victims.eviction_cost import failures_text
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.reasons.base import CodedReason, gpu_hours_text, named_amount
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.groups.labels import JOB, KAI_QUEUE_LABEL, KUEUE_QUEUE_LABEL, MIN_MEMBER_ANNOTATION
from kaicore.rules.model.device import Allocation
from kaicore.rules.model.gpu_share import gpus_text
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import Amounts, Pod
from kaicore.rules.model.quantity import PODS, format_amount
from kaicore.rules.model.queue import CLUSTER_QUEUE_PREFIX, COHORT_PREFIX, DEFAULT_QUEUE
from kaicore.rules.numa.explain import impossible_holding, most_held
from kaicore.rules.state.indexes.repairs import why_not
from kaicore.rules.state.pods.agreement import Agreement, MissCause, compare
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
from kaicore.rules.state.pods.pod_life import PodLife
from kaicore.rules.state.views import CycleView, LogView, PodsView, QueuesView, WorkView

_COMPARED = {
    Agreement.EXACT: "as predicted",
    Agreement.SAME_ZONES: "on the zones that were predicted, in other shares",
    Agreement.DIFFERENT: "not as predicted",
}


@dataclass(frozen=True, slots=True)
class StoryLine:
    """One event of a pod's story."""

    position: int
    recorded_at: int
    text: str


def story_of(events: list[Event]) -> list[StoryLine]:
    """Return a pod's story, from the events of its stream; facts that changed nothing of interest are left out."""
    lines: list[StoryLine] = []
    life = PodLife()
    for event in events:
        payload = decode_payload(event)
        if text := _story_text(payload, life):
            lines.append(StoryLine(event.position, event.recorded_at, text))
        life.take(payload, at=event.recorded_at, position=event.position)
    return lines


def _story_text(payload: payloads.Payload, life: PodLife) -> str:  # long: one case for each event
    """Tell an event in words, given the pod's life before it; empty where it changed nothing of interest."""
    text = ""
    match payload:
        case payloads.PodObserved(pod):
            text = _pod_news(life.seen, pod)
            previous = "" if life.seen is None else life.seen.nominated_node
            if pod.nominated_node not in ("", previous, life.nominated):
                text += (
                    f"{'; ' if text else ''}its status names {pod.nominated_node} as kept for it, by another scheduler"
                )
        case payloads.PodPlaced():
            text = f"cycle {payload.cycle} placed it on {payload.node}{zones_text(payload.placement)}"
            if payload.domains:
                text += f", {_domains_text(payload)}"
            for claim, volume in sorted(payload.volumes.items()):
                text += f", claim {claim} gets volume {volume}"
            for claim, allocation in sorted(payload.devices.items()):
                text += f", claim {claim} gets {devices_text(allocation)}"
            for part in payload.gpus:
                text += f", {gpus_text(part.milli)} of GPU group {part.group[:8]}"
            if payload.rejected_here_before:
                text += f" (its kubelet had rejected such pods {payload.rejected_here_before} times)"
        case payloads.PodBound():
            text = f"bound to {payload.node}" + (f" at attempt {payload.attempts}" if payload.attempts > 1 else "")
        case payloads.BindFailed():
            text = f"binding to {payload.node} failed: {payload.code} {payload.reason}: {payload.message}"
        case payloads.PodRejected():
            text = f"rejected by the kubelet of {payload.node}: {payload.reason}: {payload.message}"
        case payloads.PlacementObserved():
            text = f"observed on {payload.node}{zones_text(payload.placement)}"
            if life.seen is not None and (problem := _impossible(life.seen, payload.placement)):
                text += f", which is not believed: {problem}"
            elif life.predicted is not None:
                text += f", {_COMPARED[compare(life.predicted, payload.placement)]}"
        case payloads.PredictionMissed(cause=cause):
            text = f"not as predicted for a kubelet with policy {payload.policy}: {cause}"
        case payloads.EvictionDecided():
            preemptor = f" to make way for {payload.preemptor}" if payload.preemptor else ""
            text = f"cycle {payload.cycle} decided to evict it from {payload.node}: {payload.why}{preemptor}"
            if payload.fits_on:
                text += f"; its successor fits on {payload.fits_on}"
            text += failures_text(payload.failures_left) + choice_text(payload)
        case payloads.PodNominated():
            where = f"{payload.node}{zones_text(payload.placement)}"
            text = f"cycle {payload.cycle} keeps room for it on {where} until the pods on it are gone"
        case payloads.NominationCleared():
            text = f"cycle {payload.cycle} keeps no more room for it on {payload.node}: {payload.reason}"
        case payloads.RepairRequested():
            text = f"cycle {payload.cycle} decided to repair it: its own NUMA policy was missed: {payload.missed}"
        case payloads.PodEvicted():
            text = f"evicted from {payload.node}"
        case payloads.EvictionFailed():
            text = f"evicting it from {payload.node} failed: {payload.code} {payload.reason}: {payload.message}"
        case payloads.PodDeleted():
            text = "deleted"
        case _:
            pass
    return text


def devices_text(allocation: Allocation) -> str:
    """Name the devices of a claim, and the NUMA zones that they are close to as far as their drivers say."""
    names = []
    for device in allocation.devices:
        near = f", NUMA {'/'.join(map(str, device.numa))}" if device.numa else ""
        names.append(f"{device.device} ({device.driver}, pool {device.pool}{near})")
    return " and ".join(names) or "no device"


def choice_text(eviction: payloads.EvictionDecided, policies: Sequence[str] = ()) -> str:
    """Say why a pod was chosen to be evicted, where pods are chosen by cost, and what work it loses.

    Args:
        policies: names of those that may add to the cost; empty where they are not known.
    """
    if eviction.cost is None:
        return work_text(eviction)
    text = f"; chosen for {eviction.chosen_for} at cost {_cost_text(eviction.cost)}"
    if eviction.runner_up_cost is not None:
        text += f", before {eviction.runner_up} at cost {_cost_text(eviction.runner_up_cost)} or more"
    return text + _by_policies(eviction.cost, eviction.runner_up_cost, policies) + work_text(eviction)


def _by_policies(cost: payloads.EvictionCost, runner_up: payloads.EvictionCost | None, policies: Sequence[str]) -> str:
    """Say how much of both costs is of policies; empty where nothing is."""
    other = 0 if runner_up is None else runner_up.policies
    if not cost.policies and not other:
        return ""
    adds = "policy" if len(policies) == 1 else "policies"
    named = f"{adds} {', '.join(policies)}" if policies else adds
    verb = "adds" if len(policies) == 1 else "add"
    return f"; {named} {verb} {cost.policies} to the cost" + ("" if runner_up is None else f", and {other} to that one")


def work_text(eviction: payloads.EvictionDecided) -> str:
    """Say how much work a pod loses by its eviction, and what that wins; empty where it loses none."""
    if not eviction.lost_gpu_seconds:
        return ""
    won = f", and the start wins {gpu_hours_text(eviction.won_gpu_seconds)}" if eviction.won_gpu_seconds else ""
    return f"; loses {gpu_hours_text(eviction.lost_gpu_seconds)} of work{won}"


def _cost_text(cost: payloads.EvictionCost) -> str:
    extra = f"+{cost.policies}" if cost.policies else ""
    return f"{cost.rank}{extra}/{cost.size}/{cost.pods}/{cost.minutes}"


def verdict(entry: PodEntry | None, state: WorkView, *, scheduler_name: str) -> str:
    """Say in one sentence where a pod stands."""
    if entry is None:
        return "the pod is gone"
    pod = entry.pod
    match entry.stage:
        case Stage.FINISHED if pod.phase == "Failed":
            return f"failed on {entry.node or 'no node'}: {pod.reason or 'its containers failed'}"
        case Stage.FINISHED:
            return f"finished on {entry.node}"
        case Stage.BOUND:
            unseen = entry.predicted is not None and entry.observed is None and pod.phase == "Running"
            where = f"{entry.node}, its zones not observed yet" if unseen else entry.node
            return f"{pod.phase.lower() if pod.phase != 'Pending' else 'bound, not yet started'} on {where}"
        case Stage.PLACED:
            return f"placed on {entry.node}, being bound"
        case _:
            pass
    if pod.scheduler_name != scheduler_name:
        return f"waits for another scheduler: {pod.scheduler_name}"
    if pod.deletion_at is not None:
        return "is being deleted before it was placed"
    if entry.bind_failures:
        return f"waits after {entry.bind_failures} failed binds"
    return "pending" if pending_reasons(entry, state) else "waits for its first cycle"


def pending_reasons(entry: PodEntry, state: WorkView) -> list[CodedReason]:
    """Return why a pod waits: that it is not known which pods it starts with, which no cycle decides on.

    Else the reasons last recorded for its group, or for those like it, and for its class.
    """
    if entry.stage is not Stage.WAITING:
        return []
    if entry.group_problem is not None:
        return [entry.group_problem]
    alone = single_start_kind(state.workload_index.workloads.get(entry.group))
    return waiting_reasons(
        state.reasons.by_group.get(entry.group, {}),
        state.reasons.by_class.get(_class_key(entry, state), {}),
        alone=alone,
    )


def _class_key(entry: PodEntry, state: WorkView) -> str:
    """Return under which class the reasons of a pod were recorded last.

    What it uses may have changed since, such as a claim that it shares: until a cycle has looked at it again, that is
    the class as which it was left waiting.
    """
    reported = "" if entry.reported is None else entry.reported.pod_class
    key = recorded_key(state.class_of(entry).key, reported)
    is_known = key in state.reasons.by_class or base_key(reported) != base_key(key)
    return key if is_known else reported


def reasons_position(entry: PodEntry, state: WorkView) -> int:
    """Return the position of the state by which the reasons of `pending_reasons` were found, the earliest of several.

    A cycle records reasons only where they have changed; so they are those that its last cycle found, on the state
    that it knew. 0 where no cycle recorded any.
    """
    if entry.stage is not Stage.WAITING or entry.group_problem is not None:
        return 0
    by_class = state.reasons.by_class.get(_class_key(entry, state), {})
    shards = {*state.reasons.by_group.get(entry.group, {}), *by_class} & state.last_cycles.keys()
    return min((state.last_cycles[shard][1] for shard in shards), default=0)


def notes(entry: PodEntry, state: CycleView) -> list[str]:
    """Say what is wrong with a pod, as of the log's last event, and in which queue it is if it names none."""
    config, lines = state.config(), []
    if unnamed := without_queue(entry, state):
        lines.append(unnamed)
    if entry.replaces_on:
        lines.append(f"replaces a pod that was evicted from {entry.replaces_on}, and will not be repaired itself")
    if entry.misaligned:
        own = state.classes[entry.class_key].numa_policy
        missed = "" if own is None else f"its own NUMA policy ({own}) was missed: "
        lines.append(missed + entry.misaligned)
        reason = why_not(entry)
        borne = state.failures_left(entry.pod)
        if borne is not None and borne.left <= 0:
            reason = reason or "its Job counts evictions as failures and allows no more"
        if not config.repair:
            reason = "repair is switched off (setting repair)"
        due = state.repairs.due_at(entry, config)
        if reason or due is None:
            lines.append(f"it stays where it is: {reason or 'another scheduler placed it'}")
        elif due > state.recorded_at:
            lines.append(f"it will be evicted and placed again in {-(-(due - state.recorded_at) // 1_000_000)} s")
        else:
            lines.append("it will be evicted and placed again once another node would keep its policy")
    unsure = f"{entry.node} turned out to hold other zones after the decision; both count until it is observed"
    lines += [f"it may be on{zones_text(other)} as well: {unsure}" for other in entry.alternatives]
    lines += far_gpus(entry, state)
    if entry.implausible:
        lines.append(f"its last observation is not believed: {entry.implausible}")
    silent = state.recorded_at - entry.started_at
    if silent > config.unobserved_after_us and is_unobserved(state, entry):
        lines.append(
            f"runs for {silent // 1_000_000} s and no exporter observed its zones: check the exporter on {entry.node}"
        )
    return lines


def far_gpus(entry: PodEntry, state: PodsView) -> list[str]:
    """Name the zones of the GPUs that a pod shares, where its own CPUs and memory are of others."""
    own = entry.observed or entry.predicted
    near, lines = _zones_of(own) if own is not None and entry.charged else frozenset(), []
    for part in entry.gpus:
        group = state.shared_gpus.groups.get(part.group)
        holder = None if group is None else state.pods.get(group.uid)
        held = None if holder is None else holder.observed or holder.predicted
        zones = _zones_of(held) if held is not None else frozenset()
        if holder is not None and near and not zones <= near:
            how = "predicted" if holder.observed is None else "observed"
            where = f"its own CPUs and memory are of {'+'.join(sorted(near))}"
            lines.append(f"it shares a GPU of {'+'.join(sorted(zones))} ({how}), and {where}")
    return lines


def _zones_of(placement: Placement) -> frozenset[str]:
    containers = placement.lasting
    named = [zone.zone for one in containers for zone in one.zones]
    return frozenset([*named, *(zone for one in containers for span in one.spans for zone in span.zones)])


def without_queue(entry: PodEntry, state: QueuesView) -> str:
    """Say where a pod of ours that names no queue counts, and how it gets one; empty where there is no need to."""
    tree = state.queue_registry.tree
    name, namespace = state.queue_of(entry)
    if tree.implied_default < 0 or entry.pod.scheduler_name != state.config().scheduler_name:
        return ""
    if name or tree.find("", namespace=namespace) != tree.implied_default:
        return ""
    owner = entry.pod.owner
    labelled = "it" if owner is None else f"the pod template of its owner ({owner.kind} {owner.name})"
    text = default_queue_text(state, labelled, entry.pod.namespace)
    return f"names no queue: it counts in queue {DEFAULT_QUEUE}, {text}"


def default_queue_text(state: QueuesView, labelled: str, namespace: str = "") -> str:
    """Say what the default queue that is no object is, and how work gets another one.

    Args:
        labelled: the object with the label that names a queue.
        namespace: of the work; empty for any.
    """
    tree = state.queue_registry.tree
    labels = []
    for name, queue in sorted(state.queues.items()):
        where = namespace or queue.namespace
        if name.startswith((CLUSTER_QUEUE_PREFIX, COHORT_PREFIX)) or queue.namespace not in ("", where):
            continue
        if isinstance(tree.resolve(name, namespace=where), int):
            key, value = (KUEUE_QUEUE_LABEL, name.partition("/")[2]) if queue.namespace else (KAI_QUEUE_LABEL, name)
            labels.append(f"{key}={value}")
    example = f", such as {labels[0]}" if labels else ""
    return (
        f"which is no object and has no quota; a label on {labelled} gives it another queue{example}, "
        f"and a Queue called {DEFAULT_QUEUE} takes its place"
    )


def miss_notes(uid: str, state: LogView) -> list[str]:
    """Say why a pod's zones were not as predicted, of one that is gone as well."""
    if uid in state.misses.open:
        return ["its zones are not as predicted; why will show in a few seconds"]
    miss = state.misses.explained.get(uid)
    if miss is None:
        return []
    match miss.cause:
        case MissCause.RELEASED_EARLIER:
            pods = ", ".join(miss.released)
            text = f"its kubelet freed what {pods} held before the API reported their end"
        case MissCause.HALF_READ:
            text = "the report showed half of its admission, and the whole is as predicted"
        case MissCause.OLDEST_FIRST:
            text = "its kubelet admitted the pods that came together oldest first, not in the order of decisions"
        case MissCause.INIT_KEPT:
            text = "an init container of it, or of a pod before it, kept CPUs that were to be taken over, or fewer"
        case MissCause.NOT_OBSERVED_YET:
            text = "pods before it were not observed yet, and counted on zones where they are not, too"
        case _:
            return []
    return [f"its zones were not as predicted: {text} ({miss.cause})"]


def zones_text(placement: Placement | None) -> str:
    """Write which zones a placement holds what of, behind a node's name; empty when it holds nothing of any."""
    if placement is None or not placement.containers:
        return ""
    parts = [f"{zone.zone} ({_amounts(zone.amount)})" for zone in placement.zone_amounts()]
    parts += [
        f"{'+'.join(span.zones)} ({_amounts(span.amount)})"
        for container in placement.containers
        for span in container.spans
    ]
    return " zones " + ", ".join(parts) if parts else ""


def _impossible(pod: Pod, placement: Placement) -> InvalidObject | None:
    return impossible_holding(placement, subject=f"Pod {pod.subject}", most=most_held(pod), zones={})


def _pod_news(before: Pod | None, pod: Pod) -> str:
    if before is None:
        where = f", already on {pod.node_name}" if pod.node_name else ""
        return f"seen: {pod.qos} pod, {_asked(pod) or 'no containers'}{where}"
    if pod.deletion_at is not None and before.deletion_at is None:
        return "deletion began"
    if pod.phase != before.phase:
        return f"{pod.phase.lower()}" + (f": {pod.reason}" if pod.reason else "")
    if pod.node_name and pod.containers != before.containers:
        return f"resized in place: {_asked(pod)}"
    if pod.scheduling_gates != before.scheduling_gates:
        return f"scheduling gates: {', '.join(pod.scheduling_gates) or 'none left'}"
    return ""


def _asked(pod: Pod) -> str:
    parts = [
        f"{container.name}: "
        + " ".join(f"{name}={format_amount(name, amount)}" for name, amount in sorted(container.requests.items()))
        for container in pod.containers
    ]
    return ", ".join([*parts, *([] if pod.gpu_share is None else [str(pod.gpu_share)])])


def _amounts(amounts: Amounts) -> str:
    return ", ".join(f"{name} {format_amount(name, amount)}" for name, amount in sorted(amounts.items()))


def _domains_text(placed: payloads.PodPlaced) -> str:
    """Write the domains of a placed pod's node, and its rank."""
    domains = ", ".join(f"{level} {name}" for level, name in placed.domains.items())
    return f"in {domains}" + (f", as rank {placed.rank}" if placed.rank >= 0 else "")


def one_by_one(state: WorkView, entries: Sequence[PodEntry]) -> list[str]:
    """Return what to know of a Job that is no gang, where some of its pods hold what they got while others wait.

    Whether its pods need each other the Job does not say: so it is said as what holds, with the remedy.
    """
    placed, waiting = [one for one in entries if one.charged], [one for one in entries if one.waiting]
    workload = state.workload_index.workloads.get(waiting[0].group) if placed and waiting else None
    if workload is None or workload.is_gang or not workload.group.key.startswith(f"{JOB}/"):
        return []
    held: Counter[str] = Counter()
    for entry in placed:
        held.update({name: amount for name, amount in state.class_of(entry).requests.items() if name != PODS})
    amounts = ", ".join(named_amount(name, amount) for name, amount in sorted(held.items()) if amount)
    wanted = f'{MIN_MEMBER_ANNOTATION}: "{len(entries)}"'
    return [
        f"it is no gang: its pods start one by one; {len(placed)} of {len(entries)} started, and hold {amounts}. "
        f"If they need each other, annotate the Job with {wanted}: they start together then, or not at all"
    ]


#: For how many shapes of groups it is worked out at most.
MOST_SHAPES = 50


class StateRemedies:
    """Answers about the pods of one state; groups of one shape share theirs."""

    def __init__(self, state: CycleView, config: EngineConfig, policies: PolicyBook = NO_POLICIES) -> None:
        """Args:
        state: not changed, and not to be changed while this is asked.
        policies: the code of policies; those of which it has none are not asked.
        """
        self.config = config
        self._state, self._policies = state, policies
        self._decided_as = decided_classes(state, config, now=state.recorded_at)
        self._by_group: dict[str, Remedy] = {}
        self._by_shape: dict[object, Remedy] = {}

    def of(self, entry: PodEntry) -> tuple[Reason, ...]:
        """Return when a pod would become schedulable, as part of what its group is to start next.

        Returns:
            nothing for a pod that does not wait, of which it is not known which pods it starts with, or that another
            kind of pods of its group goes before, for one of a shape beyond the first `MOST_SHAPES`, and where nothing
            was found.
        """
        if entry.pod.uid not in self._state.waiting or entry.group_problem is not None:
            return ()
        remedy = self._by_group.get(entry.group)
        if remedy is None:
            remedy = self._by_group[entry.group] = self._work_out(entry.group)
        return remedy.reasons if self._decided_as(entry).key in remedy.classes else ()

    @cached_property
    def _remedies(self) -> Remedies:
        now = self._state.recorded_at
        return Remedies(input_to_explain(self._state, self.config, now=now, policies=self._policies), self.config)

    def _work_out(self, group: str) -> Remedy:
        shape = self._remedies.shape(group)
        if shape is None:
            return Remedy()
        cached = self._by_shape.get(shape)
        if cached is None:
            if len(self._by_shape) >= MOST_SHAPES:
                return Remedy()
            cached = self._by_shape[shape] = self._remedies.of(group)
        return cached
