"""A window of history simulated again: a discrete-event simulation in virtual time, on a state of its own.

Facts from outside arrive at their recorded times. Cycles run as in the scheduler, on the same fold and by the same
`decide`; a model of kubelets answers each bind. Every other step takes its median duration in the window. No clock is
read and no random number is drawn: the same window and the same changes give the same run.

Events are folded at once, and stored nowhere.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from typing import Any

import msgspec

from kaicore.analysis.life.pod_stories import Lineage, LineageRun, PodStories
from kaicore.analysis.trial.history.alternative import Changes
from kaicore.analysis.trial.history.reading import Delays, Fact, History, Sampler
from kaicore.analysis.trial.simulation.kubelets import Kubelets, SimulatedKubelets
from kaicore.rules.deciding.cycle_input import idle, next_retry
from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.engine.work.provisioning import ProvisioningConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import NewEvent, derived_id
from kaicore.rules.events.payloads import Payload
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.replicas import split_shard
from kaicore.rules.state.fork import fold_unlogged
from kaicore.rules.state.pods.agreement import contradiction
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
from kaicore.rules.state.snapshot import decode_state
from kaicore.rules.state.views import PodsView

#: From a node's end until the garbage collector takes its pods.
COLLECTED_US = 40_000_000
#: The longest wait of a controller before it replaces a pod after several losses in a row.
_LONGEST_BACKOFF_US = 600_000_000

_replace = msgspec.structs.replace


@dataclass(slots=True)
class _SimulatedPod:
    """A pod that has not ended.

    Attributes:
        pod: as the API server would have it.
        lineage: None for one of another scheduler, or that was terminating when the window began.
        leaving: it is being deleted.
    """

    pod: Pod
    lineage: Lineage | None
    leaving: bool = False


@dataclass(slots=True)
class _Course:
    """The progress of a lineage.

    Attributes:
        run: number of the run that is next or at work.
        saved_us: how much of that run the last checkpoint of a lost pod has.
        made: how many pods were made for it, the first one included.
        losses: how many pods it has lost one after the other.
        current: uid of its last pod.
        closed: somebody deleted it; no more pods are made.
    """

    run: int = 0
    saved_us: int = 0
    made: int = 1
    losses: int = 0
    current: str = ""
    closed: bool = False


class SimulatedPods:
    """Does what a binder, kubelets, exporters and controllers do, each a while later."""

    def __init__(
        self,
        history: History,
        state: PodsView,
        kubelets: SimulatedKubelets,
        *,
        clock: Callable[[], int],
        later: Callable[[int, Callable[[], None]], None],
        record: Callable[[str, Payload], None],
        adapted: Callable[[Payload], Payload | None],
    ) -> None:
        """Args:
        state: folded on by whoever records.
        clock: the simulation's, microseconds since the epoch.
        later: has something done so many microseconds from now.
        adapted: returns a fact with what is to be different; None for one that does not happen.
        """
        #: Uid of the lineage of each simulated pod, by its uid.
        self.lineage_of: dict[str, str] = {}
        self._history = history
        self._delays = history.delays
        self._state = state
        self._kubelets = kubelets
        self._clock = clock
        self._later = later
        self._record = record
        self._adapted = adapted
        self._pods: dict[str, _SimulatedPod] = {}
        self._courses: dict[str, _Course] = {lineage.uid: _Course() for lineage in history.lineages}

    # What comes from outside.

    def begin(self) -> None:
        """Go on with the present pods, and have the others come."""
        begin = self._history.begin
        for lineage in self._history.lineages:
            entry = self._state.pods.get(lineage.uid)
            if entry is None:
                self._later(lineage.created_at - begin, partial(self._come, lineage))
            else:
                self._go_on(entry, lineage)
            if lineage.deleted_at:
                self._later(lineage.deleted_at - begin, partial(self._delete, lineage))
        for uid in sorted(self._state.pods.keys() - self._courses.keys()):
            entry = self._state.pods[uid]
            if uid in self._history.foreign:
                if entry.charged:
                    self._pods[uid] = _SimulatedPod(entry.pod, None)
                continue
            story = self._history.stories.get(uid)
            gone = story.gone_at - begin if story is not None and story.gone_at else None
            if entry.charged:
                self._pods[uid] = _SimulatedPod(entry.pod, None, leaving=True)
                self._later(gone or self._delays.end, partial(self._go, uid))
            elif gone is not None:
                self._later(gone, partial(self._forget, uid))

    def _come(self, lineage: Lineage) -> None:
        self._make(lineage, _new(lineage.pod))

    def _make(self, lineage: Lineage, pod: Pod) -> None:
        payload = self._adapted(payloads.PodObserved(pod))
        assert isinstance(payload, payloads.PodObserved)
        self._pods[pod.uid] = _SimulatedPod(payload.pod, lineage)
        self.lineage_of[pod.uid], self._courses[lineage.uid].current = lineage.uid, pod.uid
        self._see(payload.pod)

    def _go_on(self, entry: PodEntry, lineage: Lineage) -> None:
        """Go on with a pod that was there when the window began."""
        uid, begin = entry.pod.uid, self._history.begin
        self._pods[uid] = _SimulatedPod(entry.pod, lineage)
        self.lineage_of[uid], self._courses[lineage.uid].current = lineage.uid, uid
        if entry.stage is Stage.PLACED:
            self._later(self._delays.bind, lambda: self._bind(uid))
        elif entry.stage is Stage.BOUND and not entry.started_at:
            self._later(self._delays.start, lambda: self._run(uid))
        elif entry.stage is Stage.BOUND:
            since = lineage.stories[0].running_at
            self._courses[lineage.uid].saved_us = max(entry.pod.checkpoint_at * 1_000_000 - since, 0)
            self._work(uid, lineage.runs[0], ran_us=begin - since)
        if entry.evicting or entry.repairing:
            self._later(self._delays.evict, lambda: self._evict(uid))

    def changed(self, pod: Pod) -> None:
        """Somebody changed a pod that waited in the log; where it still waits here, it changes too."""
        mine = self._pods.get(pod.uid)
        entry = self._state.pods.get(pod.uid)
        if mine is None or mine.leaving or entry is None or entry.stage is not Stage.WAITING:
            return
        mine.pod = _replace(pod, node_name="", phase="Pending", nominated_node="")
        self._see(mine.pod)

    def foreign(self, stream: str, payload: payloads.PodObserved | payloads.PodDeleted) -> None:
        """A pod of another scheduler is as the log has it; only its zones are the simulated kubelet's."""
        self._record(stream, payload)
        uid = payload.pod.uid if isinstance(payload, payloads.PodObserved) else payload.uid
        known = self._pods.get(uid)
        over = isinstance(payload, payloads.PodDeleted) or payload.pod.finished
        if over:
            if known is not None:
                self._kubelets.remove(known.pod, known.pod.node_name)
                del self._pods[uid]
            return
        assert isinstance(payload, payloads.PodObserved)
        pod = payload.pod
        if known is None and pod.node_name and self._kubelets.has(pod.node_name):
            self._pods[uid] = _SimulatedPod(pod, None)
            answer = self._kubelets.admit(pod, pod.node_name)
            if answer.refusal is not None:
                # It runs there all the same, as the log tells.
                self._kubelets.take_up(pod, pod.node_name, None)
            else:
                self._later(self._delays.observe, lambda: self._observe(uid, answer.placement))

    def lose_node(self, node: str, *, after: int = COLLECTED_US) -> None:
        """A node is gone, or was not ready for too long: so many microseconds later its pods are gone too."""
        for entry in [entry for entry in self._state.pods.values() if entry.node == node and entry.charged]:
            uid = entry.pod.uid
            mine = self._pods.get(uid)
            if mine is not None and mine.lineage is not None and not mine.leaving:
                mine.leaving = True
                self._later(after, partial(self._lose, uid))

    def _lose(self, uid: str) -> None:
        mine = self._pods.get(uid)
        if mine is not None:
            self._go(uid)
            self._replace_lost(mine)

    def _delete(self, lineage: Lineage) -> None:
        course = self._courses[lineage.uid]
        course.closed = True
        if course.current in self._pods:
            self._terminate(course.current)

    def _terminate(self, uid: str) -> None:
        mine = self._pods[uid]
        if mine.leaving:
            return
        mine.leaving = True
        if self._state.pods[uid].stage is Stage.WAITING:
            self._go(uid)
            return
        mine.pod = _replace(mine.pod, deletion_at=self._now_s())
        self._see(mine.pod)
        self._later(self._delays.end, lambda: self._go(uid))

    # What follows from decisions.

    def placed(self, decision: payloads.PodPlaced) -> None:
        """A cycle placed a pod: the binder binds it."""
        uid = decision.uid
        self._later(self._own(uid).bind, lambda: self._bind(uid))

    def to_evict(self, uid: str) -> None:
        """A cycle decided that a pod has to go."""
        self._later(self._delays.evict, lambda: self._evict(uid))

    def _bind(self, uid: str) -> None:
        mine, entry = self._pods.get(uid), self._state.pods.get(uid)
        if mine is None or mine.leaving or entry is None or entry.stage is not Stage.PLACED:
            return
        pod, node = mine.pod, entry.node
        if not self._kubelets.has(node):
            failed = payloads.BindFailed(uid, pod.namespace, pod.name, node, 404, "NotFound", gone=False)
            self._record(f"pod/{uid}", failed)
            return
        self._record(f"pod/{uid}", payloads.PodBound(uid, pod.namespace, pod.name, node))
        mine.pod = _replace(pod, node_name=node)
        self._see(mine.pod)
        answer = self._kubelets.admit(mine.pod, node)
        if answer.refusal is not None:
            refusal = answer.refusal
            self._later(self._delays.refuse, lambda: self._refuse(uid, refusal.reason, refusal.message))
            return
        own = self._own(uid)
        self._later(own.start, lambda: self._run(uid))
        predicted = entry.predicted
        if predicted is not None or any(item.zones or item.spans for item in answer.containers):
            self._later(own.observe, lambda: self._observe(uid, answer.placement))

    def _own(self, uid: str) -> Delays:
        """Return how long a pod's own steps took in the log; by the median what it did not do there."""
        story, usual = self._history.stories.get(uid), self._delays
        if story is None or not story.bound_at > story.placed_at > self._history.begin:
            return usual
        bound = story.bound_at
        return replace(
            usual,
            bind=bound - story.placed_at,
            start=story.running_at - bound if story.running_at >= bound else usual.start,
            observe=story.observed_at - bound if story.observed_at >= bound else usual.observe,
        )

    def _refuse(self, uid: str, reason: str, message: str) -> None:
        mine = self._pods.pop(uid, None)
        if mine is None:
            return
        pod = _replace(mine.pod, phase="Failed", reason=reason, message=f"Pod was rejected: {message}")
        self._see(pod)
        rejected = payloads.PodRejected(uid, pod.namespace, pod.name, pod.node_name, reason, message)
        self._record(f"pod/{uid}", rejected)
        self._replace_lost(mine)

    def _run(self, uid: str) -> None:
        mine = self._pods.get(uid)
        if mine is None or mine.leaving or mine.lineage is None:
            return
        mine.pod = _replace(mine.pod, phase="Running", start_time=self._now_s())
        self._see(mine.pod)
        course = self._courses[mine.lineage.uid]
        course.losses = 0
        self._work(uid, mine.lineage.runs[course.run], ran_us=course.saved_us)

    def _work(self, uid: str, run: LineageRun, *, ran_us: int) -> None:
        """A pod goes on with a run of which so much is done: it writes checkpoints, and ends."""
        for written_us in run.checkpoints_us:
            if written_us > ran_us:
                self._later(written_us - ran_us, partial(self._write_checkpoint, uid, written_us))
        if run.run_us is not None:
            self._later(max(run.run_us - ran_us, 0), lambda: self._finish(uid))

    def _write_checkpoint(self, uid: str, ran_us: int) -> None:
        """A pod writes a checkpoint of what it has done: a successor would go on from there."""
        mine = self._pods.get(uid)
        if mine is None or mine.leaving or mine.lineage is None:
            return
        self._courses[mine.lineage.uid].saved_us = ran_us
        mine.pod = _replace(mine.pod, checkpoint_at=self._now_s())
        self._see(mine.pod)

    def _observe(self, uid: str, placement: Placement) -> None:
        entry = self._state.pods.get(uid)
        if not self._history.observing or entry is None or not entry.charged:
            return
        pod, node, predicted = entry.pod, entry.node, entry.predicted
        ids = uid, pod.namespace, pod.name, node
        self._record(f"pod/{uid}", payloads.PlacementObserved(*ids, placement))
        cause = None if predicted is None else contradiction(predicted, placement)
        if cause is not None:
            self._record(f"pod/{uid}", payloads.PredictionMissed(*ids, "", cause, predicted, placement))

    def _finish(self, uid: str) -> None:
        mine = self._pods.get(uid)
        if mine is None or mine.leaving or mine.lineage is None:
            return
        del self._pods[uid]
        lineage, course = mine.lineage, self._courses[mine.lineage.uid]
        run = lineage.runs[course.run]
        self._kubelets.remove(mine.pod, mine.pod.node_name)
        self._see(_replace(mine.pod, phase="Succeeded" if run.succeeds else "Failed"))
        if run.gone_us is not None:
            self._later(run.gone_us, lambda: self._forget(uid))
        course.run, course.saved_us = course.run + 1, 0
        if course.run < len(lineage.runs):
            self._later(self._delays.replace, lambda: self._make_again(lineage, mine.pod))

    def _evict(self, uid: str) -> None:
        mine, entry = self._pods.get(uid), self._state.pods.get(uid)
        if mine is None or entry is None or mine.leaving or not (entry.evicting or entry.repairing):
            return
        pod = mine.pod
        self._record(f"pod/{uid}", payloads.PodEvicted(uid, pod.namespace, pod.name, entry.node))
        self._terminate(uid)
        self._replace_lost(mine)

    # Ends and successors.

    def _go(self, uid: str) -> None:
        """A pod is gone, and holds nothing any more."""
        mine = self._pods.pop(uid, None)
        if mine is None:
            return
        entry = self._state.pods.get(uid)
        if entry is not None and entry.node:
            self._kubelets.remove(mine.pod, entry.node)
        self._forget(uid)

    def _forget(self, uid: str) -> None:
        entry = self._state.pods.get(uid)
        if entry is not None:
            self._record(f"pod/{uid}", payloads.PodDeleted(uid, entry.pod.namespace, entry.pod.name))

    def _replace_lost(self, mine: _SimulatedPod) -> None:
        """A controller makes another pod in place of one that was lost; each time in a row a Job waits for longer."""
        if mine.lineage is None or mine.pod.owner is None:
            return
        lineage, course = mine.lineage, self._courses[mine.lineage.uid]
        wait = self._delays.replace
        if mine.pod.owner.kind == "Job":
            wait = max(wait, min(wait << min(course.losses, 20), _LONGEST_BACKOFF_US))
        course.losses += 1
        self._later(wait, lambda: self._make_again(lineage, mine.pod))

    def _make_again(self, lineage: Lineage, before: Pod) -> None:
        course = self._courses[lineage.uid]
        if course.closed:
            return
        number, course.made = course.made, course.made + 1
        recorded = lineage.stories[number].pod if number < len(lineage.stories) else None
        # As recorded where there was one; a StatefulSet's keeps its name, others get a new one.
        same = before.owner is not None and before.owner.kind == "StatefulSet"
        name = recorded.name if recorded is not None else before.name if same else f"{lineage.pod.name}-again-{number}"
        if same:
            for uid in [uid for uid, one in self._pods.items() if one.pod.subject == before.subject and one.leaving]:
                self._go(uid)
        uid = recorded.uid if recorded is not None else f"{lineage.uid}-again-{number}"
        self._make(lineage, _new(_replace(before, uid=uid, name=name, created_at=self._now_s())))

    # Facts.

    def _see(self, pod: Pod) -> None:
        """The watcher records a pod as it is now."""
        self._record(f"pod/{pod.uid}", payloads.PodObserved(pod))

    def _now_s(self) -> int:
        return self._clock() // 1_000_000


