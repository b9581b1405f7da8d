"""Rows of the objects in a cluster, from its state.

Zones have their amounts, and the pods that hold them. Cycles are read from the log. Names of objects are listed for
questions that misspell one.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from kaicore.analysis.ask import answers
from kaicore.analysis.json_spelling import recorded_text, spelled, time_text
from kaicore.analysis.life.placements import kubelet_text, part_answers, shared_gpus_on
from kaicore.analysis.replay.log_states import last_events
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.deciding.suspects import suspect_texts
from kaicore.rules.deciding.why import pending_reasons
from kaicore.rules.engine.placement.gpu_supply import PLANNED
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import CycleCompleted, QueueFigures
from kaicore.rules.events.reasons.base import CodedReason, plural
from kaicore.rules.events.reasons.node import NodeNotReady, NodeUnschedulable
from kaicore.rules.groups.membership import POD
from kaicore.rules.model.gpu_share import WHOLE, gpus_text
from kaicore.rules.model.group import Group, min_pods
from kaicore.rules.model.node import Node, NodeTopology
from kaicore.rules.model.pod import Amounts, is_kubelet_rejection
from kaicore.rules.model.quantity import exact_amount
from kaicore.rules.model.queue import Queue, QueueShare, queue_kind_of
from kaicore.rules.queues.tree import UNLIMITED, is_gpu
from kaicore.rules.state.pods.pod_entry import PRESENT, PodEntry, Stage, gpus_asked
from kaicore.rules.state.registries.queue_registry import figures
from kaicore.rules.state.views import ClusterView, FleetView, QueuesView, WorkView

_CYCLES = Filter(types=(CycleCompleted.__name__,))


async def list_cycles(log: EventLog, cluster: str, wanted: answers.RowSelection, *, head: int) -> list[answers.Row]:
    """Return the last cycles up to a position, the last one first: one more than `limit`, or all."""
    # One more than is shown stands for the rest; one of a name may be anywhere.
    enough = wanted.skip + wanted.limit + 1 if wanted.limit and not wanted.name else head
    events, _ = await last_events(log, cluster, _CYCLES, upto=head, enough=enough)
    decoded = ((event, decode_payload(event)) for event in reversed(events))
    rows = [_cycle(event, cycle) for event, cycle in decoded if isinstance(cycle, CycleCompleted)]
    return [row for row in rows if wanted.name in ("", row.cycle)]


def _cycle(event: Event, cycle: CycleCompleted) -> answers.CycleRow:
    return answers.CycleRow.copied(
        cycle,
        position=event.position,
        recorded_at=time_text(event.recorded_at),
        engine=cycle.engine_version,
        config=cycle.config_digest,
    )


def list_zones(state: FleetView, wanted: answers.RowSelection) -> Iterable[answers.ZoneRow]:
    """Return the zones of the nodes that are wanted, by node and NUMA id; `name` is a zone's or a node's."""
    for name in sorted(state.columns.rows):
        row = state.columns.rows[name]
        node, topology = state.columns.facts[row], state.columns.topologies[row]
        if node is None or topology is None or wanted.node not in ("", name):
            continue
        for zone in _zones(state, node, topology):
            if wanted.name in ("", name, zone.name):
                yield zone


def _zones(state: FleetView, node: Node, topology: NodeTopology) -> Iterable[answers.ZoneRow]:
    zones, row = state.columns.zones, state.columns.rows[node.name]
    held: dict[int, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    pods = {entry.pod.uid: entry for entry in state.charges.held_on(node.name)}
    for uid, entry in pods.items():
        for index, resource, amount in entry.zone_charge.split:
            held[index][uid][resource] = amount
    for index, zone in enumerate(topology.zones):
        yield answers.ZoneRow(
            name=f"{node.name}/{zone.name}",
            node=node.name,
            zone=zone.name,
            unknown=int(zones.unknown[row]),
            resources=[
                answers.ZoneAmounts(
                    resource=resource,
                    allocatable=exact_amount(resource, item.allocatable),
                    held=exact_amount(resource, used),
                    releasing=exact_amount(resource, int(zones.releasing[row, index, column])),
                    free=exact_amount(resource, max(0, item.allocatable - used)),
                )
                for resource, item in sorted(zone.resources.items())
                if item.allocatable
                for column in (zones.resources[resource],)
                for used in (int(zones.used[row, index, column]),)
            ],
            pods=[
                answers.ZoneHolder(
                    namespace=pods[uid].pod.namespace,
                    name=pods[uid].pod.name,
                    observed=pods[uid].observed is not None,
                    perhaps={
                        resource: exact_amount(resource, amount)
                        for place, resource, amount in pods[uid].zone_charge.repeated
                        if place == index and amount
                    },
                    releasing=pods[uid].releasing,
                    amounts={resource: exact_amount(resource, amount) for resource, amount in sorted(amounts.items())},
                )
                for uid, amounts in held[index].items()
            ],
        )


def summary(state: ClusterView) -> answers.ClusterSummary:
    """Return a cluster in figures."""
    stages = Counter(entry.stage.value for entry in state.pods.values())
    tally = spelled(state.counters)
    assert isinstance(tally, dict)
    return answers.ClusterSummary(
        name=state.cluster,
        position=state.position,
        recorded_at=recorded_text(state.recorded_at),
        nodes=sum(node is not None for node in state.columns.facts),
        queues=len(state.queues),
        groups=sum(group.origin != POD for group in state.groups.values()),
        pods={stage.value: stages[stage.value] for stage in PRESENT},
        tally=tally,
    )


def list_rows(state: ClusterView, kind: str, wanted: answers.RowSelection, *, now: int = 0) -> list[answers.Row]:
    """Return the rows of a kind that are wanted, but all of them whatever `limit` says, in order of their names.

    Args:
        kind: pods, groups, queues, nodes or zones.
        now: where a log goes on, the time: windows of nodes begin although nothing is recorded.
    """
    if kind == "nodes":
        return list(_nodes(state, wanted, now=now))
    listing: dict[str, Callable[[ClusterView, answers.RowSelection], Iterable[answers.Row]]] = {
        "pods": list_pods,
        "groups": _groups,
        "queues": list_queues,
        "zones": list_zones,
    }
    return list(listing[kind](state, wanted))


# Pods.


def list_pods(state: ClusterView, wanted: answers.RowSelection) -> list[answers.PodRow]:
    """Return the rows of the pods that are wanted."""
    queue_of = QueueNames(state)
    entries = [
        entry
        for entry in state.pods.values()
        if wanted.admits(entry.pod.namespace)
        and wanted.name in ("", entry.pod.name)
        and wanted.node in ("", entry.node)
        and (not wanted.pending or entry.waiting)
        and (not wanted.rejected or is_rejected(entry))
        and (not wanted.queue or wanted.queue in queue_of.all_of(entry))
    ]
    return pod_rows(state, entries)


def pod_rows(state: ClusterView, entries: Iterable[PodEntry]) -> list[answers.PodRow]:
    """Return the rows of pods, by namespace and name."""
    queue_of, ordered = QueueNames(state), sorted(filter(is_there, entries), key=_by_name)
    return [_pod(state, entry, queue_of.of(entry)) for entry in ordered]


def is_there(entry: PodEntry) -> bool:
    """Tell whether a pod was seen, and not only planned to reserve a GPU."""
    return not entry.pod.uid.startswith(PLANNED)


def _by_name(entry: PodEntry) -> tuple[str, str, str]:
    return entry.pod.namespace, entry.pod.name, entry.pod.uid


def _pod(state: WorkView, entry: PodEntry, queue: str) -> answers.PodRow:
    pod = entry.pod
    return answers.PodRow.copied(
        pod,
        status=pod_status(entry),
        stage=entry.stage.value,
        node=entry.node,
        zones=pod_zones(entry),
        queue="" if state.shared_gpus.is_reservation(pod.uid) else queue,
        group="" if entry.group.startswith(f"{POD}/") else entry.group,
        scheduler=pod.scheduler_name,
        created_at=time_text(pod.created_at * 1_000_000),
        message=pod_message(state, entry),
        gpus=part_answers(state, entry),
    )


def is_rejected(entry: PodEntry) -> bool:
    """Tell whether a kubelet refused to start a pod."""
    return is_kubelet_rejection(entry.pod) or (entry.stage is Stage.FINISHED and not entry.pod.finished)


def pod_status(entry: PodEntry) -> str:
    """Return in a word how a pod stands."""
    pod = entry.pod
    if is_rejected(entry):
        return "Rejected"
    if entry.stage is Stage.FINISHED:
        return pod.phase
    if entry.leaving:
        return "Terminating"
    if entry.stage is Stage.WAITING:
        return "Gated" if pod.scheduling_gates else "Pending"
    if entry.stage is Stage.PLACED:
        return "Placed"
    return "Bound" if pod.phase == "Pending" else pod.phase


def pod_message(state: WorkView, entry: PodEntry) -> str:
    """Return in a line why a pod waits or failed; empty when there is nothing to say."""
    if entry.stage is Stage.WAITING:
        reasons = pending_reasons(entry, state)
        if not reasons:
            return ""
        # What other nodes would not remove; else what work that ends may; of most nodes; of two what got further.
        most = max(reversed(reasons), key=_passing_nodes)
        first = next((reason for reason in reasons if not reason.of_nodes), most)
        return str(first) + (f"; {plural(len(reasons) - 1, 'more reason')}" if len(reasons) > 1 else "")
    return entry.pod.reason if entry.stage is Stage.FINISHED and entry.pod.phase != "Succeeded" else ""


def _passing_nodes(reason: CodedReason) -> tuple[bool, bool, int]:
    nodes = reason.affected_nodes
    passes = not (reason.lasting or isinstance(reason, NodeNotReady | NodeUnschedulable))
    return nodes > 0, passes, nodes


def pod_zones(entry: PodEntry) -> list[str]:
    """Return the zones that a pod holds something of, by what was observed or predicted."""
    placement = entry.observed or entry.predicted or entry.expected
    if placement is None or not entry.charged:
        return []
    zones = {zone.zone for zone in placement.zone_amounts() if any(zone.amount.values())}
    spans = {zone for container in placement.containers for span in container.spans for zone in span.zones}
    return sorted(zones | spans)


# Queues.


class QueueNames:
    """The queues that pods belong to."""

    def __init__(self, state: QueuesView) -> None:
        self._state = state
        self._tree = state.queue_registry.tree
        self._paths: dict[tuple[str, str], tuple[str, ...]] = {}

    def of(self, entry: PodEntry) -> str:
        """Return the queue that a pod names, or that it is given; empty when there is none."""
        return self._tree.name_for(*self._state.queue_of(entry))

    def all_of(self, entry: PodEntry) -> tuple[str, ...]:
        """Return every name by which a pod's queue may be asked for, those above it included."""
        named, _ = self._state.queue_of(entry)
        return (named, *self._path(entry))

    def _path(self, entry: PodEntry) -> tuple[str, ...]:
        key = self._state.queue_of(entry)
        if key not in self._paths:
            number = self._tree.find(key[0], namespace=key[1] or entry.pod.namespace)
            path = () if number is None else tuple(self._tree.queues[above].name for above in self._tree.paths[number])
            self._paths[key] = path
        return self._paths[key]


