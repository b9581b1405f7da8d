"""The statuses of groups, in their dialects' words."""

from typing import Any

import pytest
from kaicore.rules.groups.labels import (
    KAI_POD_GROUP,
    NATIVE_POD_GROUP,
    SIGS_POD_GROUP,
    VOLCANO_POD_GROUP,
    X_POD_GROUP,
)
from kaicore.rules.groups.status import PodState, census, status_document, verdict
from kaicore.rules.model.group import Group, PodSet

SINCE = "2026-01-01T00:00:00Z"
GANG = (PodSet(min_pods=2),)
WAITS, PLACED, RUNS = PodState("", "Pending", False), PodState("", "Pending", True), PodState("", "Running", True)
DONE, FAILED = PodState("", "Succeeded", True), PodState("", "Failed", True)


def document(origin: str, *pods: PodState, sets: tuple[PodSet, ...] = GANG, why: str = "") -> dict[str, Any]:
    group = Group(key=f"{origin}/default/g", namespace="default", name="g", origin=origin, sets=sets)
    counted = census(pods)
    return status_document(group, counted, verdict(group, counted, why=why), since=SINCE)


@pytest.mark.parametrize(
    ("pods", "volcano", "koordinator", "scheduler_plugins", "kai"),
    [
        ((), "Inqueue", "Pending", "Pending", "Pending"),
        ((WAITS,), "Inqueue", "Pending", "Pending", "Pending"),
        ((WAITS, WAITS), "Inqueue", "PreScheduling", "Scheduling", "Pending"),
        ((PLACED, WAITS), "Inqueue", "Scheduling", "Scheduling", "Pending"),
        ((PLACED, PLACED), "Inqueue", "Scheduled", "Scheduling", "Pending"),
        ((RUNS, PLACED), "Unknown", "Scheduled", "Scheduling", "Pending"),
        ((RUNS, RUNS, WAITS), "Running", "Running", "Running", "Running"),
        ((RUNS, DONE), "Running", "Running", "Running", "Running"),
        ((RUNS, FAILED), "Unknown", "Failed", "Failed", "Pending"),
        ((DONE, DONE), "Completed", "Finished", "Finished", "Succeeded"),
    ],
)
def test_phase_of_a_group_follows_its_pods(
    pods: tuple[PodState, ...], volcano: str, koordinator: str, scheduler_plugins: str, kai: str
) -> None:
    origins = (VOLCANO_POD_GROUP, SIGS_POD_GROUP, X_POD_GROUP, KAI_POD_GROUP)
    assert [document(origin, *pods)["phase"] for origin in origins] == [volcano, koordinator, scheduler_plugins, kai]


def test_counts_of_a_status_are_those_of_the_pods() -> None:
    pods = (RUNS, DONE, FAILED, PLACED, WAITS)
    counts = {"running": 1, "succeeded": 1, "failed": 1}
    assert document(VOLCANO_POD_GROUP, *pods).items() >= counts.items()
    assert document(SIGS_POD_GROUP, *pods).items() >= {**counts, "scheduled": 4}.items()
    assert document(KAI_POD_GROUP, *pods).items() >= {**counts, "pending": 1}.items()


TREE = (PodSet(), PodSet("ps", min_pods=1), PodSet("worker", min_pods=2))


@pytest.mark.parametrize(
    ("sets", "pods", "why", "expected", "message"),
    [
        (GANG, (), "", ("False", "NotEnoughPods"), "0 pods are there, 2 must start together"),
        (
            TREE,
            (PodState("worker", "Pending", False),),
            "",
            ("False", "NotEnoughPods"),
            "1 pods are there, 3 must start together (ps: 0 of 1, worker: 1 of 2)",
        ),
        (
            GANG,
            (WAITS, WAITS),
            "3 nodes short of nvidia.com/gpu",
            ("False", "Unschedulable"),
            "2 wait, 2 must start together: 3 nodes short of nvidia.com/gpu",
        ),
        (
            GANG,
            (WAITS, WAITS),
            "",
            ("False", "Unschedulable"),
            "2 wait, 2 must start together: no cycle has decided on them yet",
        ),
        (
            GANG,
            (RUNS, WAITS),
            "busy",
            ("False", "Unschedulable"),
            "1 of them have a node; 1 wait, 2 must start together: busy",
        ),
        (GANG, (RUNS, PLACED, WAITS), "busy", ("True", "Scheduled"), "2 of 3 pods have a node; 2 must have one"),
    ],
)
def test_condition_of_a_group_says_whether_it_is_scheduled(
    sets: tuple[PodSet, ...], pods: tuple[PodState, ...], why: str, expected: tuple[str, str], message: str
) -> None:
    (condition,) = document(NATIVE_POD_GROUP, *pods, sets=sets, why=why)["conditions"]
    assert condition == {
        "type": "PodGroupScheduled",
        "status": expected[0],
        "reason": expected[1],
        "message": message,
        "lastTransitionTime": SINCE,
    }
    assert document(SIGS_POD_GROUP, *pods, sets=sets, why=why)["conditions"] == [condition | {"type": "Scheduled"}]


def test_volcano_and_kai_have_their_own_conditions() -> None:
    def volcano(*pods: PodState) -> tuple[str, str]:
        (condition,) = document(VOLCANO_POD_GROUP, *pods, why="busy")["conditions"]
        return condition["type"], condition["reason"]

    assert volcano(WAITS) == ("Unschedulable", "NotEnoughTasks")
    assert volcano(WAITS, WAITS) == ("Unschedulable", "NotEnoughResources")
    assert volcano(PLACED, PLACED) == ("Scheduled", "tasks in gang are ready to be scheduled")
    (condition,) = document(KAI_POD_GROUP, WAITS, WAITS, why="busy")["schedulingConditions"]
    assert (condition["type"], condition["nodePool"]) == ("UnschedulableOnNodePool", "default")
    assert condition["reasons"] == [{"reason": "PodSchedulingErrors", "message": "2 wait, 2 must start together: busy"}]
    assert document(KAI_POD_GROUP, PLACED, PLACED)["schedulingConditions"] == []
