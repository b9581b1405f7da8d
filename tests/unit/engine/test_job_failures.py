"""Evictions and the failures that a Job bears: no pod is moved at the price of a Job; and members that succeeded."""

from typing import Any

import pytest
from kaicore.rules.deciding.why import pending_reasons, story_of
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.payloads import EvictionDecided
from kaicore.rules.model.pod import Owner

from tests.given.cluster.factory import pod
from tests.given.work.groups import job
from tests.given.work.workloads import Workloads, gpu_nodes

IGNORES = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
COUNTS = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "False"}]}]}
FAILS = {"rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
FIRST_RULE = {
    "rules": [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
        {"action": "Ignore", "onPodConditions": [{"type": "Other"}, {"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
}


@pytest.mark.parametrize(
    ("spec", "failed", "moves"),
    [
        pytest.param({}, 0, True, id="six by default"),
        pytest.param({}, 5, True, id="the sixth is borne"),
        pytest.param({}, 6, False, id="the seventh is not"),
        pytest.param({"backoffLimit": 0}, 0, False, id="none"),
        pytest.param({"backoffLimit": 0, "podFailurePolicy": IGNORES}, 0, True, id="evictions are ignored"),
        pytest.param({"backoffLimit": 0, "podFailurePolicy": FIRST_RULE}, 0, True, id="the first rule about it counts"),
        pytest.param({"backoffLimit": 0, "podFailurePolicy": COUNTS}, 0, False, id="a rule about its absence"),
        pytest.param({"podFailurePolicy": FAILS}, 0, False, id="an eviction fails it at once"),
        pytest.param({"backoffLimitPerIndex": 1}, 9, True, id="by index, of which this one has not failed yet"),
        pytest.param({"backoffLimitPerIndex": 0}, 0, False, id="by index, none"),
    ],
)
def test_pods_whose_job_would_fail_are_not_moved(spec: dict[str, Any], failed: int, moves: bool) -> None:
    cluster = gpu_nodes(2)
    train, other = job(cluster, spec=spec, failed=failed), job(cluster, "other", spec={"backoffLimit": 0})
    cluster.runs("train-0", "n0", 4, owner=train)
    cluster.runs("other-0", "n1", 4, owner=other)
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    assert set(cluster.evicted(cluster.cycle())) == ({"train-0"} if moves else set())
    if not moves:
        reasons = pending_reasons(cluster.state.pods["uid-whole"], cluster.state)
        (annotations,) = [reason for reason in reasons if reason.code == "JobWouldFail"]
        assert str(annotations) == (
            "2 groups stay, because their Jobs count evictions as failures and allow no more (such as Job.batch "
            "default/other): a podFailurePolicy that ignores DisruptionTarget would let them be moved"
        )


@pytest.mark.parametrize(("failed", "moves"), [(1, True), (2, False)])
def test_failures_of_an_index_are_told_by_its_pods(failed: int, moves: bool) -> None:
    cluster = gpu_nodes(2)
    train, other = job(cluster, spec={"backoffLimitPerIndex": 2}), job(cluster, "other", spec={"backoffLimit": 0})
    annotations = {"batch.kubernetes.io/job-index-failure-count": str(failed)}
    cluster.runs("train-0", "n0", 4, owner=train, annotations=annotations)
    cluster.runs("other-0", "n1", 4, owner=other)
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    assert bool(cluster.cycle().evictions) is moves


def test_a_job_bears_no_more_evictions_at_once_than_one_after_the_other() -> None:
    """Both of its pods would have to move, and it bears one."""
    cluster = gpu_nodes(2)
    train, other = job(cluster, spec={"backoffLimit": 1}), job(cluster, "other", spec={"backoffLimit": 0})
    for number in range(2):
        cluster.runs(f"train-{number}", "n0", 2, owner=train)
    cluster.runs("other-0", "n1", 4, owner=other)
    cluster.add_pod(pod("whole", cpu=1, gpu=8))
    assert not cluster.cycle().evictions


def test_pods_that_leave_already_count_as_failures() -> None:
    cluster = gpu_nodes(3)
    train, other = job(cluster, spec={"backoffLimit": 1}), job(cluster, "other", spec={"backoffLimit": 0})
    for number in range(2):
        cluster.runs(f"train-{number}", f"n{number}", 2, owner=train)
    cluster.runs("other-0", "n2", 4, owner=other)
    cluster.add_pod(pod("first", cpu=1, gpu=8))
    (first,) = cluster.cycle(EngineConfig(consolidate_cooldown_us=0)).evictions
    assert first.failures_left == 0
    cluster.add_pod(pod("second", cpu=1, gpu=8))
    assert not cluster.cycle(EngineConfig(consolidate_cooldown_us=0)).evictions


def preempted(cluster: Workloads) -> list[EvictionDecided]:
    cluster.add_pod(pod("high", cpu=1, gpu=8, priority=5))
    return list(cluster.cycle().evictions)


@pytest.mark.parametrize(
    ("spec", "left", "words"),
    [
        ({"backoffLimit": 3}, 2, "; its Job counts that as a failure and bears 2 more"),
        ({"backoffLimit": 0}, -1, "; its Job counts that as a failure, bears no more and fails"),
        ({"backoffLimit": 0, "podFailurePolicy": IGNORES}, None, ""),
    ],
)
def test_an_eviction_says_what_it_is_to_the_job(spec: dict[str, Any], left: int | None, words: str) -> None:
    """Higher priority has its way all the same."""
    cluster = gpu_nodes(1)
    cluster.runs("train-0", "n0", 8, owner=job(cluster, spec=spec))
    (eviction,) = preempted(cluster)
    assert eviction.failures_left == left
    story = story_of([event for event in cluster.events if event.stream == "pod/uid-train-0"])
    assert f"to make way for Pod/default/high{words}; chosen for pod/default/high at cost" in story[-1].text


def test_pod_whose_job_would_not_fail_goes_before_a_cheaper_one() -> None:
    cluster = gpu_nodes(2)
    cluster.runs("a-0", "n0", 8, owner=job(cluster, "a", spec={"backoffLimit": 0}))
    cluster.runs("b-0", "n1", 4, owner=job(cluster, "b"))
    cluster.runs("b-1", "n1", 4, owner=job(cluster, "b"))
    assert {eviction.name for eviction in preempted(cluster)} == {"b-0", "b-1"}


def test_a_job_that_was_made_again_under_its_name_bears_nothing_for_the_pods_of_the_old_one() -> None:
    cluster = gpu_nodes(1)
    job(cluster, spec={"backoffLimit": 0})
    cluster.runs("train-0", "n0", 8, owner=Owner("Job", "train", "uid-of-another", "batch/v1"))
    (eviction,) = preempted(cluster)
    assert eviction.failures_left is None


MINIMUM = {"kai.scheduler/batch-min-member": "3"}


def gang_of(cluster: Workloads, succeeded: int | None) -> Owner:
    """A Job of which three start together; so many have succeeded."""
    return job(cluster, "g", annotations=MINIMUM, succeeded=succeeded)


@pytest.mark.parametrize(
    ("succeeded", "there", "starts"),
    [
        pytest.param(2, 0, True, id="two have succeeded and were deleted"),
        pytest.param(1, 0, False, id="one has: two are missing"),
        pytest.param(None, 2, True, id="two have, are there, and the Job does not say so yet"),
        pytest.param(2, 2, True, id="two have and are there"),
        pytest.param(1, 1, False, id="one has and is there: it counts once"),
        pytest.param(2, 1, True, id="of two that have, one is there"),
    ],
)
def test_members_that_succeeded_count_whether_or_not_they_are_still_there(
    succeeded: int | None, there: int, starts: bool
) -> None:
    cluster = gpu_nodes(1)
    owner = gang_of(cluster, succeeded)
    for number in range(there):
        cluster.add_pod(pod(f"g-{number}", cpu=1, gpu=1, node_name="n0", phase="Succeeded", owner=owner))
    cluster.add_pod(pod("g-last", cpu=1, gpu=1, owner=owner))
    assert bool(cluster.cycle().placements) is starts


def test_waiting_gang_starts_when_its_owner_reports_ended_pods() -> None:
    """All run, two succeed, their pods are deleted, and the third is made again."""
    cluster = gpu_nodes(1)
    owner = gang_of(cluster, 0)
    first = [cluster.add_pod(pod(f"g-{number}", cpu=1, gpu=1, owner=owner)) for number in range(3)]
    cluster.full(*first)
    for one in first[:2]:
        cluster.see(one, phase="Succeeded")
        cluster.delete_pod(one)
    cluster.delete_pod(first[2])
    cluster.add_pod(pod("g-3", cpu=1, gpu=1, owner=owner))
    assert not cluster.cycle().placements
    gang_of(cluster, 2)
    assert set(cluster.placed(cluster.cycle())) == {"g-3"}