def list_queues(state: QueuesView, wanted: answers.RowSelection) -> Iterable[answers.QueueRow]:
    """Return the rows of the queues that are wanted."""
    by_name = figures(state.queue_accounts(state.config(), now=state.recorded_at), thousandths=True)
    names = QueueNames(state)
    waiting: Counter[str] = Counter()
    running: Counter[str] = Counter()
    for entry in state.pods.values():
        counts = waiting if entry.waiting else running if entry.charged else None
        if counts is not None:
            counts.update(set(names.all_of(entry)))
    for queue in queues_of(state):
        name = queue.name
        if wanted.name in ("", name) and wanted.namespace in ("", queue.namespace):
            row = _queue(queue, by_name.get(name), waiting=waiting[name], running=running[name])
            if not wanted.pending or row.waiting:
                yield row


def queues_of(state: QueuesView) -> list[Queue]:
    """Return a cluster's queues by name, with the one of work that names none, if there is any such work.

    Where that one is no object, it has no `uid`.
    """
    tree = state.queue_registry.tree
    if not tree.configured:
        return list(tree.queues) if state.pods else []
    queues = [state.queues[name] for name in sorted(state.queues)]
    implied = [tree.queues[tree.implied_default]] if state.queue_registry.uses_implied_default() else []
    return sorted((*queues, *implied), key=lambda queue: queue.name)


