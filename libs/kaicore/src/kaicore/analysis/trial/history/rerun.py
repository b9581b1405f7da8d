"""A window of history simulated again: a discrete-event simulation in virtual time, on a state of its own.

Facts from outside arrive at their recorded times. Cycles run as in the scheduler, on the same fold and by the same
`decide`; a model of kubelets answers each bind. Every other step takes its median duration in the window. No clock is
read and no random number is drawn: the same window and the same changes give the same run.

Events are appended to a log that folds each at once and stores none.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush

from kaicore.analysis.trial.history.alternative import Changes
from kaicore.analysis.trial.history.pod_stories import PodStories
from kaicore.analysis.trial.history.reading import Fact, History, Sampler
from kaicore.analysis.trial.history.simulated_kubelets import SimulatedKubelets
from kaicore.analysis.trial.history.simulated_pods import COLLECTED_US, SimulatedPods
from kaicore.analysis.trial.simulation.kubelets import Kubelets
from kaicore.rules.deciding.cycle_input import idle, next_retry
from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.work.provisioning import ProvisioningConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import Payload
from kaicore.rules.model.replicas import split_shard
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import fold_unlogged
from kaicore.rules.state.snapshot import decode_state

_ACTOR = "what-if"
#: No event of a simulation is looked for by its id.
_ID = derived_id(_ACTOR)


class SimulatedLog:
    """Goes on where a state is."""

    def __init__(self, state: ClusterState, taken: Callable[[Payload, int], None]) -> None:
        """Args:
        state: folded on.
        taken: is called with each payload, and when it was recorded, once it is folded.
        """
        self.state = state
        self.events = 0
        self._taken = taken

    def record(self, stream: str, payload: Payload, *, at: int) -> None:
        """Append an event.

        Args:
            stream: that it is of.
            payload: what it says.
            at: microseconds since the epoch; never less than before.
        """
        self._append(stream, payload, at=at, occurred_at=at, actor=_ACTOR)

    def append(self, units: Iterable[Unit], *, at: int) -> None:
        """Append what a cycle decided; with one decider none of it is stale."""
        for unit in units:
            for event in unit.events:
                self._of_cycle(event, at)

    def _of_cycle(self, event: NewEvent, at: int) -> None:
        self._append(event.stream, event.payload, at=at, occurred_at=event.occurred_at, actor=event.actor)

    def _append(self, stream: str, payload: Payload, *, at: int, occurred_at: int, actor: str) -> None:
        fold_unlogged(self.state, NewEvent(_ID, stream, payload, actor, occurred_at), recorded_at=at)
        self.events += 1
        self._taken(payload, at)


#: Microseconds that pods stay on a node that is not ready: the default `tolerationSeconds`.
NOT_READY_US = 300_000_000

#: Events of the simulation between two reports of progress.
_TOLD_EVERY = 200


@dataclass(slots=True)
class _Shard:
    """A scheduler: how it is set, and when it runs next."""

    name: str
    config: EngineConfig
    last: int = 0
    decided_at: int = -1
    retry_at: int | None = None


class Agenda:
    """A queue of due things by time; things due at the same time come in the order of entry."""

    def __init__(self) -> None:
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0

    def enter(self, at: int, do: Callable[[], None]) -> None:
        """Have something done."""
        self._number += 1
        heappush(self._due, (at, self._number, do))

    @property
    def next(self) -> int | None:
        """The time of the next due thing; None for never."""
        return self._due[0][0] if self._due else None

    def take(self) -> Callable[[], None]:
        """Return what is due next, and forget it."""
        return heappop(self._due)[2]


@dataclass(slots=True)
class RerunFigures:
    """The work that a run took.

    Attributes:
        events: that were folded.
        cycles: that were run.
        warnings: what could not be simulated as it was, one line each.
    """

    events: int = 0
    cycles: int = 0
    warnings: list[str] = field(default_factory=list)


class Rerun:
    """One run of a window."""

    def __init__(self, history: History, changes: Changes, model: Kubelets) -> None:
        """Args:
        history: the window.
        changes: what is to be different.
        model: of kubelets, new for this run.
        """
        self.now = history.begin
        self.state = decode_state(history.state)
        self.stories = PodStories(self.state)
        self.sampler = Sampler(self.state, begin=history.begin, end=history.end)
        self.figures = RerunFigures()
        self._history = history
        self._changes = changes
        self._log = SimulatedLog(self.state, lambda payload, at: self.stories.take(payload, at=at))
        self._agenda = Agenda()
        self._kubelets = SimulatedKubelets(self.state, model)
        self.pods = SimulatedPods(
            history,
            self.state,
            self._kubelets,
            clock=lambda: self.now,
            later=lambda after, do: self._agenda.enter(self.now + after, do),
            record=self.record,
            adapted=changes.adapted,
        )
        # What replicas of a shard decided side by side, one scheduler decides here.
        first = {split_shard(one.shard)[0]: one.config for one in reversed(history.configs)}
        self._shards = [_Shard(name, self._set(first[name])) for name in sorted(first)]

    def _set(self, config: EngineConfig) -> EngineConfig:
        """Return a shard's settings with the changes; no node that is asked for is added here."""
        return self._changes.config(config, provisioning=ProvisioningConfig())

    def record(self, stream: str, payload: Payload) -> None:
        """Append an event now."""
        self._log.record(stream, payload, at=self.now)

    def run(self, *, progress: Callable[[int, int], None] = lambda _, __: None) -> RerunFigures:
        """Run to the window's end.

        Args:
            progress: called with how much of the window's time is over, and how much there is, in milliseconds.
        """
        history = self._history
        self._begin()
        reported = 0
        while (at := self._next()) is not None and at <= history.end:
            self.now = max(self.now, at)
            while self._agenda.next is not None and self._agenda.next <= self.now:
                self._agenda.take()()
            for shard in self._shards:
                if self._due(shard) == self.now:
                    self._cycle(shard)
            self.sampler.take(at=self.now)
            if self._log.events >= reported:
                reported = self._log.events + _TOLD_EVERY
                progress((self.now - history.begin) // 1000, (history.end - history.begin) // 1000)
        self.figures.events = self._log.events
        self.figures.warnings += self._kubelets.warnings
        return self.figures

    def _begin(self) -> None:
        changes = self._changes.at_start(self.state)
        for stream, payload in changes:
            if isinstance(payload, payloads.PodObserved):
                self.record(stream, payload)
        self.pods.begin()
        for stream, payload in changes:
            if not isinstance(payload, payloads.PodObserved):
                self._from_outside(stream, payload)
        for fact in self._history.facts:
            self._agenda.enter(fact.at, partial(self._fact, fact))
        for one in self._history.configs:
            self._agenda.enter(one.at, partial(self._configure, split_shard(one.shard)[0], one.config))

    def _configure(self, name: str, config: EngineConfig) -> None:
        for shard in self._shards:
            if shard.name == name:
                shard.config = self._set(config)

    # Facts.

    def _fact(self, fact: Fact) -> None:
        payload = self._changes.adapted(fact.payload)
        if payload is not None:
            self._from_outside(fact.stream, payload)

    def _from_outside(self, stream: str, payload: Payload) -> None:
        match payload:
            case payloads.PodObserved(pod) if pod.uid not in self._history.foreign:
                self.pods.changed(pod)
            case payloads.PodObserved() | payloads.PodDeleted():
                self.pods.foreign(stream, payload)
            case payloads.NodeObserved(node):
                self.record(stream, payload)
                self._kubelets.look_at(node.name)
                if not node.ready:
                    self._agenda.enter(self.now + NOT_READY_US, partial(self._lose_if_unready, node.name))
            case payloads.TopologyObserved(topology):
                self.record(stream, payload)
                self._kubelets.look_at(topology.node)
            case payloads.NodeDeleted(name=name):
                self.record(stream, payload)
                self._kubelets.look_at(name)
                # Of a node that is not to be there from the beginning on, the pods' end is not waited for.
                self.pods.lose_node(name, after=COLLECTED_US if self.figures.cycles else 0)
            case _:
                self.record(stream, payload)

    def _lose_if_unready(self, node: str) -> None:
        since = self.state.node_readiness.not_ready_since.get(node)
        if since is not None and self.now - since >= NOT_READY_US:
            self.pods.lose_node(node)

    # Cycles.

    def _next(self) -> int | None:
        times = [self._agenda.next, *(self._due(shard) for shard in self._shards)]
        return min((time for time in times if time is not None), default=None)

    def _due(self, shard: _Shard) -> int | None:
        delays = self._history.delays
        earliest = max(shard.last + delays.cycle, self.now)
        if self.state.revision != shard.decided_at and not idle(self.state):
            # As the recorded scheduler did, if it had a cycle then: else pods that came together are decided on apart.
            times = self._history.cycle_times.get(shard.name, ())
            place = bisect_left(times, max(self.now, shard.last + 1))
            recorded = place < len(times) and times[place] <= earliest + delays.notice
            return times[place] if recorded else earliest
        return None if shard.retry_at is None else max(shard.retry_at, earliest)

    def _cycle(self, shard: _Shard) -> None:
        shard.decided_at, shard.last = self.state.revision, self.now
        proposal = decide(self.state, shard.config, shard=shard.name, now=self.now, actor="what-if")
        self._log.append(proposal.units, at=self.now)
        shard.retry_at = next_retry(self.state, shard.config, now=self.now, due=proposal.result.due)
        self.figures.cycles += 1
        for placement in proposal.result.placements:
            self.pods.placed(placement)
        for eviction in proposal.result.evictions:
            self.pods.to_evict(eviction.uid)
        for repair in proposal.result.repairs:
            self.pods.to_evict(repair.uid)
