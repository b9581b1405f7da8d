"""Ingest of one cluster: judges reports and annotations, and appends what is new as `PlacementObserved`.

It remembers each node's exporter and its last report, so that an old report does not undo a newer one. A report that is
wrong every minute is one log line and not a flood.

podresources read in the middle of an admission shows what was given so far: CPUs without memory, say, and the whole a
moment later. So only the second of two equal reads of a pod counts. What two looks of an exporter at its kubelet have
in common lasts.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

from kaicore.analysis.replay.log_states import events_of
from kaicore.analysis.replay.self_check import Reporting
from kaicore.errors import InvalidObject, LogError, UnfoldableEvent
from kaicore.ledger.feed import EventFeed
from kaicore.ledger.log.port import EventLog, Filter, Snapshot
from kaicore.ledger.log.snapshots import newest
from kaicore.rules.events.envelope import Event, NewEvent, Unit, UnitOutcome
from kaicore.rules.events.observation import (
    annotated_placement,
    charging,
    content_digest,
    observation,
    prediction_missed,
    zones_of,
)
from kaicore.rules.events.payloads import PlacementObserved, PredictionMissed
from kaicore.rules.events.quarantine import QUARANTINED
from kaicore.rules.model.placement import OBSERVED_ANNOTATION, Placement, Provenance, decode_annotation
from kaicore.rules.objects.reports import ReportAnswer, Unaccepted
from kaicore.rules.state.pods.agreement import MissCause, contradiction, falls_short
from kaicore.runtime.process_context import Health
from kaicore.runtime.rate_limit import Latest
from kaicore.runtime.service.logs import Logger
from kaicore.runtime.service.recorder import PassedOver, save_snapshot
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from kai_ingest.known_pod import KnownPod, Miss, Unresolved, is_empty, reported_placement
from kai_ingest.projection import EVENT_TYPES, SCHEMA, IngestProjection
from kai_ingest.reports import Report, pod_name, read_pod

#: Pods, and messages, that are remembered.
_KEPT = 10_000


class EqualReads:
    """The last read of each pod that has to be read again."""

    def __init__(self) -> None:
        self._last = Latest[str, tuple[bytes, int]](_KEPT)

    def again(self, uid: str, content: bytes, *, at: int) -> bool:
        """Tell whether the same was read before, and remember it for the next time.

        Args:
            content: digest of what was read.
            at: when, by the node's clock; a report that is sent twice is one read.
        """
        before = self._last.get(uid)
        if before is not None and before[0] == content:
            return before[1] < at
        self._last.put(uid, (content, at))
        return False

    def settled(self, uid: str) -> None:
        """Forget a pod: what it holds is no question any more."""
        self._last.pop(uid, None)


_NOTHING_PREDICTED = Placement(Provenance.PREDICTED)


@dataclass(slots=True)
class News:
    """An observation to append.

    Attributes:
        pod: the pod's name.
        first: it is the pod's first.
        miss: the prediction that it contradicts.
        charges: it changes what the pod's node is accounted to hold.
        version: of the pod's stream, up to which the pod was known.
    """

    pod: KnownPod
    event: NewEvent
    first: bool
    charges: bool
    version: int
    miss: NewEvent | None = None

    def unit(self, *, charges: bool) -> Unit:
        """Return what to append: one that does not charge the node only holds while the pod's stream stands still."""
        events = (self.event,) if self.miss is None else (self.event, self.miss)
        if charges:
            return charging(Unit(events), self.pod.node, pods=(self.pod.uid,))
        return Unit(events, expect={f"pod/{self.pod.uid}": self.version})


@dataclass(slots=True)
class Judged:
    """A report and what follows from it."""

    report: Report
    news: list[News] = field(default_factory=list)
    unknown: list[Unaccepted] = field(default_factory=list)
    refused: list[Unaccepted] = field(default_factory=list)
    again: list[Unaccepted] = field(default_factory=list)
    missed: list[NewEvent] = field(default_factory=list)
    differing: dict[str, int] = field(default_factory=dict)
    unchanged: int = 0


