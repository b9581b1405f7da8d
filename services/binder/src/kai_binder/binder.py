"""The binder: decisions made so.

    log, bus ──events──▶ projection ──decisions──▶ lanes ──▶ attempts ⇄ API server
                                                               └──outcomes──▶ outbox ──▶ log

The log alone says which decisions are open. An outcome is recorded under an id that follows from the decision's id,
and a binding that was posted twice is refused the second time. So a binder may end anywhere, and there may be two of
them: every decision is carried out once and has one outcome. `docs/explanation/binder.md` has all of it.

An eviction names the pod's uid as a precondition, so that asking twice evicts one pod at most: a successor of the same
name is left alone. A disruption budget that forbids it (429) is asked again as often as patience allows.

Statuses of groups, queues and topologies and reasons on waiting pods need no decision: `side_writes` makes them.
"""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar
from uuid import UUID

from kaicore.analysis.replay.log_states import events_of
from kaicore.analysis.replay.samples import SampleDifference, differing, pod_events, some
from kaicore.analysis.replay.self_check import Memory, Reporting, SelfCheck
from kaicore.errors import ApiStatus, ClusterUnavailable, IdempotencyConflict, InvalidObject, KaiError, UnfoldableEvent
from kaicore.kube.api.client import STRATEGIC_MERGE_PATCH, KubeClient
from kaicore.kube.normalize.gpu_shares import ReservationSettings
from kaicore.kube.wire.objects import PodObject
from kaicore.kube.wire.resources import PODS
from kaicore.ledger.bus.port import Bus
from kaicore.ledger.feed import EventFeed, FeedObserver
from kaicore.ledger.log.outbox import OutboxOptions
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.snapshots import newest
from kaicore.rules.engine.victims.eviction_cost import failures_text
from kaicore.rules.events.envelope import Event, Unit
from kaicore.rules.events.payloads import BindFailed, EvictionDecided, EvictionFailed, PodBound
from kaicore.rules.hub.cluster_side import Term
from kaicore.rules.objects.wire import kubernetes_time
from kaicore.runtime.service import ServiceContext
from kaicore.runtime.service.recorder import PassedOver, Recorder, until_answered
from kaicore.runtime.service.settings import FeedSettings, KubeSettings
from pydantic import BaseModel, Field, model_validator

from kai_binder.hub_side import HubSide, NotPermitted
from kai_binder.metrics import BinderMetrics
from kai_binder.projection.open_work import (
    EVENT_TYPES,
    SNAPSHOT_NAME,
    SNAPSHOT_SCHEMA,
    BinderProjection,
    Decision,
    NominatedNode,
    Observation,
    PodBinding,
    PodEviction,
    Task,
    decided_part,
    is_binding,
    is_eviction,
    is_provisioning,
    open_decisions,
)
from kai_binder.work_share import Work, WorkShare
from kai_binder.writes.attempt import Ask, Attempt, NotYet, Outcome, binding_document, outcome_unit, pod_path
from kai_binder.writes.claims import Claims, uses_devices
from kai_binder.writes.gpu_shares import GpuShares, GpuUpkeep
from kai_binder.writes.lanes import Carrier, Lanes, bring_about
from kai_binder.writes.provisioning import ProvisioningWriter
from kai_binder.writes.side_writes import (
    SideWrites,
    failed_binding_event,
    failed_scheduling_event,
    group_status,
    nominated_node,
    observed_annotation,
    pod_condition,
    queue_status,
    scheduled_event,
    topology_status,
)

#: Whether statuses of topologies are written: always, never, or where no other controller has written them.
TopologyStatusesMode = Literal["auto", "on", "off"]


