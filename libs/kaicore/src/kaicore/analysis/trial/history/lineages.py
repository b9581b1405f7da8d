"""Lineages: a pod and the successors that its controller created in its place, with the time that each would run.

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

from kaicore.analysis.trial.history.pod_stories import PodStory, StoryEnd
from kaicore.rules.deciding.forecast.runs import Run, Survival
from kaicore.rules.model.pod import Pod
from kaicore.rules.state.cluster_state import JOB_INDEX

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
        basis: where that is known from.
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
    """Return what a pod and its successor have in common."""
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
