"""Each pod's life in a window, and its end: the same rule for the recorded history and for a simulated one.

Lineages: a pod and the successors that its controller created in its place, with the time that each would run.

A lineage is what a user asked for, however often its pods were rejected or evicted. Three facts are taken from the log:
when it was created, whether somebody else deleted it, and how long its pods ran before they ended by themselves.
Everything else is done by the scheduler and the kubelets, and is simulated.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from heapq import heappop, heappush

import numpy as np

from kaicore.rules.deciding.forecast.runs import Run, Survival
from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import Payload
from kaicore.rules.model.gpu_share import WHOLE
from kaicore.rules.model.pod import Pod
from kaicore.rules.state.cluster_state import JOB_INDEX
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage, gpus_asked
from kaicore.rules.state.pods.pod_life import LifeEvent, PodLife
from kaicore.rules.state.views import FleetView


class StoryEnd(StrEnum):
    """The end of a pod's story.

    Attributes:
        OPEN: it has not, as far as the window goes.
        FINISHED: it succeeded or failed by itself.
        REJECTED: its kubelet refused it.
        EVICTED: a cycle decided so.
        LOST: its node went, or was not ready, before it did.
        DELETED: somebody else deleted it.
    """

    OPEN = "open"
    FINISHED = "finished"
    REJECTED = "rejected"
    EVICTED = "evicted"
    LOST = "lost"
    DELETED = "deleted"


@dataclass(slots=True)
class PodStory(PodLife):
    """One pod's life in a window; times are recorded times in microseconds since the epoch, 0 for none.

    Attributes:
        pod: as it was when it came, or when the window began; afterwards only what its owner may change of it.
        queue: the one that its group names, or `namespace/` and its namespace where it names none.
        gpus: that it asks for, with parts of GPUs that are shared (`capacity.gpus_asked`).
        placed_at: the time of the state on which that was decided.
        ended_at: when it was known to end: finished, rejected, or about to be deleted.
        succeeded: whether it finished well.
        grace_us: from its deletion to its end, for one that was deleted while it ran.
        checkpoints_us: how long it had run when it wrote each of its checkpoints, in order.
    """

    pod: Pod
    created_at: int
    group: str = ""
    queue: str = ""
    gpus: float = 0
    ended_at: int = 0
    end: StoryEnd = StoryEnd.OPEN
    succeeded: bool = False
    grace_us: int = 0
    checkpoints_us: list[int] = field(default_factory=list)

    @property
    def ran_us(self) -> int:
        """The run time of the pod, as far as it is over."""
        began = self.running_at or self.bound_at
        return max(self.ended_at - began, 0) if began and self.ended_at else 0

    @property
    def unsaved_us(self) -> int:
        """The time from its last checkpoint, or from its start, to its end; 0 if it has not run or not ended."""
        if not self.running_at or not self.ended_at:
            return 0
        return max(self.ended_at - self.running_at - max(self.checkpoints_us, default=0), 0)

    @property
    def lost_gpu_us(self) -> float:
        """Work that its eviction lost, microseconds times its GPUs."""
        return self.gpus * self.unsaved_us if self.end is StoryEnd.EVICTED else 0


class PodStories:
    """Takes a cluster's events in order, each after it was folded."""

    def __init__(self, state: FleetView) -> None:
        """Begin with the pods that a state has (`state`: folded on by the caller)."""
        self.by_uid: dict[str, PodStory] = {}
        self._state = state
        for uid in sorted(state.pods):
            self._begin(state.pods[uid])

    def go_on(self, state: FleetView) -> None:
        """Go on with another state, which is the same so far."""
        self._state = state

    def _begin(self, entry: PodEntry) -> None:
        pod = entry.pod
        story = self.by_uid[pod.uid] = PodStory(pod, pod.created_at * 1_000_000, seen=pod, node=entry.node)
        self._file(story, entry)
        if entry.charged:
            story.placed_at, story.bound = entry.placed_at, entry.stage is Stage.BOUND
            story.bound_at = entry.placed_at if story.bound else 0
            story.running_at = pod.start_time * 1_000_000 or entry.started_at
            story.evicting = entry.evicting or entry.repairing
            if pod.deletion_at is not None:
                self._deleted(story, at=pod.deletion_at * 1_000_000)
        elif entry.stage is Stage.FINISHED:
            story.end = StoryEnd.REJECTED if entry.rejection is not None else StoryEnd.FINISHED
            story.ended_at = story.finished_at = self._state.recorded_at

    def take(self, payload: Payload, *, at: int) -> None:
        """Take an event in (`at`: when it was recorded, microseconds since the epoch)."""
        pod = payload.pod if isinstance(payload, payloads.PodObserved) else None
        story = self.by_uid.get(getattr(payload, "uid", "") if pod is None else pod.uid)
        if story is None and pod is not None:
            story = self.by_uid[pod.uid] = PodStory(pod, at)
        if story is None:
            return
        if pod is not None and not story.node:
            story.pod = pod
        part = story.take(payload, at=at)
        if pod is not None:
            self._seen(story, pod, at)
        elif part is LifeEvent.REJECTED:
            self._end(story, StoryEnd.REJECTED, at)
        elif part is LifeEvent.DELETED:
            self._deleted(story, at=at)
            self._over(story, at)

    def _seen(self, story: PodStory, pod: Pod, at: int) -> None:
        entry = self._state.pods.get(pod.uid)
        if entry is not None:
            self._file(story, entry)
        written_us = pod.checkpoint_at * 1_000_000 - story.running_at
        if story.running_at and written_us > max(story.checkpoints_us, default=0):
            story.checkpoints_us.append(written_us)
        if pod.deletion_at is not None:
            self._deleted(story, at=at)
        if pod.finished:
            story.succeeded = pod.phase == "Succeeded"
            self._over(story, at)
            self._end(story, StoryEnd.REJECTED if story.rejected else StoryEnd.FINISHED, at)

    def _file(self, story: PodStory, entry: PodEntry) -> None:
        queue, namespace = self._state.queue_of(entry)
        story.group, story.queue = entry.group, queue or f"namespace/{namespace}"
        if entry.gpus or not story.gpus:
            story.gpus = gpus_asked(entry) / WHOLE

    def _deleted(self, story: PodStory, *, at: int) -> None:
        if story.end is not StoryEnd.OPEN:
            return
        if story.evicting:
            story.end = StoryEnd.EVICTED
        else:
            story.end = StoryEnd.LOST if story.node and not self._is_well(story.node) else StoryEnd.DELETED
        story.ended_at = at

    def _is_well(self, node: str) -> bool:
        row = self._state.columns.rows.get(node)
        fact = None if row is None else self._state.columns.facts[row]
        return fact is not None and fact.ready

    def _over(self, story: PodStory, at: int) -> None:
        """A pod that was being deleted holds nothing any more."""
        if story.end in (StoryEnd.EVICTED, StoryEnd.LOST, StoryEnd.DELETED) and not story.grace_us:
            story.grace_us = at - story.ended_at

    @staticmethod
    def _end(story: PodStory, end: StoryEnd, at: int) -> None:
        if story.end is StoryEnd.OPEN:
            story.end, story.ended_at = end, at


