"""The loop around the hub's rules: fold its log and the clusters', decide, append.

Everything that excludes something else is conditional in the log, so any number of hubs may run: of two that decide
the same, one is late, folds what the other one appended, and goes on.

The clusters' states are folded from their own logs as events come.
"""

import asyncio
import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
from kaicore.analysis.replay.log_states import restored
from kaicore.analysis.trial.dispatching import QueueSums, TriedDispatch, queue_sums, try_dispatches
from kaicore.errors import CorruptLog, LogUnavailable, UnfoldableEvent, UnknownEvent
from kaicore.ledger.bus.port import Bus
from kaicore.ledger.feed import EventFeed
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.snapshots import KEEP_EVERY, restored_hub, take_hub
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.events.envelope import Event, Unit, UnitOutcome
from kaicore.rules.events.payloads import DispatchGiven, LeaseRenewed, Offer, ReleaseReason
from kaicore.rules.events.quarantine import QUARANTINED, quarantine_text
from kaicore.rules.hub.choosing import (
    STARTS_NOW,
    WEIGHTS,
    ClusterRoom,
    choose,
    locality_part,
    over_bound,
    rescored,
    scored,
)
from kaicore.rules.hub.cluster_side import LeaseWatch
from kaicore.rules.hub.hub_state import HUB, DispatchEntry, DispatchStage, HubState
from kaicore.rules.hub.steps import bounds_of, give, recall, take_back, unfit_by_itself
from kaicore.rules.objects.dispatched import Manifest
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import fork
from kaicore.runtime.service import ServiceContext
from kaicore.runtime.service.recorder import save_snapshot
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from pydantic import BaseModel, Field


class HubMetrics:
    """The hub's metrics."""

    def __init__(self, *, registry: CollectorRegistry = REGISTRY) -> None:
        self.dispatches = Gauge("kai_hub_dispatches", "Dispatches by stage", ["stage"], registry=registry)
        self.decided = Counter("kai_hub_decisions", "Events appended, by type", ["type"], registry=registry)
        self.stale = Counter("kai_hub_stale", "Decisions that came too late", registry=registry)
        self.round = Histogram("kai_hub_round_seconds", "Time to choose clusters in one round", registry=registry)
        self.quarantined = Gauge(
            "kai_quarantined_events",
            QUARANTINED,
            registry=registry,
        )
        self.silent = Gauge("kai_hub_silent_seconds", "Time since a lease was renewed", ["cluster"], registry=registry)


#: Seconds after which a log that failed is read again.
_PAUSE_S = 2.0


class FollowedClusters:
    """The states; each is changed by a task of its own, between two awaits of its reader."""

    def __init__(self, log: EventLog, bus: Bus | None, *, context: ServiceContext, changed: Callable[[], None]) -> None:
        """Args:
        bus: brings events sooner; None to read from the log alone.
        changed: called when a state has changed in a way that matters to decisions.
        """
        self._log, self._bus, self._context, self._changed = log, bus, context, changed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: States that are folded up to where their logs ended when they were opened.
        self.states: dict[str, ClusterState] = {}

    def follow(self, clusters: Iterable[str]) -> None:
        """Follow these clusters, and no others."""
        wanted = set(clusters)
        for name in wanted - self._tasks.keys():
            self._tasks[name] = asyncio.create_task(self._follow(name))
        for name in self._tasks.keys() - wanted:
            self._tasks.pop(name).cancel()
            self.states.pop(name, None)

    async def close(self) -> None:
        """Follow none."""
        tasks = list(self._tasks.values())
        self.follow(())
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, name: str) -> None:
        while True:
            try:
                await self._fold(name)
            except LogUnavailable as error:
                self._context.log.warning("cluster is not followed now", cluster=name, error=str(error))
            except UnfoldableEvent as error:
                # The state is half changed; the next one is folded with the event quarantined.
                self.states.pop(name, None)
                self._context.log.error("cluster is folded anew", cluster=name, error=str(error))
                continue
            except (CorruptLog, UnknownEvent) as error:
                self._context.log.error("cluster cannot be followed", cluster=name, error=str(error))
            await asyncio.sleep(_PAUSE_S)

    async def _fold(self, name: str) -> None:
        state = await restored(self._log, name)
        head = (await self._log.head(name)).position
        feed = EventFeed(self._log, self._bus, name, after=state.position)
        try:
            while True:
                revision = state.revision
                for event in await feed.next_batch(timeout_s=None if state.position >= head else 1.0):
                    state.fold(event)
                if state.position >= head:
                    fresh = self.states.get(name) is not state
                    self.states[name] = state
                    if fresh or state.revision != revision:
                        self._changed()
        finally:
            with suppress(LogUnavailable):
                await feed.close()