def _queue(queue: Queue, figure: QueueFigures | None, *, waiting: int, running: int) -> answers.QueueRow:
    figure = figure or QueueFigures(queue.name)
    resources = sorted({*queue.shares, *figure.requested, *figure.allocated, *figure.fair_share})

    def text(resource: str, amounts: Amounts) -> str:
        amount = amounts.get(resource, 0)
        if amount >= UNLIMITED:
            return "unlimited"
        return gpus_text(amount) if is_gpu(resource) else exact_amount(resource, amount)

    def bound(resource: str, amount: int | None, otherwise: str, *, milli: int) -> str:
        if amount is None:
            return otherwise
        return gpus_text(amount * WHOLE + milli) if milli else exact_amount(resource, amount)

    return answers.QueueRow(
        name=queue.name,
        kind=queue_kind_of(queue.name) if queue.uid else "",
        parent=queue.alias_of or queue.parent,
        priority=queue.priority,
        stopped=queue.stopped,
        waiting=waiting,
        running=running,
        resources=[
            answers.QueueResource(
                resource=resource,
                quota=bound(resource, share.quota, "unlimited", milli=share.quota_milli),
                limit=bound(resource, share.limit, "", milli=share.limit_milli),
                fair_share=text(resource, figure.fair_share),
                allocated=text(resource, figure.allocated),
                requested=text(resource, figure.requested),
            )
            for resource in resources
            for share in (queue.shares.get(resource, QueueShare()),)
        ],
    )


