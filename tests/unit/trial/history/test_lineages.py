"""Pods that take each other's place, and the run time of each without interruption."""

from typing import Any

import msgspec
from kaicore.analysis.life.pod_stories import PodStory, RunBasis, StoryEnd, trace
from kaicore.rules.model.pod import Owner
from kaicore.rules.state.cluster_state import JOB_INDEX

from tests.given.cluster.factory import pod

S = 1_000_000
END = 1000 * S
JOB = Owner("Job", "train", "uid-train")


def story(name: str, created: int, *, owner: Owner | None = JOB, index: str = "", **fields: Any) -> PodStory:
    """A pod's story; times in seconds."""
    annotations = {JOB_INDEX: index} if index else {}
    made = msgspec.structs.replace(pod(name, cpu=1), owner=owner, annotations=annotations)
    times = {key: value * S for key, value in fields.items() if key.endswith("_at")}
    others = {key: value for key, value in fields.items() if not key.endswith("_at")}
    return PodStory(made, created * S, **times, **others)


def ran(name: str, created: int, seconds: int, *, succeeded: bool = True, **more: Any) -> PodStory:
    began = created + 1
    times = {"bound_at": began, "running_at": began, "ended_at": began + seconds}
    return story(name, created, end=StoryEnd.FINISHED, succeeded=succeeded, **times, **more)


def names(stories: list[PodStory]) -> list[list[str]]:
    return [[one.pod.name for one in lineage.stories] for lineage in trace(stories, end=END)]


def test_a_pod_that_was_rejected_runs_for_as_long_as_its_successor_did() -> None:
    rejected = story("a", 0, bound_at=1, ended_at=2, end=StoryEnd.REJECTED)
    (lineage,) = trace([rejected, ran("b", 3, 60)], end=END)
    assert [one.pod.name for one in lineage.stories] == ["a", "b"]
    assert [(run.run_us, run.basis) for run in lineage.runs] == [(60 * S, RunBasis.OBSERVED)]


def test_a_pod_that_failed_by_itself_does_so_again_before_its_successor_runs() -> None:
    (lineage,) = trace([ran("a", 0, 10, succeeded=False), ran("b", 15, 60)], end=END)
    assert [(run.run_us, run.succeeds) for run in lineage.runs] == [(10 * S, False), (60 * S, True)]


def test_successors_are_of_one_owner_and_of_one_index_and_come_after_the_loss() -> None:
    lost = [
        story("a-0", 0, index="0", bound_at=1, ended_at=5, evicted_at=4, end=StoryEnd.EVICTED),
        story("a-1", 0, index="1", bound_at=1, ended_at=5, evicted_at=4, end=StoryEnd.EVICTED),
        story("bare", 0, owner=None, bound_at=1, ended_at=5, end=StoryEnd.EVICTED),
    ]
    later = [
        story("early", 3, index="0"),
        story("b-1", 6, index="1"),
        story("b-0", 7, index="0"),
        story("new", 8, owner=None),
    ]
    assert names([*lost, *later]) == [["a-0", "b-0"], ["a-1", "b-1"], ["bare"], ["early"], ["new"]]


def test_a_pod_that_somebody_deleted_runs_until_then_and_has_no_successor() -> None:
    deleted = story("a", 0, bound_at=1, running_at=2, ended_at=50, end=StoryEnd.DELETED)
    first, second = trace([deleted, story("b", 51)], end=END)
    assert first.deleted_at == 50 * S
    assert [(run.run_us, run.basis) for run in first.runs] == [(None, RunBasis.DELETED)]
    assert second.deleted_at == 0


def test_a_pod_that_still_runs_goes_on_as_half_of_its_kind_that_ran_for_as_long_did() -> None:
    ended = [ran(f"a{number}", 0, seconds) for number, seconds in enumerate((10, 20, 300, 400, 500))]
    (run,) = trace([*ended, story("b", 899, bound_at=900, running_at=900)], end=END)[-1].runs
    # It has run for 100 s; of the three that ran for longer, half were over after 400 s.
    assert (run.run_us, run.basis) == (400 * S, RunBasis.ESTIMATED)


def test_a_pod_of_whose_kind_few_were_seen_to_end_runs_to_the_end_of_the_window() -> None:
    (run,) = trace([ran("a", 0, 10), story("b", 899, bound_at=900, running_at=900)], end=END)[-1].runs
    assert (run.run_us, run.basis) == (None, RunBasis.UNBOUNDED)
