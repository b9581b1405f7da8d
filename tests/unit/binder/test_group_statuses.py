"""The statuses of KAI's PodGroups, in KAI's words, from the events of real cycles."""

from typing import Any

import pytest
from kai_binder.projection.open_work import BinderProjection
from kaicore.rules.events import payloads
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.rules.queues.tree import UNLIMITED

from tests.given.cluster.factory import pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.groups import World
from tests.given.work.workloads import Workloads

PODS = "".join(
    f"---\napiVersion: v1\nkind: Pod\n"
    f"metadata: {{name: p{number}, annotations: {{pod-group-name: g}}, labels: {{LABELS}}}}\n"
    "spec: {priority: 5, containers: [{name: c, resources: {limits: {cpu: 1, nvidia.com/gpu: 2}}}]}\n"
    for number in range(2)
)


def group(spec: str) -> str:
    return f"apiVersion: scheduling.run.ai/v2alpha2\nkind: PodGroup\nmetadata: {{name: g}}\nspec: {{{spec}}}\n"


def status_of(spec: str, *, taken: bool = False, labels: str = "", again: bool = False) -> dict[str, Any]:
    """The status of a group of two pods, each of 2 GPUs, after a cycle."""
    world = World()
    world.add_node("n1", cpu=64, gpu=8)
    world.record("queue/small", payloads.QueueObserved(queue("small", quota=1, limit=3)))
    world.record("queue/large", payloads.QueueObserved(queue("large", quota=1, limit=UNLIMITED)))
    if taken:
        world.add_pod(
            pod("t", cpu=1, gpu=8, labels={KAI_QUEUE_LABEL: "large"}, priority=1, node_name="n1", phase="Running")
        )
    world.apply(group(spec) + PODS.replace("LABELS", labels))
    world.cycle()
    projection = BinderProjection()
    for event in world.events:
        projection.fold(event)
    if again:
        projection = BinderProjection.restored(projection.snapshot())
    (news,) = projection.groups.news()
    return news.status


def condition_of(spec: str, *, taken: bool = False, again: bool = False) -> dict[str, Any]:
    (condition,) = status_of(spec, taken=taken, again=again)["schedulingConditions"]
    return condition  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("spec", "reason", "details"),
    [
        (
            "minMember: 2, queue: small, preemptibility: preemptible",
            "OverLimit",
            {"queueDetails": {"name": "small", "podGroupRequestedResources": {"nvidia.com/gpu": "4"}}},
        ),
        (
            "minMember: 2, queue: large, preemptibility: non-preemptible",
            "NonPreemptibleOverQuota",
            {"queueDetails": {"name": "large", "podGroupRequestedNonPreemptibleResources": {"nvidia.com/gpu": "4"}}},
        ),
        ("minMember: 2, queue: nowhere", "QueueDoesNotExist", None),
    ],
)
def test_condition_has_the_reasons_of_queues(spec: str, reason: str, details: dict[str, Any] | None) -> None:
    for again in (False, True):
        condition = condition_of(spec, again=again)
        assert (condition["type"], condition["reason"]) == ("UnschedulableOnNodePool", reason)
        first = condition["reasons"][0]
        assert (first["reason"], first.get("details")) == (reason, details)
        assert first["message"] in condition["message"]


def test_condition_has_the_reasons_of_nodes() -> None:
    condition = condition_of("minMember: 2, queue: large, preemptibility: preemptible", taken=True)
    assert [one["reason"] for one in condition["reasons"]] == ["PodSchedulingErrors"]
    assert "nvidia.com/gpu" in condition["reasons"][0]["message"]


def test_condition_has_the_preemption_delay_beside_the_reasons() -> None:
    condition = condition_of(
        "minMember: 2, queue: large, preemptibility: preemptible, preemptionDelay: 1000000h", taken=True
    )
    assert {one["reason"] for one in condition["reasons"]} == {"PreemptionDelayNotElapsed", "PodSchedulingErrors"}


def test_pods_that_start_one_by_one_are_told_as_well() -> None:
    assert condition_of("minMember: 1, queue: nowhere")["reason"] == "QueueDoesNotExist"


def test_condition_names_a_missing_topology_and_a_missing_sub_group() -> None:
    required = condition_of(
        "minMember: 2, topologyConstraint: {topology: t, requiredTopologyLevel: rack}, queue: large"
    )
    assert required["message"].endswith("spec.topologyConstraint: there is no Topology t")
    nowhere = status_of("subGroups: [{name: a}], queue: large", labels="kai.scheduler/subgroup-name: b")
    assert nowhere["conditions"][0]["message"].endswith("has no sub-group b; it has a")


def test_running_group_has_no_reasons() -> None:
    assert status_of("minMember: 2, queue: large, preemptibility: preemptible")["schedulingConditions"] == []


# Native PodGroups.


class Running(World, Workloads):
    """Objects as text, and what cycles decide of them."""