# Groups.


def _groups(state: ClusterView, wanted: answers.RowSelection) -> Iterable[answers.Row]:
    names = QueueNames(state)
    for key in sorted(state.groups):
        group = state.groups[key]
        if group.origin == POD or key.startswith(f"{POD}/"):
            continue
        if not wanted.admits(group.namespace) or wanted.name not in ("", group.name):
            continue
        pods = group_entries(state, key)
        if wanted.queue and not any(wanted.queue in names.all_of(entry) for entry in pods):
            continue
        row = group_row(state, group, pods)
        if not wanted.pending or row.waiting:
            yield row


def group_entries(state: WorkView, key: str) -> list[PodEntry]:
    """Return the pods of a group, in the order of their uids."""
    return [state.pods[uid] for uid in sorted(state.group_table.pods_of(key)) if uid in state.pods]


def counts_by_stage(pods: Iterable[PodEntry]) -> Counter[str]:
    """Return how many pods are waiting, running, leaving, have succeeded, or (empty) have not."""
    return Counter(
        "waiting"
        if entry.waiting
        else "leaving"
        if entry.stage is Stage.WAITING or (entry.charged and entry.leaving)
        else "running"
        if entry.charged
        else "succeeded"
        if entry.pod.phase == "Succeeded"
        else ""
        for entry in pods
    )


def group_row(state: ClusterView, group: Group, pods: Sequence[PodEntry]) -> answers.GroupRow:
    """Return the row of a group."""
    stages = counts_by_stage(pods)
    message = next((text for entry in pods if (text := entry.stage is Stage.WAITING and pod_message(state, entry))), "")
    promise = state.reasons.promise_of(group.key) if stages["waiting"] else None
    promised = promise is not None and promise.starts_at
    return answers.GroupRow.copied(
        group,
        kind=group.origin,
        queue=state.queue_registry.tree.name_for(group.queue, group.namespace),
        minimum=min_pods(group.sets),
        waiting=stages["waiting"],
        running=stages["running"],
        leaving=stages["leaving"],
        succeeded=stages["succeeded"],
        message=message or "",
        gpus=gpus_text(sum(gpus_asked(entry) for entry in pods if entry.stage is not Stage.FINISHED)),
        created_at=time_text(min(entry.pod.created_at for entry in pods) * 1_000_000) if pods else "",
        expected_start=time_text(promised) if promised else "",
        expected_from="promise" if promised else "",
    )


# Nodes.


def _nodes(state: FleetView, wanted: answers.RowSelection, *, now: int) -> Iterable[answers.Row]:
    for name in sorted(state.columns.rows):
        node = state.columns.facts[state.columns.rows[name]]
        if node is None or wanted.name not in ("", name) or wanted.node not in ("", name):
            continue
        if not wanted.rejected or state.rejections.by_node.get(name):
            yield node_row(state, node, now=now)