#: Pods of a kind that must have been seen to end, before their ends tell of the others.
_ENOUGH = 5


class RunBasis(StrEnum):
    """The source of a run's duration.

    Attributes:
        OBSERVED: it was seen to end by itself.
        ESTIMATED: by survival among pods of its kind.
        UNBOUNDED: it runs to the end of the window, for too little is known.
        DELETED: it runs until somebody deletes it, at the time that the log tells.
    """

    OBSERVED = "observed"
    ESTIMATED = "estimated"
    UNBOUNDED = "unbounded"
    DELETED = "deleted"


@dataclass(slots=True)
class LineageRun:
    """One pod's run, if it is let run.

    Attributes:
        run_us: how long; None for to the end of the window, or until it is deleted.
        succeeds: whether it ends well.
        at_least_us: how long it ran, where it was not seen to end.
        gone_us: from its end until the API server has it no more; None where it was not seen to go.
        checkpoints_us: how long it has run when it writes each of its checkpoints; a successor goes on from the last.
    """

    run_us: int | None
    succeeds: bool
    basis: RunBasis
    at_least_us: int = 0
    gone_us: int | None = None
    checkpoints_us: tuple[int, ...] = ()


@dataclass(slots=True)
class Lineage:
    """A pod and the successors that its controller made in its place.

    Attributes:
        stories: the recorded pods, the first one first.
        runs: what its pods do one after the other; after the last one nothing is made again.
        created_at: recorded time, microseconds since the epoch.
        deleted_at: when somebody else than the scheduler deleted it; 0 for never.
    """

    stories: list[PodStory]
    runs: list[LineageRun] = field(default_factory=list)
    deleted_at: int = 0

    @property
    def uid(self) -> str:
        """The first pod's."""
        return self.stories[0].pod.uid

    @property
    def pod(self) -> Pod:
        """The first pod."""
        return self.stories[0].pod

    @property
    def created_at(self) -> int:
        """The time when the first pod came."""
        return self.stories[0].created_at