class Judge:
    """Judges by what ingest knows of a cluster, and by what was said before."""

    def __init__(self, projection: IngestProjection, cluster: str) -> None:
        self._projection = projection
        self._cluster = cluster
        self._reads = EqualReads()

    def pod(self, value: object, report: Report, judged: Judged, seen: set[tuple[str, str]]) -> None:
        """Judge one pod of a report.

        Args:
            judged: what follows is added to it.
            seen: the pods of the report so far, by namespace and name.

        Raises:
            InvalidObject: something impossible is said of it.
            Unresolved: it is not known, or not yet.
        """
        pod = read_pod(value, node=report.node)
        key = (pod.namespace, pod.name)
        if key in seen:
            raise InvalidObject(f"report of Node {report.node}", "pods", "/".join(key), "this pod is named twice")
        seen.add(key)
        known_pod = self._projection.resolve(
            pod.namespace, pod.name, node=report.node, uid=pod.uid, observed_at=report.observed_at
        )
        placement = reported_placement(pod)
        self._projection.check_zones(known_pod, zones_of(placement))
        cause = self._contradicts(known_pod, placement)
        if cause is None:
            self._reads.settled(known_pod.uid)
            lasts = True
        else:
            lasts = self._reads.again(known_pod.uid, content_digest(placement), at=report.observed_at)
        news = not self._says_nothing_new(known_pod, placement)
        if (
            cause is not None
            and news
            and not lasts
            and falls_short(known_pod.predicted or _NOTHING_PREDICTED, placement)
        ):
            problem = "less than was predicted: half of an admission, or to be read once more"
            raise Unresolved(Miss.HALF, f"Pod {known_pod.subject}: containers: {problem}")
        certain = lasts or pod.checked
        if cause is not None and not certain:
            judged.again.append(Unaccepted(pod.namespace, pod.name, "not as predicted: to be read once more"))
        if not news:
            judged.unchanged += 1
            if cause is not None and certain and known_pod.record is not None:
                missed = self._missed(known_pod, placement, cause)
                judged.missed.append(
                    prediction_missed(missed, follows=known_pod.record.id, occurred_at=report.observed_at)
                )
            return
        self._projection.check_held(known_pod, placement)
        if pod.again and known_pod.record is not None and known_pod.record.exporter:
            judged.differing[f"Pod {known_pod.subject}"] = known_pod.record.position
        observed = self.news(known_pod, placement, "exporter", occurred_at=report.observed_at)
        if cause is not None and certain:
            missed = self._missed(known_pod, placement, cause)
            observed.miss = prediction_missed(missed, follows=observed.event.id, occurred_at=report.observed_at)
        judged.news.append(observed)

    def _says_nothing_new(self, known_pod: KnownPod, placement: Placement) -> bool:
        if known_pod.record is None:
            # That a pod holds nothing is news only where it was thought to hold something.
            return is_empty(placement) and known_pod.predicted is None
        return known_pod.record.exporter and known_pod.record.content == content_digest(placement)

    def news(self, pod: KnownPod, placement: Placement, source: str, *, occurred_at: int) -> News:
        """Return an observation as it is to be appended.

        Args:
            occurred_at: when it was seen, microseconds since the epoch.
        """
        event = observation(
            self._cluster,
            PlacementObserved(pod.uid, pod.namespace, pod.name, pod.node, placement, source),
            previous=pod.record.id if pod.record is not None else None,
            occurred_at=occurred_at,
            cause=pod.cause if source == "annotation" else None,
        )
        return News(
            pod,
            event,
            first=pod.record is None,
            charges=self._projection.charges(pod, placement),
            version=pod.version,
        )

    def _contradicts(self, pod: KnownPod, placement: Placement) -> MissCause | None:
        """The contradiction of an exporter's observation and the prediction; None without one or if recorded."""
        if not pod.placed or pod.missed:
            return None
        return contradiction(pod.predicted or _NOTHING_PREDICTED, placement)

    def _missed(self, pod: KnownPod, placement: Placement, cause: MissCause) -> PredictionMissed:
        policy = self._projection.policy(pod.node)
        return PredictionMissed(pod.uid, pod.namespace, pod.name, pod.node, policy, cause, pod.predicted, placement)


_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300)


