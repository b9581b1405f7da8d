"""Explanations of a pod, of an owner of pods, of a group, of a queue and of a node.

A waiting pod has the most parts: what is short and where, who would have to leave, and remedies that were tried within
a bounded time. A group lists its pod sets, with their progress and their topology domains.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from kaicore.analysis.ask import listing
from kaicore.analysis.ask.answers import GroupRow, NodeRow, QueueRow, RowSelection, Why
from kaicore.analysis.ask.counterfactuals.asked import Asked, NodeObstacles, details
from kaicore.analysis.ask.counterfactuals.checking import Helpful, check
from kaicore.analysis.ask.counterfactuals.room_amendments import blockers
from kaicore.analysis.json_spelling import time_text
from kaicore.analysis.life import why_answers
from kaicore.analysis.life.attempts import attempts
from kaicore.analysis.life.placements import kubelet_text, placement_answer
from kaicore.analysis.life.pod_history import OBSERVED, PodEvidence, evictions, rejections, timeline
from kaicore.rules.deciding import why
from kaicore.rules.deciding.cycle_run import explained, recorded_left_out
from kaicore.rules.deciding.shadow import shadow_notes, shadow_reasons
from kaicore.rules.deciding.suspects import probe_text, suspect_texts
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.explain.waiting_reasons import weight
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.reasons.base import CodedReason, plural
from kaicore.rules.events.reasons.group import TopologyHasNoRoom
from kaicore.rules.events.reasons.queue import BoundReason
from kaicore.rules.groups.labels import POD_GROUPS
from kaicore.rules.groups.membership import POD
from kaicore.rules.model.group import Group, GroupSource, PodSet, TopologyConstraint
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.quantity import PODS, exact_amount, format_amount
from kaicore.rules.model.reservation import reservation_terms
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
from kaicore.rules.state.views import ClusterView, CycleView, WorkView
from kaicore.rules.topology.resolve import Resolved

#: Nodes that are shown, the closest first.
_MOST_NODES = 5


def node_shortfalls(asked: Asked) -> list[why_answers.NodeShortfall]:
    """Return what the closest nodes lack: the least unfit, then those with the fewest obstacles, that lack the least.

    A node that has nothing at all of a resource that is asked for is close to nothing.
    """
    closest = sorted(
        (one for one in asked.obstacles if one.reasons and asked.has_some(one.row)),
        key=lambda one: (one.unfit, len(one.reasons), _lack(asked, one), asked.columns.names[one.row]),
    )
    return [_node(asked, one) for one in closest[:_MOST_NODES]]


def _lack(asked: Asked, obstacles: NodeObstacles) -> int:
    """Return the largest share of a request that a node lacks, per mille."""
    missing = asked.missing(obstacles.row)
    return max((amount * 1000 // asked.requests[name] for name, amount in missing.items()), default=0)


def _node(asked: Asked, obstacles: NodeObstacles) -> why_answers.NodeShortfall:
    return why_answers.NodeShortfall(
        node=asked.columns.names[obstacles.row],
        reasons=list(dict.fromkeys(reason.code for reason in obstacles.reasons)),
        messages=list(dict.fromkeys(map(str, obstacles.reasons))),
        missing=_texts(asked.missing(obstacles.row)),
        zones=_zones(asked, obstacles.row),
        kubelet=kubelet_text(asked.state, asked.columns.names[obstacles.row]),
    )


def _zones(asked: Asked, row: int) -> list[why_answers.ZoneShortfall]:
    topology, zones = asked.columns.topologies[row], asked.columns.zones
    aligned = [name for name in asked.pod_class.aligned.on(zones.kubelet_of(row)).resources if name in zones.resources]
    if topology is None or not aligned:
        return []
    shortfalls = []
    for index, zone in enumerate(topology.zones):
        free = {
            name: zone.resources[name].allocatable - int(zones.used[row, index, zones.resources[name]])
            for name in aligned
            if name in zone.resources
        }
        missing = {
            name: asked.requests[name] - max(have, 0)
            for name, have in free.items()
            if have < asked.requests.get(name, 0)
        }
        shortfalls.append(why_answers.ZoneShortfall(zone=zone.name, free=_texts(free), missing=_texts(missing)))
    return shortfalls


def _texts(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: exact_amount(name, max(amount, 0)) for name, amount in sorted(amounts.items()) if name != PODS}


def queue_rows(asked: Asked) -> list[QueueRow]:
    """Return the accounts of the pod's queue and of those above it, those of what it asks for only."""
    registry = asked.state.queue_registry
    name, namespace = asked.state.queue_of(asked.entry)
    number = registry.tree.find(name, namespace=namespace or asked.pod.namespace)
    if number is None:
        return []
    names = (registry.tree.queues[above].name for above in registry.tree.paths[number])
    return [row for one in names for row in listing.list_queues(asked.state, RowSelection(name=one))]


