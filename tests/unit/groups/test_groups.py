"""Pods and objects applied to a cluster, and the groups that are there then."""

import pytest
from kaicore.rules.deciding.why import pending_reasons, verdict
from kaicore.rules.events import payloads
from kaicore.rules.model.group import MatchPolicy

from tests.given.work.group_manifests import GANG_EXAMPLES, pod
from tests.given.work.groups import World, shape


@pytest.mark.parametrize(
    ("objects", "group", "tree", "pod_set"),
    [
        # A pod without an owner is a group of its own; so is one of a Deployment or a StatefulSet.
        (pod("p"), "Pod/default/p", "", ""),
        (pod("p", owner="apps/v1/ReplicaSet/web-1"), "Pod/default/p", "", ""),
        (pod("p", owner="apps/v1/StatefulSet/db"), "Pod/default/p", "", ""),
        # KAI: an annotation names the group, a label the sub-group.
        (
            "apiVersion: scheduling.run.ai/v2alpha2\nkind: PodGroup\nmetadata: {name: g}\n"
            "spec: {subGroups: [{name: a, minMember: 2}, {name: b}]}\n---\n"
            + pod("p", annotations="pod-group-name: g", labels="kai.scheduler/subgroup-name: b"),
            "PodGroup.scheduling.run.ai/default/g",
            "(a>=2 b>=1)/all",
            "b",
        ),
        (
            GANG_EXAMPLES + "---\n" + pod("p", labels="pod-group.scheduling.sigs.k8s.io: gang-example2"),
            "PodGroup.scheduling.sigs.k8s.io/default/gang-example2",
            ">=2",
            "",
        ),
        (
            "apiVersion: scheduling.x-k8s.io/v1alpha1\nkind: PodGroup\nmetadata: {name: g}\nspec: {minMember: 3}\n---\n"
            + pod("p", labels="scheduling.x-k8s.io/pod-group: g"),
            "PodGroup.scheduling.x-k8s.io/default/g",
            ">=3",
            "",
        ),
        # Koordinator without any PodGroup.
        (
            pod(
                "p",
                annotations='gang.scheduling.koordinator.sh/name: g, gang.scheduling.koordinator.sh/min-available: "4"',
            ),
            "PodGroup.scheduling.sigs.k8s.io/default/g",
            ">=4",
            "",
        ),
        (
            pod(
                "p",
                labels="pod-group.scheduling.sigs.k8s.io/name: g, pod-group.scheduling.sigs.k8s.io/min-available: '2'",
            ),
            "PodGroup.scheduling.sigs.k8s.io/default/g",
            ">=2",
            "",
        ),
        (
            "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: g}\n"
            "spec: {minMember: 3, minTaskMember: {ps: 1, worker: 2}}\n---\n"
            + pod("p", annotations="scheduling.k8s.io/group-name: g, volcano.sh/task-spec: worker"),
            "PodGroup.scheduling.volcano.sh/default/g",
            "(ps>=1 worker>=2 -)/all>=3",
            "worker",
        ),
        # Kubernetes 1.35: replicas of a Workload's pod group are gangs each.
        (
            "apiVersion: scheduling.k8s.io/v1alpha1\nkind: Workload\nmetadata: {name: train}\n"
            "spec: {podGroups: [{name: workers, policy: {gang: {minCount: 4}}}]}\n---\n"
            + pod("p", spec="workloadRef: {name: train, podGroup: workers, podGroupReplicaKey: '1'}"),
            "Workload.scheduling.k8s.io/default/train:workers:1",
            ">=4",
            "",
        ),
        # Kubernetes 1.36 and later.
        (
            "apiVersion: scheduling.k8s.io/v1alpha3\nkind: PodGroup\nmetadata: {name: g}\n"
            "spec: {schedulingPolicy: {gang: {minCount: 2}}}\n---\n"
            + pod("p", spec="schedulingGroup: {podGroupName: g}"),
            "PodGroup.scheduling.k8s.io/default/g",
            ">=2",
            "",
        ),
        (
            "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {parallelism: 4}\n---\n"
            + pod("p", owner="batch/v1/Job/j"),
            "Job.batch/default/j",
            ">=1",
            "",
        ),
        # The topmost owner: an MPIJob's launcher is a Job's pod.
        (
            "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata: {name: m}\n"
            "spec: {mpiReplicaSpecs: {Launcher: {}, Worker: {replicas: 2}}}\n---\n"
            "apiVersion: batch/v1\nkind: Job\nmetadata: {name: m-launcher, ownerReferences: [{apiVersion:"
            " kubeflow.org/v2beta1, kind: MPIJob, name: m, uid: uid-m, controller: true}]}\nspec: {}\n---\n"
            + pod("p", owner="batch/v1/Job/m-launcher", labels="training.kubeflow.org/job-role: launcher"),
            "MPIJob.kubeflow.org/default/m",
            "(launcher>=1 worker>=2)/all",
            "launcher",
        ),
        (
            "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: t}\n"
            "spec: {pytorchReplicaSpecs: {Master: {}, Worker: {replicas: 3}}}\n---\n"
            + pod("p", owner="kubeflow.org/v1/PyTorchJob/t", labels="training.kubeflow.org/replica-type: worker"),
            "PyTorchJob.kubeflow.org/default/t",
            "(master>=1 worker>=3)/all",
            "worker",
        ),
        (
            "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: r}\n"
            "spec: {workerGroupSpecs: [{groupName: gpu, replicas: 2}]}\n---\n"
            + pod("p", owner="ray.io/v1/RayCluster/r", labels="ray.io/group: gpu"),
            "RayCluster.ray.io/default/r",
            "(headgroup>=1 gpu>=2)/all",
            "gpu",
        ),
        # Each leader and its workers are a group.
        (
            "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: l}\n"
            "spec: {leaderWorkerTemplate: {size: 3}}\n---\n"
            + pod(
                "p",
                owner="apps/v1/StatefulSet/l-1",
                labels="leaderworkerset.sigs.k8s.io/name: l, leaderworkerset.sigs.k8s.io/group-index: '1',"
                " leaderworkerset.sigs.k8s.io/worker-index: '2'",
            ),
            "LeaderWorkerSet.leaderworkerset.x-k8s.io/default/l:1",
            "(leader>=1 workers>=2)/all",
            "workers",
        ),
        (
            "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: s}\n"
            "spec: {replicatedJobs: [{name: a, template: {spec: {}}},"
            " {name: b, template: {spec: {parallelism: 2}}}]}\n---\n"
            + pod(
                "p",
                owner="batch/v1/Job/s-b-0",
                labels="jobset.sigs.k8s.io/jobset-name: s, jobset.sigs.k8s.io/replicatedjob-name: b",
            ),
            "JobSet.jobset.x-k8s.io/default/s",
            "(a>=1 b>=2)/all",
            "b",
        ),
    ],
)
def test_pod_belongs_to_the_expected_group_and_set(
    world: World, objects: str, group: str, tree: str, pod_set: str
) -> None:
    world.apply(objects)
    entry = world.state.pods["uid-p"]
    assert (entry.group, entry.pod_set, entry.group_problem) == (group, pod_set, None)
    assert shape(world.state.groups[group].sets) == tree
    assert world.state.group_table.pods_of(group) == {"uid-p"}


