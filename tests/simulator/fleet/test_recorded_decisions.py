"""The kubelet model against recorded decisions of the real kubelet; the large file: see `vectors.py`."""

from pathlib import Path

import pytest

from tests.simulator.fleet.vectors import Report, replay, scenarios, shared_directory

#: An error message names one of several lacking resources; the kubelet's map order picks which. The placement of one
#: recorded pod leaves out a reserved CPU that the kubelet handed out by mistake.
ALLOWED = {"message": 1, "placement": 1}


def recorded(name: str) -> Path:
    file = shared_directory() / "data" / "kubelet" / name
    if not file.exists():
        pytest.skip(f"no recorded decisions at {file} (KAI_SHARED says where they are)")
    return file


@pytest.mark.parametrize("name", ["mini.jsonl.gz", "worked_examples.jsonl.gz"])
def test_every_recorded_decision_is_reproduced(name: str) -> None:
    report = Report()
    for scenario in scenarios(recorded(name)):
        replay(scenario, report)
    assert report.checked["verdict"] > 0
    excess = {aspect: count for aspect, count in report.wrong.items() if count > ALLOWED.get(aspect, 0)}
    assert not excess, "\n".join(report.examples)
