"""A cycle as events: it is run on a state, and its input position, its decisions and its reasons are recorded.

The events of one cycle are one append. Each batch of decisions (`kaicore.rules.engine.decisions`) is one unit of it: a
gang's start, or a preemptor's room and its victims. A unit is conditional on the versions that all its pods and nodes
had in the state. So a stale batch is dropped as a whole. The others stand, except those that were decided on the
charges of the stale one to their nodes: the zones of a pod depend on the pods that come before it. Devices that several
nodes can use, and claims that several pods can use, have streams of their own for that. The append as a whole is
conditional on the shard's cycle stream. So of two schedulers that both believe to lead a shard only one appends
anything.

A shard may have replicas (`kaicore.rules.deciding.share`). Each has a cycle stream of its own, and its append is also
conditional on the list of replicas, so that no group has two owners. An eviction is then conditional on all running
pods of the victim's group, because another replica may have taken from the same gang. An eviction that takes back a
queue's work is conditional on no other such eviction since, because another replica may have taken from the same queue.

The record names the pods that are left waiting, with the keys of their reasons. Reasons are recorded once for a class
and once for a group. The class of a pod in a decision, and its group, follow from the whole state. The binder writes
these reasons on pods. It does not have the state, and need not. Queues are reported that have changed, not more often
than configured.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from uuid import UUID

from kaicore.rules.deciding.cycle_run import NOTHING_LEFT_OUT, LeftOut, run_on
from kaicore.rules.deciding.share import Share
from kaicore.rules.engine.config import ENGINE_VERSION, EngineConfig
from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.decisions import CycleResult, Decision, DecisionBatch, EvictionReason
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.engine.work.workload import uids_of
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id, numbered_ids
from kaicore.rules.model.replicas import replicas_stream
from kaicore.rules.state.indexes.recorded_reasons import RecordedReasons
from kaicore.rules.state.indexes.workload_index import as_left
from kaicore.rules.state.registries.queue_registry import QueueRegistry, figures
from kaicore.rules.state.views import CycleView, QueuesView

#: Most pods per event: such an event stays well below the largest message of a bus, 1 MiB.
_PODS_PER_EVENT = 1000

#: Decisions about groups.
_OF_GROUPS = payloads.ProvisioningRequested, payloads.ProvisioningWithdrawn


@dataclass(frozen=True, slots=True)
class Proposal:
    """A cycle's result and the append that records it.

    Attributes:
        result: what was decided.
        units: the cycle itself first, then one for each of `result.batches`.
        expect: what the whole append is conditional on.
        left_out: what the cycle left out, for it raised with it.
        policies_left_out: the policies that failed.
    """

    cycle: str
    result: CycleResult
    units: tuple[Unit, ...]
    expect: Mapping[str, int]
    left_out: LeftOut = NOTHING_LEFT_OUT
    policies_left_out: tuple[payloads.PolicyLeftOut, ...] = ()


def cycle_stream(shard: str) -> str:
    """Return the stream of a shard's cycles."""
    return f"cycle/{shard}"


