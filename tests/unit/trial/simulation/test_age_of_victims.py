"""A pod that runs for longer costs more, also where a simulation finds it running."""

from pathlib import Path

import pytest

from tests.given.logs.simulating import GPU, document_of, node, pod, record, world_of

NODE = """
apiVersion: v1
kind: Node
metadata: {{name: {name}}}
status: {{allocatable: {{cpu: 8, memory: 16Gi, pods: 110}}, conditions: [{{type: Ready, status: "True"}}]}}
---
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: x, creationTimestamp: "2026-01-01T{created}:00Z"}}
spec: {{schedulerName: kai-ledger, {on}, containers: [{{name: c, resources: {{requests: {{cpu: 8}}}}}}]}}
status: {{phase: {phase}}}
---
"""


def started(at: str) -> str:
    return f', startTime: "2026-01-01T{at}:00Z"' if at else ""


@pytest.mark.parametrize(
    ("created", "start"),
    [
        pytest.param(("02:00", "01:00"), ("02:00", "03:00"), id="by the start, though created earlier"),
        pytest.param(("01:00", "02:00"), ("", ""), id="by creation where there is no start"),
        pytest.param(("01:00", "02:00"), ("", "03:00"), id="by creation against a start"),
    ],
)
def test_younger_pod_is_evicted(tmp_path: Path, created: tuple[str, str], start: tuple[str, str]) -> None:
    text = "".join(
        NODE.format(name=on) + POD.format(name=name, created=made, on=f"nodeName: {on}", phase="Running" + started(at))
        for name, on, made, at in zip(("old", "young"), "ab", created, start, strict=True)
    )
    text += POD.format(name="high", created="12:00", on="priority: 9", phase="Pending")
    pods = document_of(world_of(text, tmp_path))["pods"]
    assert [pod["name"] for pod in pods if pod["phase"] == "Evicted"] == ["young"]


def test_a_pod_that_carries_its_placement_is_as_old_as_it_is(tmp_path: Path) -> None:
    """The record of its placement is no news: it was placed when it was created, or before it started."""
    text = node("a", zones=1) + node("b", zones=1)
    for name, on, created in (("old", "a", "2026-01-01T01:00:00Z"), ("young", "b", "2026-01-01T02:00:00Z")):
        zones = record("predicted", node_0=f"{GPU}: 4, cpu: 1")
        meta = f'creationTimestamp: "{created}", {zones if name == "old" else ""}'
        text += pod(
            name, gpus=4, metadata=meta, spec=f"nodeName: {on}, schedulerName: kai-ledger", status="{phase: Running}"
        )
    text += pod("high", gpus=4, metadata='creationTimestamp: "2026-01-01T12:00:00Z"', spec="priority: 9")
    pods = document_of(world_of(text, tmp_path))["pods"]
    assert [one["name"] for one in pods if one["phase"] == "Evicted"] == ["young"]
