"""`kai history`: what became of jobs, by their attempts."""

from pathlib import Path

import msgspec
import pytest
from kaicore.analysis.ask.projections.jobs import JobHistory, JobQuestion, JobState, jobs_of
from kaicore.analysis.ask.projections.rows import PodHistory

from tests.given.logs.exported import write_file
from tests.given.processes.kai_commands import kai
from tests.unit.hours.test_report import story

_S = 1_000_000


def _pod(name: str, begin: int, end: int, outcome: str = "Failed", **fields: int) -> PodHistory:
    times = {"created_at": begin * _S, "seen_at": begin * _S, "tried_at": begin * _S, "started_at": (begin + 2) * _S}
    ended = {"finished_at": end * _S, "gone_at": end * _S} if end else {}
    return (
        PodHistory(
            uid=name,
            namespace="n",
            name=name,
            group="Job/n/train",
            node="n0",
            gpus=2000,
            outcome=outcome,
            **times,
            **ended,
        )
        if not fields
        else msgspec.structs.replace(_pod(name, begin, end, outcome), **fields)
    )


@pytest.mark.parametrize(
    ("last", "state", "attempts", "elapsed"),
    [
        ((_pod("c", 20, 30, "Succeeded"),), "completed", 2, 16),
        ((_pod("c", 20, 30),), "failed", 2, 16),
        ((_pod("c", 20, 30, "Running", evictions=1, finished_at=0),), "evicted", 2, 16),
        ((_pod("c", 20, 0, "Running"), _pod("d", 20, 0, "Pending", started_at=0)), "running", 2, 86),
        ((_pod("c", 5, 0, "Pending", started_at=0),), "waiting", 1, 8),
    ],
)
def test_a_job_has_the_state_of_its_last_attempt_and_the_time_of_all(
    last: tuple[PodHistory, ...], state: JobState, attempts: int, elapsed: int
) -> None:
    rows = [_pod("a", 0, 10), _pod("b", 0, 10, "Succeeded"), *last]
    (job,) = jobs_of(rows, JobQuestion(name="train"), now=100 * _S)
    assert (job.state, job.attempts, job.elapsed_s, job.waited_s) == (state, attempts, elapsed, 2)
    assert [pod.attempt for pod in job.pods] == [1, 1, *[attempts] * len(last)]
    assert job.gpu_hours == pytest.approx(sum(pod.gpu_hours for pod in job.pods))


def test_the_command_lists_jobs_and_shows_the_attempts_of_one(tmp_path: Path) -> None:
    file = str(write_file(tmp_path / "c1.log.gz", story()))
    answer = msgspec.json.decode(kai("history", "--file", file, "-o", "json").stdout, type=JobHistory)
    figures = {job.name: (job.state, job.user, job.waited_s, round(job.gpu_hours, 1)) for job in answer.items}
    assert figures == {"ann": ("failed", "ann", 1800, 2.0), "bob": ("deleted", "bob", 1800, 4.0)}
    head, ann = kai("history", "default/ann", "--file", file, "-o", "csv").stdout.splitlines()
    row = dict(zip(head.split(","), ann.split(","), strict=True))
    assert (row["job"], row["attempt"], row["node"]) == ("Pod/default/ann", "1", "n0")
    assert "GPU-HOURS" in kai("history", "--file", file, "--state", "deleted").stdout
    assert "is none of waiting" in kai("history", "--file", file, "--state", "lost").stderr
