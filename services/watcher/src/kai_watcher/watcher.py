"""The watcher: records the changes in a cluster as facts in the log.

    API server ──lists, watches──▶ reflectors ──changes──▶ facts ──units──▶ first lists ──▶ outbox ──appends──▶ log

A watcher claims its cluster, and reads from the log what is known of every object. Then it follows each kind from a
first list on; its facts wait in an outbox until the log has them. So whatever ends a watcher, the next one finds from
the log and a list what is still to be recorded. `docs/explanation/watcher.md` has all of it.

Pods that wait for a node are recorded after everything else of the first lists. Otherwise a scheduler that follows a
new log would see waiting pods and empty nodes. It would place pods on nodes with running pods that the log does not
have yet.

The log is the watcher's memory: the last fact of every object. A snapshot only spares reading it from the beginning,
and can be deleted at any time.

Pods that come to nodes without a decision of the log charge the node on which they are seen. A decision is in the log
before its pod is bound, and the pod is bound before a watch shows it on its node. So when a pod is first seen on a
node, the log already has every decision about it.

A cluster has one watcher: the one that claims last, and all others are refused. Facts of two watchers at once could
reach the log in the wrong order, an older state of an object after a newer one. So a watcher begins with an event on a
stream of its own, and makes every append conditional on that stream's version.

An invalid part of an object is reported once, and again only when it differs. A cluster may have a resource in one
version or another, not at all, or only from tomorrow on.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec
from kaicore.analysis.replay.log_states import events_of
from kaicore.analysis.replay.self_check import Memory, Reporting, SelfCheck
from kaicore.backoff import backoff
from kaicore.errors import (
    ApiStatus,
    ClusterError,
    ConfigurationError,
    InvalidObject,
    KaiError,
    LogUnavailable,
    StaleExpectation,
)
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.discovery import ServedResources
from kaicore.kube.api.reflector import Reflector
from kaicore.kube.api.reflector_core import (
    Backoff,
    Change,
    ObjectGone,
    ObjectKey,
    ObjectSeen,
    ReflectorCore,
    Relist,
)
from kaicore.kube.kinds.facts import ACTOR, Facts, KnownFact, restated
from kaicore.kube.kinds.kind import Kind
from kaicore.kube.kinds.table import FACT_TYPES, KINDS, POD, TOPOLOGY
from kaicore.kube.normalize.fields import changed_at
from kaicore.kube.normalize.node import zone_usage
from kaicore.kube.wire.objects import TopologyObject
from kaicore.kube.wire.resources import ObjectT, OptionalResource, Resource
from kaicore.ledger.log.outbox import Outbox, OutboxOptions
from kaicore.ledger.log.port import EventLog, Filter, Snapshot
from kaicore.ledger.log.snapshots import newest
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import NewEvent, Unit, UnitOutcome, derived_id
from kaicore.rules.events.observation import charging
from kaicore.rules.events.payloads import BindFailed, PodDeleted, PodObserved, PodPlaced, PodRejected, WatcherStarted
from kaicore.rules.numa.own_policy import malformed_annotations
from kaicore.runtime.service import ServiceContext
from kaicore.runtime.service.logs import Logger
from kaicore.runtime.service.recorder import Recorder, until_answered
from kaicore.spelling import did_you_mean
from pydantic import BaseModel, Field

from kai_watcher.metrics import WatcherMetrics

_NOT_FOUND = 404
_FIRST_DELAY_S = 0.25

#: Seconds for which kinds share what the API server says it serves.
_SHARED_S = 1.0

_T = TypeVar("_T")


class Findings:
    """Logs and counts what is found."""

    def __init__(self, metrics: WatcherMetrics, log: Logger) -> None:
        self._metrics = metrics
        self._log = log
        #: What was said of pods' annotations, by uid.
        self._malformed: dict[str, tuple[str, ...]] = {}
        #: What was said of the parts of objects that were left out, by kind and object.
        self._lost_parts: dict[tuple[str, ObjectKey], tuple[str, ...]] = {}
        #: By kind, the unknown versions that it was found to be served in.
        self._unreadable: dict[str, Sequence[str]] = {}

    def refused(self, kind: Kind[ObjectT], error: InvalidObject) -> None:
        """Take note of an object that makes no sense as a whole."""
        self._metrics.refused(kind.name)
        self._log.warning("object refused", kind=kind.name, error=str(error))

    def unreadable(self, kind: Kind[ObjectT], versions: Sequence[str]) -> None:
        """Take note of a kind that is served in versions only that are not known here; none where it is not."""
        if versions and versions != self._unreadable.get(kind.name):
            self._metrics.refused(kind.name)
            self._log.warning("kind served in unknown versions only", kind=kind.name, versions=versions)
        self._unreadable[kind.name] = versions

    def read(self, kind: Kind[ObjectT], change: Change[ObjectT], lost: Sequence[InvalidObject], *, now: int) -> None:
        """Take note of a change, and of the parts of its object that make no sense and were left out.

        Args:
            now: microseconds since the epoch.
        """
        if isinstance(change, ObjectGone):
            self._lost_parts.pop((kind.name, change.key), None)
        elif isinstance(change, ObjectSeen):
            metadata, lines = change.object.metadata, tuple(map(str, lost))
            key = kind.name, ObjectKey(metadata.namespace, metadata.name)
            before = self._lost_parts.pop(key, ())
            if lines:
                self._lost_parts[key] = lines
            for line in lines:
                if line not in before:
                    self._metrics.lost_part(kind.name)
                    self._log.warning("part of an object left out", kind=kind.name, error=line)
        if kind.name == TOPOLOGY.name:
            self._topology(change, now)

    def recorded(self, unit: Unit) -> None:
        """Take note of what makes no sense in a pod's fact; what comes of it the scheduler tells."""
        match unit.events[0].payload:
            case PodObserved(pod):
                self._metrics.topology_lag.pod(pod)
                problems = tuple(malformed_annotations(pod))
                malformed = (*filter(None, [pod.malformed]), *map(str, problems))
                if malformed and malformed != self._malformed.get(pod.uid):
                    self._malformed[pod.uid] = malformed
                    if pod.malformed:
                        self._metrics.refused(POD.name)
                        self._log.warning("malformed pod", pod=pod.subject, error=pod.malformed)
                    for error in problems:
                        self._metrics.malformed(error.field)
                        self._log.warning("malformed annotation", error=str(error))
            case PodDeleted(uid):
                self._metrics.topology_lag.pod_gone(uid)
                self._malformed.pop(uid, None)
            case _:
                pass

    def _topology(self, change: Change[ObjectT], now: int) -> None:
        if isinstance(change, ObjectSeen) and isinstance(change.object, TopologyObject):
            meta = change.object.metadata
            used = zone_usage(change.object)
            self._metrics.topology_ages.changed(meta.name, (changed_at(meta) or now) / 1e6, used)
        elif isinstance(change, ObjectGone):
            self._metrics.topology_ages.gone(change.key.name)


