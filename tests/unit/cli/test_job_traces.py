"""Traces of jobs: gangs of whole nodes, queues, what is assumed, and bad rows that are named."""

from pathlib import Path

import msgspec
import pytest
from kai_cli.trials.job_traces import Job, JobAssumptions, dlrm, job_pods, philly, plain_csv
from kai_fleet.profiles.profile import load_profile
from kaicore.errors import InvalidObject

from tests.given.shared_data import require_shared


def test_a_job_of_more_gpus_than_a_node_becomes_a_gang() -> None:
    pods = list(job_pods(Job("train", 0, 7200, 20, queue="vision"), JobAssumptions(max_run_seconds=60)))
    assert [pod["metadata"]["name"] for pod in pods] == ["train-0", "train-1", "train-2"]
    assert [pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in pods] == ["8", "8", "4"]
    assert pods[0]["metadata"]["labels"] == {"kai.scheduler/queue": "vision"}
    assert pods[0]["metadata"]["annotations"] == {
        "simulator.kai.scheduler/run-seconds": "60",
        "gang.scheduling.koordinator.sh/name": "train",
        "gang.scheduling.koordinator.sh/min-available": "3",
    }


def test_a_job_without_gpus_asks_for_none() -> None:
    (pod,) = job_pods(Job("report", 0, 60, 0), JobAssumptions())
    assert pod["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "12000m", "memory": "98304Mi"}


def test_a_list_of_ones_own_is_taken_by_submission(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(
        "name,submitted,seconds,gpus,queue\nLate One,2026-01-02,60,1,a\n,2026-01-01,60,16,b\nc,2026-01-03,1,1,\n"
    )
    plain_csv(file, out=tmp_path / "out", assuming=JobAssumptions(first=2, nodes=3))
    items = msgspec.json.decode((tmp_path / "out/pods.json").read_bytes())["items"]
    names = [(item["kind"], item["metadata"]["name"]) for item in items[1:]]
    assert names == [("Queue", "a"), ("Queue", "b"), ("Pod", "job-3-0"), ("Pod", "job-3-1"), ("Pod", "late-one")]
    assert sum(group.count for group in load_profile(str(tmp_path / "out/profile.yaml")).groups) == 3
    assert "2 of 3 jobs, 1 of them gangs: 3 pods, 2 queues" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("row", "field"),
    [("x,60", "gpus"), ("1.5,60", "gpus"), ("1,-3", "seconds"), ("1,nan", "seconds"), ("1,", "seconds")],
)
def test_a_bad_row_of_a_list_is_named(tmp_path: Path, row: str, field: str) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(f"gpus,seconds\n1,60\n{row}\n")
    with pytest.raises(InvalidObject, match=f"jobs.csv, line 3: {field}"):
        plain_csv(file, out=tmp_path)


def test_the_public_traces_of_jobs_become_pods(tmp_path: Path) -> None:
    philly(require_shared("data/traces/philly/philly.csv.gz"), out=tmp_path / "philly")
    items = msgspec.json.decode((tmp_path / "philly/pods.json").read_bytes())["items"]
    assert sum(item["kind"] == "Queue" for item in items) > 5
    assert sum(item["kind"] == "Pod" for item in items) >= 2000
    dlrm(require_shared("data/traces/dlrm-2025/instances.csv.gz"), out=tmp_path / "dlrm")
    items = msgspec.json.decode((tmp_path / "dlrm/pods.json").read_bytes())["items"]
    assert sum(item["kind"] == "Pod" for item in items) == 2000