def node_row(state: FleetView, node: Node, *, now: int = 0) -> answers.NodeRow:
    """Return the row of a node, at a time since the last event (0: at that event)."""
    columns = state.columns
    row = columns.rows[node.name]
    topology, zones = columns.topologies[row], columns.zones
    status = ["Ready" if node.ready else "NotReady", *(["SchedulingDisabled"] if node.unschedulable else [])]
    suspect = suspect_texts(state, node.name)
    status += ["Suspect"] if suspect else []
    now = max(now, state.recorded_at)
    windows = (one.window(now) for one in state.reservations.values() if one.has(node.name, node.labels))
    status += ["Reserved"] if any(one is not None and one.start <= now for one in windows) else []
    return answers.NodeRow(
        name=node.name,
        status=",".join(status),
        suspect=suspect,
        policy="" if topology is None else topology.policy.value,
        scope="" if topology is None else topology.scope.value,
        pods=len(state.charges.on_node.get(node.name, ())),
        kubelet=kubelet_text(state, node.name),
        gpus=shared_gpus_on(state, node.name),
        rejections=sum(item.count > 0 for item in state.rejections.by_node.get(node.name, {}).values()),
        resources=[
            answers.NodeResource(
                resource=resource,
                allocatable=exact_amount(resource, amount),
                used=exact_amount(resource, int(columns.used[row, columns.resources[resource]])),
            )
            for resource, amount in sorted(node.allocatable.items())
            if amount and resource in columns.resources
        ],
        zones=[
            answers.ZoneAnswer(
                name=zone.name,
                resources=[
                    answers.NodeResource(
                        resource=resource,
                        allocatable=exact_amount(resource, item.allocatable),
                        used=exact_amount(resource, int(zones.used[row, index, zones.resources[resource]])),
                    )
                    for resource, item in sorted(zone.resources.items())
                    if item.allocatable
                ],
            )
            for index, zone in enumerate(() if topology is None else topology.zones)
        ],
    )


def reason_answer(reason: CodedReason, *, pods: int = 0, details: Iterable[str] = ()) -> answers.ReasonAnswer:
    """Return a reason as an answer."""
    fields = msgspec.to_builtins(reason)
    for name in _TIMES & fields.keys():
        fields[name] = time_text(fields[name])
    named = {name: fields.pop(name) for name in _NAMED_FIELDS & fields.keys()}
    return answers.ReasonAnswer(message=str(reason), pods=pods, details=list(details), fields=fields, **named)


#: Fields of reasons that are times, microseconds since the epoch.
_TIMES = {"until", "since", "retry_at"}

#: Fields of reasons that are fields of their answers.
_NAMED_FIELDS = set(answers.ReasonAnswer.__struct_fields__) - {"message", "pods", "details", "fields"}


def group_called(state: ClusterView, namespace: str, name: str) -> str:
    """Return `; did you mean …?` where a group has the name that was asked for as a pod's, else nothing."""
    called = [one for one in state.groups.values() if (one.namespace, one.name) == (namespace, name)]
    kind = min((one.origin.partition(".")[0].lower() for one in called if one.origin != POD), default="")
    return f"; did you mean '{kind}/{namespace}/{name}'?" if kind else ""


def known_names(state: ClusterView, kind: str, namespace: str) -> set[str]:
    """Return the objects of a kind that can be explained, by name: to be compared with an unknown name.

    Args:
        kind: Pod (`namespace/name`, of all namespaces), Node, a queue's, or that of a group or an owner.
    """
    match kind:
        case "Pod":
            return {entry.pod.subject for entry in state.pods.values()}
        case "Node":
            return {name for name, row in state.columns.rows.items() if state.columns.facts[row] is not None}
        case "Queue" | "ClusterQueue" | "Cohort" | "LocalQueue":
            return {queue.name.rpartition("/")[2] if "/" in queue.name else queue.name for queue in queues_of(state)}
        case _:
            pods = (entry.pod for entry in state.pods.values() if entry.pod.namespace == namespace)
            owners = {pod.owner.name for pod in pods if pod.owner is not None}
            return owners | {group.name for group in state.groups.values() if group.namespace == namespace}
