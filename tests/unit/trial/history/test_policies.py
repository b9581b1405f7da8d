"""The report of the best policies, and what evictions cost in a simulated history."""

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from kai_cli.trials.what_if_history import policies_text
from kai_fleet.offline import OfflineKubelets
from kaicore.analysis.trial.history.alternative import BEST_POLICIES, HistoryQuestion
from kaicore.analysis.trial.history.comparison import HistoryComparison, compare_history
from kaicore.rules.engine.config import Backfill, EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.model.group import GroupSource
from kaicore.rules.model.pod import LAST_CHECKPOINT_ANNOTATION, PriorityClass

from tests.given.doubles.virtual_storm import VirtualStorm
from tests.given.logs.recorded_history import PROFILE, log_of, manifest

_GANG = "gang.scheduling.koordinator.sh"


async def ask(storm: VirtualStorm, **question: Any) -> HistoryComparison:
    log = await log_of(storm.cluster.events)
    return await compare_history(log, "test", HistoryQuestion(**question), OfflineKubelets)


@pytest.fixture(scope="module")
def report() -> HistoryComparison:
    """A gang wants both nodes, and pods of half a zone's time come one after the other, each with a limit."""
    storm = VirtualStorm(PROFILE, seed=1, config=EngineConfig(backfill=Backfill.OFF))
    for number in range(28):
        pod = manifest(f"p{number}", seconds=12, gpu=4, owner=f"job-{number}")
        pod["spec"]["activeDeadlineSeconds"] = 14
        job = GroupSource("Job.batch", f"uid-job-{number}", "default", f"job-{number}", "1")
        storm.cluster.record(f"group/{job.key}", payloads.GroupSourceObserved(job))
        storm.later(number * 3.0, partial(storm.create, pod))
    for member in range(4):
        pod = manifest(f"gang-{member}", seconds=10, gpu=4)
        pod["metadata"]["annotations"] |= {f"{_GANG}/name": "gang", f"{_GANG}/min-available": "4"}
        pod["spec"]["activeDeadlineSeconds"] = 12
        storm.later(10, partial(storm.create, pod))
    storm.run(100)
    return asyncio.run(ask(storm, policies=True))


def waits_of_the_gang(report: HistoryComparison) -> dict[str, float]:
    """The wait of the only job of 16 GPUs, seconds, by run."""
    results = [report.baseline, *(one.result for one in report.alternatives)]
    return {
        result.name: next(size.waits.p50 or 0.0 for size in result.waiting_times if size.gpus == "9-64")
        for result in results
    }


def test_a_large_gang_starts_under_the_policies_that_reserve_and_not_under_the_one_that_fills(
    report: HistoryComparison,
) -> None:
    waits = waits_of_the_gang(report)
    assert list(waits) == ["baseline", "fill", "reserve", "reserve-and-move"]
    assert waits["fill"] == pytest.approx(waits["baseline"], abs=10)
    assert max(waits["reserve"] * 3, 60) < waits["fill"]
    assert waits["reserve-and-move"] <= waits["reserve"]


def test_the_report_has_the_waits_of_each_queue_under_each_policy(report: HistoryComparison) -> None:
    text = policies_text(report)
    for policy in BEST_POLICIES:
        assert f"{policy.name}: {policy.meaning}" in text
    figures, waits, hours = text.rsplit("\n\n", 3)[1:]
    for figure in ("GPU allocation rate (GAR), mean", "evictions", "GPU hours lost"):
        (row,) = (line for line in figures.splitlines() if line.strip().startswith(figure))
        assert len(row.strip().removeprefix(figure).split()) == 2 + len(BEST_POLICIES), row
    assert waits.splitlines()[0] == "waits by queue, p50 / p99:"
    assert waits.splitlines()[1].split() == ["QUEUE", "recorded", "baseline", *(one.name for one in BEST_POLICIES)]
    queue = waits.splitlines()[2]
    assert queue.startswith("namespace/default")
    assert queue.count("/") == 1 + 5
    assert hours.splitlines()[2].startswith("namespace/default")


def write_checkpoint(storm: VirtualStorm, name: str) -> None:
    metadata: dict[str, Any] = storm.pods[name].wire["metadata"]
    at = datetime.fromtimestamp(storm.cluster.now // 1_000_000, UTC)
    metadata["annotations"] = metadata["annotations"] | {LAST_CHECKPOINT_ANNOTATION: at.isoformat()}
    storm._tell(name)


def test_an_evicted_pod_loses_the_work_since_its_checkpoint_and_its_successor_goes_on_from_there() -> None:
    def run(*, checkpoints: bool) -> HistoryComparison:
        storm = VirtualStorm(PROFILE, seed=1)
        urgent = PriorityClass("urgent", "urgent", "1", 10)
        storm.cluster.record("priorityclass/urgent", payloads.PriorityClassObserved(urgent))
        for number in range(5):
            pod = manifest(f"p{number}", seconds=100 if number < 4 else 20, gpu=4, owner=f"job-{number}")
            if number == 4:
                pod["spec"] |= {"priorityClassName": "urgent", "priority": 10}
            job = GroupSource("Job.batch", f"uid-job-{number}", "default", f"job-{number}", "1")
            storm.cluster.record(f"group/{job.key}", payloads.GroupSourceObserved(job))
            storm.later(60 if number == 4 else 0, partial(storm.create, pod))
        for number in range(4) if checkpoints else ():
            storm.later(50, partial(write_checkpoint, storm, f"p{number}"))
        # The window lasts until then. This cluster evicts nothing; the simulation does.
        storm.later(260, partial(storm.create, manifest("last", seconds=1)))
        storm.run(270)
        answer = asyncio.run(ask(storm, settings=("actions=[allocate, preempt]",)))
        assert answer.alternatives[0].result.finished == 6
        return answer

    with_them, without = (run(checkpoints=on).alternatives[0].result for on in (True, False))
    assert with_them.preemptions == without.preemptions == 1
    # 4 GPUs, evicted some 60 s after their start, 10 s after the checkpoint.
    assert with_them.lost_gpu_hours == pytest.approx(4 * 10 / 3600, abs=4 * 4 / 3600)
    assert without.lost_gpu_hours == pytest.approx(4 * 60 / 3600, abs=4 * 4 / 3600)
    (ran_with,), (ran_without,) = with_them.queues, without.queues
    assert ran_without.gpu_hours - ran_with.gpu_hours == pytest.approx(4 * 50 / 3600, abs=4 * 4 / 3600)