class IngestMetrics:
    """Ingest's metrics; reasons are few and fixed, and no metric has a label per node or pod."""

    def __init__(self, *, registry: CollectorRegistry = REGISTRY) -> None:
        self.requests = Counter("kai_ingest_requests", "HTTP requests by status", ["status"], registry=registry)
        self.reports = Counter("kai_ingest_reports", "Nodes' reports", ["result"], registry=registry)
        self.refused = Counter("kai_ingest_refused", "What was refused, by reason", ["reason"], registry=registry)
        self.observations = Counter(
            "kai_ingest_observations", "Observations recorded, by source", ["source"], registry=registry
        )
        self.charges = Counter(
            "kai_ingest_node_charges",
            "Observations that changed what their node is accounted to hold (account), or may have (late)",
            ["why"],
            registry=registry,
        )
        self.missed = Counter(
            "kai_ingest_missed_predictions",
            "Kubelets did otherwise than was predicted",
            ["policy", "cause"],
            registry=registry,
        )
        self.unchanged = Counter(
            "kai_ingest_unchanged_pods", "Reported pods of which nothing new was said", registry=registry
        )
        self.lag = Histogram(
            "kai_ingest_observation_lag_seconds",
            "From the record of a pod's binding to that of its first observation",
            buckets=_BUCKETS,
            registry=registry,
        )
        self.quarantined = Gauge("kai_quarantined_events", QUARANTINED, registry=registry)
        self.position = Gauge("kai_ingest_position", "Position that the projection has reached", registry=registry)
        self.pods = Gauge("kai_ingest_projection_pods", "Pods with a node that are known", registry=registry)
        self.unobserved = Gauge(
            "kai_ingest_unobserved_pods",
            "Pods with predicted zones, bound for a minute or more, that no exporter has reported",
            registry=registry,
        )
        self.nodes = Gauge("kai_ingest_reporting_nodes", "Nodes that have reported since the start", registry=registry)
        self.oldest_report = Gauge(
            "kai_ingest_oldest_report_age_seconds",
            "Age of the last report of the node that has been silent for longest",
            registry=registry,
        )


#: How long nothing is said again, microseconds.
_SILENT_US = 600_000_000


class RecentLines:
    """The messages of the last ten minutes."""

    def __init__(self) -> None:
        self._said = Latest[Hashable, int](_KEPT)

    def first_time(self, thing: Hashable, *, now: int) -> bool:
        """Tell whether a thing was not said of late, and note that it is said now.

        Args:
            now: microseconds since the epoch.
        """
        said_at = self._said.get(thing)
        if said_at is not None and now - said_at < _SILENT_US:
            return False
        self._said.put(thing, now)
        return True


#: Former exporters of a node that are remembered.
_FORMER = 8


@dataclass(slots=True)
class _Reporter:
    instance: str
    sequence: int = 0
    at: int = 0
    former: list[str] = field(default_factory=list)


class Reporters:
    """The exporters of a cluster, by node."""

    def __init__(self) -> None:
        self._by_node: dict[str, _Reporter] = {}

    def __len__(self) -> int:
        return len(self._by_node)

    def superseded(self, report: Report, *, now: int) -> str:
        """Note a report; return why it comes too late, or nothing.

        A report may be sent again as long as its exporter has sent no other. An exporter that another one has replaced
        on its node is not heard again.

        Args:
            now: microseconds since the epoch.
        """
        reporter = self._by_node.setdefault(report.node, _Reporter(report.instance))
        if report.instance != reporter.instance:
            if report.instance in reporter.former:
                return f"Node {report.node}: instance: another exporter has reported since: {report.instance!r}"
            reporter.former = [*reporter.former, reporter.instance][-_FORMER:]
            reporter.instance, reporter.sequence = report.instance, 0
        elif report.sequence < reporter.sequence:
            return f"Node {report.node}: sequence: {reporter.sequence} was reported before: {report.sequence!r}"
        reporter.sequence, reporter.at = report.sequence, now
        return ""

    def oldest_age_us(self, *, now: int) -> int:
        """Return how long the most silent node has been silent, microseconds; 0 without any."""
        return max((now - reporter.at for reporter in self._by_node.values()), default=0)

    def forget(self, node: str) -> None:
        """Forget a node that is gone."""
        self._by_node.pop(node, None)


#: Name of ingest's snapshots.
SNAPSHOT = "ingest"

#: Seconds until annotations that could not be recorded are tried again.
_RETRY_S = 1.0