@pytest.mark.parametrize(
    ("objects", "code", "problem"),
    [
        (
            pod("p", annotations="pod-group-name: g"),
            "GroupNotFound",
            "PodGroup.scheduling.run.ai default/g does not exist or is malformed",
        ),
        (
            pod("p", spec="schedulingGroup: {podGroupName: g}"),
            "GroupNotFound",
            "PodGroup.scheduling.k8s.io default/g does not exist or is malformed",
        ),
        (
            "apiVersion: scheduling.k8s.io/v1alpha1\nkind: Workload\nmetadata: {name: w}\nspec: {podGroups: []}\n---\n"
            + pod("p", spec="workloadRef: {name: w, podGroup: x}"),
            "PodGroupNotInWorkload",
            "Workload.scheduling.k8s.io default/w has no pod group x",
        ),
        (
            "apiVersion: scheduling.run.ai/v2alpha2\nkind: PodGroup\nmetadata: {name: g}\n"
            "spec: {subGroups: [{name: a}, {name: b}]}\n---\n"
            + pod("p", annotations="pod-group-name: g", labels="kai.scheduler/subgroup-name: c"),
            "SubGroupNotFound",
            "PodGroup.scheduling.run.ai default/g has no sub-group c; it has a, b",
        ),
        (
            "apiVersion: scheduling.run.ai/v2alpha2\nkind: PodGroup\nmetadata: {name: g}\n"
            "spec: {subGroups: [{name: a}, {name: b}]}\n---\n" + pod("p", annotations="pod-group-name: g"),
            "SubGroupNotNamed",
            "it names none of the sub-groups of PodGroup.scheduling.run.ai default/g: a, b",
        ),
        (
            pod("p", annotations="gang.scheduling.koordinator.sh/name: g"),
            "Malformed",
            "has an invalid request: annotation gang.scheduling.koordinator.sh/min-available is missing",
        ),
        (
            pod("p", annotations="kai.scheduler/preemption-delay: soon"),
            "Malformed",
            "has an invalid request: default/p: "
            "metadata.annotations[kai.scheduler/preemption-delay]: is no duration such as 90s or 1h30m: 'soon'",
        ),
        (
            pod("p", owner="kubeflow.org/v1/PyTorchJob/t"),
            "OwnerNotFound",
            "its owner PyTorchJob.kubeflow.org default/t is not known",
        ),
    ],
)
def test_pod_without_a_usable_group_has_its_problem(world: World, objects: str, code: str, problem: str) -> None:
    world.apply(objects)
    entry = world.state.pods["uid-p"]
    assert entry.group_problem is not None
    assert (entry.group_problem.code, str(entry.group_problem)) == (code, problem)
    assert not world.cycle().pending, "no cycle decides on it"
    # That is the answer to why it waits, before any cycle and after it.
    assert pending_reasons(entry, world.state) == [entry.group_problem]
    assert verdict(entry, world.state, scheduler_name="kai-ledger") == "pending"
    assert world.state.group_table.pods_of(entry.group) == {"uid-p"}