#: The condition of readiness: the hub's log is folded.
STATE = "state"

#: Seconds between two looks at leases, and before an append that was not answered is repeated.
_LOOK_S, _RETRY_S = 0.5, 1.0
#: Seconds between two looks while something waits.
_SHORT_LOOK_S = 0.05
#: Seconds that a hub that begins has to read the logs of its live clusters before it chooses among those it has read.
_FIRST_READING_S = 10.0

_manifests = msgspec.json.Decoder(list[Manifest])


class HubOptions(BaseModel):
    """Settings of the hub's work, apart from its servers and routes."""

    period_ms: int = Field(default=200, ge=0, description="least time between two rounds in which clusters are chosen")
    batch: int = Field(default=8, ge=1, le=1000, description="dispatches that are tried in one round at most")
    patience_s: float = Field(
        default=60.0, gt=0, description="how long a dispatch may wait in its cluster while it would start in another"
    )
    weight_capacity: int = Field(
        default=WEIGHTS["capacity"], ge=0, description="weight of starting at once, with much left"
    )
    weight_locality: int = Field(default=WEIGHTS["locality"], ge=0, description="weight of data sets that are near")
    weight_topology: int = Field(default=WEIGHTS["topology"], ge=0, description="weight of being close in the network")
    weight_share: int = Field(
        default=WEIGHTS["share"], ge=0, description="weight of the queue's room below its fair share"
    )
    weight_cost: int = Field(default=WEIGHTS["cost"], ge=0, description="weight of being cheap")

    @property
    def weights(self) -> dict[str, int]:
        """Weights of the parts of the offers' scores."""
        return {part: int(getattr(self, f"weight_{part}")) for part in WEIGHTS}