def trace(stories: Iterable[PodStory], *, end: int) -> list[Lineage]:
    """Link pods to their successors, and say how long each runs.

    The next pod that a controller makes after it has lost one is that one's successor; of an indexed Job the next of
    the same index.

    Args:
        stories: of pods that are the scheduler's.
        end: of the window, microseconds since the epoch.
    """
    lineages: list[Lineage] = []
    vacant: dict[tuple[str, str], deque[Lineage]] = defaultdict(deque)
    leaving: list[tuple[int, int, tuple[str, str], Lineage]] = []
    ordered = sorted(stories, key=lambda story: (story.created_at, story.pod.namespace, story.pod.name, story.pod.uid))
    for number, story in enumerate(ordered):
        while leaving and leaving[0][0] <= story.created_at:
            _, _, place, lineage = heappop(leaving)
            vacant[place].append(lineage)
        place = _place(story.pod)
        if story.pod.owner is not None and vacant[place]:
            lineage = vacant[place].popleft()
        else:
            lineage = Lineage([])
            lineages.append(lineage)
        lineage.stories.append(story)
        if story.pod.owner is not None and _leaves_a_place(story):
            heappush(leaving, (story.evicted_at or story.ended_at, number, place, lineage))
    for lineage in lineages:
        _say_runs(lineage, end=end)
    _estimate(lineages)
    return lineages


def _place(pod: Pod) -> tuple[str, str]:
    return pod.owner.uid if pod.owner is not None else "", pod.annotations.get(JOB_INDEX, "")


def _leaves_a_place(story: PodStory) -> bool:
    failed = story.end is StoryEnd.FINISHED and not story.succeeded
    return failed or story.end in (StoryEnd.REJECTED, StoryEnd.EVICTED, StoryEnd.LOST)


def _say_runs(lineage: Lineage, *, end: int) -> None:
    for story in lineage.stories:
        gone = story.gone_at - story.ended_at if story.gone_at and story.ended_at else None
        if story.end is StoryEnd.FINISHED and story.bound_at:
            written = tuple(story.checkpoints_us)
            run = LineageRun(story.ran_us, story.succeeded, RunBasis.OBSERVED, gone_us=gone, checkpoints_us=written)
            lineage.runs.append(run)
    last = lineage.stories[-1]
    if last.end is StoryEnd.DELETED:
        lineage.deleted_at = last.ended_at
        run = LineageRun(None, True, RunBasis.DELETED, at_least_us=_so_far(last, end))
        lineage.runs.append(replace(run, checkpoints_us=tuple(last.checkpoints_us)))
    elif last.end is not StoryEnd.FINISHED or not lineage.runs:
        longest = max(lineage.stories, key=lambda story: _so_far(story, end))
        run = LineageRun(None, True, RunBasis.UNBOUNDED, at_least_us=_so_far(longest, end))
        lineage.runs.append(replace(run, checkpoints_us=tuple(longest.checkpoints_us)))


def _so_far(story: PodStory, end: int) -> int:
    return max((story.ended_at or end) - story.running_at, 0) if story.running_at else 0


def _estimate(lineages: list[Lineage]) -> None:
    """Say how long those run that were not seen to end: half of those like it that have run for as long run longer."""
    curves = _curves(lineages)
    for lineage in lineages:
        for run in lineage.runs:
            if run.basis is not RunBasis.UNBOUNDED:
                continue
            for kind in _kinds(lineage):
                more = _median_more(curves[kind], run.at_least_us) if kind in curves else None
                if more is not None:
                    run.run_us, run.basis = run.at_least_us + more, RunBasis.ESTIMATED
                    break


def _median_more(curve: Survival, age_us: int) -> int | None:
    more = int(curve.remaining(np.array([age_us]), np.array([0.5]))[0])
    return None if more < 0 else more


def _kinds(lineage: Lineage) -> tuple[tuple[str, ...], ...]:
    """Return the kinds that a lineage is of, the narrowest first."""
    story, owner = lineage.stories[0], lineage.pod.owner
    kind = owner.kind if owner is not None else ""
    return (
        ("owner", owner.uid if owner is not None else ""),
        ("queue", story.queue, kind, str(story.gpus)),
        ("kind", kind),
    )


def _curves(lineages: Iterable[Lineage]) -> Mapping[tuple[str, ...], Survival]:
    runs: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for lineage in lineages:
        for run in lineage.runs:
            ended = run.basis is RunBasis.OBSERVED and run.run_us is not None
            lasted = run.run_us if ended and run.run_us is not None else run.at_least_us
            for kind in _kinds(lineage) if lasted else ():
                runs[kind].append(Run(lasted, ended=ended))
    return {kind: Survival(of_kind) for kind, of_kind in runs.items() if sum(one.ended for one in of_kind) >= _ENOUGH}