def decide(
    state: CycleView,
    config: EngineConfig,
    *,
    shard: str,
    now: int,
    actor: str,
    policies: PolicyBook = NO_POLICIES,
    policies_left_out: Sequence[payloads.PolicyLeftOut] = (),
) -> Proposal:
    """Run a cycle on a state, in four steps: decisions, summary, units, condition.

    Args:
        state: folded up to the position that the cycle is then recorded to be decided on; not changed.
        shard: the shard's name, with that of a replica behind it where there are several.
        now: the cycle's clock, microseconds since the epoch.
        policies: see `run_on`.
        policies_left_out: see `run_on`; only in a replay.

    Raises:
        PolicyMismatch: the book has no code of a policy that the settings name.
        Exception: whatever the cycle raises, and goes on raising without any group and without any node.
    """
    # 1. The decisions, about the groups that are this scheduler's.
    stream = cycle_stream(shard)
    cycle = f"{shard}/{state.versions.get(stream, 0) + 1}"
    share = Share(state, shard, config)
    run = run_on(
        state, config, now=now, cycle=cycle, share=share, policies=policies, policies_left_out=policies_left_out
    )
    result = run.result
    # 2. The summary, with the reasons that are news.
    summary = payloads.CycleCompleted(
        cycle=cycle,
        shard=shard,
        input_position=state.position,
        config_digest=config.digest(),
        engine_version=ENGINE_VERSION,
        now=now,
        decisions_digest=result.digest(),
        pods=run.given.waiting,
        placed=len(result.placements),
        pending=class_news(state.reasons, shard, result.pending),
        groups=group_news(state.reasons, shard, result.groups),
        evicted=len(result.evictions),
        nominated=len(result.nominations),
        policies_left_out=run.policies_left_out,
    )
    # 3. The units: the cycle's own, then those of the batches, in the order in which the cycle charged nodes.
    record = _Record(state, summary, actor, share)
    units = (record.cycle(config, result.placements, run.given), *map(record.batch, result.batches))
    # 4. The condition: no other cycle of this scheduler was recorded since, and the replicas are the same.
    listed = replicas_stream(share.shard)
    expect = {one: state.versions.get(one, 0) for one in (stream, listed) if one == stream or one in state.versions}
    return Proposal(cycle, result, units, expect, run.left_out, run.policies_left_out)