def test_a_pod_whose_owner_was_replaced_is_on_its_own(world: World) -> None:
    job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j, uid: UID}\nspec: {}\n"
    world.apply(pod("p", owner="batch/v1/Job/j"))
    assert world.problem_of("p") == "OwnerNotFound"
    world.apply(job.replace("UID", "uid-j"))
    assert world.state.pods["uid-p"].group == "Job.batch/default/j"
    world.apply(job.replace("UID", "second"))
    assert (world.state.pods["uid-p"].group, world.problem_of("p")) == ("Pod/default/p", "")
    assert list(world.state.groups) == ["Pod/default/p"]


def test_groups_come_and_go_with_their_objects(world: World) -> None:
    world.apply(pod("p", labels="pod-group.scheduling.sigs.k8s.io: gang-example1"))
    assert world.state.groups == {}
    world.apply(GANG_EXAMPLES)
    both = tuple(f"PodGroup.scheduling.sigs.k8s.io/default/gang-example{n}" for n in (1, 2))
    # Gangs that start together name each other; one without pods is there too.
    assert {key: group.together for key, group in world.state.groups.items()} == dict.fromkeys(both, both)
    assert world.problem_of("p") == ""
    world.remove("PodGroup.scheduling.sigs.k8s.io", "gang-example1")
    assert list(world.state.groups) == [both[1]]
    assert world.problem_of("p") == "GroupNotFound"


def test_the_oldest_pod_speaks_for_a_gang_without_an_object(world: World) -> None:
    words = 'gang.scheduling.koordinator.sh/name: g, gang.scheduling.koordinator.sh/min-available: "{}"'
    world.apply(pod("young", annotations=words.format(9), created="2026-01-02T00:00:00Z"))
    world.apply(pod("old", annotations=words.format(2), created="2026-01-01T00:00:00Z"))
    key = "PodGroup.scheduling.sigs.k8s.io/default/g"
    assert shape(world.state.groups[key].sets) == ">=2"
    assert world.state.groups[key].match_policy is MatchPolicy.ONCE_SATISFIED
    world.record("pod/uid-old", payloads.PodDeleted("uid-old", "default", "old"))
    assert shape(world.state.groups[key].sets) == ">=9"
    world.record("pod/uid-young", payloads.PodDeleted("uid-young", "default", "young"))
    assert world.state.groups == {}


def test_volcanos_sub_groups_arise_from_labels(world: World) -> None:
    world.apply(
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: g}\nspec: {minMember: 4,"
        " subGroupPolicy: [{name: part, subGroupSize: 2, minSubGroups: 2, labelSelector: {matchLabels: {role: w}},"
        " matchLabelKeys: [volcano.sh/partition-id]}]}\n"
    )
    for name, labels in (
        ("a", "role: w, volcano.sh/partition-id: '0'"),
        ("b", "role: w, volcano.sh/partition-id: '1'"),
    ):
        world.apply(pod(name, annotations="scheduling.k8s.io/group-name: g", labels=labels))
    world.apply(pod("c", annotations="scheduling.k8s.io/group-name: g"))
    assert shape(world.group_of("a").sets) == "(- part(part.0>=2 part.1>=2)/2)/all>=4"
    assert [world.state.pods[f"uid-{name}"].pod_set for name in "abc"] == ["part.0", "part.1", "-"]
