"""`kai export --format perfetto`: scheduling history in Chromium's Trace Event Format."""

import gzip
import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload

from tests.given.processes.called_kai import Run, caller
from tests.given.recorded import DEMO, read_log
from tests.measured.assistants import LOGS, log_file

#: Fields that the format documents, beside `ph`, `pid` and `tid`.
_FIELDS = {
    "X": {"name", "cat", "ts", "dur", "args"},
    "i": {"name", "cat", "ts", "s", "args"},
    "M": {"name", "args"},
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return caller(monkeypatch, capsys)


def exported(run: Run, file: Path, *flags: str) -> list[dict[str, Any]]:
    """Export a trace; return its events, each of which has the fields that the format documents, and names."""
    code, output = run("export", str(file), "--format=perfetto", *flags)
    assert code == 0, output
    document = json.loads(gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes())
    events: list[dict[str, Any]] = document["traceEvents"]
    named = Counter((one["pid"], one["tid"]) for one in events if one["name"] == "thread_name")
    processes = Counter(one["pid"] for one in events if one["name"] == "process_name")
    for one in events:
        assert one.keys() == _FIELDS[one["ph"]] | {"ph", "pid", "tid"}, one
        assert processes[one["pid"]] == 1
        assert one["name"] == "process_name" or named[one["pid"], one["tid"]] == 1
        assert all(isinstance(one[name], int) and one[name] >= 0 for name in ("pid", "tid", "ts", "dur") if name in one)
    return events


@pytest.mark.parametrize("name", LOGS)
def test_trace_has_each_placement_once_on_a_lane_for_each_gpu(run: Run, tmp_path: Path, name: str) -> None:
    events = exported(run, tmp_path / "trace.json", f"--file={log_file(tmp_path, name)}")
    processes = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    lanes = defaultdict[int, list[dict[str, Any]]](list)
    for one in events:
        if one["ph"] == "X":
            lanes[one["tid"]].append(one)
    for spans in lanes.values():
        spans.sort(key=lambda one: (one["ts"], one["ts"] + one["dur"]))
        assert all(one["ts"] + one["dur"] <= after["ts"] for one, after in pairwise(spans))
    threads = Counter(
        processes[one["pid"]]
        for one in events
        if one["name"] == "thread_name" and one["args"]["name"].startswith("GPU")
    )
    log = [decode_payload(event) for event in read_log(DEMO / f"{name}.jsonl.xz")]
    gpus = {
        one.node.name: one.node.allocatable.get("nvidia.com/gpu", 0)
        for one in log
        if isinstance(one, payloads.NodeObserved)
    }
    assert all(count <= gpus[node.removeprefix("node ")] for node, count in threads.items())
    placed = Counter((one.uid, f"node {one.node}") for one in log if isinstance(one, payloads.PodPlaced))
    starting = [one for one in events if one.get("cat") == "starting"]
    lanes_of = Counter((one["args"]["uid"], processes[one["pid"]]) for one in starting)
    wanted = {one["args"]["uid"]: max(int(one["args"]["gpus"]), 1) for one in starting}
    assert lanes_of == {key: count * wanted[key[0]] for key, count in placed.items()}
    instants = Counter(one["cat"] for one in events if one["ph"] == "i")
    told = ("CycleCompleted", "EvictionDecided", "PodRejected", "BindFailed", "RepairRequested")
    assert instants == Counter(kind for one in log if (kind := type(one).__name__) in told)


def test_trace_of_a_range_begins_with_what_is_there_and_is_compressed_by_its_name(run: Run, tmp_path: Path) -> None:
    source = f"--file={log_file(tmp_path, 'demo')}"
    whole = exported(run, tmp_path / "whole.json", source)
    part = exported(run, tmp_path / "part.json.gz", source, "--from=600", "--to=900")
    spans = [one for one in part if one["ph"] == "X"]
    begin, end = min(one["ts"] for one in spans), max(one["ts"] + one["dur"] for one in spans)
    inside = {
        (one["args"]["uid"], one["cat"])
        for one in whole
        if one["ph"] == "X" and one["ts"] < end and one["ts"] + one["dur"] > begin
    }
    assert {(one["args"]["uid"], one["cat"]) for one in spans} >= inside
    code, output = run("export", str(tmp_path), "--format=perfetto", source)
    assert (code, f"{tmp_path}: " in output) == (2, True), output
