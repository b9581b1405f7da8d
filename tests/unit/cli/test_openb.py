"""The OpenB importer: every row becomes what it says, and a bad row is named."""

from pathlib import Path

import msgspec
import pytest
from kai_cli.trials.job_traces import Assumptions, TraceRow, fleet_profile, openb, pod_manifests
from kai_fleet.profiles.profile import load_profile
from kaicore.errors import InvalidObject

from tests.given.shared_data import require_shared

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