class FirstLists:
    """Holds back what has to come last, until every kind was listed once."""

    def __init__(self, kinds: Iterable[str]) -> None:
        """Args: kinds: their first lists are awaited."""
        self._outstanding = set(kinds)
        self._held: list[Unit] = []
        self._streams: set[str] = set()

    @property
    def complete(self) -> bool:
        """True if every kind was listed."""
        return not self._outstanding

    @property
    def outstanding(self) -> tuple[str, ...]:
        """Kinds that were not listed yet."""
        return tuple(sorted(self._outstanding))

    def admit(self, units: Sequence[Unit]) -> Sequence[Unit]:
        """Return the units that may be recorded now; the others are held back, the order in a stream being kept."""
        if self.complete:
            return units
        admitted = []
        for unit in units:
            first = unit.events[0]
            if first.stream in self._streams or _waits(unit):
                self._streams.add(first.stream)
                self._held.append(unit)
            else:
                admitted.append(unit)
        return admitted

    def listed(self, kind: str) -> Sequence[Unit]:
        """Take note of a list; return what was held back, if it was the last one awaited."""
        self._outstanding.discard(kind)
        if not self.complete:
            return ()
        held, self._held = self._held, []
        self._streams.clear()
        return held


def _waits(unit: Unit) -> bool:
    payload = unit.events[0].payload
    return isinstance(payload, PodObserved) and not payload.pod.node_name and not payload.pod.finished