class BinderOptions(BaseModel):
    """A binder's settings."""

    concurrency: int = Field(64, ge=1, le=1024, description="nodes to which pods are bound at the same time")
    give_up_s: float = Field(60.0, gt=0, description="how long a binding is tried before the pod is given back")
    evict_give_up_s: float = Field(120.0, gt=0, description="how long an eviction is tried, budgets that forbid it too")
    volumes_give_up_s: float = Field(120.0, gt=0, description="how long a pod's claims may take to be bound")
    gpu_sharing: bool = Field(False, description="carry out shares of GPUs; as gpu_sharing in the scheduler's settings")
    gpu_reservation_image: str = Field("", description="image of the pods that hold GPUs for shares")
    gpu_reservation_runtime_class: str = Field("", description="their RuntimeClass; by default the node's own runtime")
    gpu_cdi: bool = Field(False, description="the device plugin names GPUs by CDI")
    gpu_give_up_s: float = Field(60.0, gt=0, description="how long it may take until a pod's GPUs are reserved")
    annotations: bool = Field(True, description="write observed placements on pods")
    group_statuses: bool = Field(True, description="write into PodGroups how they fare")
    queue_statuses: bool = Field(True, description="write into Queues how they stand")
    topology_statuses: TopologyStatusesMode = Field(
        "auto",
        description="write into HyperNodes and ClusterNetworkTopologies what nodes they have: on, off, or auto, which "
        "is where no other controller has written their status",
    )
    empty_groups: bool = Field(
        False,
        description="also into those without pods, but for those of a Volcano Job of another scheduler; set it "
        "where no other scheduler uses PodGroups by themselves",
    )
    pod_conditions: bool = Field(True, description="write into waiting pods why they wait (condition PodScheduled)")
    failed_scheduling_events: bool = Field(True, description="say why a pod waits by a Kubernetes event")
    scheduled_events: bool = Field(True, description="report each bound pod by a Kubernetes event")
    side_writes_per_s: float = Field(
        100.0, gt=0, description="such annotations, conditions, statuses and events per second at most"
    )
    snapshot_events: int = Field(50_000, ge=1, description="events between two snapshots of what is left to do")
    check_s: float = Field(3600.0, ge=0, description="how often memory and log are compared; 0: never")
    hub_lease_s: float = Field(
        30.0, gt=0, description="how long the lease lasts on which the binder acts for the hub; renewed thrice as often"
    )

    @model_validator(mode="after")
    def _an_image_for_shares(self) -> "BinderOptions":
        if self.gpu_sharing and not self.gpu_reservation_image:
            raise ValueError("gpu_sharing is on, and gpu_reservation_image names no image")
        return self

    @property
    def reservations(self) -> ReservationSettings | None:
        """Settings of reservation pods; None where shares are not carried out."""
        if not self.gpu_sharing:
            return None
        return ReservationSettings(self.gpu_reservation_image, runtime_class=self.gpu_reservation_runtime_class)


class BinderSettings(FeedSettings, KubeSettings, BinderOptions):
    """Settings of `kai-binder`."""

    cluster: str = Field(description="the cluster, as the log calls it")
    replica: str | None = Field(
        None,
        pattern=r"^[a-zA-Z0-9]([-_.a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$",
        description="this binder's name among several that share the cluster's work, such as its pod's; without it, it "
        "carries out everything (docs/how-to/shards.md)",
    )
    member_ttl_ms: int = Field(2000, ge=300, description="how long a binder counts as live without a sign of life")


def condition_document(eviction: PodEviction, *, now: int) -> dict[str, Any]:
    """Return what is said on that very pod, as a strategic merge patch; `now` in microseconds since the epoch."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": reason_on_pod(eviction),
        "lastTransitionTime": kubernetes_time(now),
    }
    return {"metadata": {"uid": eviction.decision.uid}, "status": {"conditions": [condition]}}


def eviction_document(eviction: PodEviction) -> dict[str, Any]:
    """Return the eviction of that very pod."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": eviction.decision.name, "namespace": eviction.decision.namespace},
        "deleteOptions": {"preconditions": {"uid": eviction.decision.uid}},
    }


