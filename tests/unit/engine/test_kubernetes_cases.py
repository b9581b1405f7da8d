"""Cases of Kubernetes' own tests of preemption by pod groups, restated.

Source: `pkg/scheduler/framework/preemption/podgrouppreemption_test.go`, for 1.38. Where a case of Kubernetes is about
the nominations that it keeps between attempts, or has more pods on a node than it takes, it is left out.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest
from kaicore.rules.groups.membership import SIGS_GROUP_LABEL

from tests.given.cluster.factory import pod
from tests.given.work.workloads import Workloads

LOW, MID, HIGH = 1, 2, 3


class Case(NamedTuple):
    """What runs, who comes, and who goes.

    Attributes:
        nodes: how many pods each node takes, all of one size.
        running: pods by node from 1 on: `name@node`, `/group` where they are of one, `!` where a budget spares them.
        comes: how many pods there are, and how many of them start together.
        goes: names of those that Kubernetes evicts.
        priorities: of those that do not have the lowest; of pods, or of their groups.
        whole: groups of which all pods go at once.
        ours: who goes here, where that is not the same: of equal costs the first by name, and no budget is broken.
        aged: whether each pod that runs started a minute after the one before it.
    """

    about: str
    nodes: tuple[int, ...]
    running: str
    comes: tuple[int, int]
    goes: str
    priorities: Mapping[str, int] = MappingProxyType({})
    whole: str = ""
    priority: int = HIGH
    policies: tuple[str, str] = ("", "PreemptLowerPriority")
    ours: str | None = None
    aged: bool = False


THREE = "p1@1 p2@2/g p3@3/h"
NEVER, LOWER = "Never", "PreemptLowerPriority"
CASES = [
    Case("a pod by itself, or one of a group", (2,), "p1@1/g p2@1", (1, 1), "p2", ours="p1"),
    Case("of one group the younger", (2,), "p2@1/g p1@1/g", (1, 1), "p1", aged=True),
    Case("a group of which all go", (1, 1), "p1@1/g p2@2/g", (1, 1), "p1 p2", whole="g"),
    Case("two of three nodes would do", (1, 1, 1), THREE, (1, 1), "p1"),
    Case("the group's policy", (1, 1, 1), THREE, (1, 1), "p1", policies=(LOWER, LOWER)),
    Case("the group's policy, whatever its pods'", (1, 1, 1), THREE, (1, 1), "p1", policies=(LOWER, NEVER)),
    Case("a group that has none evicted", (1, 1, 1), THREE, (2, 2), "", policies=(NEVER, LOWER)),
    Case("pods that have none evicted, without a policy of the group", (1,), "p1@1", (1, 1), "", policies=("", NEVER)),
    Case("the only pod", (1,), "p1@1", (1, 1), "p1"),
    Case("the lowest priority", (2,), "p1@1 p2@1", (1, 1), "p1", {"p2": MID}),
    Case("no more than needed", (4,), "p1@1 p2@1 p3@1 p4@1", (2, 2), "p3 p4", ours="p1 p2"),
    Case("no budget is broken", (2,), "p1@1! p2@1", (1, 1), "p2"),
    Case("no budget is broken for a group", (2,), "p1@1/g! p2@1/g", (1, 1), "p2"),
    Case("rather a higher priority than a broken budget", (2,), "p1@1! p2@1", (1, 1), "p2", {"p2": MID}),
    Case("a budget holds, always", (2,), "p1@1! p2@1!", (1, 1), "p1", {"p2": MID}, ours=""),
    Case("a budget of one pod holds for its group", (3,), "p1@1 p2@1/g! p3@1/g", (1, 1), "p1", whole="g"),
    Case("a pod before a group", (3,), "p1@1 p2@1/g p3@1/g", (1, 1), "p1", whole="g"),
    Case("a group of lower priority before a pod", (3,), "p1@1/g p2@1/g p3@1", (1, 1), "p1 p2", {"p3": MID}, whole="g"),
    Case("none of a higher priority", (1,), "p1@1", (1, 1), "", {"p1": HIGH}, priority=MID),
    Case("none of the same priority", (1,), "p1@1", (1, 1), "", {"p1": MID}, priority=MID),
    Case("none where there is room", (1,), "", (1, 1), ""),
    Case("a group has a lower priority than its pods", (1, 1), "p1@1/g p2@2/g", (1, 1), "p1 p2", {"g": MID}, whole="g"),
    Case("a group has as high a priority", (1, 1), "p1@1/g p2@2/g", (1, 1), "", {"g": MID}, whole="g", priority=MID),
    Case(
        "as many as can start, past those of high priority",
        (1, 1, 1, 1),
        "p1@1 p2@2 p3@3 p4@4",
        (3, 1),
        "p1 p2",
        {"p3": HIGH, "p4": HIGH},
    ),
    Case("all that the group could use", (1, 1, 1), "p1@1/g p2@2/g p3@3", (3, 1), "p1 p2 p3", {"g": MID}, whole="g"),
    Case(
        "a group of middle priority, none of the same",
        (1, 1, 1, 1),
        "p1@1/g p2@2/g p3@3/h p4@4/h",
        (3, 1),
        "p1 p2",
        {"g": MID, "h": HIGH},
        whole="gh",
    ),
    Case("each for itself, past those of high priority", (1, 1), "p1@1 p2@2", (3, 0), "p1", {"p2": HIGH}),
    Case("each for itself, a group", (1, 1, 1), "p1@1/g p2@2/g p3@3", (3, 0), "p1 p2 p3", {"g": MID}, whole="g"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.about)
def test_who_goes_for_a_pod_group_is_as_in_kubernetes_or_the_case_says_otherwise(case: Case) -> None:
    cluster = Workloads()
    for number, size in enumerate(case.nodes, start=1):
        cluster.add_node(f"n{number}", cpu=64, gpu=size)
    for number, text in enumerate(case.running.split()):
        name, _, place = text.removesuffix("!").partition("@")
        node, _, group = place.partition("/")
        if group:
            cluster.gang(
                group,
                0,
                least=0,
                group={"priority": case.priorities.get(group, LOW), "ends_whole": group in case.whole},
            )
        labels = {SIGS_GROUP_LABEL: group} if group else {}
        labels |= {"spared": "yes"} if text.endswith("!") else {}
        priority = case.priorities.get(name, HIGH if group in case.priorities else LOW)
        started = cluster.now // 1_000_000 - 3600 + 60 * number * case.aged
        fields = {"priority": priority, "labels": labels, "node_name": f"n{node}", "start_time": started}
        cluster.add_pod(pod(name, cpu=1, gpu=1, phase="Running", **fields))
    cluster.budget(0, label="spared")
    count, least = case.comes
    of_group, of_pods = case.policies
    own = {"priority": case.priority, "preemption_policy": of_group}
    cluster.gang("new", count, least=least, group=own, cpu=1, gpu=1, priority=case.priority, preemption_policy=of_pods)
    gone: set[str] = set()
    while (result := cluster.cycle()).evictions or result.placements:
        gone |= cluster.evicted(result).keys()
        cluster.go(result)
        cluster.run(*(cluster.state.pods[decision.uid].pod for decision in result.placements))
    assert " ".join(sorted(gone)) == (case.goes if case.ours is None else case.ours)
    assert case.goes != case.ours
