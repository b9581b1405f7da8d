"""Simulated time: what only waits for time is waited for, and nothing for ever; and room that is kept meanwhile."""

from pathlib import Path
from typing import Any

import pytest
from kaicore.rules.engine.config import Action, EngineConfig

from tests.given.logs.simulating import brief, document_of, node, pod, world_of

START = "creationTimestamp: '2026-01-01T00:00:00Z'"
RUNS = "{phase: Running}"
OWNED = "ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: rs, uid: u-rs, controller: true}]"
GROUPED = "annotations: {pod-group-name: g}"
ONE_NODE = node("n1", gpus=2, zones=1)


def pod_group(spec: str) -> str:
    return f"""---
apiVersion: scheduling.run.ai/v2alpha2
kind: PodGroup
metadata: {{name: g, {START}}}
spec: {{{spec}}}
"""


def queue(name: str, *, quota: int, more: str = "") -> str:
    free = "{quota: -1, limit: -1, overQuotaWeight: 1}"
    gpu = f"{{quota: {quota}, limit: -1, overQuotaWeight: 1}}"
    return f"""---
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {{name: {name}}}
spec: {{{more} resources: {{cpu: {free}, memory: {free}, gpu: {gpu}}}}}
"""


STALE = (
    ONE_NODE
    + pod_group("minMember: 3, stalenessGracePeriod: 90s")
    + "".join(pod(f"a{n}", metadata=f"{START}, {GROUPED}", spec="nodeName: n1", status=RUNS) for n in (0, 1))
)
DELAYED = (
    ONE_NODE
    + pod("victim", gpus=2, metadata=f"{START}, {OWNED}", spec="nodeName: n1", status=RUNS)
    + pod_group("minMember: 1, preemptionDelay: 30s, priority: 1000")
    + pod("high", gpus=2, metadata=f"{START}, {GROUPED}", spec="priority: 1000")
)
PROTECTED = (
    ONE_NODE
    + queue("a", quota=0, more="reclaimMinRuntime: 1h,")
    + queue("b", quota=2)
    + pod(
        "victim",
        gpus=2,
        metadata=f"{START}, labels: {{kai.scheduler/queue: a}}, {OWNED}",
        spec="nodeName: n1",
        status=RUNS,
    )
    + pod("owed", gpus=2, metadata="labels: {kai.scheduler/queue: b}")
)
TERMINATING = (
    ONE_NODE
    + pod(
        "old", gpus=2, metadata=f"{START}, deletionTimestamp: '2026-01-01T00:00:05Z'", spec="nodeName: n1", status=RUNS
    )
    + pod("new", gpus=2)
)


def run(text: str, folder: Path, config: EngineConfig | None = None, **kwargs: Any) -> tuple[dict[str, str], int, int]:
    """Pods as `brief` has them, the simulated seconds, and the cycles."""
    document = document_of(world_of(text, folder), config, **({"wait": True} | kwargs))
    return brief(document), document["seconds"], document["cycles"]


def test_a_stale_gang_ends_when_its_grace_is_over(tmp_path: Path) -> None:
    outcomes, seconds, cycles = run(STALE, tmp_path)
    assert outcomes == {"a0": "Evicted StaleGang", "a1": "Evicted StaleGang"}
    assert (seconds, cycles) == (90, 2)
    allocate = EngineConfig(actions=(Action.ALLOCATE,))
    assert run(STALE, tmp_path, allocate)[1:] == (1, 1), "no pod waits for what nothing comes of"


def test_a_preemption_delay_is_waited_for(tmp_path: Path) -> None:
    outcomes, seconds, _ = run(DELAYED, tmp_path)
    assert outcomes["high"] == "n1 node-0"
    assert 30 <= seconds <= 32


def test_a_minimum_runtime_is_waited_for(tmp_path: Path) -> None:
    outcomes, seconds, _ = run(PROTECTED, tmp_path)
    assert outcomes["owed"] == "n1 node-0"
    assert 3600 <= seconds <= 3603


@pytest.mark.parametrize(
    ("text", "name", "code"),
    [(DELAYED, "high", "PreemptionDelayNotElapsed"), (PROTECTED, "owed", "WithinMinimumRuntime")],
)
def test_pod_that_is_not_waited_for_says_until_when_it_would_wait(
    text: str, name: str, code: str, tmp_path: Path
) -> None:
    document = document_of(world_of(text, tmp_path))
    (shown,) = [one for one in document["pods"] if one["name"] == name]
    (message,) = [reason["message"] for reason in shown["reasons"] if reason["code"] == code]
    assert "2026-01-01T0" in message
    assert document["seconds"] == document["cycles"]


def test_kept_room_is_given_up_once_and_not_for_ever(tmp_path: Path) -> None:
    outcomes, seconds, cycles = run(TERMINATING, tmp_path)
    assert outcomes["new"].startswith("Nominated")
    assert 600 <= seconds <= 605
    assert cycles < 6


def test_simulated_waiting_comes_to_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kaicore.analysis.trial.simulation.run.MOST_WAITS", 0)
    assert run(STALE, tmp_path)[1] == 1
    assert run(STALE, tmp_path, cycles=5)[1] == 90, "unless it is said how many cycles to run"


def test_so_many_cycles_are_run_whether_or_not_anything_changes(tmp_path: Path) -> None:
    assert run(STALE, tmp_path, wait=False)[1:] == (1, 1)
    outcomes, seconds, cycles = run(STALE, tmp_path, wait=False, cycles=89)
    assert (outcomes, seconds, cycles) == ({"a0": "n1", "a1": "n1"}, 89, 89)
    assert run(STALE, tmp_path, wait=False, cycles=90)[0] == {"a0": "Evicted StaleGang", "a1": "Evicted StaleGang"}


def test_cycles_count_also_where_time_is_waited_for(tmp_path: Path) -> None:
    outcomes, seconds, cycles = run(STALE, tmp_path, cycles=1)
    assert set(outcomes.values()) == {"n1"}
    assert (seconds, cycles) == (1, 1)
    assert run(STALE, tmp_path, cycles=50) == run(STALE, tmp_path)


LEAVING = 'deletionTimestamp: "2026-01-01T00:00:00Z"'


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        pytest.param(LEAVING, {"first": "Nominated", "thief": "Pending"}, id="while its victims are leaving"),
        pytest.param("", {"first": "Pending", "thief": "n1"}, id="not when no pod is"),
    ],
)
def test_room_that_another_scheduler_keeps_is_not_given_away(
    tmp_path: Path, metadata: str, expected: dict[str, str]
) -> None:
    on = "nodeName: n1, schedulerName: kai-ledger"
    text = (
        node(zones=1)
        + pod("victim", gpus=2, metadata=metadata, spec=on, status="{phase: Running}")
        + pod("first", gpus=4, status="{nominatedNodeName: n1}")
        + pod("thief", gpus=2)
    )
    placements = brief(document_of(world_of(text, tmp_path)))
    assert {name: placements[name].split()[0] for name in expected} == expected
