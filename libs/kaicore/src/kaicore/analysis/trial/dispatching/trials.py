"""Trials of dispatches in a cluster: the engine places them on a copy of the cluster's state, as its scheduler would.

All dispatches are tried at once and in order, as if the cluster were given all of them. A dispatch that fits therefore
fits beside the earlier ones. One that does not fit may fit after some of the earlier ones go to other clusters; it is
tried again in the next round. The quality of an offer depends on where the earlier dispatches went:
`kaicore.rules.hub.choosing`.

Queues are held to their bounds over all clusters, by the sum of what a queue's work holds in each.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kaicore.analysis.trial.simulation import Located
from kaicore.analysis.trial.submission.submitted_world import next_cycle
from kaicore.rules.deciding.why import pending_reasons
from kaicore.rules.engine.explain.waiting_reasons import weight
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.events.payloads import Offer, PodPlaced
from kaicore.rules.groups.labels import NO_RANK
from kaicore.rules.hub.choosing import STARTS_AFTER_EVICTIONS, STARTS_NOW, WAITS, ClusterRoom, topology_part
from kaicore.rules.hub.cluster_side import DISPATCH_MARK
from kaicore.rules.hub.hub_state import HELD, DispatchStage, HubState
from kaicore.rules.model.gpu_share import SHARED_GPU, SHARED_IN, WHOLE, in_thousandths
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import add_amounts
from kaicore.rules.objects.dispatched import Manifest, marked
from kaicore.rules.queues.accounts import QueueAccounts
from kaicore.rules.queues.tree import UNLIMITED, QueueTree, counted
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import CopiedState
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.registries.queue_registry import ready_amounts
from kaicore.rules.state.views import QueuesView, WorkView


@dataclass(slots=True)
class QueueSums:
    """The usage of queues in all clusters together.

    Attributes:
        held: by queue, those below it included; what dispatches ask for counts from when they are given. GPUs are in
            thousandths, here and in `fair`.
        fair: by queue, the sum of its fair shares.
        paths: of each queue, itself and those above it.
        memories: of the smallest GPU of each cluster, in MiB; clusters that tell none are not there.
    """

    held: dict[str, Amounts] = field(default_factory=dict)
    fair: dict[str, Amounts] = field(default_factory=dict)
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    memories: dict[str, int] = field(default_factory=dict)

    def path(self, queue: str) -> tuple[str, ...]:
        """Return a queue and those above it."""
        return self.paths.get(queue, (queue,))

    def memory(self, cluster: str = "") -> int:
        """Return the memory of a cluster's smallest GPU in MiB, where it is not known that of all clusters; else 0."""
        return self.memories.get(cluster, min(self.memories.values(), default=0))

    def charge(self, queue: str, demand: Mapping[str, int], cluster: str) -> None:
        """Add what a dispatch asks for to its queue and those above it, as its cluster counts it."""
        self.add(queue, in_thousandths(demand, self.memory(cluster)))

    def add(self, queue: str, exact: Mapping[str, int], *, sign: int = 1) -> None:
        """Add amounts with GPUs in thousandths to a queue and those above it."""
        for name in self.path(queue):
            add_amounts(self.held.setdefault(name, {}), exact, sign)

    def standing(self, queue: str) -> int:
        """Return how much of its fair share a queue holds, in thousandths, by the resource where it is furthest up."""
        held, fair = self.held.get(queue, {}), self.fair.get(queue, {})
        parts = (1000 * held.get(resource, 0) // amount for resource, amount in fair.items() if amount)
        return max(parts, default=0)


def queue_sums(hub: HubState, states: Iterable[ClusterState], *, now: int) -> QueueSums:
    """Return the accounts of all queues.

    Args:
        hub: its dispatches count with all they ask for, as long as a cluster has them.
        now: microseconds since the epoch.
    """
    sums = QueueSums()
    for state in states:
        if memory := state.columns.least_gpu_memory:
            sums.memories[state.cluster] = memory
        accounts = state.queue_accounts(state.config(), now=max(now, state.recorded_at))
        tree = accounts.tree
        for number, queue in enumerate(tree.queues):
            sums.paths.setdefault(queue.name, tuple(tree.queues[above].name for above in tree.paths[number]))
            add_amounts(sums.held.setdefault(queue.name, {}), _exact(tree, accounts.used[number]), 1)
            add_amounts(sums.fair.setdefault(queue.name, {}), _exact(tree, accounts.shares.fair[number]), 1)
        for entry in state.pods.values():
            if entry.charged and DISPATCH_MARK in entry.pod.annotations:
                name, _ = state.queue_of(entry)
                if tree.configured and tree.find(name) is not None:
                    parts = sum(part.milli for part in entry.gpus)
                    amounts = in_thousandths(counted(entry.requests) | {SHARED_GPU: parts})
                    sums.add(name, {one: amounts.get(one, 0) for one in tree.resources}, sign=-1)
    for dispatch in hub.dispatches.values():
        if dispatch.stage in HELD or (dispatch.stage is DispatchStage.WITHDRAWN and dispatch.left):
            sums.charge(dispatch.submitted.queue, dispatch.submitted.demand, dispatch.cluster)
    return sums


def _exact(tree: QueueTree, row: Sequence[int]) -> Amounts:
    """Return the amounts of a queue by resource: GPUs in thousandths whether the tree counts them so."""
    return {
        resource: min(tree.whole(place, row[place]), UNLIMITED)
        if row[place] >= UNLIMITED or resource not in SHARED_IN
        else row[place] * WHOLE // tree.units[place]
        for place, resource in enumerate(tree.resources)
    }


_ACTOR = "hub"


@dataclass(frozen=True, slots=True)
class TriedDispatch:
    """A dispatch to try (`demand`: what its pods ask for in all, as queues count it)."""

    name: str
    objects: Sequence[Manifest]
    queue: str
    demand: Amounts


def try_dispatches(
    state: ClusterState,
    arriving: Sequence[TriedDispatch],
    waiting: Sequence[TriedDispatch],
    *,
    now: int,
    policies: PolicyBook = NO_POLICIES,
) -> tuple[dict[str, Offer], ClusterRoom]:
    """Return what would become of each waiting dispatch, and what the cluster has left for them.

    The offers lack what depends on other clusters, and on what else the cluster is given (`ClusterRoom.rescored`).

    Args:
        state: a copy of the cluster's state; changed.
        arriving: given to the cluster already, and perhaps not to be seen in its log yet.
        waiting: to be tried, in order.
        now: microseconds since the epoch.
        policies: the code of policies; those of which it has none do not decide.
    """
    position, scheduler_name = state.position, state.config().scheduler_name
    accounts = state.queue_accounts(state.config(), now=max(now, state.recorded_at))
    located = [
        Located(f"dispatch {trial.name}", marked(manifest, DISPATCH_MARK, trial.name, scheduler_name=scheduler_name))
        for trial in (*arriving, *waiting)
        for manifest in trial.objects
    ]
    there = _held(state)
    submitted, proposal, _ = next_cycle(CopiedState(state, now=now), located, policies, actor=_ACTOR)
    placed = {decision.uid: decision for decision in proposal.result.placements}
    pods: dict[str, list[PodEntry]] = {}
    for uid in submitted.uids:
        entry = state.pods[uid]
        pods.setdefault(entry.pod.annotations.get(DISPATCH_MARK, ""), []).append(entry)
    totals, memory = in_thousandths(counted(ready_amounts(state.columns))), state.columns.least_gpu_memory
    for trial in arriving:
        if trial.name in pods:
            add_amounts(there, in_thousandths(trial.demand, memory), 1)
    offers = {}
    for trial in waiting:
        problem = next((line for line in submitted.problems if line.startswith(f"dispatch {trial.name}:")), "")
        prospect, unfit = _prospect(pods.get(trial.name, []), scheduler_name, problem)
        offers[trial.name] = Offer(
            cluster=state.cluster,
            position=position,
            prospect=prospect,
            unfit=unfit,
            why=_why(state, pods.get(trial.name, [])) if prospect == WAITS else "",
            topology=topology_part(_domains(pods.get(trial.name, []), placed)),
        )
    room = ClusterRoom(total=totals, held=there, memory=memory)
    for queue in {trial.queue for trial in waiting}:
        _add_share(room, accounts, queue)
    return offers, room


def _prospect(pods: Sequence[PodEntry], scheduler_name: str, problem: str) -> tuple[str, str]:
    """Return what becomes of pods, and why they are nothing for this cluster; empty where they may be."""
    others = sorted({entry.pod.scheduler_name for entry in pods} - {scheduler_name})
    if problem or not pods:
        return "", problem or "its pods are in the cluster already"
    if others:
        return "", f"its pods are for another scheduler: {others[0]}"
    groups: dict[str, list[PodEntry]] = {}
    for entry in pods:
        groups.setdefault(entry.group, []).append(entry)
    if all(any(entry.charged for entry in members) for members in groups.values()):
        return STARTS_NOW, ""
    soon = all(any(entry.charged or entry.nomination is not None for entry in members) for members in groups.values())
    return STARTS_AFTER_EVICTIONS if soon else WAITS, ""


def _why(state: WorkView, pods: Sequence[PodEntry]) -> str:
    """Return the first reason why pods would wait in a cluster."""
    listed = {reason for entry in pods if entry.waiting for reason in pending_reasons(entry, state)}
    return min((*weight(reason), -reason.affected_nodes, str(reason)) for reason in listed)[-1] if listed else ""


def _domains(pods: Sequence[PodEntry], placed: Mapping[str, PodPlaced]) -> list[int]:
    """Return in how many domains, at the narrowest level above nodes, each group with a topology constraint is."""
    by_group: dict[str, set[tuple[str, ...]]] = {}
    for entry in pods:
        decision = placed.get(entry.pod.uid)
        if decision is not None and decision.rank != NO_RANK and decision.domains:
            by_group.setdefault(entry.group, set()).add(tuple(list(decision.domains.values())[:-1]))
    return [len(domains) for domains in by_group.values()]


def _add_share(room: ClusterRoom, accounts: QueueAccounts, queue: str) -> None:
    """Add what a queue uses in the cluster, and its fair share; nothing where there are no queues."""
    tree = accounts.tree
    number = tree.find(queue) if tree.configured else None
    if number is not None:
        room.fair[queue] = _exact(tree, accounts.shares.fair[number])
        room.used[queue] = _exact(tree, accounts.used[number])


def _held(state: QueuesView) -> Amounts:
    held: Amounts = {}
    for usage in state.queue_registry.usages.values():
        add_amounts(held, in_thousandths(counted(usage.used)), 1)
    return held