def reason_on_pod(eviction: PodEviction) -> str:
    """Return what is said on the pod of why it is evicted; empty where it is evicted for its own sake."""
    decided = eviction.decision
    if not isinstance(decided, EvictionDecided):
        return ""
    counted = failures_text(decided.failures_left)
    if not decided.preemptor:
        return f"kai-ledger: {decided.reason}: its group was below its minimum for too long{counted}"
    what = "the group goes on without it" if decided.shrinks else "its group ends as a whole"
    return f"kai-ledger: {decided.why}: makes way for {decided.preemptor}; {what}{counted}; cycle {decided.cycle}"


class Evicting(Carrier[PodEviction]):
    """Carries evictions out; any number of tasks run `work`."""

    async def _act(self, task: PodEviction, _: Attempt) -> None:
        """See `Carrier`; the reason comes afterwards, for the API server says something less telling as it evicts."""
        path = pod_path(task.decision.namespace, task.decision.name)
        await self.client.post(f"{path}/eviction", eviction_document(task))
        if reason_on_pod(task):
            document = condition_document(task, now=self.clock())
            with suppress(ApiStatus, ClusterUnavailable):
                await self.client.patch(f"{path}/status", document, content_type=STRATEGIC_MERGE_PATCH)

    async def _end(self, task: PodEviction, outcome: Outcome | None) -> None:
        """See `Carrier`."""
        if outcome is None:
            self.metrics.eviction("dropped")
            return
        result = "evicted"
        if isinstance(outcome, EvictionFailed):
            result = "gone" if outcome.gone else "failed"
        self.metrics.eviction(result)
        self.log.info("eviction", pod=task.subject, node=task.decision.node, result=result)


#: Conditions of readiness.
LOG, API = "log", "api"

#: Pods evicted at the same time.
_EVICTIONS = 8
#: Seconds for which the other decisions of a node wait for what a pod needs before it is bound.
_IN_TURN_S = 1.0
#: So many times the bindings under way may wait aside for that.
_ASIDE = 4
_T = TypeVar("_T")


