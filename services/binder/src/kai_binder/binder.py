"""Follow the log, bind what was decided, record what became of it, and show observed placements on pods.

Pods of one node are bound one after another, in the order in which they were decided: the kubelet admits them in the
order in which it gets them, and the zones were predicted in that order. Pods of different nodes are bound side by side.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kaicore.errors import ApiStatus, ClusterUnavailable, KaiError, LogUnavailable
from kaicore.events import payloads
from kaicore.events.envelope import NewEvent, Unit, UnitOutcome, derived_id
from kaicore.feed import EventFeed
from kaicore.k8s.client import KubeClient
from kaicore.log.outbox import Outbox
from kaicore.log.port import EventLog, Filter, Snapshot
from kaicore.model.placement import OBSERVED_ANNOTATION, encode_annotation
from kaicore.service import ServiceContext
from kaicore.service.together import run_together

from kai_binder.binding import Bound, Patience, Refused, bind
from kai_binder.metrics import BinderMetrics
from kai_binder.work import EVENT_TYPES, SNAPSHOT_NAME, SNAPSHOT_SCHEMA, Decision, Observation, Work

#: Conditions for being ready.
LOG, API = "log", "api"

_PAGE = 2000
#: Codes after which a pod's annotation is not tried again: it is gone, another one, or not ours to write.
_FINAL = range(400, 500)


@dataclass(frozen=True, slots=True, kw_only=True)
class BinderOptions:
    """How the binder works.

    Attributes:
        concurrency: nodes whose pods are being bound at once.
        annotations: whether observed placements are shown on pods.
        annotations_per_s: most annotations written per second; binds go first.
        snapshot_events: how many events between two snapshots of what is left to do.
        patience: how long a binding is tried.
    """

    concurrency: int = 64
    annotations: bool = True
    annotations_per_s: float = 100.0
    snapshot_events: int = 50_000
    patience: Patience = field(default_factory=Patience)


class Binder:
    """One cluster's binder."""

    def __init__(
        self,
        *,
        cluster: str,
        log: EventLog,
        feed_after: Callable[[int], EventFeed],
        client: KubeClient,
        context: ServiceContext,
        metrics: BinderMetrics,
        clock: Callable[[], int],
        options: BinderOptions,
    ) -> None:
        """Args:
        cluster: whose decisions are made so.
        log: where outcomes go.
        feed_after: makes the feed that begins after a position.
        client: of the cluster's API server.
        context: of the service.
        metrics: where figures go.
        clock: microseconds since the epoch.
        options: see `BinderOptions`.
        """
        self._cluster = cluster
        self._log = log
        self._feed_after = feed_after
        self._client = client
        self._context = context
        self._metrics = metrics
        self._clock = clock
        self._options = options
        self._outbox = Outbox(log, cluster, observer=self)
        self._work = Work()
        self._position = self._snapshot_at = 0
        self._queues: dict[str, deque[Decision]] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(options.concurrency)
        self._to_show: deque[Observation] = deque()
        self._something_to_show = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Bind until the service stops."""
        await self._recall()
        feed = self._feed_after(self._position)
        try:
            await run_together(
                self._context.stopping, self._outbox.run(), self._follow(feed), self._show(), self._failed()
            )
        finally:
            for worker in self._workers:
                worker.cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)
            await feed.close()

    # What the outbox tells.

    def appended(self, units: Sequence[Unit], outcomes: Sequence[UnitOutcome], seconds: float) -> None:
        """See `OutboxObserver`."""
        del units, outcomes
        self._context.health.met(LOG)
        self._metrics.appended(seconds)

    def unavailable(self, error: LogUnavailable) -> None:
        """See `OutboxObserver`."""
        self._context.health.unmet(LOG, str(error))

    def dropped(self, unit: Unit, error: KaiError) -> None:
        """See `OutboxObserver`."""
        self._context.log.error("outcome not recorded", event_id=str(unit.events[0].id), error=str(error))

    # From the log to the work.

    async def _recall(self) -> None:
        """Learn from the log what is left to do, as soon as it answers."""
        recalled = False
        while not recalled and not self._context.stopping.is_set():
            try:
                await self._read_work()
                recalled = True
            except LogUnavailable as error:
                self._context.health.unmet(LOG, str(error))
                await self._context.sleep(1.0)
        self._context.health.met(LOG)
        for decision in sorted(self._work.decisions.values(), key=lambda item: item.position):
            self._enqueue(decision)
        for observation in self._work.observations.values():
            self._enqueue_showing(observation)
        self._context.log.info("work recalled", position=self._position, binds=len(self._work.decisions))

    async def _read_work(self) -> None:
        head = (await self._log.head(self._cluster)).position
        snapshot = await self._log.load_snapshot(self._cluster, name=SNAPSHOT_NAME, schema=SNAPSHOT_SCHEMA, upto=head)
        work, position = (Work(), 0) if snapshot is None else (Work.decode(snapshot.body), snapshot.position)
        where = Filter(types=EVENT_TYPES)
        while page := await self._log.read(self._cluster, after=position, upto=head, limit=_PAGE, where=where):
            for event in page:
                work.take(event)
            position = page[-1].position
        self._work, self._position, self._snapshot_at = work, head, head

    async def _follow(self, feed: EventFeed) -> None:
        async for events in feed:
            for event in events:
                new = self._work.take(event)
                if isinstance(new, Decision):
                    self._enqueue(new)
                elif isinstance(new, Observation):
                    self._enqueue_showing(new)
            self._position = events[-1].position
            if self._position - self._snapshot_at >= self._options.snapshot_events:
                await self.save_snapshot()

    async def save_snapshot(self) -> None:
        """Save what is left to do; without it the next start reads more of the log, no more."""
        if self._position == self._snapshot_at:
            return
        self._snapshot_at = self._position
        snapshot = Snapshot(SNAPSHOT_NAME, self._position, SNAPSHOT_SCHEMA, self._work.encode())
        try:
            await self._log.save_snapshot(self._cluster, snapshot)
        except LogUnavailable as error:
            self._context.log.warning("snapshot not saved", position=self._position, error=str(error))

    # Binding.

    def _enqueue(self, decision: Decision) -> None:
        queue = self._queues.get(decision.node)
        if queue is not None:
            queue.append(decision)
            return
        self._queues[decision.node] = deque([decision])
        worker = asyncio.create_task(self._bind_all_of(decision.node))
        self._workers.add(worker)
        worker.add_done_callback(self._worker_ended)

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if not worker.cancelled() and (error := worker.exception()) is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def _failed(self) -> None:
        """End the binder when a worker failed as none should."""
        await self._failure

    async def _bind_all_of(self, node: str) -> None:
        queue = self._queues[node]
        try:
            async with self._slots:
                while queue:
                    decision = queue.popleft()
                    if self._work.is_due(decision):
                        await self._bind(decision)
        finally:
            del self._queues[node]

    async def _bind(self, decision: Decision) -> None:
        outcome = await bind(self._client, decision, patience=self._options.patience, retrying=self._retrying)
        self._context.health.met(API)
        self._metrics.outcome(outcome, waited_us=self._clock() - decision.decided_at)
        if isinstance(outcome, Refused):
            self._context.log.warning(
                "bind failed",
                pod=f"{decision.namespace}/{decision.name}",
                node=decision.node,
                code=outcome.code,
                reason=outcome.reason,
                message=outcome.message,
            )
        await self._outbox.put([self._record(decision, outcome)])

    def _retrying(self, error: Exception) -> None:
        self._metrics.retries.inc()
        self._context.health.unmet(API, str(error))

    def _record(self, decision: Decision, outcome: Bound | Refused) -> Unit:
        payload: payloads.Payload
        if isinstance(outcome, Bound):
            payload = payloads.PodBound(
                decision.uid, decision.namespace, decision.name, decision.node, outcome.attempts
            )
        else:
            payload = payloads.BindFailed(
                uid=decision.uid,
                namespace=decision.namespace,
                name=decision.name,
                node=decision.node,
                code=outcome.code,
                reason=outcome.reason,
                message=outcome.message,
                attempts=outcome.attempts,
                gone=outcome.gone,
            )
        return Unit(
            (
                NewEvent(
                    # Two binders, or one that was killed before it heard the log's answer, record an outcome once.
                    id=derived_id(str(decision.event_id), type(payload).__name__),
                    stream=f"pod/{decision.uid}",
                    payload=payload,
                    actor="binder",
                    occurred_at=self._clock(),
                    subject=f"{decision.namespace}/{decision.name}",
                    cause=decision.event_id,
                    correlation=decision.cycle,
                ),
            )
        )

    # Showing.

    def _enqueue_showing(self, observation: Observation) -> None:
        if self._options.annotations:
            self._to_show.append(observation)
            self._something_to_show.set()
        else:
            self._work.shown(observation)

    async def _show(self) -> None:
        """Write observed placements on pods, slowly and after the binds."""
        pause_s = 1 / self._options.annotations_per_s
        while True:
            await self._something_to_show.wait()
            while self._to_show:
                observation = self._to_show.popleft()
                if self._work.observations.get(observation.uid) is observation:
                    await self._annotate(observation)
                await asyncio.sleep(pause_s if not self._queues else 5 * pause_s)
            self._something_to_show.clear()

    async def _annotate(self, observation: Observation) -> None:
        path = f"/api/v1/namespaces/{observation.namespace}/pods/{observation.name}"
        annotations = {OBSERVED_ANNOTATION: encode_annotation(observation.zones)}
        patch = {"metadata": {"uid": observation.uid, "annotations": annotations}}
        try:
            await self._client.patch(path, patch)
            self._metrics.annotations.inc()
        except ApiStatus as error:
            if error.code not in _FINAL:
                self._to_show.append(observation)
                return
        except ClusterUnavailable:
            self._to_show.append(observation)
            await asyncio.sleep(self._options.patience.longest_s)
            return
        self._work.shown(observation)