SNAPSHOT_NAME = "watcher"

#: Raised with every change of what digests are made over.
SNAPSHOT_SCHEMA = "watcher-3"

_Record = dict[str, list[tuple[ObjectKey, KnownFact]]]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Record)


async def recall(log: EventLog, cluster: str, *, upto: int) -> Facts:
    """Return what the log says of every object, up to a position.

    Raises:
        LogUnavailable: the log does not answer.
        UnknownEvent: a newer kai-ledger has written to it.
    """
    read = partial(facts_of, cluster)
    remembered = await newest(log, cluster, name=SNAPSHOT_NAME, schema=SNAPSHOT_SCHEMA, read=read, upto=upto)
    facts = remembered or Facts(cluster)
    await recall_on(log, facts, upto)
    return facts


async def recall_on(log: EventLog, facts: Facts, upto: int) -> None:
    """Take in what the log says up to a position."""
    where = Filter(types=FACT_TYPES)
    async for event in events_of(log, facts.cluster, after=facts.position, upto=upto, where=where):
        facts.recall(decode_payload(event))
    facts.position = upto


def snapshot_of(facts: Facts) -> Snapshot:
    """Return facts as a snapshot; the log must have all of them, and none after their position."""
    record = {kind: sorted(facts_by_key.items()) for kind, facts_by_key in facts.by_kind.items()}
    return Snapshot(SNAPSHOT_NAME, facts.position, SNAPSHOT_SCHEMA, _encoder.encode(record))


def facts_of(cluster: str, snapshot: Snapshot) -> Facts:
    """Return the facts of a snapshot."""
    facts, record = Facts(cluster), _decoder.decode(snapshot.body)
    for kind, facts_by_key in facts.by_kind.items():
        facts_by_key.update(record.get(kind, ()))
    facts.position = snapshot.position
    return facts


_TYPES = ("BindFailed", "PodPlaced")

#: Pods asked about at once, and events read at once.
_PODS, _DECIDED_PAGE = 500, 2000


async def undecided(log: EventLog, cluster: str, arrivals: Mapping[str, str]) -> Mapping[str, str]:
    """Return those of some pods that came to nodes without the log having decided it, or after it was given up.

    Raises LogUnavailable: the log does not answer.

    Args:
        arrivals: the pods' nodes by uid.
    """
    uids = list(arrivals)
    decided: dict[str, str] = {}
    for begin in range(0, len(uids), _PODS):
        decided.update(await _decided(log, cluster, uids[begin : begin + _PODS]))
    return {uid: node for uid, node in arrivals.items() if decided.get(uid) != node}


async def _decided(log: EventLog, cluster: str, uids: Iterable[str]) -> dict[str, str]:
    where = Filter(streams=tuple(f"pod/{uid}" for uid in uids), types=_TYPES)
    decided: dict[str, str] = {}
    after = 0
    while page := await log.read(cluster, after=after, limit=_DECIDED_PAGE, where=where):
        for event in page:
            match decode_payload(event):
                case PodPlaced(uid=uid, node=node):
                    decided[uid] = node
                case BindFailed(uid=uid):
                    decided.pop(uid, None)
                case _:
                    pass
        after = page[-1].position
        if len(page) < _DECIDED_PAGE:
            break
    return decided


STREAM = "watcher"


@dataclass(frozen=True, slots=True)
class Claim:
    """The changes that a watcher got.

    Attributes:
        version: of the stream, which holds as long as no other watcher claims.
        position: of the claim; no other watcher's fact comes after it.
    """

    version: int
    position: int

    @property
    def expect(self) -> dict[str, int]:
        """The conditions of an append."""
        return {STREAM: self.version}


