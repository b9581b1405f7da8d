"""The pods of a simulated history: they are bound, admitted or refused, run, end, are evicted and created again."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from kaicore.analysis.trial.history.lineages import Lineage, LineageRun
from kaicore.analysis.trial.history.reading import Delays, History
from kaicore.analysis.trial.history.simulated_kubelets import SimulatedKubelets
from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import Payload
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import Pod
from kaicore.rules.state.pods.agreement import contradiction
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
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
        history: its lineages are simulated.
        state: folded on by whoever records.
        kubelets: of the nodes.
        clock: the simulation's, microseconds since the epoch.
        later: has something done so many microseconds from now.
        record: appends an event now.
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
        """Go on with the pods that there are, and have the others come."""
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
        """Somebody deletes a lineage."""
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
        """A pod ends by itself."""
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
