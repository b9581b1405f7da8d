"""A reader of a window of the log: facts from outside the scheduler, durations, and the recorded outcome.

The reader takes from the log what the scheduler does not decide. That is: objects that users and controllers created
and deleted, nodes that came and went, and how long pods ran. Decisions and their consequences are left out and
simulated.

Along the way it takes samples of the cluster's GPUs, for the figures of the recorded run.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles
from typing import get_args

from kaicore.analysis.ask.projections.capacity import gpu_columns, gpus_held
from kaicore.analysis.life.pod_stories import Lineage, PodStories, PodStory, StoryEnd, trace
from kaicore.ledger.log.port import EventLog
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import Payload
from kaicore.rules.model.gpu_share import WHOLE
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.indexes.cluster_constraints import FACTS
from kaicore.rules.state.registries.queue_registry import QueueFact
from kaicore.rules.state.snapshot import encode_state
from kaicore.rules.state.views import FleetView
from kaicore.rules.topology.book import TopologyFact

#: Moments of a window at which figures are taken at most, and at which stranded GPUs are looked for.
MOST_SAMPLES, MOST_LOOKS = 2000, 240


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of GPUs from one moment until the next sample.

    Attributes:
        at: microseconds since the epoch.
        gpus: that nodes have; as all numbers of GPUs here, with the parts of GPUs that are shared.
        held: of these, those that pods hold.
        fragmented: of these nodes, those on which some GPUs are held and some are not.
        stranded: see `kaicore.analysis.ask.projections.capacity`.
        waiting: pods that wait for a decision.
    """

    at: int
    gpus: float
    held: float
    nodes: int
    fragmented: int
    stranded: float
    waiting: int