def domain_shortfalls(asked: Asked) -> list[why_answers.DomainShortfall]:
    """Return what the best domains lack."""
    return [
        why_answers.DomainShortfall(
            topology=reason.topology,
            level=reason.level,
            domain=reason.domain,
            needed=reason.wanted,
            has=reason.fitting,
            unit=f"slices of {reason.slice_size}" if reason.slice_size else "pods",
        )
        for reason in asked.reasons
        if isinstance(reason, TopologyHasNoRoom)
    ]


#: Seconds of CPU after which no further change is tried.
TRIAL_S = 0.5
#: Stands for the name of a node that would be added.
NEW_NODE = "the new node"


def remedies(asked: Asked) -> why_answers.RemediesAnswer:
    """Return what would make a pod start."""
    end = time.process_time() + TRIAL_S
    checked, uid = check(asked, go_on=lambda: time.process_time() < end), asked.pod.uid
    return why_answers.RemediesAnswer(
        pod=asked.pod.subject,
        next_cycle="" if checked.as_it_is is None else checked.as_it_is.nodes[uid],
        remedies=[_remedy(asked, one) for one in checked.helpful],
        tried=checked.tried,
        untried=checked.untried,
    )


def _remedy(asked: Asked, helpful: Helpful) -> why_answers.RemedyAnswer:
    amendment = helpful.amendment
    node = helpful.start.nodes[asked.pod.uid]
    return why_answers.RemedyAnswer(
        kind=amendment.kind,
        message=amendment.message,
        resource=amendment.resource,
        amount=format_amount(amendment.resource, amendment.amount) if amendment.amount else "",
        place=amendment.place,
        until=time_text(amendment.until) if amendment.until else "",
        node=node if node in asked.state.columns.rows else NEW_NODE,
        evicts=list(helpful.start.evicted),
    )


def _why_waiting(asked: Asked, *, trials: bool) -> dict[str, Any]:
    """Return fields of `Why` about a pod that waits: nodes, domains, queues, blockers, schedulable_if, starts_if."""
    of_nodes = any(reason.of_nodes for reason in asked.reasons)
    of_queue = any(reason.queue_name for reason in asked.reasons)
    held_up = of_nodes or any(isinstance(reason, BoundReason) for reason in asked.reasons)
    return {
        "nodes": node_shortfalls(asked) if of_nodes else [],
        "domains": domain_shortfalls(asked),
        "queues": queue_rows(asked) if of_queue else [],
        "blockers": blockers(asked) if held_up else [],
        "schedulable_if": [listing.reason_answer(reason) for reason in _fits(asked)],
        "starts_if": remedies(asked) if trials else None,
    }


def _fits(asked: Asked) -> tuple[CodedReason, ...]:
    """Return when the pod would fit; nothing where pods of another kind of its group go before it."""
    if asked.entry.group_problem is not None or asked.pod_class.key not in asked.remedy.classes:
        return ()
    return asked.remedy.reasons


#: Domains that are shown of one level.
_MOST_DOMAINS = 20


def sub_groups(state: ClusterView, group: Group) -> list[why_answers.SubGroupAnswer]:
    """Return the sets of a group, the root first; of the root the pods of all."""
    entries = listing.group_entries(state, group.key)
    parents = {one.name: one.parent for one in group.sets}
    answers = []
    for one in group.sets:
        members = [entry for entry in entries if one is group.sets[0] or _below(entry.pod_set, one.name, parents)]
        answers.append(_answer(state, group, one, members))
    return answers


