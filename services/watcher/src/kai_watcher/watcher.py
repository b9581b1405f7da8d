"""The watcher: records the changes in a cluster as facts in the log.

    API server ──lists, watches──▶ reflectors ──changes──▶ facts ──units──▶ first lists ──▶ outbox ──appends──▶ log

A watcher claims its cluster, and reads from the log what is known of every object. Then it follows each kind from a
first list on; its facts wait in an outbox until the log has them. So whatever ends a watcher, the next one finds from
the log and a list what is still to be recorded. `docs/explanation/watcher.md` has all of it.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from kaicore.errors import ApiStatus, ClusterError, InvalidObject, KaiError, LogUnavailable, StaleExpectation
from kaicore.kube.client import KubeClient
from kaicore.kube.facts import Facts, restated
from kaicore.kube.kind import Kind
from kaicore.kube.kinds import KINDS
from kaicore.kube.reflector import Reflector, ReflectorOptions
from kaicore.kube.reflector_core import Change, ObjectGone, Relist
from kaicore.kube.resources import ObjectT, OptionalResource, Resource
from kaicore.ledger.log.outbox import Outbox
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events.envelope import Unit, UnitOutcome
from kaicore.rules.events.node_charged import charging
from kaicore.rules.events.payloads import PodObserved, PodRejected
from kaicore.runtime.service import ServiceContext
from kaicore.runtime.service.recorder import Recorder, RecorderOptions, until_answered

from kai_watcher.claim import claim
from kai_watcher.decided import undecided
from kai_watcher.findings import Findings
from kai_watcher.first_lists import FirstLists
from kai_watcher.memory import recall, snapshot_of
from kai_watcher.metrics import WatcherMetrics
from kai_watcher.optional_resources import follow_optional

#: Conditions of readiness.
LOG, API, LISTS = "log", "api", "lists"

_GONE = 410

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherOptions:
    """How a watcher works.

    Attributes:
        batch: facts per append at most.
        buffer: facts that may wait for the log before reading from the API server stops.
        snapshot_every: facts between two snapshots of what is known.
        recheck_s: how often a cluster is asked for optional kinds that it does not have.
        log_retry_s: how long a log that did not answer is left alone.
        flush_s: how long the log is given, in the end, to take what it does not have yet.
        reflector: how kinds are followed.
        leave_out: API groups of optional kinds that are not followed.
    """

    batch: int = 1000
    buffer: int = 20_000
    snapshot_every: int = 50_000
    recheck_s: float = 30.0
    log_retry_s: float = 1.0
    flush_s: float = 5.0
    reflector: ReflectorOptions = field(default_factory=ReflectorOptions)
    leave_out: Collection[str] = ()


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
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Args:
        cluster: whose facts.
        instance: a name that no other process ever has.
        log: to record in.
        client: of the cluster's API server.
        context: its health must have the conditions `LOG`, `API` and `LISTS`.
        metrics: to count with.
        clock: microseconds since the epoch.
        options: how to work.
        jitter: random numbers of 0 to 1.
        """
        self._cluster = cluster
        self._instance = instance
        self._log = log
        self._client = client
        self._context = context
        self._metrics = metrics
        self._clock = clock
        self._options = options or WatcherOptions()
        self._jitter = jitter
        self._facts = Facts(cluster)
        self._first_lists = FirstLists(kind.name for kind in KINDS)
        self._findings = Findings(metrics, context.log)
        self._recorder: Recorder
        self._outbox: Outbox
        # Units that are known but not in the outbox yet.
        self._in_hand = 0
        # Kinds whose last request failed.
        self._failing: dict[str, str] = {}
        # The last position that we know of.
        self._position = 0
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
            options=RecorderOptions(
                batch=options.batch, limit=options.buffer, retry_s=options.log_retry_s, flush_s=options.flush_s
            ),
        )
        self._outbox = self._recorder.outbox
        self._metrics.pending(lambda: self._outbox.pending)
        for kind, facts_by_key in self._facts.by_kind.items():
            self._metrics.objects(kind, facts_by_key.__len__)
        try:
            await self._recorder.run_with(*(self._follow_kind(kind) for kind in KINDS), self._save_snapshots())
        except StaleExpectation:
            self._context.log.error("another watcher has claimed the cluster", cluster=self._cluster)
            raise
        await self._save_snapshot()

    # The parts that run together.

    async def _follow_kind(self, kind: Kind[ObjectT]) -> None:
        if isinstance(kind.resource, OptionalResource) and kind.resource.group in self._options.leave_out:
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
            options=self._options.reflector,
            jitter=self._jitter,
        )
        await reflector.run()

    async def _follow_optional(self, kind: Kind[ObjectT], resource: OptionalResource[ObjectT]) -> None:
        async def absent(*, sure: bool) -> None:
            await (self._take_all_gone(kind) if sure else self._take(kind, [], listed=True))

        await follow_optional(
            self._client,
            resource,
            lambda served: self._follow(kind, served),
            absent,
            observer=self,
            recheck_s=self._options.recheck_s,
        )

    async def _take_all_gone(self, kind: Kind[ObjectT]) -> None:
        gone = [ObjectGone(key, uid, "", missed=True) for key, uid in self._facts.uids(kind.name).items()]
        await self._take(kind, gone, listed=True)

    async def _save_snapshots(self) -> None:
        while True:
            await self._snapshot_due.wait()
            await self._outbox.flushed()
            await self._save_snapshot()
            await asyncio.sleep(self._options.log_retry_s)

    # Changes to facts to the log.

    async def _take(self, kind: Kind[ObjectT], changes: Sequence[Change[ObjectT]], *, listed: bool) -> None:
        now = self._clock()
        units: list[Unit] = []
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
        # Cancelled while it waits for the log or for room, this leaves a trace: what is known must not be saved then.
        self._in_hand += len(units)
        if arrivals := self._facts.take_arrivals():
            await self._charge(units, arrivals)
        await self._outbox.put(self._first_lists.admit(units))
        self._in_hand -= len(units)
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
        if self._outbox.pending or self._in_hand or not self._first_lists.complete:
            return
        snapshot = snapshot_of(self._facts, position=self._position)
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
        self._facts, self._position = facts, claimed.position
        counts = {kind: len(objects) for kind, objects in facts.by_kind.items()}
        self._context.log.info("claimed", instance=self._instance, position=claimed.position, known=counts)
        return claimed.expect

    # What the outbox tells.

    async def _answered(self, ask: Callable[[], Awaitable[_T]]) -> _T | None:
        return await until_answered(self._context, LOG, ask, retry_s=self._options.log_retry_s)

    def _appended(self, units: Sequence[Unit], outcomes: Sequence[UnitOutcome], seconds: float) -> None:
        """See `OutboxObserver.appended`."""
        self._metrics.appended(seconds)
        before = self._position
        again = []
        for unit, outcome in zip(units, outcomes, strict=True):
            self._position = max(self._position, outcome.positions[-1])
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
        if self._since_snapshot >= self._options.snapshot_every:
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
        if self._failing.pop(kind, None) is not None:
            self._context.log.info("api server answers again", kind=kind)
        if self._failing:
            self._context.health.unmet(API, "; ".join(f"{name}: {why}" for name, why in self._failing.items()))
        else:
            self._context.health.met(API)

    def failed(self, kind: str, error: ClusterError) -> None:
        """See `ReflectorObserver.failed`."""
        if isinstance(error, ApiStatus) and error.code == _GONE:
            # A version that is too old is no trouble, only a reason for another list.
            return
        self._metrics.api_failed(kind)
        if kind not in self._failing:
            self._context.log.warning("api server fails", kind=kind, error=str(error))
        self._failing[kind] = str(error)
        self._context.health.unmet(API, f"{kind}: {error}")