#: Seconds that a report waits at most for what is in the log already.
_CATCH_UP_S = 1.0

#: How long a pod may be bound before its missing observation counts, microseconds.
_UNOBSERVED_US = 60_000_000

#: What kubelets do all the time and is over with the next look at them: it is counted, and no line in the log.
_PASSING = frozenset({Miss.HALF})


async def _is_waited_for() -> None:
    """The answer is waited for."""


class Ingest:
    """Ingest of one cluster."""

    def __init__(
        self,
        *,
        log: EventLog,
        cluster: str,
        metrics: IngestMetrics,
        logger: Logger,
        clock: Callable[[], int],
        snapshot_events: int = 50_000,
        health: Health | None = None,
    ) -> None:
        """Args:
        log: where observations are appended, and what the projection is made of.
        clock: microseconds since the epoch; for ages and for what has been said before, never for a rule.
        snapshot_events: how many events lie between two snapshots of the projection.
        health: says which events cannot be folded; None where nobody asks for it.
        """
        self._passed_over = PassedOver(health or Health(), metrics.quarantined, logger)
        self.projection = IngestProjection()
        self._log = log
        self._cluster = cluster
        self._metrics = metrics
        self._logger = logger
        self._clock = clock
        self._snapshot_events = snapshot_events
        self._snapshot_at = 0
        self._reporters = Reporters()
        self._reporting = Reporting("exporter", log, cluster, "ingest", clock, logger)
        self._said = RecentLines()
        self._judging = Judge(self.projection, cluster)
        self._locks: dict[str, asyncio.Lock] = {}
        self._progress = asyncio.Event()
        metrics.position.set_function(lambda: self.projection.position)
        metrics.pods.set_function(lambda: len(self.projection.pods))
        metrics.unobserved.set_function(lambda: self.projection.unobserved(before=clock() - _UNOBSERVED_US))
        metrics.nodes.set_function(lambda: len(self._reporters))
        metrics.oldest_report.set_function(lambda: self._reporters.oldest_age_us(now=clock()) / 1e6)

    async def load(self) -> None:
        """Read the projection from the last snapshot and the log.

        Raises LogError: the log does not answer, or contradicts itself.
        """
        head = (await self._log.head(self._cluster)).position
        await self._passed_over.folded(lambda: self._load(head))

    async def _load(self, head: int) -> None:
        remembered = await newest(
            self._log,
            self._cluster,
            name=SNAPSHOT,
            schema=SCHEMA,
            read=lambda snapshot: IngestProjection.load(snapshot.body, position=snapshot.position),
            upto=head,
        )
        self.projection = remembered or IngestProjection()
        after, where = self.projection.position, Filter(types=EVENT_TYPES)
        async for event in events_of(self._log, self._cluster, after=after, upto=head, where=where):
            self.projection.apply(event)
        self.projection.position = max(head, self.projection.position)
        self._judging = Judge(self.projection, self._cluster)
        self._snapshot_at = self.projection.position

    async def follow(self, feed: EventFeed) -> None:
        """Take events until the feed is closed. Raises CorruptLog: the log contradicts itself.

        Args:
            feed: begins where `load` ended.
        """
        while True:
            await self._judge_annotations()
            await self._record_rejections()
            waiting = bool(self.projection.annotated or self.projection.rejected)
            events = await feed.next_batch(timeout_s=_RETRY_S if waiting else None)
            if not events and not waiting:
                return
            for event in events:
                await self._apply(event)
            self._progress.set()
            self._progress = asyncio.Event()
            if self.projection.position - self._snapshot_at >= self._snapshot_events:
                await self.save_snapshot()

    async def _apply(self, event: Event) -> None:
        try:
            self.projection.apply(event)
        except UnfoldableEvent as failed:
            self._passed_over.add(failed)
            await self._passed_over.folded(lambda: self._load(event.position))
        if event.type == "NodeDeleted":
            self._reporters.forget(event.stream.removeprefix("node/"))

    async def save_snapshot(self) -> None:
        """Keep the projection for the next start, if anything happened since the last time."""
        position = self.projection.position
        if position == self._snapshot_at or self.projection.rejected:
            return
        self._snapshot_at = position
        snapshot = Snapshot(SNAPSHOT, position, SCHEMA, self.projection.dump())
        await save_snapshot(self._log, self._cluster, snapshot, self._logger)

    async def take(
        self, reports: Sequence[Report], *, still_waited_for: Callable[[], Awaitable[None]] = _is_waited_for
    ) -> list[ReportAnswer]:
        """Judge reports of different nodes and append what is new; return what became of each.

        Raises LogError: nothing is known of what was appended; the same reports may be sent again.

        Args:
            still_waited_for: raises once the answer is not waited for any more; then nothing is appended.
        """
        await self._catch_up()
        await still_waited_for()
        async with self._alone(report.node for report in reports):
            judged = [self._judge(report) for report in reports]
            taken = [one for one in judged if isinstance(one, Judged)]
            await self._append([news for one in taken for news in one.news], "exporter")
            await self._append_missed([event for one in taken for event in one.missed])
        if differing := {part: at for one in taken for part, at in one.differing.items()}:
            reporting, upto = self._reporting, self.projection.position
            await reporting.found(after=min(differing.values()) - 1, upto=upto, parts=tuple(differing))
        answers = []
        for one in judged:
            if isinstance(one, ReportAnswer):
                self._metrics.reports.labels(one.status).inc()
                answers.append(one)
                continue
            self._metrics.reports.labels("taken").inc()
            self._metrics.unchanged.inc(one.unchanged)
            answers.append(
                ReportAnswer(
                    one.report.node, "taken", unknown=(*one.unknown,), refused=(*one.refused,), again=(*one.again,)
                )
            )
        return answers

    async def _catch_up(self) -> None:
        """Take first what the log knows already: the pod that a name stood for may have been replaced a moment ago."""
        head = (await self._log.head(self._cluster)).position
        with suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP_S):
                while self.projection.position < head:
                    await self._progress.wait()

    def _judge(self, report: Report) -> Judged | ReportAnswer:
        if problem := self._reporters.superseded(report, now=self._clock()):
            self._refuse("superseded", (report.node, report.instance), node=report.node, error=problem)
            return ReportAnswer(report.node, "superseded", problem)
        judged = Judged(report)
        seen: set[tuple[str, str]] = set()
        for value in report.pods:
            name = pod_name(value)
            try:
                self._judging.pod(value, report, judged, seen)
            except InvalidObject as error:
                judged.refused.append(Unaccepted(*name, str(error)))
                self._refuse("invalid", (report.node, *name, error.field), node=report.node, error=str(error))
            except Unresolved as error:
                judged.unknown.append(Unaccepted(*name, str(error)))
                self._refuse(error.miss, (report.node, *name), node=report.node, error=str(error))
        return judged

    async def _judge_annotations(self) -> None:
        """Record what annotations say of pods that no exporter has reported."""
        if not self.projection.annotated:
            return
        pods = [self.projection.pods[uid] for uid in sorted(self.projection.annotated)]
        async with self._alone({pod.node for pod in pods}):
            self.projection.annotated.difference_update(pod.uid for pod in pods)
            judged = [news for pod in pods if (news := self._judge_annotation(pod))]
            try:
                await self._append(judged, "annotation")
            except LogError as error:
                self._logger.warning("annotations not recorded yet", pods=len(judged), error=str(error))
                there = self.projection.pods.keys()
                self.projection.annotated.update(news.pod.uid for news in judged if news.pod.uid in there)

    def _judge_annotation(self, pod: KnownPod) -> News | None:
        if not (pod.live and pod.on_node and pod.annotation) or (pod.record is not None and pod.record.exporter):
            return None
        try:
            placement = annotated_placement(
                decode_annotation(
                    pod.annotation,
                    subject=f"Pod {pod.subject}",
                    annotation=OBSERVED_ANNOTATION,
                    groups=pod.memory_groups,
                )
            )
            self.projection.check_zones(pod, zones_of(placement))
            self.projection.check_held(pod, placement)
        except InvalidObject as error:
            self._refuse("annotation", (pod.uid, pod.annotation), node=pod.node, error=str(error))
            return None
        except Unresolved as error:
            self._refuse("annotation", (pod.uid, pod.annotation), node=pod.node, error=str(error))
            self.projection.await_zones(pod)
            return None
        if pod.record is not None and pod.record.content == content_digest(placement):
            return None
        return self._judging.news(pod, placement, "annotation", occurred_at=pod.annotated_at)

    async def _record_rejections(self) -> None:
        """Record that kubelets rejected pods that were predicted to be admitted."""
        if not self.projection.rejected:
            return
        misses = []
        for rejected, event in self.projection.rejected:
            pod = self.projection.pods.get(rejected.uid)
            missed = PredictionMissed(
                uid=rejected.uid,
                namespace=rejected.namespace,
                name=rejected.name,
                node=rejected.node,
                policy=self.projection.policy(rejected.node),
                cause=rejected.reason,
                predicted=pod.predicted if pod is not None else None,
                message=rejected.message,
            )
            misses.append(prediction_missed(missed, follows=event.id, occurred_at=event.occurred_at))
        try:
            outcomes = await self._log.append(self._cluster, [Unit((event,)) for event in misses])
        except LogError as error:
            self._logger.warning(
                "rejections not recorded as missed predictions yet", pods=len(misses), error=str(error)
            )
            return
        self.projection.rejected = self.projection.rejected[len(misses) :]
        for missing, outcome in zip(misses, outcomes, strict=True):
            self._count_miss(missing, duplicate=outcome.duplicate)

    def _count_miss(self, event: NewEvent, *, duplicate: bool) -> None:
        missed = event.payload
        assert isinstance(missed, PredictionMissed)
        if not duplicate:
            self._metrics.missed.labels(missed.policy, missed.cause).inc()

    async def _append_missed(self, misses: Sequence[NewEvent]) -> None:
        """Record that observations which are in the log already were not as predicted."""
        if not misses:
            return
        outcomes = await self._log.append(self._cluster, [Unit((event,)) for event in misses])
        for event, outcome in zip(misses, outcomes, strict=True):
            self._count_miss(event, duplicate=outcome.duplicate)
            pod = self.projection.pods.get(event.stream.removeprefix("pod/"))
            if pod is not None:
                pod.missed = True

    async def _append(self, observations: Sequence[News], source: str) -> None:
        if not observations:
            return
        now = self._clock()
        for news, unit, outcome in await self._recorded(observations):
            pod, event = news.pod, unit.events[0]
            assert isinstance(event.payload, PlacementObserved)
            self.projection.record(event.payload, position=outcome.positions[0], event_id=event.id)
            if news.miss is not None:
                pod.missed = True
                self._count_miss(news.miss, duplicate=outcome.duplicate)
            if outcome.duplicate:
                continue
            self._metrics.observations.labels(source).inc()
            if news.first and pod.bound_at:
                self._metrics.lag.observe(max(0, now - pod.bound_at) / 1e6)

    async def _recorded(self, observations: Sequence[News]) -> list[tuple[News, Unit, UnitOutcome]]:
        """Append observations; return each as it was recorded.

        What was known of a pod when its observation was judged may be out of date by now: then it is not known either
        whether the observation changes its node's account, and it charges the node to be safe.
        """
        recorded, late = [], []
        units = [news.unit(charges=news.charges) for news in observations]
        for news, unit, outcome in zip(observations, units, await self._log.append(self._cluster, units), strict=True):
            if outcome.stale is None:
                recorded.append((news, unit, outcome))
                self._metrics.charges.labels("account").inc(news.charges)
            else:
                late.append(news)
        if late:
            units = [news.unit(charges=True) for news in late]
            recorded += zip(late, units, await self._log.append(self._cluster, units), strict=True)
            self._metrics.charges.labels("late").inc(len(late))
        return recorded

    def _refuse(self, reason: str, key: tuple[str, ...], *, node: str, error: str) -> None:
        self._metrics.refused.labels(reason).inc()
        if reason not in _PASSING and self._said.first_time((reason, *key), now=self._clock()):
            self._logger.warning("observation refused", node=node, reason=reason, error=error)

    @asynccontextmanager
    async def _alone(self, nodes: Iterable[str]) -> AsyncIterator[None]:
        """Let no other task judge reports of these nodes: what is compared with must be what was recorded last."""
        async with AsyncExitStack() as stack:
            for node in sorted(set(nodes)):
                await stack.enter_async_context(self._locks.setdefault(node, asyncio.Lock()))
            yield
