"""A scheduler: follows a cluster's log, and decides whenever something happened that can change what is decided.

The rules are in `kaicore`; this is the loop around them: fold what comes, run a cycle, append it, fold one's own
decisions before the next one. Of several schedulers of one shard one decides; the others fold and stand by
(`kai_scheduler.replicas`). The append is conditional on the shard's cycles, so two that both decide do no harm.

A shard may have replicas, each with a name, which share its groups (`kaicore.rules.deciding.share`). A replica decides
once the log lists it, and about its own groups only; it keeps the list as `kai_scheduler.replicas` says. When units of
its cycle were stale, other replicas were at the same nodes: it waits a moment before it decides about them again.

Time is the clock's that the log is recorded with. Python's garbage collector is set for millions of objects and no
cycles: the objects that remain after a cycle are the state. They are set aside (`gc.freeze`), which takes no time, and
not looked at again. So the collector sees only what one cycle makes. An error, or a task that was given up, may leave
objects that only the collector finds: once an hour, in an idle moment, it looks at all.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kaicore.analysis.replay.log_states import fold_on, refolded
from kaicore.analysis.replay.self_check import Reporting, SelfCheck, states
from kaicore.backoff import backoff, jittered
from kaicore.errors import KaiError, LogUnavailable, StaleExpectation, UnfoldableEvent
from kaicore.ledger.feed import EventFeed
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.snapshots import Trail, take_state
from kaicore.rules.deciding.cycle_input import idle, next_retry
from kaicore.rules.deciding.decide import Proposal, decide, may_report, queue_report
from kaicore.rules.deciding.share import Share
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.events.envelope import Event, Unit, UnitOutcome
from kaicore.rules.events.quarantine import quarantine_text
from kaicore.rules.model.replicas import replica_shard, weight
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA
from kaicore.runtime.service import ServiceContext
from kaicore.runtime.service.recorder import save_snapshot
from pydantic import BaseModel, Field

from kai_scheduler.metrics import SchedulerMetrics
from kai_scheduler.replicas import Live, ReplicaList, Standby

#: After so many new containers those that are new are looked at: more than the cycles of a busy cluster make, so that
#: what they make is set aside, or gone, before it is looked at.
_THRESHOLDS = (200_000, 5, 100)
_ALL_EVERY_S = 3600.0


def look_at_new() -> None:
    """Set aside what there is, and have the collector look at new objects when there are many."""
    gc.set_threshold(*_THRESHOLDS)
    gc.collect()
    gc.freeze()


class Collecting:
    """The collector of a process that is a scheduler and nothing else."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Args:
        monotonic: seconds that never jump.
        """
        self._monotonic = monotonic
        look_at_new()
        self._looked_at_s = monotonic()
        self._cycled = False

    def cycle_is_over(self) -> None:
        """Set aside what is there."""
        gc.freeze()
        self._cycled = True

    def idle(self) -> None:
        """Look at all if that is due: some 15 us for each node and pod, and pages that it shared are its own then."""
        if self._cycled and self._monotonic() - self._looked_at_s >= _ALL_EVERY_S:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._looked_at_s, self._cycled = self._monotonic(), False


class LogClock:
    """The present time of a cycle: the time of this process's last recorded event, and the time since.

    A cycle tells from recorded times how long a gang has been below its minimum, for how long room has been reserved,
    what may not be observed yet. By a clock that is ahead of the log's, all of that would be over at once. Where the
    process has appended nothing yet, its own clock is all there is.
    """

    def __init__(self, clock: Callable[[], int], monotonic: Callable[[], float]) -> None:
        """Args:
        clock: this machine's, microseconds since the epoch.
        monotonic: seconds that never jump.
        """
        self._clock = clock
        self._monotonic = monotonic
        self._recorded_at, self._heard_s = 0, 0.0

    def appended(self, recorded_at: int) -> None:
        """Take notice that an event of this process has just been recorded.

        Recorded times never fall: they stand still while the database's clock is behind what it once was. Time goes on.
        """
        if recorded_at > self._recorded_at:
            self._recorded_at, self._heard_s = recorded_at, self._monotonic()

    def __call__(self) -> int:
        """Return the time, microseconds since the epoch."""
        if not self._recorded_at:
            return self._clock()
        return self._recorded_at + int((self._monotonic() - self._heard_s) * 1_000_000)


#: Seconds without an event after which a scheduler looks around: one of several at the others too.
_IDLE_S, _ALONE_S = 1.0, 5.0

#: Seconds between two tries to append a cycle with an unknown outcome.
_RETRY_S = 1.0

#: After a cycle that raised whatever is left out, another one is tried when the state has changed, or so much later.
_RAISED_US = 10_000_000

#: Seconds that a replica waits at most after a cycle with conflicts, after the first of a row and after many.
_CONFLICT_S, _CONFLICT_MOST_S = 0.05, 1.0


class CyclePace(BaseModel):
    """Settings of the times of cycles and snapshots."""

    period_ms: int = Field(default=200, ge=0, description="least time between two cycles")
    standby_ms: int = Field(
        default=3000,
        ge=0,
        description="how long to leave the shard to another scheduler of it, where the bus does not tell",
    )
    snapshot_events: int = Field(default=50_000, ge=1, description="how many events between two snapshots of the state")
    check_s: float = Field(
        default=3600.0,
        ge=0,
        description="how often memory and log are compared, samples 60 times as often; 0: never. Shadows do not",
    )

    @property
    def period_s(self) -> float:
        """Least time between the beginnings of two cycles, seconds."""
        return self.period_ms / 1000

    @property
    def standby_s(self) -> float:
        """Time for which a shard is left to another scheduler after its last cycle, seconds."""
        return self.standby_ms / 1000


async def appended(
    log: EventLog, context: ServiceContext, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int]
) -> list[UnitOutcome] | None:
    """Append units, again until the log answers; None where the service is to stop before.

    Whether a failed attempt was appended is not known; the same ids again tell, and append it at most once.

    Raises StaleExpectation: a stream is at another version.
    """
    while True:
        try:
            outcomes = await log.append(cluster, units, expect=expect)
        except LogUnavailable as error:
            context.health.unmet("log", str(error))
            if await context.sleep(_RETRY_S):
                return None
        else:
            context.health.met("log")
            return outcomes


class Scheduler:
    """One shard's scheduler."""

    #: While it waits for events: what ends that.
    _waiting: asyncio.Timeout | None = None

    def __init__(  # long: one argument for each part
        self,
        *,
        log: EventLog,
        feed: EventFeed,
        state: ClusterState,
        config: EngineConfig,
        shard: str,
        replica: str = "",
        live: Live | None = None,
        standby: Standby | None = None,
        instance: str,
        context: ServiceContext,
        metrics: SchedulerMetrics,
        pace: CyclePace | None = None,
        policies: PolicyBook = NO_POLICIES,
        collecting: Collecting | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        feed: begins right after `state`.
        state: at the position that a snapshot was taken at, or empty.
        replica: this scheduler's name among those that share the shard; empty where it has the shard for itself.
        live: which replicas are live; None where there are none.
        standby: tells from when on this one of several schedulers of the shard may decide; by default its cycles tell.
        instance: tells this process from others of the shard.
        policies: the code of those that the settings name.
        collecting: the garbage collector of this process; None where others are in it, too.
        clock: this machine's, microseconds since the epoch; cycles go by the log's (`LogClock`).
        monotonic: seconds that never jump.
        """
        self._log, self._feed = log, feed
        self.state = state
        self._config = config
        self._shard = replica_shard(shard, replica)
        self._replica = replica
        self._actor = f"scheduler/{self._shard}/{instance}"
        self._context, self._metrics = context, metrics
        self._pace = pace or CyclePace()
        self._policies = policies
        self._policies_told: list[str] = []
        self._collecting = collecting
        self._clock = LogClock(clock, monotonic)
        self._monotonic = monotonic
        self._decided_at_revision = -1
        self._last_cycle_s = -1e9
        self._standby = standby or Standby(standby_s=self._pace.standby_s, monotonic=monotonic)
        self._snapshot_at = state.position
        self._trail = Trail(log, state.cluster, schema=SNAPSHOT_SCHEMA)
        reporting = Reporting("scheduler", log, state.cluster, self._actor, clock, context.log)
        self._check = SelfCheck(states(log, state.cluster), reporting, every_s=self._pace.check_s, monotonic=monotonic)
        self._retry_at: int | None = None
        # At which position it was last seen whether there is anything to decide about, and whether there was nothing.
        self._idle = (-1, True)
        # Of the queues' accounts, when it was last seen whether there is anything to report.
        self._accounts_seen = -1
        self._replicas = ReplicaList(
            log, shard=shard, replica=replica, actor=self._actor, live=live, clock=clock, monotonic=monotonic
        )
        # Groups and nodes that the last cycle left out.
        self._left_out: tuple[tuple[str, ...], tuple[str, ...]] = (), ()
        # Cycles in a row of which units were stale, and when the next one may begin.
        self._conflicts, self._not_before_s = 0, -1e9
        metrics.watch(state, config, self._clock)

    async def run(self) -> None:
        """Follow and decide until the service stops."""
        head = await self._log.head(self.state.cluster)
        while self.state.position < head.position and not self._context.stopping.is_set():
            await self._fold(await self._feed.next_batch(timeout_s=1.0))
        self._replicas.begin()
        if self._replica:
            listed = Share(self.state, self._shard, self._config).replicas
            self._metrics.listed(self._shard, listed, taken_over=0)
        self._standby.begin()
        self._check.trust(self.state)
        self._context.health.met("state")
        self._context.log.info("state folded", position=self.state.position, pods=len(self.state.pods))
        while not self._context.stopping.is_set():
            events = await self._next_events()
            if not events and self._collecting is not None:
                self._collecting.idle()
            await self._fold(events)
            while batch := await self._feed.next_batch(timeout_s=0):
                await self._fold(batch)
            await self._keep_list()
            if self._due():
                await self._cycle()
            if self.state.position - self._snapshot_at >= self._pace.snapshot_events:
                await self.save_snapshot()
            else:
                await self._trail.passed(self.state.position, partial(take_state, self.state))
            await self._check_state()
        self._check.stop()

    async def _check_state(self) -> None:
        """Go on with a state folded anew, if a check found that the one in memory is not what the log says."""
        try:
            right = self._check.look(self.state, idle=not self._has_changed())
            if right is None:
                return
            async for _ in fold_on(self._log, right, self.state.position, step=self._pace.snapshot_events):
                pass
        except KaiError as error:
            self._context.log.warning("state not checked", error=str(error))
            return
        self.state.become(right)
        await self._begun_anew()

    def look(self) -> None:
        """Wait for events no longer: who is live has changed, or the service is to stop."""
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def _next_events(self) -> list[Event]:
        """Wait for events until there may be something to do without any."""
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await self._feed.next_batch(timeout_s=self._patience_s())
        except TimeoutError:
            return []
        finally:
            self._waiting = None

    async def leave(self) -> None:
        """Leave the groups to the other replicas, if there are any."""
        await self._replicas.leave(self.state)

    async def _keep_list(self) -> None:
        """Record another list of replicas if it is time."""
        try:
            position = await self._replicas.keep(self.state)
        except LogUnavailable as error:
            self._context.health.unmet("log", str(error))
            return
        if position:
            await self._catch_up(position, [])

    async def save_snapshot(self) -> None:
        """Save the state, if anything happened since the last time; without it the next start takes longer, no more."""
        if self.state.position == self._snapshot_at:
            return
        self._snapshot_at = self.state.position
        snapshot = take_state(self.state)
        if await save_snapshot(self._log, self.state.cluster, snapshot, self._context.log):
            await self._trail.passed(snapshot.position, lambda: snapshot)

    async def _fold(self, events: list[Event]) -> None:
        before = len(self.state.quarantined)
        await self._fold_each(events)
        if self.state.quarantined or before:
            self._tell_quarantined(before)

    def _tell_quarantined(self, before: int) -> None:
        """Say of which events there is no knowing what they say; nothing is decided about their nodes and pods."""
        quarantined = list(self.state.quarantined.values())
        self._context.health.warn("quarantine", quarantine_text(quarantined))
        for event in quarantined[before:]:
            self._context.log.error(
                "event quarantined",
                position=event.position,
                stream=event.stream,
                type=event.type,
                actor=event.actor,
                error=event.error,
            )

    async def _fold_each(self, events: list[Event]) -> None:
        for event in events:
            try:
                self._fold_one(event)
            except UnfoldableEvent as failed:
                self._context.log.error("event cannot be folded: the state is folded anew", error=str(failed))
                # Half changed, it is not to be saved.
                self._snapshot_at = self.state.position
                await self._fold_anew(failed)

    async def _fold_anew(self, failed: UnfoldableEvent) -> None:
        """Go on with the state in which an event is quarantined, and save it for the next start."""
        while not self._context.stopping.is_set():
            try:
                self.state.become(await refolded(self._log, failed))
            except LogUnavailable as error:
                self._context.health.unmet("log", str(error))
                await self._context.sleep(_RETRY_S)
            else:
                self._context.health.met("log")
                await self._begun_anew()
                return
        raise failed

    async def _begun_anew(self) -> None:
        """Decide anew on a state that was folded anew, and save it."""
        self._decided_at_revision, self._idle, self._accounts_seen = -1, (-1, True), -1
        self._snapshot_at = -1
        self._check.trust(self.state)
        await self.save_snapshot()

    def _fold_one(self, event: Event) -> None:
        if event.type == "ReplicasChanged":
            self._fold_list(event)
            return
        self.state.fold(event)
        if event.type == "CycleCompleted" and event.subject == self._shard and event.actor != self._actor:
            self._standby.heard()

    def _fold_list(self, event: Event) -> None:
        """Fold another list of replicas, and count the waiting groups that are this one's from then on."""
        state = self.state
        share = Share(state, self._shard, self._config)
        before = set(share.pending()) if share.replicas else set()
        state.fold(event)
        share = Share(state, self._shard, self._config)
        taken_over = len(share.pending() - before)
        self._metrics.listed(self._shard, share.replicas, taken_over=taken_over)
        self._context.log.info("replicas of the shard", shard=share.shard, replicas=share.replicas, groups=taken_over)
        self._decided_at_revision = -1

    def _patience_s(self) -> float:
        """The time to wait for events before work may be due without any."""
        pause_s = max(0.0, self._pause_s())
        if self._has_changed():
            return pause_s
        most_s = retry_s = _ALONE_S if self._standby.alone and not self._replica else _IDLE_S
        if self._retry_at is not None and self._replicas.listed(self.state):
            retry_s = min(most_s, (self._retry_at - self._now()) / 1e6)
        return max(retry_s, min(pause_s, most_s))

    def _pause_s(self) -> float:
        """The time until a cycle may begin; not positive when one may begin now."""
        begins_at = max(self._last_cycle_s + self._pace.period_s, self._standby.decides_at(), self._not_before_s)
        return begins_at - self._monotonic()

    def _due(self) -> bool:
        if self._pause_s() > 0 or not self._replicas.listed(self.state):
            return False
        retry = self._retry_at is not None and self._now() >= self._retry_at
        return self._has_changed() or retry or self._has_report()

    def _has_changed(self) -> bool:
        if self.state.revision == self._decided_at_revision or not self._replicas.listed(self.state):
            return False
        position, is_idle = self._idle
        if position != self.state.position:
            # A replica may have to look at all groups for it.
            is_idle = idle(self.state, Share(self.state, self._shard, self._config))
            self._idle = self.state.position, is_idle
        return not is_idle

    def _has_report(self) -> bool:
        """True if the queues' standings differ from the last report, so that a cycle reports them."""
        registry, now = self.state.queue_registry, self._now()
        if not self._replicas.listed(self.state) or not Share(self.state, self._shard, self._config).reports:
            return False
        if registry.revision == self._accounts_seen or not may_report(registry, self._config, now=now):
            return False
        self._accounts_seen = registry.revision
        return queue_report(self.state, self._config, shard=self._shard, now=now) is not None

    def _now(self) -> int:
        return max(self._clock(), self.state.recorded_at)

    async def _cycle(self) -> None:
        started = self._last_cycle_s = self._monotonic()
        revision = self.state.revision
        now = self._now()
        proposal = self._decided(now)
        self._decided_at_revision = revision
        if proposal is None:
            self._retry_at = now + _RAISED_US
            return
        decided = self._monotonic()
        await self._append(proposal)
        if self._collecting is not None:
            self._collecting.cycle_is_over()
        self._retry_at = next_retry(self.state, self._config, now=now, due=proposal.result.due)
        self._metrics.cycle(
            proposal.result, decide_s=decided - started, append_s=self._monotonic() - decided, shard=self._shard
        )

    def _decided(self, now: int) -> Proposal | None:
        """Return a cycle, and say what it leaves out because it raises with it; None where it raises all the same."""
        health, log = self._context.health, self._context.log
        try:
            proposal = decide(
                self.state, self._config, shard=self._shard, now=now, actor=self._actor, policies=self._policies
            )
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            health.warn("cycle", f"no cycle comes to an end: {type(error).__name__}: {error}")
            self._metrics.left_out(self._shard, cycles=1)
            log.error("cycle raises", position=self.state.position, exc_info=error)
            return None
        left_out = proposal.left_out
        health.warn("cycle", str(left_out))
        self._metrics.left_out(
            self._shard,
            groups=len(left_out.groups),
            nodes=len(left_out.nodes),
            policies=len(proposal.policies_left_out),
        )
        self._tell_policies(proposal)
        if left_out and self._left_out != (left_out.groups, left_out.nodes):
            log.error("left out of cycles", what=str(left_out), cycle=proposal.cycle, exc_info=left_out.error)
        self._left_out = left_out.groups, left_out.nodes
        return proposal

    def _tell_policies(self, proposal: Proposal) -> None:
        """Say which policies a cycle left out, and why; in the log where these are others than in the last cycle."""
        named = [f"policy {one.policy}: {one.why}: {one.detail}" for one in proposal.policies_left_out]
        self._context.health.warn("policies", "; ".join(named))
        if named and named != self._policies_told:
            self._context.log.error("policies left out of cycles", policies=named, cycle=proposal.cycle)
        self._policies_told = named

    async def _append(self, proposal: Proposal) -> None:
        """Append a cycle and fold up to it; for stale decisions there is another cycle."""
        units = proposal.units
        try:
            outcomes = await appended(self._log, self._context, self.state.cluster, units, expect=proposal.expect)
        except StaleExpectation as error:
            self._decided_at_revision = -1
            if error.stream.startswith("replicas/"):
                # Who has which groups has changed: the cycle was about others than it is to be about now.
                self._metrics.relisted.inc()
            else:
                self._context.log.info("another scheduler leads the shard", shard=self._shard, error=str(error))
                self._metrics.fenced.inc()
                self._standby.heard()
            await self._read_on()
            return
        if outcomes is None:
            return
        stale = [outcome.stale for outcome in outcomes[1:] if outcome.stale is not None]
        self._metrics.decided(self._shard, units=len(outcomes) - 1, stale=stale)
        if stale:
            self._decided_at_revision = -1
        self._back_off(proposal.cycle, conflicts=bool(stale))
        own = [event for outcome in outcomes for event in outcome.events]
        if own:
            self._clock.appended(own[0].recorded_at)
        position = max(outcome.positions[-1] for outcome in outcomes if outcome.positions)
        # Where a part was in the log already, all of it is read: there may be anything between.
        await self._catch_up(position, own if len(own) == sum(len(outcome.positions) for outcome in outcomes) else [])

    def _back_off(self, cycle: str, *, conflicts: bool) -> None:
        """After conflicts with other replicas, wait for longer and longer, each of them for another time."""
        self._conflicts = self._conflicts + 1 if conflicts and self._replica else 0
        wait = backoff(self._conflicts, first=_CONFLICT_S, most=_CONFLICT_MOST_S)
        self._not_before_s = self._monotonic() + jittered(wait, weight(self._replica, cycle) / 2**64)

    async def _read_on(self) -> None:
        """Fold what is in the log by now; without a bus, a feed that is not waited for does not look."""
        try:
            head = await self._log.head(self.state.cluster)
        except LogUnavailable as error:
            self._context.health.unmet("log", str(error))
        else:
            await self._catch_up(head.position, ())

    async def _catch_up(self, position: int, own: Sequence[Event]) -> None:
        while self.state.position < position:
            try:
                await self._fold(await self._feed.catch_up(position, own))
            except LogUnavailable as error:
                self._context.health.unmet("log", str(error))
                if await self._context.sleep(_RETRY_S):
                    return
        self._context.health.met("log")
