"""Follow a cluster's log, and record where the waiting pods of other schedulers would go. Nothing is carried out.

The other scheduler is not waited for: by the time that a pod's creation is read here, its binding may be in the log,
too. So a pod is decided on at the latest right before its binding is folded, on the state as it was then; and earlier
where it waits for longer. Each record names the position that it was decided on, so a replay finds the same.

Of several shadows of the same pods one records; the append is conditional on the shadow's stream, and the others leave
the pods to it for a while (`kai_scheduler.replicas`).
"""

import time
from dataclasses import dataclass, field

from kaicore.analysis.replay.log_states import refolded
from kaicore.errors import StaleExpectation, UnfoldableEvent
from kaicore.ledger.feed import EventFeed
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.snapshots import take_state
from kaicore.rules.deciding.shadow import decide_in_shadow, shadow_config, shadow_shard
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event, NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import PodObserved, PodPlaced, ShadowDecided
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.runtime.service import ServiceContext
from kaicore.runtime.service.recorder import save_snapshot

from kai_scheduler.metrics import SchedulerMetrics
from kai_scheduler.replicas import Standby
from kai_scheduler.scheduler import CyclePace, appended

#: Takes the pods of every scheduler but our own.
EVERY = "*"

#: The longest wait for events, seconds.
_PATIENCE_S = 1.0

#: Seconds that are waited for events at least while another shadow records.
_LEAST_S = 0.02


@dataclass(slots=True)
class _Shadowed:
    """One scheduler with pods that are decided on.

    Attributes:
        config: of its cycles.
        revision: of the state of the last cycle.
        now: the clock of the last cycle.
        uids: the pods that waited in it.
        version: of its stream, as far as it is known.
    """

    config: EngineConfig
    revision: int = -1
    now: int = 0
    uids: frozenset[str] = field(default_factory=frozenset)
    version: int = 0


