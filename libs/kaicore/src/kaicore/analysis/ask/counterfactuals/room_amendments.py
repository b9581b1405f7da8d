"""Changes that make room: smaller requests, waiting, the end or the eviction of other work, more nodes.

Running groups that would have to leave for a pod to fit, and whether a cycle may evict them by the engine's own
rules.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from kaicore.analysis.ask.counterfactuals.asked import Amendment, Asked, Effort, edited, frees
from kaicore.analysis.ask.counterfactuals.group_amendments import edit_source, source_of
from kaicore.analysis.life.why_answers import BlockerAnswer
from kaicore.rules.engine.actions.eviction import EvictionAction, Preempt, Reclaim
from kaicore.rules.engine.config import Action
from kaicore.rules.engine.explain.remedies import with_at_most
from kaicore.rules.engine.victims.ending_groups import stays
from kaicore.rules.engine.work.gang_planner import Steps
from kaicore.rules.engine.work.workload import Workload
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons import making_room
from kaicore.rules.events.reasons.base import CodedReason, named_amount, plural, time_text
from kaicore.rules.events.reasons.node import RejectedByKubelet
from kaicore.rules.groups.membership import display_key
from kaicore.rules.model.gpu_share import GPU
from kaicore.rules.model.node import HOSTNAME, Node
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.quantity import PODS, asked_amount
from kaicore.rules.queues.cycle_queues import GroupRequests
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import PodEntry

#: Limits: kinds of nodes with one more tried, priorities tried, and nodes with a kubelet that refused such pods.
_MOST_KINDS, _MOST_PRIORITIES, _MOST_NODES = 4, 3, 2
#: Pods that are named of several.
_MOST_NAMES = 3
#: Nodes that are added at once, at most.
_MOST_ADDED = 64


def room_amendments(asked: Asked) -> Iterator[Amendment]:
    """Yield what makes room, or has it made."""
    for reason in asked.reasons:
        yield from _of_reason(asked, reason)
    for reason in asked.remedy.reasons:
        match reason:
            case making_room.FitsIf():
                yield _smaller(asked, reason)
            case making_room.FitsAfter():
                yield _after(asked, reason)
            case _:
                pass
    yield from _higher_priority(asked)
    yield from _after_rejection(asked)
    yield from _cleared(asked)
    yield from _more_nodes(asked)


# Asking for less, and waiting.


def _smaller(asked: Asked, reason: making_room.FitsIf) -> Amendment:
    pairs = []
    for one in asked.fellows:
        smaller = with_at_most(one.pod, reason.resource, reason.most)
        if smaller is not None and smaller is not one.pod:
            pairs.append((one.pod, smaller))
    now = asked.requests.get(reason.resource, 0)
    most, each = named_amount(reason.resource, reason.most), " per pod" if len(pairs) > 1 else ""
    words = f"request at most {most}{each} instead of {asked_amount(reason.resource, now)} in {asked.pod.subject}"
    about = {"resource": reason.resource, "amount": reason.most, "place": asked.pod.subject}
    return Amendment.edits("request-less", words, Effort.EDIT_WORK, payloads.PodObserved, pairs, **about)


def _of_reason(asked: Asked, reason: CodedReason) -> Iterator[Amendment]:
    match reason:
        case making_room.PreemptionDelayNotElapsed(until=until):
            yield _waiting(asked, "wait: then it may have others evicted", until)
        case making_room.WithinMinimumRuntime(until=until):
            words = f"wait: then the minimum runtime of {plural(reason.pods, 'pod')} begins to end"
            yield _waiting(asked, words, until)
        case making_room.MovedLately(until=until):
            words = f"wait: then pods that were moved lately may be moved again, such as {reason.example_pod}"
            yield _waiting(asked, words, until)
        case making_room.ProtectedByDisruptionBudget():
            words = f"let PodDisruptionBudget {reason.budget} allow {plural(reason.pods, 'disruption')}"
            yield from _budgets(asked, [reason.budget], words, allowed=reason.pods)
        case making_room.UnderSeveralDisruptionBudgets():
            first, *others = reason.budgets.split(", ")
            words = f"delete PodDisruptionBudget {', '.join(others)}, so that only {first} protects these pods"
            yield from _budgets(asked, others, words, allowed=None)
        case _:
            pass


def _waiting(asked: Asked, words: str, until: int) -> Amendment:
    return Amendment("wait", words, Effort.WAIT, until=until, place=asked.pod.subject, evicts=True)


def _budgets(asked: Asked, names: Sequence[str], words: str, *, allowed: int | None) -> Iterator[Amendment]:
    """Yield that budgets allow so many disruptions; with None, that they are deleted."""
    budgets = [one for name in names if (one := asked.state.constraints.budgets.get(name)) is not None]
    facts: list[payloads.Payload] = [
        payloads.PodDisruptionBudgetDeleted(one.uid, one.namespace, one.name)
        if allowed is None
        else payloads.PodDisruptionBudgetObserved(edited(one, disruptions_allowed=allowed))
        for one in budgets
    ]
    undo = [payloads.PodDisruptionBudgetObserved(one) for one in budgets]
    if budgets:
        place, amount = ", ".join(names), allowed or 0
        yield Amendment("edit-budget", words, Effort.TEND_NODE, facts, undo, amount=amount, place=place, evicts=True)


# The end of other work.


def ends(state: ClusterState, pods: Iterable[Pod]) -> list[payloads.Payload]:
    """Return the facts that pods end, and that GPUs which only they share are closed."""
    gone = {one.uid: one for one in pods}
    facts: list[payloads.Payload] = [payloads.PodDeleted(uid, one.namespace, one.name) for uid, one in gone.items()]
    for group in state.shared_gpus.left_by(gone.keys()):
        opened = group.opened
        facts.append(payloads.GpuClosed(opened.node, opened.group, "Unused"))
        if group.uid and not group.planned:
            facts.append(payloads.PodDeleted(group.uid, opened.namespace, opened.name))
    return facts


def end_of(asked: Asked, entries: Sequence[PodEntry], words: str) -> Amendment:
    """Return that pods end."""
    facts = ends(asked.state, (one.pod for one in entries))
    nodes = sorted({one.node for one in entries})
    return Amendment(
        "end-work", words, Effort.END_WORK, facts=facts, undo=None, amount=len(entries), place=", ".join(nodes)
    )


def _after(asked: Asked, reason: making_room.FitsAfter) -> Amendment:
    state = asked.state
    if not reason.group:
        leaving = list(state.workload_index.leaving.values())
        first = min(one.pod.subject for one in leaving)
        ending = end_of(asked, leaving, f"wait for the end of {plural(len(leaving), 'leaving pod')}, such as {first}")
        return replace(ending, effort=Effort.WAIT)
    named: dict[str, Workload] = {}
    for one in state.workload_index.workloads.values():
        named.setdefault(f"{one.group.origin.partition('.')[0]} {one.group.namespace}/{one.group.name}", one)
    workloads = [named[name] for name in reason.groups]
    entries = [state.pods[uid] for one in workloads for uid in (*one.active, *one.leaving)]
    nodes = sorted({one.node for one in entries})
    where = nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {plural(len(nodes) - 1, 'other node')}"
    pods = f", {plural(len(entries), 'pod')}" if len(entries) > 1 else ""
    left = state.shared_gpus.left_by([one.pod.uid for one in entries])
    freed = frees(asked, [*entries, *(state.pods[one.uid] for one in left if one.uid)]) or "its place"
    return end_of(asked, entries, f"end {reason.group} (on {where}{pods}), which frees {freed}")


def _cleared(asked: Asked) -> Iterator[Amendment]:
    """Yield that several pods of one node end, those of the lowest priority and the youngest first."""
    for obstacles in asked.obstacles[:_MOST_NODES]:
        if not obstacles.reasons or any(reason.lasting for reason in obstacles.reasons):
            continue
        node = asked.columns.names[obstacles.row]
        reserves = asked.state.shared_gpus.is_reservation
        held = [one for one in asked.state.charges.held_on(node) if not (stays(one.pod) or reserves(one.pod.uid))]
        held.sort(key=lambda one: (one.pod.priority, -one.pod.created_at, one.pod.subject))
        missing = asked.missing(obstacles.row)
        ending: list[PodEntry] = []
        while held and (any(amount > 0 for amount in missing.values()) or not ending):
            one = held.pop(0)
            ending.append(one)
            missing = {name: amount - one.requests.get(name, 0) for name, amount in missing.items()}
        for entries in (ending, [*ending, *held]) if held else (ending,):
            if len(entries) > 1:
                names = ", ".join(one.pod.subject for one in entries[:_MOST_NAMES])
                more = f" and {len(entries) - _MOST_NAMES} more" if len(entries) > _MOST_NAMES else ""
                pods, freed = plural(len(entries), "pod"), frees(asked, entries) or "their places"
                yield end_of(asked, entries, f"end {pods} on {node} ({names}{more}), which frees {freed}")


def _after_rejection(asked: Asked) -> Iterator[Amendment]:
    """Yield the end of a pod on nodes that rejected such a pod: then such a pod is offered to them again."""
    rejecting = [one for one in asked.obstacles if isinstance(one.reasons[:1] and one.reasons[0], RejectedByKubelet)]
    for obstacles in rejecting[:_MOST_NODES]:
        node = asked.node(obstacles.row).name
        held = sorted(asked.state.charges.held_on(node), key=lambda one: (one.pod.priority, one.pod.subject))
        for one in held[:1]:
            words = f"end pod {one.pod.subject} on {node}: then its kubelet gets such pods again"
            yield end_of(asked, [one], words)


def _higher_priority(asked: Asked) -> Iterator[Amendment]:
    """Yield that the pods have a higher priority than work that runs in their queue."""
    accounts, workloads = asked.session.accounts, asked.state.workload_index.workloads
    own = workloads.get(asked.entry.group)
    if own is None:
        return
    queue = accounts.queue_of(own.group)
    priorities = {
        one.group.priority
        for one in workloads.values()
        if one.active and one.group.priority >= own.group.priority and accounts.queue_of(one.group) == queue
    }
    source = source_of(asked)
    for priority in sorted(priorities)[:_MOST_PRIORITIES]:
        words = f"raise the priority of {asked.pod.subject} from {own.group.priority} to {priority + 1}"
        if source is not None:
            raised = edit_source("raise-priority", words, source, edited(source, priority=priority + 1))
            yield replace(raised, amount=priority + 1, evicts=True, effort=Effort.END_WORK)
        else:
            edit = partial(_with_priority, priority=priority + 1)
            raised = asked.edit_pods("raise-priority", words, edit, amount=priority + 1, evicts=True)
            yield replace(raised, effort=Effort.END_WORK)


def _with_priority(pod: Pod, *, priority: int) -> Pod:
    return edited(pod, priority=priority)


# Further nodes.


def _more_nodes(asked: Asked) -> Iterator[Amendment]:
    """Yield that nodes are added: like a present one, or at least as large as it takes."""
    if not any(reason.of_nodes for reason in asked.reasons):
        return
    kinds: dict[object, Node] = {}
    for obstacles in asked.obstacles:
        node = asked.node(obstacles.row)
        labels = {key: value for key, value in node.labels.items() if key != HOSTNAME}
        taints = tuple(sorted((one.key, one.value, one.effect) for one in node.taints))
        kinds.setdefault((tuple(sorted(node.allocatable.items())), tuple(sorted(labels.items())), taints), node)
        if len(kinds) == _MOST_KINDS:
            break
    needed = len(asked.fellows)
    for node in kinds.values():
        count = 1
        while count <= min(_MOST_ADDED, needed):
            what = "a node" if count == 1 else f"{count} nodes"
            yield _added(asked, node, count, f"add {what} like {node.name} ({_size(asked, node)})")
            count *= 2
    yield _added(asked, _large_enough(asked), 1, f"add a node with {_size(asked, _large_enough(asked))}")


def _size(asked: Asked, node: Node) -> str:
    names = {*asked.requests, *([] if asked.pod.gpu_share is None else [GPU])} - {PODS}
    amounts = [named_amount(name, node.allocatable.get(name, 0)) for name in sorted(names)]
    labels = [f"label {key}={node.labels[key]}" for key in asked.pod_class.node_selector if key in node.labels]
    return ", ".join([*amounts, *labels])


def _large_enough(asked: Asked) -> Node:
    amounts = {name: amount * len(asked.fellows) for name, amount in asked.requests.items()} | {PODS: 110}
    if asked.pod.gpu_share is not None:
        amounts[GPU] = asked.pod.gpu_share.devices * len(asked.fellows)
    labels = dict(asked.pod_class.node_selector)
    for terms in (asked.pod_class.node_affinity, *(terms for _, terms in asked.pod_class.flavors.places)):
        labels |= {one.key: one.values[0] for one in (terms[0] if terms else ()) if one.operator == "In"}
    return Node("", "made", "", allocatable=amounts, capacity=amounts, labels=labels, ready=True)


def _added(asked: Asked, like: Node, count: int, words: str) -> Amendment:
    row = asked.state.columns.rows.get(like.name)
    topology = None if row is None else asked.state.columns.topologies[row]
    facts: list[payloads.Payload] = []
    undo: list[payloads.Payload] = []
    for number in range(count):
        name = f"{like.name}-made-{number}"
        labels = {**like.labels, HOSTNAME: name}
        node = edited(like, uid=name, name=name, labels=labels, ready=True, unschedulable=False)
        facts.append(payloads.NodeObserved(node))
        undo.append(payloads.NodeDeleted(name, name))
        if topology is not None:
            facts.append(payloads.TopologyObserved(edited(topology, node=name, uid=name)))
            undo.insert(0, payloads.TopologyDeleted(name))
    return Amendment("add-nodes", words, Effort.ADD_NODES, facts=facts, undo=undo, amount=count, place=like.name)


#: Groups that are shown, and nodes that are named of one.
MOST_BLOCKERS = _MOST_NAMED = 5


def blockers(asked: Asked) -> list[BlockerAnswer]:
    """Return the groups that block the pod: it fits after the end of any one of them; else those on the closest node.

    Nothing where no end helps: the pod waits for something else.
    """
    nomination = asked.entry.nomination
    if nomination is not None:
        held = asked.state.charges.held_on(nomination.node)
        keys = dict.fromkeys(one.group for one in held if one.leaving and one.group != asked.entry.group)
        workloads = asked.state.workload_index.workloads
        reason = f"is leaving {nomination.node}, where room is kept for it"
        return [_blocker(asked, workloads[key], [], [reason], suffices=True) for key in sorted(keys)]
    ends = asked.remedies.ends(asked.entry.group, most=MOST_BLOCKERS)
    groups = ends or _on_closest_node(asked)
    rules = _Rules(asked)
    return [_blocker(asked, one, *rules.verdict(one), suffices=bool(ends)) for one in groups]


def _on_closest_node(asked: Asked) -> list[Workload]:
    """Return the groups on the node that is closest to taking the pod, where that is a matter of room."""
    if not asked.obstacles or not asked.obstacles[0].reasons:
        return []
    first = asked.obstacles[0]
    if any(reason.lasting for reason in first.reasons):
        return []
    workloads = asked.state.workload_index.workloads
    held = asked.state.charges.held_on(asked.columns.names[first.row])
    others = (one for one in held if not asked.state.shared_gpus.is_reservation(one.pod.uid))
    keys = dict.fromkeys(one.group for one in others if one.group in workloads and one.group != asked.entry.group)
    return [workloads[key] for key in sorted(keys)][:MOST_BLOCKERS]


def _blocker(
    asked: Asked, workload: Workload, objections: list[str], allowing: list[str], *, suffices: bool
) -> BlockerAnswer:
    members = [*workload.active.values(), *workload.leaving.values()]
    return BlockerAnswer(
        group=display_key(workload.group.key),
        nodes=sorted({member.node for member in members})[:_MOST_NAMED],
        pods=len(members),
        frees=frees(asked, members),
        queue=asked.session.accounts.queue_of(workload.group),
        priority=workload.group.priority,
        suffices=suffices,
        may_leave=bool(allowing),
        because=objections or allowing,
    )


class _Rules:
    """The evicting actions' findings about victims for one waiting group."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._session = asked.session
        self._pending = self._session.pending_groups.get(asked.entry.group)
        steps: Steps = [] if self._pending is None else self._session.gangs.joint_steps(self._pending)[0]
        self._requests: GroupRequests = self._session.gangs.requests_of(steps)
        kinds: dict[Action, type[EvictionAction]] = {Action.PREEMPT: Preempt, Action.RECLAIM: Reclaim}
        self._actions = {one: kind(self._session) for one, kind in kinds.items() if one in asked.config.actions}

    def verdict(self, victim: Workload) -> tuple[list[str], list[str]]:
        """Return why a group may not be evicted for the waiting one; else by which actions it may."""
        if objections := list(self._objections(victim)):
            return objections, []
        eligible = (one for one in self._actions.values() if self._pending and one.is_eligible(self._pending, victim))
        return [], [f"may be evicted ({action.reason})" for action in eligible]

    def _objections(self, victim: Workload) -> Iterator[str]:  # long: one line or two for each rule
        """Yield why a group may not be evicted for the waiting one; nothing where it may."""
        asked, session, pending = self._asked, self._session, self._pending
        if pending is None:
            return
        if not victim.active:
            yield "is ending already"
            return
        accounts, group, theirs = session.accounts, pending.group, victim.group
        first = next(iter(victim.active.values()))
        if first.pod.scheduler_name != asked.config.scheduler_name:
            yield f"is of another scheduler: {first.pod.scheduler_name}"
            return
        if not theirs.preemptible:
            yield "cannot be preempted"
        same = accounts.queue_of(theirs) == accounts.queue_of(group)
        action = self._actions.get(Action.PREEMPT if same else Action.RECLAIM)
        if action is None:
            yield f"{'preempt' if same else 'reclaim'} is switched off"
            return
        if same and theirs.priority >= group.priority:
            yield f"its priority {theirs.priority} is not below {group.priority}"
        elif not action.is_eligible(pending, victim):
            yield f"queue {accounts.queue_of(group)} takes nothing from {accounts.queue_of(theirs)}"
        for reason in action.refusal(self._requests):
            yield str(reason)
        yield from self._of_shares(action, victim)
        until = victim.started_at + accounts.min_runtime_us(theirs, for_group=group)
        if asked.state.recorded_at < until:
            yield f"its minimum runtime lasts until {time_text(until)}"
        members = list(victim.active.values())
        for keys in sorted(session.budgets.refusing(members)):
            allowed = min(session.budgets.allowed(key) for key in keys)
            yield f"PodDisruptionBudget {', '.join(keys)} allows {allowed} disruptions now"

    def _of_shares(self, action: EvictionAction, victim: Workload) -> Iterator[str]:
        accounts = self._session.accounts
        before = accounts.savepoint()
        for group, request in self._requests:
            accounts.charge(group, request)
        if not action.may_evict(self._requests, victim):
            yield f"queue {accounts.queue_of(victim.group)} uses no more than its share"
        accounts.undo(before)