async def claim(log: EventLog, cluster: str, *, instance: str, now: int) -> Claim:
    """Claim a cluster. Raises LogUnavailable: nothing is known of the outcome; claim again.

    Args:
        instance: a name that no other process ever has.
        now: microseconds since the epoch.
    """
    while True:
        version = (await log.stream_versions(cluster, [STREAM]))[STREAM]
        event = NewEvent(
            id=derived_id(cluster, "WatcherStarted", instance, str(version)),
            stream=STREAM,
            payload=WatcherStarted(instance=instance),
            actor=ACTOR,
            occurred_at=now,
            subject=instance,
        )
        try:
            (outcome,) = await log.append(cluster, [Unit((event,))], expect={STREAM: version})
        except StaleExpectation:
            continue
        return Claim(version + 1, outcome.positions[0])


#: Conditions of readiness.
LOG, API, LISTS = "log", "api", "lists"

_GONE = 410


#: How long the log is given, in the end, to take what it does not have yet.
_FLUSH_S = 5.0


class WatcherOptions(BaseModel):
    """Settings of watching, apart from addresses."""

    leave_out: str = Field(
        default="",
        description="API groups that are not read (GROUP,GROUP), such as kueue.x-k8s.io where Kueue keeps the "
        "quotas; only of kinds that a cluster need not serve",
    )
    batch: int = Field(default=1000, ge=1, le=10_000, description="facts per append at most")
    buffer: int = Field(default=20_000, ge=1, description="facts that may wait for the log before reading stops")
    page: int = Field(default=500, ge=1, le=10_000, description="objects per page of a list")
    snapshot_events: int = Field(default=50_000, ge=1, description="facts between two snapshots of what is known")
    check_s: float = Field(
        default=3600.0,
        ge=0,
        description="how often memory, log and API server are compared; 0: never",
    )
    recheck_s: float = Field(
        default=30, gt=0, description="how often to look for kinds that the cluster does not serve yet"
    )

    @property
    def left_out(self) -> frozenset[str]:
        """API groups of optional kinds that are not followed.

        Raises ConfigurationError: kinds of one of them are not followed anyway, or are of every cluster.
        """
        groups = frozenset(filter(None, (name.strip() for name in self.leave_out.split(","))))
        optional = {kind.resource.group for kind in KINDS if isinstance(kind.resource, OptionalResource)}
        for group in sorted(groups - optional):
            raise ConfigurationError(f"leave_out: {group} is no group of optional kinds{did_you_mean(group, optional)}")
        return groups