class Shadow:
    """Decides on the pods of other schedulers."""

    def __init__(
        self,
        *,
        log: EventLog,
        feed: EventFeed,
        state: ClusterState,
        config: EngineConfig,
        schedulers: tuple[str, ...],
        instance: str,
        context: ServiceContext,
        metrics: SchedulerMetrics,
        pace: CyclePace,
        policies: PolicyBook,
    ) -> None:
        """Args:
        feed: begins right after `state`.
        state: at the position that a snapshot was taken at, or empty.
        config: the shard's settings; its own pods are left alone.
        schedulers: their pods are decided on, by `spec.schedulerName`; `EVERY` for all but our own.
        instance: tells this process from others.
        pace: how often cycles are run for pods that had one already, and snapshots saved.
        policies: the code of those that the settings name.
        """
        self.state = state
        self._log = log
        self._feed = feed
        self._config = config
        self._schedulers = schedulers
        self._actor = f"shadow/{instance}"
        self._context = context
        self._metrics = metrics
        self._pace = pace
        self._policies = policies
        self._standby = Standby(standby_s=pace.standby_s, monotonic=time.monotonic)
        self._shadowed: dict[str, _Shadowed] = {}
        self._snapshot_at = state.position

    async def begin(self) -> None:
        """Fold what is in the log by now; what others decided until then is not decided on."""
        head = await self._log.head(self.state.cluster)
        while self.state.position < head.position and not self._context.stopping.is_set():
            for event in await self._feed.next_batch(timeout_s=_PATIENCE_S):
                await self._fold(event)
        self._context.health.met("state")
        self._context.log.info("shadow begins", schedulers=self._schedulers, position=self.state.position)

    async def run(self) -> None:
        """Follow and record until the service is to stop."""
        while not self._context.stopping.is_set():
            timeout_s = _PATIENCE_S if self._all_decided() else max(self._pace.period_s, _LEAST_S)
            batch = await self._feed.next_batch(timeout_s=timeout_s)
            while batch:
                for event in batch:
                    await self._take(event)
                batch = await self._feed.next_batch(timeout_s=0)
            await self._at_the_end()
            if self.state.position - self._snapshot_at >= self._pace.snapshot_events:
                await self.save_snapshot()

    async def save_snapshot(self) -> None:
        """Save the state, if anything happened since the last time; without it the next start takes longer, no more."""
        if self.state.position == self._snapshot_at:
            return
        self._snapshot_at = self.state.position
        await save_snapshot(self._log, self.state.cluster, take_state(self.state), self._context.log)

    async def _at_the_end(self) -> None:
        """Decide on what waits at the log's end, if it is time."""
        now = max(time.time_ns() // 1000, self.state.recorded_at)
        for name in self._waited_for():
            shadowed = self._of(name)
            if now - shadowed.now >= self._pace.period_s * 1e6:
                await self._decide(shadowed, now=now)

    async def _take(self, event: Event) -> None:
        if event.type in ("PodObserved", "PodPlaced"):
            match decode_payload(event):
                case PodObserved(pod) if pod.node_name:
                    await self._before_binding(pod.uid, pod.scheduler_name)
                case PodPlaced(uid) if uid in self.state.pods:
                    # One of our own schedulers decides: its decision comes before its binding.
                    await self._before_binding(uid, self.state.pods[uid].pod.scheduler_name)
                case _:
                    pass
        elif event.type == "ShadowDecided" and event.actor != self._actor:
            self._standby.heard()
        await self._fold(event)

    async def _fold(self, event: Event) -> None:
        """Fold an event; one that cannot be folded is quarantined."""
        try:
            self.state.fold(event)
        except UnfoldableEvent as failed:
            self._context.log.error("event cannot be folded: quarantined", error=str(failed))
            # Half changed, it is not to be saved.
            self._snapshot_at = self.state.position
            self.state.become(await refolded(self._log, failed))

    async def _before_binding(self, uid: str, scheduler: str) -> None:
        """Decide on a waiting pod that another scheduler has bound, on the state without that binding."""
        if uid not in self.state.waiting or not self._follows(scheduler):
            return
        shadowed = self._of(scheduler)
        now = max(self.state.recorded_at, shadowed.now)
        if uid not in shadowed.uids or now - shadowed.now >= self._pace.period_s * 1e6:
            await self._decide(shadowed, now=now)

    def _follows(self, scheduler: str) -> bool:
        if EVERY in self._schedulers:
            return scheduler != self._config.scheduler_name
        return scheduler in self._schedulers

    def _of(self, scheduler: str) -> _Shadowed:
        shadowed = self._shadowed.get(scheduler)
        if shadowed is None:
            shadowed = self._shadowed[scheduler] = _Shadowed(shadow_config(self._config, scheduler))
        return shadowed

    def _waited_for(self) -> list[str]:
        """Return the schedulers with waiting pods."""
        waiting = (self.state.pods[uid].pod.scheduler_name for uid in self.state.waiting)
        return sorted({name for name in waiting if self._follows(name)})

    def _all_decided(self) -> bool:
        return all(self._of(name).revision == self.state.revision for name in self._waited_for())

    async def _decide(self, shadowed: _Shadowed, *, now: int) -> None:
        """Run a cycle, unless nothing has changed since the last one or another shadow records; record what is new."""
        state, config = self.state, shadowed.config
        changed = state.revision != shadowed.revision or now - shadowed.now >= config.recheck_us
        if not changed or self._standby.decides_at() > time.monotonic():
            return
        try:
            decided = decide_in_shadow(state, config, now=now, policies=self._policies)
        except (ArithmeticError, LookupError, AttributeError, TypeError, ValueError) as error:
            self._context.log.error("shadow's cycle raises", scheduler=config.scheduler_name, exc_info=error)
            decided = None
        shadowed.revision, shadowed.now = state.revision, now
        shadowed.uids = frozenset(
            uid for uid in state.waiting if state.pods[uid].pod.scheduler_name == config.scheduler_name
        )
        if decided is not None:
            if decided.more:
                shadowed.revision = -1
            await self._append(shadowed, decided)

    async def _append(self, shadowed: _Shadowed, decided: ShadowDecided) -> None:
        stream = shadow_shard(decided.scheduler)
        event_id = derived_id(self.state.cluster, "ShadowDecided", decided.cycle, self._actor, str(decided.now))
        event = NewEvent(event_id, stream, decided, self._actor, decided.now, decided.shard, correlation=decided.cycle)
        version = max(shadowed.version, self.state.versions.get(stream, 0))
        units, expect = (Unit((event,)),), {stream: version}
        try:
            if await appended(self._log, self._context, self.state.cluster, units, expect=expect) is None:
                return
        except StaleExpectation as error:
            self._context.log.info("another shadow records these pods", error=str(error))
            shadowed.revision, shadowed.uids = -1, frozenset()
            self._standby.heard()
            return
        shadowed.version = version + 1
        self._metrics.shadowed(decided)


def read_schedulers(text: str) -> tuple[str, ...]:
    """Read names of schedulers, divided by commas."""
    return tuple(dict.fromkeys(filter(None, (name.strip() for name in text.split(",")))))
