"""The hub's view of clusters: the requests of dispatches, and the outcome of each dispatch in each cluster.

Submission and withdrawal are shared by `kai submit` and the hub's HTTP routes. Both are idempotent by the dispatch's
name: a repeated request changes nothing, so a client repeats a request that got no answer. A dispatch is read from
manifests: its queue, and the total requests of its pods. Operators and submitters read the hub's log, append to it,
and have its choices computed again from the offers.

In a cluster, the engine places dispatches on a copy of the cluster's state, as its scheduler would. All are tried at
once and in order, as if the cluster were given all of them. A dispatch that fits therefore fits beside the earlier
ones. One that does not fit may fit after some of the earlier ones go to other clusters; it is tried again in the next
round. The quality of an offer depends on where the earlier dispatches went: `kaicore.rules.hub.choosing`.

Queues are held to their bounds over all clusters, by the sum of what a queue's work holds in each.
"""

import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import msgspec

from kaicore.analysis.trial.simulation import Located
from kaicore.analysis.trial.submission.submitted_world import next_cycle, submit_objects
from kaicore.errors import ConfigurationError, Conflict, InvalidObject, StaleExpectation, UnknownSubject
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.snapshots import folded_hub, restored_hub
from kaicore.rules.deciding.why import pending_reasons
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.explain.waiting_reasons import weight
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import (
    DispatchGiven,
    DispatchSubmitted,
    DispatchWithdrawn,
    HubPayload,
    Offer,
    PodPlaced,
)
from kaicore.rules.groups.labels import NO_RANK
from kaicore.rules.hub.choosing import STARTS_AFTER_EVICTIONS, STARTS_NOW, WAITS, ClusterRoom, choose, topology_part
from kaicore.rules.hub.cluster_side import DISPATCH_MARK
from kaicore.rules.hub.hub_state import ENDED, HELD, HUB, DispatchEntry, DispatchStage, HubState, dispatch_stream
from kaicore.rules.model.gpu_share import SHARED_GPU, SHARED_IN, WHOLE, in_thousandths
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import PODS, add_amounts
from kaicore.rules.objects.dispatched import Manifest, marked
from kaicore.rules.queues.accounts import QueueAccounts
from kaicore.rules.queues.tree import UNLIMITED, QueueTree, counted
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import CopiedState
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.registries.queue_registry import ready_amounts
from kaicore.rules.state.views import QueuesView, WorkView
from kaicore.spelling import did_you_mean

_PAGE = 2000