class Binder:
    """Carries out the decisions of one cluster."""

    def __init__(  # long: one line for each part
        self,
        *,
        cluster: str,
        log: EventLog,
        bus: Bus | None,
        client: KubeClient,
        context: ServiceContext,
        metrics: BinderMetrics,
        clock: Callable[[], int],
        options: BinderOptions | None = None,
        recording: OutboxOptions | None = None,
        observer: FeedObserver | None = None,
        jitter: Callable[[], float] = random.random,
        share: WorkShare | None = None,
    ) -> None:
        """Args:
        bus: brings events sooner; None to read from the log alone.
        context: its health must have the conditions `LOG` and `API`.
        clock: microseconds since the epoch.
        options: how to work; a process gives its settings.
        recording: how outcomes are recorded, and how long a server that is not there at the start is left alone.
        share: of the work, this binder's; None for all of it.
        """
        self._share = share or WorkShare()
        self._cluster = cluster
        self._log = log
        self._bus = bus
        self._client = client
        self._context = context
        self._metrics = metrics
        self._clock = clock
        self._options = options or BinderOptions.model_validate({})
        # No decision waits for an outcome.
        recording = recording or OutboxOptions(busy_gather_s=0.2)
        self._retry_s = recording.retry_s
        self._observer = observer
        self._jitter = jitter
        self._projection = BinderProjection()
        read = partial(BinderProjection.restored, empty_groups=self._options.empty_groups)
        self._check = SelfCheck(
            Memory(BinderProjection.snapshot, read, self._fold_on, decided_part, self._differs_by_sample, self._begin),
            Reporting("binder", log, cluster, "binder", clock, context.log),
            every_s=self._options.check_s,
            monotonic=time.monotonic,
        )
        self._passed_over = PassedOver(context.health, metrics.quarantined, context.log)
        self._snapshot_at = 0
        self._lanes = Lanes()
        self._turns: asyncio.PriorityQueue[tuple[int, PodBinding]] = asyncio.PriorityQueue()
        self._aside: asyncio.Queue[PodBinding] = asyncio.Queue()
        #: What came of the preparation of those that stepped aside, by the decision's event.
        self._prepared_aside: dict[UUID, BindFailed | None] = {}
        self._recorder = Recorder(
            log,
            cluster,
            context=context,
            condition=LOG,
            on_dropped=self._dropped,
            options=recording,
        )
        self._outbox = self._recorder.outbox
        self._evicting = self._new_worker(Evicting, self._options.evict_give_up_s)
        self._provisioning = self._new_worker(ProvisioningWriter, self._options.give_up_s)
        self._claims = Claims(client, patience_s=self._options.volumes_give_up_s, is_open=self._is_open)
        self._shares = GpuShares(
            client,
            settings=self._options.reservations,
            cdi=self._options.gpu_cdi,
            patience_s=self._options.gpu_give_up_s,
            groups=lambda: self._projection.gpus,
            is_open=self._is_open,
        )
        self._gpus = GpuUpkeep(
            client,
            log,
            cluster,
            settings=self._options.reservations,
            projection=lambda: self._projection,
            has=self._share.has,
            clock=clock,
            logger=context.log,
        )
        rate, busy = self._options.side_writes_per_s, lambda: self._lanes.busy
        self._side_writes = SideWrites(client, rate=rate, busy=busy, observer=metrics)
        self._hub_side = HubSide(
            cluster=cluster,
            log=log,
            bus=bus,
            client=client,
            context=context,
            clock=clock,
            pods_of=self._pods_of,
            lease_s=self._options.hub_lease_s,
        )
        metrics.waiting.set_function(self._lanes.__len__)
        metrics.pending.set_function(lambda: self._outbox.pending)
        metrics.delayed.set_function(self._side_writes.__len__)

    def _new_worker(self, make: Callable[..., _T], patience_s: float) -> _T:
        return make(
            self._client,
            self._outbox,
            patience_s=patience_s,
            is_open=self._is_open,
            clock=self._clock,
            jitter=self._jitter,
            metrics=self._metrics,
            log=self._context.log,
        )

    async def run(self) -> None:
        """Bind until the service is to stop.

        Raises:
            CorruptLog: the log contradicts itself.
            UnknownEvent: a newer kai-ledger has written to the log.
            ConfigurationError: the API server or the log cannot be reached like this.
        """
        retry_s = self._retry_s
        projection = await until_answered(self._context, LOG, self._recall, retry_s=retry_s)
        if projection is None:
            return
        if await until_answered(self._context, API, lambda: self._client.get("/version"), retry_s=retry_s) is None:
            return
        self._projection, self._snapshot_at = projection, projection.position
        self._check.trust(projection)
        self._tell_refused()
        self._context.log.info("decisions recalled", position=projection.position, open=len(projection.tasks))
        await self._share.join()
        self._metrics.binders.set(max(1, len(self._share.live)))
        self._take_all(lambda _: True)
        self._write_statuses()
        self._gpus.look()
        await self._recorder.run_with(
            self._follow(),
            self._share.keep(self._redistribute),
            self._side_writes.run(),
            self._hub_side.run(),
            self._provisioning.work(),
            self._claims.clear(),
            *self._gpus.works(),
            *(self._evicting.work() for _ in range(_EVICTIONS)),
            *(self._work() for _ in range(self._options.concurrency)),
            *(self._wait_aside() for _ in range(_ASIDE * self._options.concurrency)),
        )
        self._check.stop()
        # Also where the log has not moved on: what was written since is in it.
        await self._save_snapshot()

    # From the log to the lanes.

    async def _recall(self, upto: int | None = None) -> BinderProjection:
        """Return what the log says up to a position, by default its end, without the events that cannot be folded."""
        head = (await self._log.head(self._cluster)).position if upto is None else upto
        return await self._passed_over.folded(lambda: self._recalled(head))

    async def _recalled(self, head: int) -> BinderProjection:
        empty_groups = self._options.empty_groups
        remembered = await newest(
            self._log,
            self._cluster,
            name=SNAPSHOT_NAME,
            schema=SNAPSHOT_SCHEMA,
            read=partial(BinderProjection.restored, empty_groups=empty_groups),
            upto=head,
        )
        projection = remembered or BinderProjection(empty_groups=empty_groups)
        await self._fold_on(projection, head)
        return projection

    async def _fold_on(self, projection: BinderProjection, head: int) -> None:
        after, where = projection.position, Filter(types=EVENT_TYPES)
        async for event in events_of(self._log, self._cluster, after=after, upto=head, where=where):
            projection.fold(event)
        projection.position = head

    async def _differs_by_sample(self, projection: BinderProjection) -> SampleDifference | None:
        """Compare some of the open decisions about pods with the events of these."""
        upto = projection.position
        mine = projection.open_of_pods()
        mine = {uid: mine[uid] for uid in some(mine, upto)}
        events = await pod_events(self._log, self._cluster, mine, upto=upto)
        return differing(events, mine.__getitem__, open_decisions, upto)

    async def _begin(self) -> BinderProjection:
        return BinderProjection(empty_groups=self._options.empty_groups)

    async def _check_memory(self) -> None:
        """Go on with the decisions that the log has, if a check found others in memory."""
        try:
            right = self._check.look(self._projection)
            if right is None:
                return
            await self._fold_on(right, self._projection.position)
        except KaiError as error:
            self._context.log.warning("decisions not checked", error=str(error))
            return
        known, self._projection = self._projection, right
        self._take_all(lambda work: not (isinstance(work, Task) and known.is_open(work)))
        self._check.trust(right)

    async def _follow(self) -> None:
        feed = EventFeed(self._log, self._bus, self._cluster, after=self._projection.position, observer=self._observer)
        try:
            async for events in feed:
                for event in events:
                    self._take(await self._folded(event))
                self._tell_refused()
                self._hub_side.pods_ended(self._projection.terms.ended())
                self._write_statuses()
                self._gpus.look()
                await self._check_memory()
                if self._projection.position - self._snapshot_at >= self._options.snapshot_events:
                    await self._save_snapshot()
        finally:
            await feed.close()

    async def _folded(self, event: Event) -> Work | None:
        try:
            return self._projection.fold(event)
        except UnfoldableEvent as failed:
            self._passed_over.add(failed)
        recall = partial(self._recall, event.position)
        self._projection = await until_answered(self._context, LOG, recall, retry_s=self._retry_s) or self._projection
        return None

    def _tell_refused(self) -> None:
        """Say which decisions are not carried out, for no recorded cycle made them: somebody forged them."""
        for event in self._projection.refused:
            self._metrics.refused()
            self._context.log.error(
                "decision of no recorded cycle: not carried out",
                position=event.position,
                type=event.type,
                about=event.subject or event.stream,
                actor=event.actor,
            )
        self._projection.refused.clear()

    def _take_all(self, is_due: Callable[[Work], bool]) -> None:
        """Take what is left to do and this binder's, as far as it is due."""
        projection = self._projection
        tasks = sorted(projection.tasks.values(), key=lambda task: task.position)
        works: tuple[Work, ...] = (*tasks, *projection.observations.values(), *projection.nominations.values())
        for work in works:
            if is_due(work):
                self._take(work)

    def _redistribute(self, before: tuple[str, ...]) -> None:
        """Take over what was another binder's; what is no longer this one's is left when its turn comes."""
        earlier = self._share.of(before)
        projection = self._projection
        self._take_all(lambda work: is_binding(work) or not earlier.has_work(work))
        for statuses in (projection.groups, projection.queues, projection.topologies):
            statuses.again()
        projection.waiting.again(lambda uid: not earlier.has(f"pod/{uid}"))
        self._write_statuses()
        self._gpus.look()
        self._metrics.binders.set(len(self._share.live))
        self._context.log.info("binders of the cluster", live=self._share.live, before=before)

    def _take(self, work: Work | None) -> None:
        if work is None or not self._share.has_work(work):
            return
        if isinstance(work, Task):
            self._take_task(work)
        elif isinstance(work, NominatedNode):
            self._side_writes.add(nominated_node(work, then=lambda: self._projection.written(work)))
        elif isinstance(work, Observation):
            if self._options.annotations:
                self._side_writes.add(observed_annotation(work, then=lambda: self._projection.written(work)))
            else:
                self._projection.written(work)

    def _take_task(self, task: Task[Decision]) -> None:
        if is_binding(task):
            self._give_out(self._lanes.add(task))
        elif is_eviction(task):
            self._evicting.add(task)
        elif is_provisioning(task):
            self._provisioning.add(task)

    def _write_statuses(self) -> None:
        """Have written what has changed and is this binder's."""
        options, has, add = self._options, self._share.has, self._side_writes.add
        groups, queues, topologies = self._projection.groups, self._projection.queues, self._projection.topologies
        for status in groups.news():
            if options.group_statuses and has(f"group/{status.key}"):
                add(group_status(status, then=partial(groups.mark_written, status)))
        for figures in queues.news():
            if not has(f"queue/{figures.uid}"):
                continue
            if options.queue_statuses:
                add(queue_status(figures, then=partial(queues.mark_written, figures)))
            else:
                queues.mark_written(figures)
        for definition in topologies.news():
            if not has(f"topology/{definition.uid}"):
                continue
            if options.topology_statuses == "off":
                topologies.mark_written(definition)
            else:
                then = partial(topologies.mark_written, definition)
                add(topology_status(definition, ours_only=options.topology_statuses == "auto", then=then))
        waiting = self._projection.waiting
        for pod in waiting.news():
            if not has(f"pod/{pod.uid}"):
                continue
            if options.pod_conditions:
                add(pod_condition(pod, waiting))
            if options.failed_scheduling_events:
                add(failed_scheduling_event(pod, waiting, now=self._clock))

    def _give_out(self, turn: PodBinding | None) -> None:
        if turn is not None:
            self._turns.put_nowait((turn.position, turn))

    async def _save_snapshot(self) -> None:
        snapshot = self._projection.snapshot()
        self._snapshot_at = snapshot.position
        await self._recorder.save(snapshot)

    # From the lanes to the API server, and to the outbox.

    async def _work(self) -> None:
        while True:
            _, binding = await self._turns.get()
            if not self._share.has_work(binding):
                self._prepared_aside.pop(binding.event_id, None)
                self._metrics.left.inc(self._lanes.leave(binding))
                continue
            try:
                outcome = await self._prepared(binding) or await self._carry_out(binding)
            except NotYet:
                self._give_out(self._lanes.step_aside(binding))
                self._aside.put_nowait(binding)
                continue
            if isinstance(outcome, BindFailed) and uses_devices(binding):
                await self._claims.release(binding)
            self._give_out(self._lanes.done(binding))
            if outcome is None:
                self._metrics.bind("dropped")
                continue
            now = self._clock()
            if isinstance(outcome, PodBound):
                self._metrics.seconds.observe(max(0, now - binding.recorded_at) / 1e6)
                if self._options.scheduled_events:
                    self._side_writes.add(scheduled_event(binding, now=now))
            elif isinstance(outcome, BindFailed) and self._options.failed_scheduling_events and not outcome.gone:
                self._side_writes.add(failed_binding_event(binding, outcome, now=now))
            await self._outbox.put([outcome_unit(binding, outcome, now=now)])

    async def _wait_aside(self) -> None:
        """Prepare what others have to make ready first, while the node's other decisions are carried out."""
        while True:
            binding = await self._aside.get()
            self._prepared_aside[binding.event_id] = await self._prepare(binding, within_s=None)
            self._give_out(self._lanes.come_back(binding))

    async def _prepare(self, binding: PodBinding, *, within_s: float | None) -> BindFailed | None:
        decision = binding.decision
        waits = decision.claims or decision.volumes or uses_devices(binding)
        failed = await self._claims.prepare(binding, within_s=within_s) if waits else None
        if failed is None and decision.gpus:
            failed = await self._shares.prepare(binding, within_s=within_s)
        return failed

    async def _prepared(self, binding: PodBinding) -> BindFailed | None:
        """Have the claims of a decision's pod bound, and its GPUs reserved; None when it can be bound itself.

        Raises NotYet: that takes longer than the node's other decisions are to wait.
        """
        if binding.event_id in self._prepared_aside:
            failed = self._prepared_aside.pop(binding.event_id)
        elif binding.decision.claims:
            # No volume is provisioned within a turn.
            raise NotYet
        else:
            failed = await self._prepare(binding, within_s=_IN_TURN_S)
        if failed is not None:
            self._metrics.bind("failed")
            self._context.log.info(
                "not bound",
                pod=binding.subject,
                node=binding.decision.node,
                reason=failed.reason,
                message=failed.message,
            )
        return failed

    def _pods_of(self, term: Term) -> int:
        return self._projection.terms.count(term)

    def _is_open(self, work: Task[Decision]) -> bool:
        return self._share.has_work(work) and self._projection.is_open(work)

    async def _carry_out(self, binding: PodBinding) -> Outcome | None:
        """Bring a decision to its outcome; see `bring_about`."""
        # A condition that says that it waits must not arrive after the binding has said that it is scheduled.
        await self._side_writes.settled(binding.decision.uid)
        attempt = Attempt(binding, patience_s=self._options.give_up_s)
        outcome = await bring_about(
            attempt,
            lambda attempt: self._ask(attempt.ask, binding),
            is_open=self._is_open,
            jitter=self._jitter,
            answered=self._answered,
        )
        if isinstance(outcome, BindFailed):
            self._metrics.bind("gone" if outcome.gone else "failed")
            self._context.log.info(
                "not bound", pod=binding.subject, node=binding.decision.node, code=outcome.code, reason=outcome.reason
            )
        elif outcome is not None:
            self._metrics.bind("already" if attempt.already else "bound")
        return outcome

    def _answered(self, error: ClusterUnavailable | None) -> None:
        """Take note that the API server has answered, or not; a pod that the hub keeps back says nothing of it."""
        if error is None:
            self._context.health.met(API)
        elif not isinstance(error, NotPermitted):
            self._metrics.retry(error.code)
            if self._context.health.conditions[API] is None:
                self._context.log.warning("api server fails", error=str(error))
            self._context.health.unmet(API, str(error))

    async def _ask(self, ask: Ask, binding: PodBinding) -> PodObject | None:
        """Post the binding, or return the pod that was looked at."""
        path = pod_path(binding.decision.namespace, binding.decision.name)
        if ask is Ask.ACT:
            await self._hub_side.admit(self._projection.terms.of_pod(binding.decision.uid))
            await self._client.post(f"{path}/binding", binding_document(binding))
            return None
        data = await self._client.get(path)
        try:
            return PODS.decode(data)
        except InvalidObject as error:
            raise ClusterUnavailable(str(error)) from error

    def _dropped(self, unit: Unit, error: KaiError) -> None:
        """See `OutboxObserver.dropped`."""
        subject = unit.events[0].subject
        if isinstance(error, IdempotencyConflict):
            # Another binder came to another outcome, before us.
            self._metrics.disputed()
            self._context.log.warning("the log has another outcome", pod=subject)
        else:
            self._context.log.error("outcome cannot be recorded", pod=subject, error=str(error))