class Watcher:
    """Records one cluster."""

    def __init__(
        self,
        *,
        cluster: str,
        instance: str,
        log: EventLog,
        client: KubeClient,
        context: ServiceContext,
        metrics: WatcherMetrics,
        clock: Callable[[], int],
        options: WatcherOptions | None = None,
        backoff: Backoff | None = None,
        log_retry_s: float = 1.0,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Args:
        instance: a name that no other process ever has.
        context: its health must have the conditions `LOG`, `API` and `LISTS`.
        clock: microseconds since the epoch.
        backoff: how long an API server that fails is left alone.
        log_retry_s: how long a log that did not answer is left alone.
        """
        self._cluster = cluster
        self._instance = instance
        self._log = log
        self._client = client
        self._context = context
        self._metrics = metrics
        self._clock = clock
        self._options = options or WatcherOptions()
        self._left_out = self._options.left_out
        self._backoff = backoff
        self._log_retry_s = log_retry_s
        self._jitter = jitter
        # Kinds are looked for together; what is asked again is asked of the server.
        self._serving = ServedResources(client, fresh_s=min(_SHARED_S, self._options.recheck_s / 2))
        self._facts = Facts(cluster)
        self._first_lists = FirstLists(kind.name for kind in KINDS)
        self._findings = Findings(metrics, context.log)
        self._recorder: Recorder
        self._outbox: Outbox
        # Units that are known but not in the outbox yet.
        self._in_hand = 0
        # Kinds with a failed last request.
        self._failing: dict[str, str] = {}
        # What follows each kind now.
        self._cores: dict[str, ReflectorCore[Any]] = {}
        # The position at which the last check began.
        self._checked_at = 0
        self._since_snapshot = 0
        self._snapshot_due = asyncio.Event()

    async def run(self) -> None:
        """Watch until the service is to stop.

        Raises:
            StaleExpectation: another watcher has claimed the cluster.
            UnknownEvent: a newer kai-ledger has written to the log.
            ConfigurationError: the API server or the log cannot be reached like this.
        """
        options, expect = self._options, await self._begin()
        if expect is None:
            return
        self._recorder = Recorder(
            self._log,
            self._cluster,
            context=self._context,
            condition=LOG,
            on_appended=self._appended,
            on_dropped=self._dropped,
            expect=expect,
            options=OutboxOptions(batch=options.batch, limit=options.buffer, retry_s=self._log_retry_s),
            flush_s=_FLUSH_S,
        )
        self._outbox = self._recorder.outbox
        self._metrics.pending.set_function(lambda: self._outbox.pending)
        for kind, facts_by_key in self._facts.by_kind.items():
            self._metrics.objects.labels(self._cluster, kind).set_function(facts_by_key.__len__)
        checks = [self._check()] if options.check_s else []
        try:
            await self._recorder.run_with(*(self._follow_kind(kind) for kind in KINDS), self._save_snapshots(), *checks)
        except StaleExpectation:
            self._context.log.error("another watcher has claimed the cluster", cluster=self._cluster)
            raise
        await self._save_snapshot()

    # The parts that run together.

    async def _follow_kind(self, kind: Kind[ObjectT]) -> None:
        if isinstance(kind.resource, OptionalResource) and kind.resource.group in self._left_out:
            # What an earlier watcher recorded of it is not so any more, as far as the log is to know.
            await self._take_all_gone(kind)
            await self._context.stopping.wait()
        elif isinstance(kind.resource, OptionalResource):
            await self._follow_optional(kind, kind.resource)
        else:
            await self._follow(kind, kind.resource)

    async def _follow(self, kind: Kind[ObjectT], resource: Resource[ObjectT]) -> None:
        reflector: Reflector[ObjectT]

        async def take(changes: list[Change[ObjectT]]) -> None:
            await self._take(kind, changes, listed=reflector.core.synced)

        reflector = Reflector(
            self._client,
            resource,
            take,
            observer=self,
            known_uids=self._facts.uids(kind.name),
            page=self._options.page,
            backoff=self._backoff,
            jitter=self._jitter,
        )
        self._cores[kind.name] = reflector.core
        await reflector.run()

    async def _follow_optional(self, kind: Kind[ObjectT], resource: OptionalResource[ObjectT]) -> None:
        """Follow a resource whenever the cluster has it; its objects are gone where it is missing twice in a row.

        What is served in other versions only is not missing: what is known of it stands.
        """
        missing = failures = 0
        while True:
            wait_s = self._options.recheck_s
            try:
                version = await self._serving.version(resource)
                self.answered(resource.kind)
                failures = 0
                if version is not None:
                    missing = 0
                    await self._follow(kind, resource.at(version))
                others = self._serving.other_versions(resource)
                self._findings.unreadable(kind, others)
                missing = 0 if others else missing + 1
                await (self._take_all_gone(kind) if missing > 1 else self._take(kind, [], listed=True))
            except ClusterError as error:
                # It is not served any more, which the next look at the versions tells.
                if not (isinstance(error, ApiStatus) and error.code == _NOT_FOUND):
                    self.failed(resource.kind, error)
                    failures += 1
                    wait_s = backoff(failures, first=_FIRST_DELAY_S, most=wait_s)
            await asyncio.sleep(wait_s)

    async def _take_all_gone(self, kind: Kind[ObjectT]) -> None:
        gone = [ObjectGone(key, uid, "", missed=True) for key, uid in self._facts.uids(kind.name).items()]
        await self._take(kind, gone, listed=True)

    async def _check(self) -> None:
        """Compare what is known with the log, and have every kind compared with the API server, now and then."""
        fold, every_s = partial(recall_on, self._log), self._options.check_s
        memory = Memory(snapshot_of, partial(facts_of, self._cluster), fold)
        check = SelfCheck(memory, self._reporting("watcher"), every_s=every_s, monotonic=time.monotonic)
        check.trust(self._facts)
        while True:
            await asyncio.sleep(every_s)
            try:
                right = None if self._unrecorded else await check.now(self._facts)
                while right is not None and (self._unrecorded or right.position < self._facts.position):
                    await self._outbox.flushed()
                    await fold(right, self._facts.position)
            except KaiError as error:
                self._context.log.warning("facts not checked", error=str(error))
                continue
            for kind, facts in right.by_kind.items() if right is not None else ():
                self._facts.by_kind[kind].clear()
                self._facts.by_kind[kind].update(facts)
            self._checked_at = self._facts.position
            for core in self._cores.values():
                core.to_check = True

    def _reporting(self, check: str) -> Reporting:
        return Reporting(check, self._log, self._cluster, ACTOR, self._clock, self._context.log)

    @property
    def _unrecorded(self) -> bool:
        """True if the log does not have all that is known."""
        return bool(self._outbox.pending or self._in_hand or not self._first_lists.complete)

    async def _save_snapshots(self) -> None:
        while True:
            await self._snapshot_due.wait()
            await self._outbox.flushed()
            await self._save_snapshot()
            await asyncio.sleep(self._log_retry_s)

    # Changes to facts to the log.

    async def _take(self, kind: Kind[ObjectT], changes: Sequence[Change[ObjectT]], *, listed: bool) -> None:
        now = self._clock()
        units: list[Unit] = []
        differing: list[str] = []
        for change in changes:
            lost: list[InvalidObject] = []
            try:
                unit = self._facts.translate(kind, change, now=now, lost=lost.append)
            except InvalidObject as error:
                self._findings.refused(kind, error)
                continue
            self._findings.read(kind, change, lost, now=now)
            if unit is not None:
                units.append(unit)
                self._findings.recorded(unit)
                if isinstance(change, ObjectSeen | ObjectGone) and change.again:
                    differing.append(f"{kind.name} {unit.events[0].subject}")
        # Cancelled while it waits for the log or for room, this leaves a trace: what is known must not be saved then.
        self._in_hand += len(units)
        if arrivals := self._facts.take_arrivals():
            await self._charge(units, arrivals)
        await self._outbox.put(self._first_lists.admit(units))
        self._in_hand -= len(units)
        if differing:
            reporting, position = self._reporting("api-server"), self._facts.position
            await reporting.found(after=self._checked_at, upto=position, parts=tuple(differing))
        if listed and not self._first_lists.complete:
            self._note_list(kind.name)

    async def _charge(self, units: list[Unit], arrivals: Mapping[str, str]) -> None:
        """Have facts move the streams of the nodes to which they bring pods that no decision placed there."""
        strange = arrivals
        # To move a stream without need makes some decisions late, no more.
        if not self._context.health.conditions[LOG]:
            with suppress(LogUnavailable):
                strange = await undecided(self._log, self._cluster, arrivals)
        for index, unit in enumerate(units):
            match unit.events[0].payload:
                case PodObserved(pod) if pod.uid in strange:
                    units[index] = charging(unit, strange[pod.uid], pods=(pod.uid,))
                case _:
                    pass

    def _note_list(self, kind: str) -> None:
        held = self._first_lists.listed(kind)
        if not self._first_lists.complete:
            self._context.health.unmet(LISTS, f"not yet: {', '.join(self._first_lists.outstanding)}")
            return
        # At once, so that nothing that comes later about these pods overtakes it.
        self._outbox.put_now(held)
        self._metrics.topology_lag.begin()
        self._context.health.met(LISTS)
        self._context.log.info("all kinds listed", pods_that_wait=len(held))

    async def _save_snapshot(self) -> None:
        """Save what is known, unless the log does not have all of it yet."""
        if self._unrecorded:
            return
        snapshot = snapshot_of(self._facts)
        self._since_snapshot = 0
        self._snapshot_due.clear()
        await self._recorder.save(snapshot)

    # The beginning.

    async def _begin(self) -> dict[str, int] | None:
        """Claim the cluster and recall its facts; None when the service is to stop before that."""
        claimed = await self._answered(
            lambda: claim(self._log, self._cluster, instance=self._instance, now=self._clock())
        )
        if claimed is None:
            return None
        facts = await self._answered(lambda: recall(self._log, self._cluster, upto=claimed.position))
        if facts is None:
            return None
        self._facts = facts
        counts = {kind: len(objects) for kind, objects in facts.by_kind.items()}
        self._context.log.info("claimed", instance=self._instance, position=claimed.position, known=counts)
        return claimed.expect

    # What the outbox tells.

    async def _answered(self, ask: Callable[[], Awaitable[_T]]) -> _T | None:
        return await until_answered(self._context, LOG, ask, retry_s=self._log_retry_s)

    def _appended(self, units: Sequence[Unit], outcomes: Sequence[UnitOutcome], seconds: float) -> None:
        """See `OutboxObserver.appended`."""
        self._metrics.appends.observe(seconds)
        before = self._facts.position
        again = []
        for unit, outcome in zip(units, outcomes, strict=True):
            self._facts.position = max(self._facts.position, outcome.positions[-1])
            if outcome.duplicate and outcome.positions[-1] <= before:
                # In the log from before: what was so then is so again. It may have changed once more meanwhile.
                if self._facts.is_current(unit):
                    again.append(restated(unit, position=before))
                continue
            self._since_snapshot += len(unit.events)
            for event in unit.events:
                self._metrics.fact(type(event.payload).__name__)
                if isinstance(event.payload, PodRejected):
                    self._metrics.rejection(event.payload.reason)
        self._outbox.put_now(again)
        if self._since_snapshot >= self._options.snapshot_events:
            self._snapshot_due.set()

    def _dropped(self, unit: Unit, error: KaiError) -> None:
        """See `OutboxObserver.dropped`."""
        self._metrics.dropped()
        self._context.log.error("fact cannot be recorded", subject=unit.events[0].subject, error=str(error))

    # What the reflectors tell.

    def listed(self, kind: str, why: Relist, objects: int) -> None:
        """See `ReflectorObserver.listed`."""
        self._metrics.listed(kind, why)
        self._context.log.info("listed", kind=kind, why=str(why), objects=objects)

    def watching(self, kind: str) -> None:
        """See `ReflectorObserver.watching`."""
        self._metrics.watching(kind)

    def answered(self, kind: str) -> None:
        """See `ReflectorObserver.answered`."""
        why = self._failing.pop(kind, None)
        if why is not None and why not in self._failing.values():
            self._context.log.info("api server answers again", kind=kind)
        if self._failing:
            self._not_ready()
        else:
            self._context.health.met(API)

    def failed(self, kind: str, error: ClusterError) -> None:
        """See `ReflectorObserver.failed`."""
        if isinstance(error, ApiStatus) and error.code == _GONE:
            # A version that is too old is no trouble, only a reason for another list.
            return
        self._metrics.api_failed(kind)
        # Kinds that were asked for by one request fail at once.
        if kind not in self._failing and str(error) not in self._failing.values():
            self._context.log.warning("api server fails", kind=kind, error=str(error))
        self._failing[kind] = str(error)
        self._not_ready()

    def _not_ready(self) -> None:
        (kind, why), others = next(iter(self._failing.items())), len(self._failing) - 1
        more = f" (and {others} more kinds)" if others else ""
        self._context.health.unmet(API, f"{kind}: {why}{more}")