class _Record:
    """Makes the units of one cycle's append."""

    def __init__(self, state: CycleView, summary: payloads.CycleCompleted, actor: str, share: Share) -> None:
        self._state = state
        self._share = share
        self._summary = summary
        self._actor = actor
        # Another scheduler's cycle of the same number is another cycle, also if it began at the same position.
        parts = (summary.cycle, str(state.position), actor, str(summary.now))
        self._id = derived_id(state.cluster, "CycleCompleted", *parts)
        #: Of the other events. To derive each id from its parts would cost as much as deciding.
        self._ids = numbered_ids(self._id)
        #: The last unit that charges pods to a node.
        self._charged_by: dict[str, int] = {}
        self._units = 1

    def cycle(self, config: EngineConfig, placements: Sequence[payloads.PodPlaced], given: CycleInput) -> Unit:
        """Return the unit that records the cycle: its summary, and what has changed of what it reports besides."""
        state, summary, shard = self._state, self._summary, self._summary.shard
        events = [self._about_shard("cycle", summary, self._id)]
        if summary.config_digest not in state.configs:
            recorded = payloads.ConfigRecorded(digest=summary.config_digest, shard=shard, config=config.document())
            events.append(self._about_shard("config", recorded))
        report = queue_report(state, config, shard=shard, now=summary.now) if self._share.reports else None
        if report is not None:
            events.append(self._about_shard("queues", report))
        events += [self._event(f"suspect/{one.node}", one.node, one) for one in given.node_news]
        placed = {decision.uid for decision in placements}
        reports = waiting_reports(state, config, shard=shard, given=given, share=self._share, placed=placed)
        events += [self._about_shard("waiting", waiting) for waiting in reports]
        return Unit(tuple(events))

    def batch(self, batch: DecisionBatch) -> Unit:
        """Return all of a batch's events, conditional on every pod and node that it is about, and on what it follows.

        To be asked for all batches of a cycle, in order: the kubelets shall see the pods in the order in which the
        cycle charged them, since what one gets depends on those before it.
        """
        # 1. Its decisions, each in the stream of its pod or group, on which it is conditional. The log tells no
        #    versions of a request's events: its pods are still to be those.
        events, streams = list[NewEvent](), set[str]()
        charged, given = dict[str, list[str]](), list[payloads.PodPlaced]()
        summary, actor, now, first, ids = self._summary, self._actor, self._summary.now, self._id, self._ids
        for decision in batch.decisions:
            if isinstance(decision, payloads.PodPlaced):
                # By far the most frequent one.
                uid, stream = decision.uid, f"pod/{decision.uid}"
                subject = f"{decision.namespace}/{decision.name}"
                events.append(NewEvent(next(ids), stream, decision, actor, now, subject, first, summary.cycle))
                charged.setdefault(decision.node, []).append(uid)
                if decision.devices:
                    given.append(decision)
                streams.add(stream)
                continue
            event = self._decided(decision)
            events.append(event)
            if isinstance(decision, payloads.PodNominated):
                charged.setdefault(decision.node, []).append(decision.uid)
            elif isinstance(decision, _OF_GROUPS):
                streams.update(_requested_for(decision))
                continue
            streams.add(event.stream)
        # 2. What else they change: nodes, devices, and, where other replicas may do the same, queues.
        more = [
            self._event(f"node/{node}", node, payloads.NodeCharged(node, self._summary.cycle, tuple(uids)))
            for node, uids in sorted(charged.items())
        ]
        more += self._devices(given)
        more += [] if self._share.alone else self._reclaimed(batch)
        events += more
        # 3. What else it is conditional on.
        streams.update([event.stream for event in more])
        streams.update(() if self._share.alone else self._victims_groups(batch))
        version_of = self._state.versions.get
        expected = {stream: version_of(stream, 0) for stream in sorted(streams)}
        # 4. The units that it follows, and itself as the last one to charge its nodes; the first is the cycle's own.
        follows = {self._charged_by[node] for node in charged if node in self._charged_by}
        follows |= {1 + batch.depends_on} if batch.depends_on >= 0 else set()
        self._charged_by |= dict.fromkeys(charged, self._units)
        self._units += 1
        return Unit(tuple(events), expected, tuple(sorted(follows)))

    def _devices(self, given: Sequence[payloads.PodPlaced]) -> list[NewEvent]:
        """Return what records which devices decisions give that the nodes' streams do not guard."""
        registry, by_stream = self._state.constraints.devices, dict[tuple[str, str], list[str]]()
        for decision in given:
            for charged in sorted(set(registry.charged(decision))):
                by_stream.setdefault(charged, []).append(decision.uid)
        return [
            self._event(stream, of, payloads.DevicesCharged(of=of, cycle=self._summary.cycle, pods=tuple(uids)))
            for (stream, of), uids in sorted(by_stream.items())
        ]

    def _victims_groups(self, batch: DecisionBatch) -> Iterator[str]:
        """Yield the streams of all running pods of the groups that a batch takes pods from."""
        workloads = self._state.workload_index.workloads
        for decision in batch.decisions:
            if isinstance(decision, payloads.EvictionDecided):
                workload = workloads.get(self._state.pods[decision.uid].group)
                yield from (f"pod/{uid}" for uid in (workload.active if workload is not None else ()))

    def _reclaimed(self, batch: DecisionBatch) -> list[NewEvent]:
        """Return what records that a batch takes back work of queues, by the roots of these."""
        tree, by_root = self._state.queue_registry.tree, dict[str, list[str]]()
        for decision in batch.decisions:
            if isinstance(decision, payloads.EvictionDecided) and decision.reason == EvictionReason.RECLAIMED:
                queue, namespace = self._state.queue_of(self._state.pods[decision.uid])
                number = tree.find(queue, namespace=namespace)
                root = queue if number is None else tree.queues[tree.paths[number][-1]].name
                by_root.setdefault(root, []).append(decision.uid)
        return [
            self._event(
                f"reclaimed/{root}",
                root,
                payloads.QueueReclaimed(queue=root, cycle=self._summary.cycle, pods=tuple(uids)),
            )
            for root, uids in sorted(by_root.items())
        ]

    def _decided(self, decision: Decision) -> NewEvent:
        subject = f"{decision.namespace}/{decision.name}"
        if isinstance(decision, _OF_GROUPS):
            return self._event(f"provisioning/{subject}", subject, decision)
        if isinstance(decision, payloads.GpuOpened):
            return self._event(f"node/{decision.node}", decision.node, decision)
        return self._event(f"pod/{decision.uid}", subject, decision)

    def _about_shard(self, kind: str, payload: payloads.Payload, event_id: UUID | None = None) -> NewEvent:
        shard, now, cycle = self._summary.shard, self._summary.now, self._summary.cycle
        event_id = event_id or next(self._ids)
        return NewEvent(event_id, f"{kind}/{shard}", payload, self._actor, now, shard, correlation=cycle)

    def _event(self, stream: str, subject: str, payload: payloads.Payload) -> NewEvent:
        summary = self._summary
        return NewEvent(next(self._ids), stream, payload, self._actor, summary.now, subject, self._id, summary.cycle)