def _below(name: str, wanted: str, parents: dict[str, str]) -> bool:
    while name and name != wanted:
        name = parents.get(name, "")
    return name == wanted


def _answer(state: ClusterView, group: Group, one: PodSet, members: list[PodEntry]) -> why_answers.SubGroupAnswer:
    stages = listing.counts_by_stage(members)
    return why_answers.SubGroupAnswer(
        name=one.name,
        minimum=one.min_pods or one.min_sets or 0,
        waiting=stages["waiting"],
        running=stages["running"],
        leaving=stages["leaving"],
        succeeded=stages["succeeded"],
        constraint="" if one.topology is None else _text(one.topology),
        domains=_domains(state, group, members),
    )


def _text(asked: TopologyConstraint) -> str:
    parts = [f"requires one {asked.required}"] if asked.required else []
    parts += [f"prefers one {asked.preferred}"] if asked.preferred else []
    parts += [f"slices of {layer.size} in one {layer.required or layer.preferred}" for layer in asked.slices]
    topology = f" of topology {asked.topology}" if asked.topology else ""
    return ", ".join(parts) + topology if parts else topology.strip()


def _domains(state: ClusterView, group: Group, members: list[PodEntry]) -> dict[str, dict[str, int]]:
    """Return how many of the pods that have a node are in each domain, by level, but for the nodes themselves."""
    flavors = state.queue_registry.flavor_topologies(group.queue, group.namespace)
    asked = state.topology_resolver(group.sets, group=group.key, of_flavors=flavors)
    if not isinstance(asked, Resolved):
        return {}
    columns = state.network_topologies.tree(asked.topology).columns(state.columns.names)
    rows = [state.columns.rows[entry.node] for entry in members if entry.charged]
    domains: dict[str, dict[str, int]] = {}
    for level, definition in enumerate(columns.levels):
        if not definition.keys and level == len(columns.levels) - 1:
            continue
        counts = Counter(int(columns.of_rows[level][row]) for row in rows)
        named = {"/".join(columns.domains[level][number]): count for number, count in counts.items() if number >= 0}
        if named:
            domains[definition.name] = dict(sorted(named.items())[:_MOST_DOMAINS])
    return domains


#: Pods that an answer about several shows, those that wait first.
_MOST_PODS = 200
#: Reasons that an answer about several pods shows: what decides first, then the most frequent.
_MOST_REASONS = 20

#: Label of the pods of a ReplicaSet that a Deployment made; the ReplicaSet is called after the Deployment and it
#: (kubernetes/pkg/controller/deployment/sync.go, 1.34: `d.Name + "-" + podTemplateSpecHash`).
_TEMPLATE_HASH = "pod-template-hash"


def _remarks(state: ClusterState, entry: PodEntry) -> list[str]:
    probe = probe_text(state, entry)
    return [*([probe] if probe else []), *why.notes(entry, state), *shadow_notes(entry, state)]


def why_pod(
    state: ClusterState,
    namespace: str,
    name: str,
    evidence: PodEvidence,
    policies: PolicyBook = NO_POLICIES,
    *,
    trials: bool = True,
) -> Why | None:
    """Explain the pod that has, or last had, a name; None when there is nothing of it in state and log.

    Args:
        policies: the code of policies; a note names those of which it has none, where that matters.
        trials: whether changes are tried for `starts_if`, which takes most of the time.
    """
    if not evidence.uid:
        return None
    entry, own = state.pods.get(evidence.uid), evidence.own
    config = state.config()
    waits: dict[str, Any] = {}
    waiting = entry is not None and _is_decided_on(state, entry)
    left_out: list[str] = []
    if entry is not None and waiting:
        waits, left_out = _asked(state, entry, policies, trials=trials, detailed=True)
        waits["reasons_position"] = why.reasons_position(entry, state)
        if evidence.cycles is not None:
            waits["attempts"] = attempts(state, entry, evidence.cycles)
    elif entry is not None:
        reasons = why.pending_reasons(entry, state) or shadow_reasons(entry, state)
        waits["reasons"] = [listing.reason_answer(reason) for reason in reasons]
    steps = timeline(own)
    placed = evidence.placed
    forged = placed.event.position if placed is not None and not placed.by_cycle else 0
    return Why(
        kind=POD,
        cluster=state.cluster,
        position=state.position,
        namespace=namespace,
        name=name,
        uid=evidence.uid,
        verdict=why.verdict(entry, state, scheduler_name=config.scheduler_name),
        since=""
        if evidence.cycles is not None
        else next((one.at for one in reversed(steps) if one.what != OBSERVED), ""),
        notes=[
            *([] if entry is None else _remarks(state, entry)),
            *([] if entry is None or not waiting else why.one_by_one(state, listing.group_entries(state, entry.group))),
            *left_out,
            *why.miss_notes(evidence.uid, state),
        ],
        placement=None if placed is None else placement_answer(state, entry, placed),
        evictions=evictions(state, evidence),
        rejections=rejections(state, evidence.story),
        timeline=steps,
        story=_story(own, forged),
        **waits,
    )


