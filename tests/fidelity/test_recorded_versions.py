"""Our model of each version against what that version's own resource managers decided (`kubelet_recorder`)."""

import os
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from tests.fidelity.__main__ import shortfalls
from tests.fidelity.agreement import AGREEMENT, Agreement, agreement_of, recordings
from tests.fidelity.history import Knowledge
from tests.fidelity.judge import Judge
from tests.fidelity.kubelet_recorder import RECORDED
from tests.fidelity.vectors import read_vectors

#: Scenarios of each version that the gate judges; all of them with KAI_TEST_LONG=1.
_SOME = 24

#: Least agreement, per cent: what a best-effort node takes where nothing is aligned is not always predicted, nor what a
#: pod leaves behind that is rejected after its first containers drew memory of several zones (docs/reliability.md).
_LEAST = {"verdict": 100.0, "reason": 100.0, "mask": 99.0, "memory": 99.0, "certain": 99.0}


@pytest.mark.parametrize("file", recordings(), ids=lambda file: file.name.split("-")[1])
def test_a_version_decides_as_its_model(file: Path) -> None:
    """kubernetes/kubernetes at the tag of the file's name, `pkg/kubelet/cm`."""
    judge = Judge(Knowledge(published=False))
    for scenario in islice(read_vectors(file), None if os.environ.get("KAI_TEST_LONG") else _SOME):
        assert scenario["node"]["kubelet"] in file.name
        judge.run(scenario)
    assert judge.total().admits > 60
    assert shortfalls(judge, _LEAST) == [], "\n".join(judge.disagreements)


def test_what_is_written_down_of_recordings_is_what_came_of_them() -> None:
    """All scenarios with KAI_TEST_LONG=1."""
    written = msgspec.json.decode(AGREEMENT.read_bytes(), type=list[Agreement])
    assert [f"kubelet-{one.version}.jsonl.gz" for one in written] == [file.name for file in recordings()]
    assert all(one.verdicts_agreed == one.verdicts > 500 for one in written)
    if os.environ.get("KAI_TEST_LONG"):
        assert written == [agreement_of(file) for file in recordings()]


def test_a_recording_tells_versions_apart() -> None:
    """The decisions of 1.37.2 differ from the model of 1.31: pods with resources of their own, groups of zones."""
    judge = Judge(Knowledge(published=False))
    for scenario in islice(read_vectors(RECORDED / "kubelet-v1.37.2.jsonl.gz"), _SOME):
        judge.run({**scenario, "node": {**scenario["node"], "kubelet": "v1.31.14"}})
    score = judge.total()
    assert score.admits_agreed < score.admits
