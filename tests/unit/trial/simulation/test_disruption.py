"""PodDisruptionBudgets over the cycles of a simulation: counted again as pods go and come, as their controller does."""

from pathlib import Path
from typing import Any

import pytest

from tests.given.logs.simulating import brief, document_of, node, pod, world_of

OWNED = "ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: rs, uid: u-rs, controller: true}]"
RUNS = "{phase: Running}"


def victims(*names: str, ready: str = "") -> str:
    """Pods of one ReplicaSet, each with all of a node of its own."""
    status = f"{{phase: Running, conditions: [{{type: Ready, status: '{ready}'}}]}}" if ready else RUNS
    return "".join(
        node(f"n-{name}", gpus=2, zones=1)
        + pod(name, gpus=2, metadata=f"labels: {{app: x}}, {OWNED}", spec=f"nodeName: n-{name}", status=status)
        for name in names
    )


def high(*names: str) -> str:
    """Pods that want all of a node, with a priority."""
    return "".join(pod(name, gpus=2, spec="priority: 1000") for name in names)


def budget(limit: str, *, status: str = "{}", name: str = "b") -> str:
    return f"""---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: {name}}}
spec: {{{limit}, selector: {{matchLabels: {{app: x}}}}}}
status: {status}
"""


def after(text: str, folder: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The results of the pods with a priority, and of all pods."""
    document = document_of(world_of(text, folder))
    return {name: what for name, what in brief(document).items() if name.startswith("h")}, document["pods"]


@pytest.mark.parametrize(
    ("limit", "go"),
    [
        ("minAvailable: 1", 2),
        ("minAvailable: 3", 0),
        ("minAvailable: 50%", 1),
        ("maxUnavailable: 1", 1),
        ("maxUnavailable: 50%", 2),
        ("maxUnavailable: 0", 0),
    ],
)
def test_no_more_go_over_all_cycles_than_the_budget_has_room_for(limit: str, go: int, tmp_path: Path) -> None:
    _, pods = after(victims("v1", "v2", "v3") + high("h1", "h2", "h3") + budget(limit), tmp_path)
    assert sum(one["phase"] == "Evicted" for one in pods) == go


def test_what_the_status_says_stands_until_something_changes(tmp_path: Path) -> None:
    text = victims("v1", "v2") + high("h1", "h2")
    outcomes, _ = after(text + budget("minAvailable: 1", status="{disruptionsAllowed: 0}"), tmp_path)
    assert all("ProtectedByDisruptionBudget" in what for what in outcomes.values())
    outcomes, pods = after(text + budget("minAvailable: 1", status="{disruptionsAllowed: 1}"), tmp_path)
    assert sorted(one["phase"] for one in pods if one["name"][0] == "v") == ["Bound", "Evicted", "Pending"]
    assert sorted(what.split()[0] for what in outcomes.values())[0] == "Pending"


def test_a_successor_that_found_a_place_counts_again(tmp_path: Path) -> None:
    """Both go, one after the other: there is another node for each successor, once the first is there."""
    spare = node("z-spare-1", gpus=2, zones=1) + node("z-spare-2", gpus=2, zones=1)
    highs = "".join(pod(f"h{n}", gpus=2, spec=f"priority: 1000, nodeSelector: {{x: '{n}'}}") for n in (1, 2))
    nodes = victims("v1", "v2")
    for number in (1, 2):
        nodes = nodes.replace(f"{{name: n-v{number}}}", f"{{name: n-v{number}, labels: {{x: '{number}'}}}}", 1)
    outcomes, pods = after(nodes + spare + highs + budget("minAvailable: 1"), tmp_path)
    assert outcomes == {"h1": "n-v1 node-0", "h2": "n-v2 node-0"}
    assert sum(one["phase"] == "Evicted" for one in pods) == 2


def test_pods_that_are_not_ready_are_not_healthy(tmp_path: Path) -> None:
    outcomes, _ = after(victims("v1", "v2", ready="False") + high("h1") + budget("minAvailable: 1"), tmp_path)
    assert "ProtectedByDisruptionBudget" in outcomes["h1"]


def test_pods_that_are_not_ready_go_where_the_budget_always_allows_it(tmp_path: Path) -> None:
    limit = "minAvailable: 1, unhealthyPodEvictionPolicy: AlwaysAllow"
    outcomes, _ = after(victims("v1", "v2", ready="False") + high("h1", "h2") + budget(limit), tmp_path)
    assert sorted(what.split()[0] for what in outcomes.values()) == ["n-v1", "n-v2"]


def test_a_disruption_that_was_granted_is_counted_once(tmp_path: Path) -> None:
    status = "{disruptionsAllowed: 1, disruptedPods: {gone: '2026-01-01T00:00:00Z'}}"
    outcomes, _ = after(victims("v1", "v2") + high("h1") + budget("minAvailable: 1", status=status), tmp_path)
    assert outcomes["h1"].startswith("n-v")


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (
            "minAvailable: most",
            "PodDisruptionBudget default/b: spec.minAvailable: must be a count or a percentage such as 50%: 'most'",
        ),
        ("maxUnavailable: -1", "PodDisruptionBudget default/b: spec.maxUnavailable: must not be negative: -1"),
        ("minAvailable: 1, maxUnavailable: 1", "spec.maxUnavailable"),
    ],
)
def test_a_limit_that_makes_no_sense_is_named(limit: str, words: str, tmp_path: Path) -> None:
    (problem,) = world_of(victims("v1") + budget(limit), tmp_path).problems
    assert words in str(problem)
