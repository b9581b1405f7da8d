"""The changes of an alternative: priorities and queues, of waiting and of later work."""

from functools import partial

import pytest
from kai_fleet.offline import OfflineKubelets
from kaicore.analysis.trial.history.alternative import HistoryQuestion, PatchText
from kaicore.analysis.trial.history.comparison import HistoryComparison, compare_history
from kaicore.rules.events import payloads
from kaicore.rules.model.group import GroupSource
from kaicore.rules.model.pod import PriorityClass
from kaicore.rules.model.queue import Queue, QueueShare

from tests.given.doubles.virtual_storm import VirtualStorm
from tests.given.logs.recorded_history import PROFILE, log_of, manifest

#: Seconds between two pods.
_APART = 0.5


def two_teams(seconds: float, *, queue_b: str = "team-b") -> VirtualStorm:
    """Return a cluster of 4 places: eight pods of team-a come, then four of team-b, of priority class `urgent`."""
    storm = VirtualStorm(PROFILE, seed=1)
    urgent = PriorityClass("urgent", "urgent", "1", 10)
    storm.cluster.record("priorityclass/urgent", payloads.PriorityClassObserved(urgent))
    free = {"cpu": QueueShare(None), "memory": QueueShare(None)}
    for team in ("team-a", "team-b"):
        queue = Queue(team, uid=team, resource_version="1", shares={"gpu": QueueShare(2), **free})
        storm.cluster.record(f"queue/{team}", payloads.QueueObserved(queue))
    for number in range(12):
        team = "team-a" if number < 8 else queue_b
        pod = manifest(f"p{number}", seconds=seconds, cpu=5, gpu=1, owner=f"job-{number}")
        pod["metadata"]["labels"] = {"kai.scheduler/queue": team}
        job = GroupSource("Job.batch", f"uid-job-{number}", "default", f"job-{number}", "1", queue=team)
        if number >= 8:
            pod["spec"] |= {"priorityClassName": "urgent", "priority": 10}
        storm.cluster.record(f"group/{job.key}", payloads.GroupSourceObserved(job))
        storm.later(number * _APART, partial(storm.create, pod))
    # The queues' turn comes in the simulation only: this cluster evicts nothing.
    storm.run(12 * _APART + 30)
    return storm


@pytest.fixture(scope="module")
def storm() -> VirtualStorm:
    return two_teams(25)


async def ask(storm: VirtualStorm, *patches: str) -> HistoryComparison:
    texts = tuple(PatchText(name=f"patch-{number}", text=text) for number, text in enumerate(patches))
    question = HistoryQuestion(settings=("actions=[allocate, reclaim, preempt]",), patches=texts)
    return await compare_history(await log_of(storm.cluster.events), "test", question, OfflineKubelets)


async def test_a_queue_with_a_larger_quota_keeps_what_it_has_at_the_cost_of_another(storm: VirtualStorm) -> None:
    answer = await ask(
        storm,
        "queues: {team-a: {resources: {gpu: {quota: 4, weight: 1}}}, team-b: {resources: {gpu: {quota: 0}}}}",
        "queues: {team-a: {resources: {gpu: {limit: 2}}}}",
    )
    generous, bounded = ({queue.queue: queue for queue in one.result.queues} for one in answer.alternatives)
    baseline = {queue.queue: queue for queue in answer.baseline.queues}
    assert baseline["team-a"].preemptions > generous["team-a"].preemptions == bounded["team-a"].preemptions == 0
    assert generous["team-b"].waits.p50 > baseline["team-b"].waits.p50
    assert generous["team-a"].gpu_hours > bounded["team-a"].gpu_hours
    assert bounded["team-a"].waits.p50 > baseline["team-a"].waits.p50


async def test_priorities_decide_who_is_preempted() -> None:
    answer = await ask(two_teams(25, queue_b="team-a"), "priorities: {urgent: -1}")
    (alternative,) = answer.alternatives
    assert answer.baseline.preemptions > 0
    assert alternative.result.preemptions == 0