def _requested_for(decision: payloads.ProvisioningRequested | payloads.ProvisioningWithdrawn) -> Iterator[str]:
    """Yield the streams of the pods for which a decision requests nodes."""
    if isinstance(decision, payloads.ProvisioningRequested):
        yield from (f"pod/{pod_set.uid}" for pod_set in decision.pod_sets)


def may_report(registry: QueueRegistry, config: EngineConfig, *, now: int) -> bool:
    """True if there are queues to report of, and the last report is long enough ago."""
    every_us = config.fair_share.report_every_us
    return bool(registry.queues and every_us) and now >= registry.reported_at + every_us


def queue_report(state: QueuesView, config: EngineConfig, *, shard: str, now: int) -> payloads.QueuesReported | None:
    """Return what a cycle reports; None when it is too soon, or nothing has changed.

    Args:
        now: the cycle's clock, microseconds since the epoch.
    """
    registry = state.queue_registry
    if not may_report(registry, config, now=now):
        return None
    accounts = state.queue_accounts(config, now=now)
    changed = [
        item for name, item in sorted(figures(accounts).items()) if item.uid and registry.reported.get(name) != item
    ]
    return payloads.QueuesReported(shard=shard, now=now, queues=tuple(changed)) if changed else None


def waiting_reports(
    state: CycleView,
    config: EngineConfig,
    *,
    shard: str,
    given: CycleInput,
    share: Share,
    placed: Set[str],
) -> list[payloads.PodsLeftWaiting]:
    """Return what a cycle records of the pods that it leaves waiting.

    Args:
        given: what the cycle decided on.
        share: of the groups, those that the cycle was about.
        placed: uids of the pods that the cycle places.
    """
    left_waiting, pods, workloads = [], state.pods, state.workload_index.workloads
    # What is to be recorded of pods that rest was recorded before.
    for uid in state.waiting - uids_of(given.resting) - placed:
        entry = pods[uid]
        if entry.pod.scheduler_name == config.scheduler_name and share.has(entry.group):
            waiting = as_left(entry, workloads.get(entry.group), given.class_of(entry).key)
            if waiting != entry.reported:
                left_waiting.append(waiting)
    left_waiting.sort(key=lambda pod: pod.uid)
    return [
        payloads.PodsLeftWaiting(shard=shard, pods=tuple(left_waiting[first : first + _PODS_PER_EVENT]))
        for first in range(0, len(left_waiting), _PODS_PER_EVENT)
    ]


def class_news(
    recorded: RecordedReasons, shard: str, pending: Sequence[payloads.ClassPending]
) -> tuple[payloads.ClassPending, ...]:
    """Leave out the classes with the same reasons as those recorded last."""
    return tuple(item for item in pending if recorded.by_class.get(item.pod_class, {}).get(shard) != item)


def group_news(
    recorded: RecordedReasons, shard: str, groups: Sequence[payloads.GroupPending]
) -> tuple[payloads.GroupPending, ...]:
    """Leave out the groups with reasons that are recorded already, and take back reasons that no longer hold."""
    news = [item for item in groups if recorded.by_group.get(item.group, {}).get(shard) != item]
    still = {item.group for item in groups}
    gone = (key for key, by_shard in recorded.by_group.items() if shard in by_shard and key not in still)
    return (*news, *(payloads.GroupPending(group=key, pods=0) for key in sorted(gone)))