class Hub:
    """One hub."""

    def __init__(
        self,
        *,
        log: EventLog,
        bus: Bus | None,
        context: ServiceContext,
        metrics: HubMetrics,
        instance: str,
        clock: Callable[[], int],
        monotonic: Callable[[], int],
        options: HubOptions | None = None,
        policies: PolicyBook = NO_POLICIES,
    ) -> None:
        """Args:
        log: the hub's, and the clusters'.
        bus: brings events sooner; None to read from the log alone.
        context: of the service; its health must have the condition `STATE`.
        instance: tells this process from other hubs.
        clock: microseconds since the epoch.
        monotonic: microseconds of a clock that is never set.
        policies: the code of the clusters' policies, for trials.
        """
        self._log, self._context, self._metrics = log, context, metrics
        self._actor = f"hub/{instance}"
        self._clock, self._monotonic = clock, monotonic
        self._options, self._policies = options or HubOptions(), policies
        self._period_s = self._options.period_ms / 1000
        self._bus = bus
        self._feed = EventFeed(log, bus, HUB)
        self._news = asyncio.Event()
        self._followed = FollowedClusters(log, bus, context=context, changed=self._news.set)
        self._watch = LeaseWatch(started_at=monotonic())
        self.state = HubState()
        self._kept_at = 0
        self._tried_at = -1e9
        self._begun_at = 0.0

    async def run(self) -> None:
        """Decide until the service is to stop."""
        self._begun_at = asyncio.get_running_loop().time()
        self.state = await restored_hub(self._log)
        self._kept_at = self.state.position
        self._feed = EventFeed(self._log, self._bus, HUB, after=self.state.position)
        self._followed.follow(name for name, _ in self.state.present())
        try:
            head = (await self._log.head(HUB)).position
            while self.state.position < head and not self._context.stopping.is_set():
                self._fold(await self._feed.next_batch(timeout_s=1.0))
            self._context.health.met(STATE)
            self._context.log.info("hub's log folded", position=self.state.position)
            while not self._context.stopping.is_set():
                if self._fold(await self._feed.next_batch(timeout_s=self._patience_s())):
                    self._news.set()
                await self._append(
                    take_back(self.state, self._watch, now=self._monotonic(), clock=self._clock(), actor=self._actor)
                )
                if self._news.is_set() and asyncio.get_running_loop().time() - self._tried_at >= self._period_s:
                    await self._choose()
                if self.state.position >= self._kept_at + KEEP_EVERY:
                    await self._keep()
                self._report()
        finally:
            await self._feed.close()
            await self._followed.close()

    async def _keep(self) -> None:
        """Save the state, so that whoever starts next need not fold the whole log."""
        self._kept_at = self.state.position
        await save_snapshot(self._log, HUB, take_hub(self.state), self._context.log)

    def _patience_s(self) -> float:
        """The time to wait for events before work may be due without any."""
        if not self._waiting():
            return _LOOK_S
        # A cluster's state may change at any time, and what waits is tried again then.
        due = self._tried_at + self._period_s - asyncio.get_running_loop().time()
        return max(_SHORT_LOOK_S, min(due, _LOOK_S))

    def _fold(self, events: Sequence[Event]) -> bool:
        """Take in events; return whether any of them can change what is decided."""
        matters = False
        for event in events:
            before = dict(self._lost())
            self.state.fold(event)
            if (found := self.state.quarantined.get(event.position)) is not None:
                self._context.log.error("event quarantined", **msgspec.structs.asdict(found))
            if event.type == LeaseRenewed.__name__:
                self._watch.heard(event.stream.partition("/")[2], now=self._monotonic())
                matters = matters or before != self._lost()
            else:
                matters = True
        if matters:
            self._followed.follow(name for name, _ in self.state.present())
        return matters

    def _lost(self) -> dict[str, bool]:
        now = self._monotonic()
        return {
            name: not entry.lease_us or self._watch.is_over(name, entry.lease_us, now=now)
            for name, entry in self.state.present()
        }

    def _waiting(self) -> list[DispatchEntry]:
        return [entry for entry in self.state.dispatches.values() if entry.stage is DispatchStage.WAITING]

    def _impatient(self) -> list[DispatchEntry]:
        """Return the dispatches that have waited in their clusters for too long."""
        long_ago = self._clock() - int(self._options.patience_s * 1e6)
        return [
            entry
            for entry in self.state.dispatches.values()
            if entry.stage is DispatchStage.GIVEN and entry.since < long_ago
        ]

    def _still_reads(self) -> bool:
        """True if this hub has just begun and has not read the log of a live cluster, perhaps the best one."""
        if asyncio.get_running_loop().time() >= self._begun_at + _FIRST_READING_S:
            return False
        return any(not lost and name not in self._followed.states for name, lost in self._lost().items())

    async def _choose(self) -> None:
        """Try what waits in all clusters, and give it to the best."""
        loop = asyncio.get_running_loop()
        self._news.clear()
        self._tried_at = loop.time()
        waiting, impatient = self._waiting(), self._impatient()
        if not waiting and not impatient:
            return
        if self._still_reads():
            self._news.set()
            return
        now, states = self._clock(), self._followed.states
        sums = queue_sums(self.state, states.values(), now=now)
        waiting.sort(key=lambda entry: (sums.standing(entry.submitted.queue), entry.number))
        tried = [*waiting[: self._options.batch], *impatient[: self._options.batch]]
        offers, rooms = await self._offers(tried, now)
        self._metrics.round.observe(loop.time() - self._tried_at)
        units, given = [], False
        for entry in tried[: len(waiting[: self._options.batch])]:
            unit = self._decide(entry, self._scored(entry, offers, rooms), sums, given=given)
            if unit is None:
                continue
            units.append(unit)
            payload = unit.events[0].payload
            if isinstance(payload, DispatchGiven):
                given = True
                rooms[payload.cluster].charge(entry.submitted.queue, entry.submitted.demand)
        for entry in impatient[: self._options.batch]:
            best = choose(self._scored(entry, offers, rooms))
            if best is not None and best.prospect == STARTS_NOW and best.cluster != entry.cluster:
                units.append(recall(entry, ReleaseReason.WAITED, clock=self._clock(), actor=self._actor))
        await self._append(units)
        if given or len(waiting) > self._options.batch:
            # What did not fit beside those before it may fit now that they are elsewhere.
            self._news.set()

    def _decide(self, entry: DispatchEntry, offers: tuple[Offer, ...], sums: QueueSums, *, given: bool) -> Unit | None:
        submitted = entry.submitted
        path = sums.path(submitted.queue)
        held_back = over_bound(path, self.state.bounds, sums.held, submitted.demand, memory=sums.memory())
        unit = give(
            entry,
            offers,
            weights=self._options.weights,
            clock=self._clock(),
            actor=self._actor,
            held_back=held_back,
            bounded=bounds_of(self.state, path),
        )
        payload = None if unit is None else unit.events[0].payload
        if isinstance(payload, DispatchGiven):
            sums.charge(submitted.queue, submitted.demand, payload.cluster)
        if payload is None or isinstance(payload, DispatchGiven):
            return unit
        # Where others were given away in this round, the next one knows better why it waits.
        return None if given and not held_back else unit

    def _scored(
        self, entry: DispatchEntry, offers: Mapping[str, Sequence[Offer]], rooms: Mapping[str, ClusterRoom]
    ) -> tuple[Offer, ...]:
        """Return a dispatch's offers, scored after the choices of this round so far."""
        submitted = entry.submitted
        left = rescored(offers[entry.name], rooms, submitted.queue, submitted.demand)
        costs = {name: cluster.registered.cost for name, cluster in self.state.present()}
        return scored(left, costs, self._options.weights)

    async def _offers(
        self, tried: Sequence[DispatchEntry], now: int
    ) -> tuple[dict[str, list[Offer]], dict[str, ClusterRoom]]:
        """Return, by dispatch, what each cluster offers, not scored yet; and what each cluster has left."""
        rooms: dict[str, ClusterRoom] = {}
        lost = self._lost()
        by_dispatch: dict[str, list[Offer]] = {entry.name: [] for entry in tried}
        for name, _ in list(self.state.present()):
            waiting = []
            for entry in tried:
                unfit = unfit_by_itself(self.state, entry, name, lost=lost[name])
                if not unfit and name not in self._followed.states:
                    unfit = "its log is not read yet"
                if not unfit and (entry.stage is not DispatchStage.GIVEN or entry.cluster != name):
                    waiting.append(_trial(entry))
                    continue
                offer = Offer(cluster=name, unfit=unfit or "has it already")
                by_dispatch[entry.name].append(offer)
            if waiting:
                arriving = [_trial(entry) for entry in self.state.of_cluster(name)]
                copied = fork(self._followed.states[name])
                tries, rooms[name] = await asyncio.to_thread(
                    try_dispatches, copied, arriving, waiting, now=now, policies=self._policies
                )
                for trial in waiting:
                    by_dispatch[trial.name].append(self._with_locality(tries[trial.name], trial.name))
        return by_dispatch, rooms

    def _with_locality(self, offer: Offer, dispatch: str) -> Offer:
        wanted = self.state.dispatches[dispatch].submitted.data
        near = self.state.clusters[offer.cluster].registered.data
        return msgspec.structs.replace(offer, locality=locality_part(wanted, near))

    async def _append(self, units: Sequence[Unit]) -> None:
        """Append decisions, and fold up to them; those that are stale are taken again on what is folded."""
        if not units:
            return
        outcomes: list[UnitOutcome] = []
        while not outcomes:
            try:
                outcomes = await self._log.append(HUB, units)
                last = max((outcome.positions[-1] for outcome in outcomes if outcome.positions), default=0)
                if last > self.state.position and self._fold(await self._feed.catch_up(last)):
                    self._news.set()
            except LogUnavailable as error:
                self._context.log.warning("log does not answer", error=str(error))
                if await self._context.sleep(_RETRY_S):
                    return
        for unit, outcome in zip(units, outcomes, strict=True):
            payload = unit.events[0].payload
            if outcome.stale is None:
                self._metrics.decided.labels(type(payload).__name__).inc()
            else:
                self._metrics.stale.inc()
            self._context.log.info(
                "decided" if outcome.stale is None else "came too late",
                decision=type(payload).__name__,
                dispatch=unit.events[0].subject,
                cluster=getattr(payload, "cluster", ""),
            )
            if outcome.stale is not None:
                self._news.set()

    def _report(self) -> None:
        quarantined = list(self.state.quarantined.values())
        self._context.health.warn("quarantine", quarantine_text(quarantined, cluster=HUB))
        self._metrics.quarantined.set(len(quarantined))
        counts = collections.Counter(str(entry.stage) for entry in self.state.dispatches.values())
        for stage in DispatchStage:
            self._metrics.dispatches.labels(stage).set(counts[str(stage)])
        now = self._monotonic()
        for name, _ in self.state.present():
            self._metrics.silent.labels(name).set(self._watch.silent_us(name, now=now) / 1e6)


def _trial(entry: DispatchEntry) -> TriedDispatch:
    submitted = entry.submitted
    return TriedDispatch(entry.name, _manifests.decode(submitted.manifests), submitted.queue, submitted.demand)