class Sampler:
    """Takes figures whenever something has changed, so many times in a window at most."""

    def __init__(self, state: FleetView, *, begin: int, end: int) -> None:
        """Args:
        state: folded on by the caller.
        begin: of the window, microseconds since the epoch.
        """
        self.samples: list[Sample] = []
        self._state = state
        self._every = max((end - begin) // MOST_SAMPLES, 1)
        self._look_every = max((end - begin) // MOST_LOOKS, 1)
        self._next = self._next_look = begin
        self._stranded = 0

    def take(self, *, at: int) -> None:
        """Take figures, unless the last ones are young; `at` is in microseconds since the epoch."""
        if at < self._next:
            return
        self._next = at - at % self._every + self._every
        if at >= self._next_look:
            self._next_look = at - at % self._look_every + self._look_every
            self._stranded = gpu_columns(self._state).sum().stranded
        self.samples.append(self._sample(at))

    def _sample(self, at: int) -> Sample:
        state = self._state
        total, held = gpus_held(state)
        return Sample(
            at=at,
            gpus=int(total.sum()) / WHOLE,
            held=int(held.sum()) / WHOLE,
            nodes=int((total > 0).sum()),
            fragmented=int(((held > 0) & (held < total)).sum()),
            stranded=min(self._stranded, int(total.sum() - held.sum())) / WHOLE,
            waiting=len(state.waiting),
        )


#: Events read at once.
_PAGE = 2000

#: Facts that are taken as they are; those about pods are looked at one by one.
_PASSED_ON: tuple[type[Payload], ...] = (
    payloads.NodeObserved,
    payloads.NodeDeleted,
    payloads.TopologyDeleted,
    payloads.PriorityClassObserved,
    payloads.PriorityClassDeleted,
    payloads.GroupSourceObserved,
    payloads.GroupSourceDeleted,
    *get_args(TopologyFact),
    *get_args(QueueFact),
    *FACTS,
)


@dataclass(frozen=True, slots=True)
class Fact:
    """Something from outside (`at`: when it was recorded, microseconds since the epoch)."""

    at: int
    stream: str
    payload: Payload


@dataclass(frozen=True, slots=True)
class Delays:
    """Median durations in the window; microseconds.

    Attributes:
        bind: from the decision to the binding.
        start: from the binding until the pod was seen to run.
        refuse: from the binding to the kubelet's rejection.
        observe: from the binding to the first observation of an exporter.
        evict: from the decision to the deletion.
        end: from the deletion of a running pod to its end.
        replace: from the loss of a pod until its controller made another.
        cycle: between the beginnings of two cycles at least: the tenth percentile.
        notice: from a change until a cycle that knows it: the ninetieth percentile.
    """

    bind: int = 50_000
    start: int = 1_000_000
    refuse: int = 100_000
    observe: int = 1_000_000
    evict: int = 100_000
    end: int = 1_000_000
    replace: int = 500_000
    cycle: int = 200_000
    notice: int = 1_000_000


@dataclass(frozen=True, slots=True)
class ShardConfig:
    """From when on a shard was set how."""

    at: int
    shard: str
    config: EngineConfig


@dataclass(slots=True)
class History:
    """A window of a cluster's log.

    Attributes:
        begin: the time of the state in which it begins, microseconds since the epoch; `end` likewise.
        state: as it begins (`kaicore.rules.state.snapshot`).
        lineages: of the scheduler's pods.
        foreign: uids of pods of other schedulers.
        configs: in order of time; at least one.
        cycle_times: of the recorded cycles by shard, in order: of the state on which each was decided.
        observing: whether exporters observed pods.
        stories: the recorded ones, by uid.
    """

    cluster: str
    begin: int
    end: int
    state: bytes
    facts: list[Fact]
    lineages: list[Lineage]
    foreign: frozenset[str]
    configs: list[ShardConfig]
    cycle_times: dict[str, list[int]]
    delays: Delays
    observing: bool
    stories: dict[str, PodStory]
    samples: list[Sample]
    events: int
    cycles: int


async def read_history(
    log: EventLog,
    state: ClusterState,
    upto: int,
    *,
    set_as: EngineConfig | None = None,
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> History:
    """Read a window.

    Args:
        state: at the position after which the window begins; it is folded on.
        upto: position of the window's last event.
        set_as: settings of one scheduler for the whole window and its pods; None for what was recorded.
        progress: called with how many events are read, and how many there are.
    """
    begin_position = state.position
    end = (await log.read(state.cluster, after=upto - 1, upto=upto, limit=1))[0].recorded_at
    reader = _Reader(state, end=end, set_as=set_as)
    while state.position < upto:
        for event in await log.read(state.cluster, after=state.position, upto=upto, limit=_PAGE):
            payload = decode_payload(event)
            state.fold(event)
            reader.take(event.stream, payload, at=event.recorded_at)
        progress(state.position - begin_position, upto - begin_position)
    return reader.history()


class _Reader:
    """Takes the window's events, each after it was folded."""

    def __init__(self, state: ClusterState, *, end: int, set_as: EngineConfig | None = None) -> None:
        self._state = state
        self._set_as = set_as
        self._position, self._encoded = state.position, encode_state(state)
        self._begin, self._end = state.recorded_at, end
        self._facts: list[Fact] = []
        self._pods: list[Fact] = []
        #: By shard and time, the digest of the configuration from then on.
        self._digests = [(self._begin, shard, state.config_digest) for shard in sorted(state.last_cycles)]
        #: When each event of the window was recorded.
        self._times = array("q")
        self._cycle_times: dict[str, list[int]] = {}
        #: By cycle, the time of the state on which it was decided.
        self._inputs: dict[str, int] = {}
        self._notices: list[int] = []
        self._gaps: list[int] = []
        self._last_cycle: dict[str, int] = {}
        self._cycles = self._events = 0
        self._observing = bool(state.counters.reported)
        self._topologies = {one.node: one.lasting() for one in state.columns.topologies if one is not None}
        self._unbound = {key for key, claim in state.constraints.volumes.claims.items() if not claim.volume}
        self._stories = PodStories(state)
        self._decided: dict[str, int] = {}
        self._evictions: list[int] = []
        self._sampler: Sampler | None = None

    def take(self, stream: str, payload: Payload, *, at: int) -> None:
        """Take an event."""
        self._events += 1
        self._times.append(at)
        if self._sampler is None:
            # A log that is read from its first event begins then.
            self._begin = self._begin or at
            self._sampler = Sampler(self._state, begin=self._begin, end=self._end)
        self._stories.take(payload, at=at)
        match payload:
            case payloads.CycleCompleted():
                self._cycle(payload, at)
            case payloads.PodPlaced(uid=uid, cycle=cycle) if uid in self._stories.by_uid:
                self._stories.by_uid[uid].placed_at = self._inputs.get(cycle, at)
            case payloads.PodObserved() | payloads.PodDeleted():
                self._pods.append(Fact(at, stream, payload))
            case payloads.PlacementObserved(source="exporter"):
                self._observing = True
            case payloads.EvictionDecided(uid=uid) | payloads.RepairRequested(uid=uid):
                self._decided[uid] = at
            case payloads.PodEvicted(uid=uid) if uid in self._decided:
                self._evictions.append(at - self._decided[uid])
            case _ if self._is_from_outside(payload):
                self._facts.append(Fact(at, stream, payload))
        self._sampler.take(at=at)

    def _is_from_outside(self, payload: Payload) -> bool:
        match payload:
            case payloads.TopologyObserved(topology):
                # What else a NodeResourceTopology tells of is what its pods held, which is simulated.
                lasting = topology.lasting()
                news = self._topologies.get(topology.node) != lasting
                self._topologies[topology.node] = lasting
                return news
            case payloads.TopologyDeleted(node=node):
                self._topologies.pop(node, None)
                return True
            case payloads.PersistentVolumeClaimObserved(claim):
                # Which volume a claim gets follows from where its pod goes.
                if not claim.volume and not claim.selected_node:
                    self._unbound.add(claim.key)
                return claim.key not in self._unbound or not (claim.volume or claim.selected_node)
            case payloads.ResourceClaimObserved(claim):
                # Likewise, which devices.
                if claim.allocation is None:
                    self._unbound.add(f"device {claim.key}")
                return claim.allocation is None or f"device {claim.key}" not in self._unbound
            case payloads.PersistentVolumeObserved(volume):
                return volume.claim not in self._unbound
        return isinstance(payload, _PASSED_ON)

    def _cycle(self, payload: payloads.CycleCompleted, at: int) -> None:
        self._cycles += 1
        times = self._cycle_times.setdefault(payload.shard, [])
        place = payload.input_position - self._position
        known = self._times[place - 1] if place > 0 else self._begin
        news = bisect_right(self._times, times[-1] if times else self._begin)
        if news < place:
            self._notices.append(known - self._times[news])
        times.append(known)
        self._inputs[payload.cycle] = known
        before = self._last_cycle.get(payload.shard)
        if before is not None:
            self._gaps.append(payload.now - before)
        last = next((digest for _, shard, digest in reversed(self._digests) if shard == payload.shard), None)
        if last != payload.config_digest:
            # A shard that decided nothing before the window was set the same when that began.
            self._digests.append((self._begin if last is None else at, payload.shard, payload.config_digest))
        self._last_cycle[payload.shard] = payload.now

    def history(self) -> History:
        """Return what was read."""
        assert self._sampler is not None
        configs = self._configs()
        names = {one.config.scheduler_name for one in configs}
        stories = self._stories.by_uid
        ours = [story for story in stories.values() if story.pod.scheduler_name in names]
        foreign = frozenset(stories) - {story.pod.uid for story in ours}
        facts = [*self._facts, *self._pod_facts(foreign)]
        going_on = (story for story in ours if story.end is StoryEnd.OPEN or story.ended_at > self._begin)
        lineages = trace(going_on, end=self._end)
        return History(
            cluster=self._state.cluster,
            begin=self._begin,
            end=self._end,
            state=self._encoded,
            facts=sorted(facts, key=lambda fact: fact.at),
            lineages=lineages,
            foreign=foreign,
            configs=configs,
            cycle_times=self._cycle_times if self._set_as is None else {},
            delays=self._delays(ours, lineages),
            observing=self._observing,
            stories={story.pod.uid: story for story in ours},
            samples=self._sampler.samples,
            events=self._events,
            cycles=self._cycles,
        )

    def _configs(self) -> list[ShardConfig]:
        if self._set_as is not None:
            return [ShardConfig(self._begin, "default", self._set_as)]
        documents = self._state.configs
        configs = [
            ShardConfig(at, shard, EngineConfig.recorded(documents[digest]))
            for at, shard, digest in self._digests
            if digest in documents
        ]
        return configs or [ShardConfig(self._begin, "default", EngineConfig())]

    def _pod_facts(self, foreign: frozenset[str]) -> Iterator[Fact]:
        """Yield all about other schedulers' pods; of ours what was changed of them while they waited."""
        seen: set[str] = set()
        for fact in self._pods:
            payload = fact.payload
            if isinstance(payload, payloads.PodDeleted):
                if payload.uid in foreign:
                    yield fact
                continue
            assert isinstance(payload, payloads.PodObserved)
            pod = payload.pod
            changed = pod.uid in seen and not pod.node_name and pod.deletion_at is None
            if pod.uid in foreign or (changed and not pod.finished):
                yield fact
            seen.add(pod.uid)

    def _delays(self, ours: list[PodStory], lineages: list[Lineage]) -> Delays:
        """Return medians of what was seen, and the defaults where nothing was."""
        usual = Delays()
        bound = [story for story in ours if story.bound_at > self._begin]

        def middle(times: Iterable[int], default: int) -> int:
            positive = [time for time in times if time >= 0]
            return int(median(positive)) if positive else default

        return Delays(
            bind=middle((story.bound_at - story.placed_at for story in bound if story.placed_at), usual.bind),
            start=middle((story.running_at - story.bound_at for story in bound if story.running_at), usual.start),
            refuse=middle(
                (story.ended_at - story.bound_at for story in bound if story.end is StoryEnd.REJECTED), usual.refuse
            ),
            observe=middle((story.observed_at - story.bound_at for story in bound if story.observed_at), usual.observe),
            evict=middle(self._evictions, usual.evict),
            end=middle((story.grace_us for story in bound if story.grace_us), usual.end),
            replace=middle(
                (
                    after.created_at - (before.evicted_at or before.ended_at)
                    for lineage in lineages
                    for before, after in pairwise(lineage.stories)
                ),
                usual.replace,
            ),
            notice=int(quantiles(self._notices, n=10)[8]) if len(self._notices) > 1 else usual.notice,
            cycle=max(int(quantiles(self._gaps, n=10)[0]), usual.cycle) if len(self._gaps) > 1 else usual.cycle,
        )