class Native:
    """A native PodGroup of two pods, and what the binder would write into it."""

    def __init__(self) -> None:
        self.world = Running()
        self.world.add_node("n1", cpu=8, memory=8)
        self.projection = BinderProjection()
        self._folded = 0

    def apply(self, text: str) -> None:
        self.world.apply(text)

    def group(self, uid: str = "uid-g", least: int = 2) -> None:
        self.apply(
            f"apiVersion: scheduling.k8s.io/v1beta1\nkind: PodGroup\nmetadata: {{name: g, uid: {uid}}}\n"
            f"spec: {{schedulingPolicy: {{gang: {{minCount: {least}}}}}, disruptionMode: {{all: {{}}}}}}\n"
        )

    def pod(self, name: str, cpu: int) -> None:
        self.apply(
            f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{schedulingGroup: {{podGroupName: g}},"
            f" containers: [{{name: c, resources: {{limits: {{cpu: {cpu}, memory: 1Mi}}}}}}]}}\n"
        )

    def conditions(self) -> dict[str, tuple[str, str]]:
        """All conditions that are to be written now: status and reason by type."""
        for event in self.world.events[self._folded :]:
            self.projection.fold(event)
        self._folded = len(self.world.events)
        (status,) = self.projection.groups.news()
        return {one["type"]: (one["status"], one["reason"]) for one in status.status["conditions"]}


SCHEDULED = ("True", "Scheduled")


def test_a_native_group_that_was_once_scheduled_stays_so() -> None:
    native = Native()
    native.group()
    native.pod("a", 4)
    native.world.cycle()
    assert native.conditions() == {"PodGroupScheduled": ("False", "NotEnoughPods")}
    native.pod("b", 4)
    native.world.cycle()
    assert native.conditions() == {"PodGroupScheduled": SCHEDULED}
    for name in ("a", "b"):
        native.world.record(f"pod/uid-{name}", payloads.PodDeleted(f"uid-{name}", "default", name))
    native.pod("c", 64)
    native.world.cycle()
    assert native.conditions() == {"PodGroupScheduled": SCHEDULED}
    native.projection = BinderProjection.restored(native.projection.snapshot())
    assert native.conditions() == {"PodGroupScheduled": SCHEDULED}, "also after a snapshot"


def test_a_status_that_is_first_told_after_a_restart_has_the_logs_time() -> None:
    native = Native()
    native.group()
    native.pod("a", 4)
    native.world.cycle()
    for event in native.world.events:
        native.projection.fold(event)
    restarted = BinderProjection.restored(native.projection.snapshot())
    (shown,), (told_again,) = native.projection.groups.news(), restarted.groups.news()
    assert shown.status["conditions"][0]["lastTransitionTime"] > "2020"
    assert told_again.status == shown.status


def placed_native() -> Native:
    """Pods `a` and `b` of a group are placed."""
    native = Native()
    native.group()
    native.pod("a", 2)
    native.pod("b", 2)
    native.world.cycle()
    return native


def test_another_native_group_of_the_name_begins_anew() -> None:
    native = placed_native()
    assert native.conditions() == {"PodGroupScheduled": SCHEDULED}
    for name in ("a", "b"):
        native.world.record(f"pod/uid-{name}", payloads.PodDeleted(f"uid-{name}", "default", name))
    native.group(uid="uid-other")
    native.pod("c", 64)
    native.pod("d", 64)
    native.world.cycle()
    assert native.conditions() == {"PodGroupScheduled": ("False", "Unschedulable")}


def test_a_native_group_that_makes_way_is_a_target_of_disruption() -> None:
    native = placed_native()
    native.conditions()
    native.world.add_pod(pod("high", cpu=8, priority=100))
    assert set(native.world.evicted(native.world.cycle())) == {"a", "b"}
    assert native.conditions() == {
        "PodGroupScheduled": SCHEDULED,
        "DisruptionTarget": ("True", "PreemptionByScheduler"),
    }


VOLCANOS = """\
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: j, uid: uid-j}
spec: {minAvailable: 1, JOB}
"""
VOLCANOS_GROUP = """\
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata:
  name: j-uid
  ownerReferences: [{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, name: j, uid: uid-j, controller: true}]
spec: {minMember: 1}
"""
NOBODYS_GROUP = (
    "---\napiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: g}\nspec: {minMember: 1}\n"
)
OF_TASK = "{name: t, template: {spec: {schedulerName: NAME}}}"


@pytest.mark.parametrize(
    ("job", "shown"),
    [
        ("schedulerName: volcano", False),
        ("schedulerName: kai-ledger", True),
        ("", False),
        (f"schedulerName: volcano, tasks: [{OF_TASK.replace('NAME', 'kai-ledger')}, {{name: u}}]", True),
        (f"schedulerName: kai-ledger, tasks: [{OF_TASK.replace('NAME', 'volcano')}]", False),
    ],
)
@pytest.mark.parametrize("job_first", [True, False])
def test_a_volcano_jobs_group_without_pods_is_told_where_its_pods_will_be_ours(
    job: str, shown: bool, job_first: bool
) -> None:
    world = World()
    world.add_node("n1", cpu=64)
    world.apply("---\napiVersion: v1\nkind: Pod\nmetadata: {name: other}\nspec: {containers: [{name: c}]}\n")
    world.cycle()
    texts = [VOLCANOS.replace("JOB", job), VOLCANOS_GROUP]
    for text in texts if job_first else reversed(texts):
        world.apply(text)
    assert names_told(world, empty_groups=True) == (["j-uid"] if shown else [])
    assert names_told(world, empty_groups=False) == []


def test_a_group_without_pods_and_owner_is_told_where_an_operator_says_so() -> None:
    world = World()
    world.apply(NOBODYS_GROUP)
    assert names_told(world, empty_groups=True) == ["g"]
    assert names_told(world, empty_groups=False) == []


def names_told(world: World, *, empty_groups: bool) -> list[str]:
    """The PodGroups of which a binder tells, one that was started again in the middle."""
    projection, shown = BinderProjection(empty_groups=empty_groups), list[str]()
    for event in world.events:
        projection.fold(event)
        for news in projection.groups.news():
            projection.groups.mark_written(news)
            shown.append(news.name)
        projection = BinderProjection.restored(projection.snapshot(), empty_groups=empty_groups)
    return sorted(set(shown))
