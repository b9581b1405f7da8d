"""Traces of jobs and tasks: gangs of whole nodes, queues, what is assumed, and bad rows that are named."""

from pathlib import Path

import msgspec
import pytest
from kai_cli.trials.job_traces import (
    Assumptions,
    Job,
    JobAssumptions,
    TraceRow,
    dlrm,
    fleet_profile,
    job_pods,
    openb,
    philly,
    plain_csv,
    pod_manifests,
)
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


NODE = {"sn": "n", "cpu_milli": "96000", "memory_mib": "393216", "gpu": "8", "model": "G2"}
POD = {
    "name": "p",
    "cpu_milli": "11300",
    "memory_mib": "1024",
    "num_gpu": "1",
    "gpu_milli": "460",
    "gpu_spec": "G2|T4",
    "qos": "LS",
    "creation_time": "100",
    "deletion_time": "700",
}


def row(fields: dict[str, str]) -> TraceRow:
    return TraceRow(fields, "file.csv", 2)


def test_nodes_of_one_shape_are_one_group() -> None:
    profile, count = fleet_profile(map(row, (NODE, NODE, NODE | {"gpu": "2", "model": "T4"})), Assumptions())
    assert count == 3
    assert [(group["count"], group["zones"]) for group in profile["groups"]] == [(2, 2), (1, 1)]
    assert profile["groups"][0]["perZone"] == {"cpus": 48, "memory": "196608Mi", "devices": {"nvidia.com/gpu": 4}}


def test_a_task_becomes_a_pod() -> None:
    (pod,) = pod_manifests([row(POD)], Assumptions())
    container = pod["spec"]["containers"][0]
    assert container["resources"]["requests"] == {"cpu": "11300m", "memory": "1024Mi", "nvidia.com/gpu": "1"}
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert pod["metadata"]["annotations"] == {
        "simulator.kai.scheduler/run-seconds": "10",
        "openb/gpu-milli": "460",
    }
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] == ["G2", "T4"]


@pytest.mark.parametrize(("field", "value"), [("cpu_milli", "-3"), ("num_gpu", "many"), ("memory_mib", None)])
def test_a_bad_row_is_named(field: str, value: str | None) -> None:
    bad = {key: text for key, text in (POD | {field: value}).items() if text is not None}
    with pytest.raises(InvalidObject, match=f"file.csv, line 2: {field}"):
        list(pod_manifests([row(bad)], Assumptions()))


def test_whole_trace_becomes_nodes_and_pods(tmp_path: Path) -> None:
    folder = require_shared("data/openb")
    openb(folder / "openb_node_list_all_node.csv", folder / "openb_pod_list_default.csv", out=tmp_path)
    profile = load_profile(str(tmp_path / "profile.yaml"))
    assert sum(group.count for group in profile.groups) == 1523
    pods = msgspec.json.decode((tmp_path / "pods.json").read_bytes())["items"]
    assert sum(item["kind"] == "Pod" for item in pods) == 8152