def _new(pod: Pod) -> Pod:
    """Return a pod as it is before anything happened to it."""
    status: dict[str, Any] = {"phase": "Pending", "reason": "", "message": "", "start_time": 0, "nominated_node": ""}
    return _replace(pod, node_name="", deletion_at=None, checkpoint_at=0, **status)


_ACTOR = "what-if"
#: No event of a simulation is looked for by its id.
_ID = derived_id(_ACTOR)


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


class Rerun:
    """One run of a window.

    Attributes:
        events, cycles: how many there were.
        warnings: what could not be simulated as it was, one line each.
    """

    def __init__(
        self, history: History, changes: Changes, model: Kubelets, *, policies: PolicyBook = NO_POLICIES
    ) -> None:
        """Args:
        model: of kubelets, new for this run.
        policies: the code of those that the settings name.
        """
        self.now = history.begin
        self.state = decode_state(history.state)
        self.stories = PodStories(self.state)
        self.sampler = Sampler(self.state, begin=history.begin, end=history.end)
        self.events = self.cycles = 0
        self.warnings: list[str] = []
        self._history = history
        self._changes = changes
        self._policies = policies
        self._left_out = Counter[tuple[str, str]]()
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
        self._append(NewEvent(_ID, stream, payload, _ACTOR, self.now))

    def _append(self, event: NewEvent) -> None:
        fold_unlogged(self.state, event, recorded_at=self.now)
        self.events += 1
        self.stories.take(event.payload, at=self.now)

    def run(self, *, progress: Callable[[int, int], None] = lambda _, __: None) -> None:
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
            if self.events >= reported:
                reported = self.events + _TOLD_EVERY
                progress((self.now - history.begin) // 1000, (history.end - history.begin) // 1000)
        self.warnings += self._kubelets.warnings
        self.warnings += [
            f"{self._changes.patch.name}: policy {name} was left out of {count} of {self.cycles} cycles: {why}"
            for (name, why), count in sorted(self._left_out.items())
        ]

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
                # The end of pods on nodes that are absent from the beginning is not waited for.
                self.pods.lose_node(name, after=COLLECTED_US if self.cycles else 0)
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
        proposal = decide(
            self.state, shard.config, shard=shard.name, now=self.now, actor=_ACTOR, policies=self._policies
        )
        self._left_out.update((one.policy, one.why) for one in proposal.policies_left_out)
        # With one decider none of it is stale.
        for unit in proposal.units:
            for event in unit.events:
                self._append(event)
        shard.retry_at = next_retry(self.state, shard.config, now=self.now, due=proposal.result.due)
        self.cycles += 1
        for placement in proposal.result.placements:
            self.pods.placed(placement)
        for eviction in proposal.result.evictions:
            self.pods.to_evict(eviction.uid)
        for repair in proposal.result.repairs:
            self.pods.to_evict(repair.uid)