class ChoiceReplay(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The order of the hub's choices (`differences`: one line for each that came out otherwise)."""

    cluster: str
    choices: int
    differences: list[str]


async def replay_choices(log: EventLog) -> ChoiceReplay:
    """Choose again for every dispatch that was given to a cluster, and compare."""
    choices, differences, after = 0, [], 0
    where = Filter(types=(DispatchGiven.__name__,))
    while page := await log.read(HUB, after=after, limit=_PAGE, where=where):
        for event in page:
            after = event.position
            given = decode_payload(event)
            if not isinstance(given, DispatchGiven):
                continue
            choices += 1
            again = choose(given.offers)
            if again is None or again.cluster != given.cluster:
                differences.append(
                    f"position {event.position}: dispatch {given.dispatch}: given to {given.cluster}, chosen again: "
                    f"{again.cluster if again is not None else 'none'}"
                )
    return ChoiceReplay(cluster=HUB, choices=choices, differences=differences)


#: Who appends where nobody else is named: whoever runs `kai`.
OPERATOR = "kai"


class HubLog:
    """The hub's log, and its state at the log's end."""

    def __init__(self, log: EventLog) -> None:
        """Args: log: of the hub and of all clusters."""
        self.log = log
        self.state = HubState()

    async def refresh(self) -> HubState:
        """Fold to the log's end."""
        if not self.state.position:
            self.state = await restored_hub(self.log)
        return await folded_hub(self.log, self.state)

    async def append(self, stream: str, payload: HubPayload, *, subject: str) -> None:
        """Append an operator's decision to a stream, if nobody has changed that since it was read.

        Raises:
            ConfigurationError: somebody has.
            LogUnavailable: it is not known whether it was appended.
        """
        if not await self.try_append(stream, payload, subject=subject):
            raise ConfigurationError(f"{subject}: was changed by somebody else just now; look again")

    async def try_append(self, stream: str, payload: HubPayload, *, subject: str, actor: str = OPERATOR) -> bool:
        """Append an actor's decision to a stream; return False if somebody has changed that since it was read.

        Raises LogUnavailable: it is not known whether it was appended.
        """
        version = self.state.versions.get(stream, 0)
        event = NewEvent(
            id=derived_id(HUB, stream, str(version), uuid4().hex),
            stream=stream,
            payload=payload,
            actor=actor,
            occurred_at=time.time_ns() // 1000,
            subject=subject,
            correlation=stream,
        )
        try:
            await self.log.append(HUB, [Unit((event,))], expect={stream: version})
        except StaleExpectation:
            return False
        await self.refresh()
        return True


@asynccontextmanager
async def hub_of(log: EventLog) -> AsyncIterator[HubLog]:
    """Yield the hub's log, folded to its end."""
    hub = HubLog(log)
    await hub.refresh()
    yield hub


#: The binder carries out this owner's decisions, and asks the hub before the first one.
_SCHEDULER = EngineConfig().scheduler_name


def read_dispatch(
    name: str, objects: Sequence[Located], *, clusters: Sequence[str] = (), data: Sequence[str] = ()
) -> DispatchSubmitted:
    """Return the dispatch that manifests are.

    Raises InvalidObject: an object makes no sense or has no name, there are no pods among them, or they are of several
    queues or for another scheduler.

    Args:
        objects: in order of creation, with apiVersion and kind.
        clusters: that it may run in; none for any.
    """
    for item in objects:
        metadata = item.object.get("metadata")
        if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
            raise InvalidObject(
                f"{item.where}, {item.object['kind']}",
                "metadata.name",
                None if not isinstance(metadata, dict) else metadata.get("name"),
                "missing: the hub must find the object again, so generateName is not enough",
            )
    state = ClusterState("hub")
    submitted = submit_objects(CopiedState(state, now=0), objects, scheduler_name=_SCHEDULER)
    if submitted.problems:
        raise InvalidObject(f"dispatch {name}", "manifests", len(objects), submitted.problems[0])
    entries = [state.pods[uid] for uid in submitted.uids]
    if not entries:
        raise InvalidObject(f"dispatch {name}", "manifests", len(objects), "make no pods, so there is nothing to run")
    others = sorted({entry.pod.scheduler_name for entry in entries} - {_SCHEDULER})
    if others:
        raise InvalidObject(
            f"dispatch {name}",
            "spec.schedulerName",
            others[0],
            f"must be {_SCHEDULER}, or left out: another scheduler does not ask the hub, so it could run twice",
        )
    queues = sorted({state.queue_of(entry)[0] for entry in entries})
    if len(queues) > 1:
        raise InvalidObject(f"dispatch {name}", "queue", ", ".join(queues), "must be one for all of its pods")
    demand: Counter[str] = Counter()
    for entry in entries:
        demand.update({resource: amount for resource, amount in counted(entry.requests).items() if resource != PODS})
        if (share := entry.pod.gpu_share) is not None:
            # How much of a GPU some MiB are depends on the cluster, so they stay MiB.
            demand.update(share.waiting)
    return DispatchSubmitted(
        dispatch=name,
        manifests=msgspec.json.encode([item.object for item in objects]).decode(),
        queue=queues[0],
        demand=dict(demand),
        clusters=tuple(sorted(clusters)),
        data=tuple(sorted(data)),
    )


#: A dispatch's name is part of an annotation and of paths: RFC 1123.
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", re.ASCII)
#: How often something is tried that others change at the same time.
_TRIES = 5


def named_dispatch(
    objects: Sequence[Located], name: str, *, clusters: Sequence[str], data: Sequence[str]
) -> DispatchSubmitted:
    """Return the dispatch that manifests are, under a name, by default that of the first object.

    Raises:
        ConfigurationError: there are no objects, or the name is none.
        InvalidObject: an object makes no sense; see `read_dispatch`.
    """
    if not objects:
        raise ConfigurationError("no Kubernetes objects are given")
    metadata = objects[0].object.get("metadata")
    first = metadata.get("name") if isinstance(metadata, dict) else None
    chosen = name or str(first or "")
    if not _LABEL.fullmatch(chosen):
        raise ConfigurationError(f"name {chosen!r}: must be 1 to 63 of a-z, 0-9, - and ., with no - or . at either end")
    return read_dispatch(chosen, objects, clusters=clusters, data=data)


async def submit_dispatch(hub: HubLog, submitted: DispatchSubmitted, *, actor: str = OPERATOR) -> bool:
    """Submit a dispatch; return whether it is new, and was not submitted before.

    Raises:
        ConfigurationError: it names a cluster that is not registered, or there is none.
        Conflict: the name is another dispatch's.
        LogUnavailable: it is not known whether it was submitted; do the same again.
    """
    name = submitted.dispatch
    for _ in range(_TRIES):
        before = (await hub.refresh()).dispatches.get(name)
        if before is not None:
            if before.submitted == submitted:
                return False
            where = f" in {before.cluster}" if before.cluster else ""
            raise Conflict(f"dispatch {name}: is there already, another one ({before.stage}{where}); name it otherwise")
        _check_clusters(hub, submitted)
        if await hub.try_append(dispatch_stream(name), submitted, subject=name, actor=actor):
            return True
    raise Conflict(f"dispatch {name}: is changed by others all the time")


async def withdraw_dispatch(hub: HubLog, name: str, *, actor: str = OPERATOR) -> DispatchEntry:
    """Withdraw a dispatch, unless it was withdrawn before.

    Raises:
        UnknownSubject: there is none of the name.
        Conflict: it has ended.
        LogUnavailable: it is not known whether it was withdrawn; do the same again.
    """
    for _ in range(_TRIES):
        state = await hub.refresh()
        entry = state.dispatches.get(name)
        if entry is None:
            raise UnknownSubject(f"the hub knows of no dispatch {name}{did_you_mean(name, state.dispatches)}")
        if entry.stage is DispatchStage.WITHDRAWN:
            return entry
        if entry.stage in ENDED:
            raise Conflict(f"dispatch {name}: has ended already ({entry.stage})")
        await hub.try_append(dispatch_stream(name), DispatchWithdrawn(dispatch=name), subject=name, actor=actor)
    raise Conflict(f"dispatch {name}: is changed by others all the time")


def _check_clusters(hub: HubLog, submitted: DispatchSubmitted) -> None:
    there = [cluster for cluster, _ in hub.state.present()]
    for cluster in submitted.clusters:
        if cluster not in there:
            raise ConfigurationError(
                f"cluster {cluster}: is not registered{did_you_mean(cluster, there)}; there are: "
                f"{', '.join(there) or '-'}"
            )
    if not there:
        raise ConfigurationError("the hub has no cluster; register one: `kai cluster add`")


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