def _story(own: Sequence[Event], forged: int) -> list[why_answers.StoryAnswer]:
    """Return the story of a pod; the event at position `forged` says falsely that a cycle decided it."""
    return [
        why_answers.StoryAnswer(
            position=line.position,
            recorded_at=time_text(line.recorded_at),
            text=f"not decided by a cycle, though the event says so: {line.text}"
            if line.position == forged
            else line.text,
        )
        for line in why.story_of(list(own))
    ]


def _asked(
    state: ClusterState, entry: PodEntry, policies: PolicyBook, *, trials: bool, detailed: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Return fields of `Why` about a pod that waits, and a note about the policies that could not be asked.

    Args:
        trials: whether changes are tried for `starts_if`, which takes most of the time.
        detailed: with its reasons, and what else is to be said of each.
    """

    def ask(config: EngineConfig) -> dict[str, Any]:
        asked = Asked(state, config, entry, policies)
        answers = _why_waiting(asked, trials=trials)
        if detailed:
            answers["reasons"] = [
                listing.reason_answer(reason, details=details(asked, reason)) for reason in asked.reasons
            ]
        return answers

    answers, without = explained(state.config(), policies, ask)
    names = ", ".join(without)
    note = f"this leaves out policies of the shard, for their code is not here, or they fail: {names}"
    return answers, [note] if without else []


def why_owner(
    state: ClusterState,
    kind: str,
    namespace: str,
    name: str,
    policies: PolicyBook = NO_POLICIES,
    *,
    trials: bool = True,
) -> Why | None:
    """Explain what has pods: a workload of any kind, such as a Job, a Deployment or a PodGroup; None without trace.

    Args:
        kind: without its API group, such as `Job`.
        policies, trials: see `why_pod`.
    """
    groups = [
        group
        for key, group in sorted(state.groups.items())
        if not key.startswith(f"{POD}/")
        and _plain(key.partition("/")[0]) == kind
        and (group.namespace, group.name) == (namespace, name)
    ]
    uids = {uid for group in groups for uid in state.group_table.pods_of(group.key)}
    owners = _Owners(state)
    pods = [
        entry
        for entry in state.pods.values()
        if entry.pod.namespace == namespace and (entry.pod.uid in uids or (kind, name) in owners.of(entry.pod))
    ]
    sources = [
        source
        for source in state.group_table.sources.values()
        if (_plain(source.kind), source.namespace, source.name) == (kind, namespace, name)
    ]
    if not pods and not groups and not sources:
        return None
    group = groups[0] if groups else None
    if group is None and len({entry.group for entry in pods}) == 1:
        group = state.groups.get(pods[0].group)
    row: GroupRow | None = None
    if group is not None and not group.key.startswith(f"{POD}/"):
        row = listing.group_row(state, group, listing.group_entries(state, group.key))
    answer = _about_pods(state, kind, namespace, name, pods, policies=policies, trials=trials)
    if not pods:
        answer = msgspec.structs.replace(answer, verdict=_without_pods(state, kind, sources))
    uid = next((source.uid for source in sources), "")
    return msgspec.structs.replace(
        answer,
        group=row,
        sub_groups=[] if row is None or group is None else sub_groups(state, group),
        uid=uid or next(iter(_owner_uids(kind, name, pods)), ""),
        notes=[*answer.notes, *dict.fromkeys(filter(None, (why.without_queue(entry, state) for entry in pods)))],
    )


def why_queue(state: ClusterState, name: str, policies: PolicyBook = NO_POLICIES) -> Why | None:
    """Explain a queue: its account, and why what waits in it waits; None when there is none of that name."""
    row = next(iter(listing.list_queues(state, RowSelection(name=name))), None)
    if row is None:
        return None
    (queue,) = (queue for queue in listing.queues_of(state) if queue.name == name)
    entries = [state.pods[item.uid] for item in listing.list_pods(state, RowSelection(queue=name))]
    answer = _about_pods(
        state, row.kind.partition(".")[0] or "Queue", queue.namespace, name, entries, policies=policies
    )
    remarks = list(queue.unsupported)
    if not queue.uid and state.queues:
        remarks.append(f"is the queue of work that names none, {why.default_queue_text(state, 'its pods')}")
    if row.stopped:
        remarks.append("is stopped: it takes no new work")
    short = [item for item in answer.reasons if item.queue]
    remarks += [f"{item.pods} pods wait because of a queue: {item.message}" for item in short]
    return msgspec.structs.replace(answer, queue=row, notes=remarks, uid=queue.uid)


def why_node(state: ClusterView, name: str, *, now: int = 0) -> Why | None:
    """Explain a node: what it holds, and what keeps pods away from it; None when there is none of that name.

    Args:
        now: where a log goes on, the time: windows begin and end although nothing is recorded.
    """
    row = state.columns.rows.get(name)
    node = None if row is None else state.columns.facts[row]
    if node is None:
        return None
    held = state.charges.held_on(name)
    remarks = []
    if not node.ready:
        remarks.append("is not ready")
    if node.unschedulable:
        remarks.append("is cordoned")
    remarks += [f"is suspect {one}" for one in suspect_texts(state, name)]
    now = max(now, state.recorded_at)
    for one in state.reservations.values():
        if one.has(name, node.labels) and (window := one.window(now)) is not None:
            when = "is reserved" if window.start <= now else "will be reserved"
            remarks.append(f"{when} by {one.name} {reservation_terms(one, window)}")
    remarks += [f"taint {taint.key}={taint.value}:{taint.effect}" for taint in node.taints]
    unseen = sum(entry.unrecorded for entry in held)
    if unseen:
        remarks.append(f"{unseen} pods run there of which no record tells on which zones")
    for key, rejection in sorted(state.rejections.by_node.get(name, {}).items()):
        stands = rejection.changes == state.rejections.changes.get(name, 0)
        offered = "not offered to it again until something changes there" if stands else "offered to it again"
        remarks.append(
            f"its kubelet rejected pods of class {key} {rejection.count} times, last for {rejection.reason}; {offered}"
        )
    listed = listing.node_row(state, node, now=now)
    return Why(
        kind="Node",
        cluster=state.cluster,
        position=state.position,
        namespace="",
        name=name,
        uid=node.uid,
        verdict=_node_verdict(listed, held),
        notes=remarks,
        pods=listing.pod_rows(state, held)[:_MOST_PODS],
        node=listed,
    )


def _node_verdict(row: NodeRow, held: Sequence[PodEntry]) -> str:
    leaving = sum(entry.releasing for entry in held)
    pods = plural(len(held), "pod")
    return f"{row.status}, holds {pods}" + (f", {leaving} of them on their way out" if leaving else "")


def _about_pods(
    state: ClusterState,
    kind: str,
    namespace: str,
    name: str,
    pods: Sequence[PodEntry],
    *,
    policies: PolicyBook,
    trials: bool = True,
) -> Why:
    waiting = [entry for entry in pods if entry.waiting]
    counts: Counter[CodedReason] = Counter()
    for entry in waiting:
        counts.update(dict.fromkeys(why.pending_reasons(entry, state) or shadow_reasons(entry, state), 1))
    ranked = sorted(counts.items(), key=lambda item: (*weight(item[0]), -item[1], str(item[0])))[:_MOST_REASONS]
    oldest = min(waiting, key=lambda entry: (entry.pod.created_at, entry.pod.name), default=None)
    waits: dict[str, Any] = {}
    left_out: list[str] = []
    if oldest is not None and _is_decided_on(state, oldest):
        waits, left_out = _asked(state, oldest, policies, trials=trials)
    waits["reasons"] = [listing.reason_answer(reason, pods=count) for reason, count in ranked]
    others = [entry for entry in pods if not entry.waiting]
    return Why(
        kind=kind,
        cluster=state.cluster,
        position=state.position,
        namespace=namespace,
        name=name,
        uid="",
        verdict=_verdict_of(pods),
        reasons_position=min(filter(None, (why.reasons_position(entry, state) for entry in waiting)), default=0),
        **waits,
        pods=[*listing.pod_rows(state, waiting), *listing.pod_rows(state, others)][:_MOST_PODS],
        notes=[*why.one_by_one(state, pods), *left_out],
    )


def _is_decided_on(state: CycleView, entry: PodEntry) -> bool:
    """Tell whether cycles decide on a pod: it waits, for our scheduler, and they do not leave its group out."""
    ours = entry.pod.uid in state.waiting and entry.pod.scheduler_name == state.config().scheduler_name
    return ours and entry.group not in recorded_left_out(state)["group"]


def _verdict_of(pods: Sequence[PodEntry]) -> str:
    if not pods:
        return "has no pods"
    words = Counter(
        "rejected by kubelets"
        if listing.is_rejected(entry)
        else "waiting"
        if entry.waiting
        else "being deleted"
        if entry.stage is Stage.WAITING
        else "placed, being bound"
        if entry.stage is Stage.PLACED
        else entry.pod.phase.lower()
        if entry.pod.phase != "Pending"
        else "bound, not yet started"
        for entry in pods
    )
    counts = ", ".join(f"{count} {word}" for word, count in sorted(words.items(), key=lambda item: (-item[1], item[0])))
    return f"{plural(len(pods), 'pod')}: {counts}"


def _without_pods(state: WorkView, kind: str, sources: Sequence[GroupSource]) -> str:
    """Say why there is nothing to schedule of something that has pods."""
    if any(source.kind in POD_GROUPS for source in sources):
        return "has no pods: none that is there names it"
    if any(source.suspended for source in sources):
        queue = next((f", as its queue {source.queue} may have it" for source in sources if source.queue), "")
        return f"has no pods: it is suspended{queue}; its controller makes them when it is resumed"
    owners = _Owners(state)
    if any(owner_kind == kind for entry in state.pods.values() for owner_kind, _ in owners.of(entry.pod)):
        return "has no pods: its controller has made none yet, or they are gone"
    return f"has no pods, nor has any other {kind}: is a controller of the kind {kind} running?"


class _Owners:
    """The direct and indirect owners of pods, as far as the log knows them."""

    def __init__(self, state: WorkView) -> None:
        self._sources = {
            (_plain(source.kind), source.namespace, source.name): source
            for source in state.group_table.sources.values()
        }

    def of(self, pod: Pod) -> set[tuple[str, str]]:
        """Return kinds, without their API groups, and names."""
        owners: set[tuple[str, str]] = set()
        owner = pod.owner
        while owner is not None and (owner.kind, owner.name) not in owners:
            owners.add((owner.kind, owner.name))
            suffix = f"-{pod.labels.get(_TEMPLATE_HASH, '')}"
            if owner.kind == "ReplicaSet" and len(suffix) > 1 and owner.name.endswith(suffix):
                owners.add(("Deployment", owner.name.removesuffix(suffix)))
            source = self._sources.get((owner.kind, pod.namespace, owner.name))
            owner = source.owner if source is not None else None
        return owners


def _owner_uids(kind: str, name: str, pods: Iterable[PodEntry]) -> Iterable[str]:
    for entry in pods:
        owner = entry.pod.owner
        if owner is not None and (owner.kind, owner.name) == (kind, name):
            yield owner.uid


def _plain(kind: str) -> str:
    return kind.partition(".")[0]
