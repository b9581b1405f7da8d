"""Pods and objects applied to a cluster, and the groups that are there then."""

import json
import random

import msgspec
import pytest
from kaicore.rules.events import payloads
from kaicore.rules.model.group import Group, MatchPolicy
from kaicore.rules.state.snapshot import decode_state, encode_state
from kaicore.rules.state.why import pending_reasons, verdict

from tests.groups import World, documents, read_pod, shape

GANG_EXAMPLES = """
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata:
  name: gang-example1
  annotations: {gang.scheduling.koordinator.sh/groups: '["default/gang-example1", "default/gang-example2"]'}
spec: {minMember: 1}
---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata:
  name: gang-example2
  annotations: {gang.scheduling.koordinator.sh/groups: '["default/gang-example1", "default/gang-example2"]'}
spec: {minMember: 2}
"""


def pod(name: str, *, spec: str = "", owner: str = "", created: str = "", **words: str) -> str:
    """A pod; words are labels if they have a slash or a dot in front of it, as written in `labels`/`annotations`."""
    labels, annotations = words.get("labels", ""), words.get("annotations", "")
    references = ""
    if owner:
        api_version, kind, of = owner.rsplit("/", 2)
        reference = f"{{apiVersion: {api_version}, kind: {kind}, name: {of}, uid: uid-{of}, controller: true}}"
        references = f", ownerReferences: [{reference}]"
    at = f", creationTimestamp: {created!r}" if created else ""
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{{labels}}}, annotations: {{{annotations}}}"
        f"{references}{at}}}\nspec: {{{spec}}}\n"
    )


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("objects", "group", "tree", "pod_set"),
    [
        # Nobody's pod is a group of its own; so is one of a Deployment or a StatefulSet.
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
def test_where_a_pod_belongs(world: World, objects: str, group: str, tree: str, pod_set: str) -> None:
    world.apply(objects)
    entry = world.state.pods["uid-p"]
    assert (entry.group, entry.pod_set, entry.group_problem) == (group, pod_set, None)
    found = world.state.groups[group]
    assert shape(found.sets) == tree
    assert world.state.group_table.pods_of(group) == {"uid-p"}


@pytest.mark.parametrize(
    ("objects", "code", "problem"),
    [
        (
            pod("p", annotations="pod-group-name: g"),
            "GroupNotFound",
            "PodGroup.scheduling.run.ai default/g does not exist",
        ),
        (
            pod("p", spec="schedulingGroup: {podGroupName: g}"),
            "GroupNotFound",
            "PodGroup.scheduling.k8s.io default/g does not exist",
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
            "asks for what is not valid: annotation gang.scheduling.koordinator.sh/min-available is missing",
        ),
        (
            pod("p", annotations="kai.scheduler/preemption-delay: soon"),
            "Malformed",
            "asks for what is not valid: default/p: "
            "metadata.annotations[kai.scheduler/preemption-delay]: is no duration such as 90s or 1h30m: 'soon'",
        ),
        (
            pod("p", owner="kubeflow.org/v1/PyTorchJob/t"),
            "OwnerNotFound",
            "its owner PyTorchJob.kubeflow.org default/t is not known",
        ),
    ],
)
def test_why_a_pod_cannot_be_decided_on(world: World, objects: str, code: str, problem: str) -> None:
    world.apply(objects)
    entry = world.state.pods["uid-p"]
    assert entry.group_problem is not None
    assert (entry.group_problem.code, str(entry.group_problem)) == (code, problem)
    assert not world.cycle().pending, "no cycle decides on it"
    # That is what everybody is told who asks why it waits, before any cycle and after it.
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
    found = world.group_of("a")
    assert shape(found.sets) == "(- part(part.0>=2 part.1>=2)/2)/all>=4"
    assert [world.state.pods[f"uid-{name}"].pod_set for name in "abc"] == ["part.0", "part.1", "-"]


CLASSES = """
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: train, namespace: ""}
value: 50
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: build, namespace: ""}
value: 100
"""
KAI_GROUP = "apiVersion: scheduling.run.ai/v2alpha2\nkind: PodGroup\nmetadata: {name: g}\nspec: {SPEC}\n---\n" + pod(
    "p", annotations="pod-group-name: g", spec="priority: 7"
)
JOB_OF = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j, labels: {LABELS}}\nspec: {}\n---\n"


@pytest.mark.parametrize(
    ("objects", "queue", "priority", "preemptible"),
    [
        # KAI: priority classes below 100 are preemptible, unless it is said.
        (KAI_GROUP.replace("SPEC", "queue: a, priorityClassName: train"), "a", 50, True),
        (KAI_GROUP.replace("SPEC", "queue: a, priorityClassName: build"), "a", 100, False),
        (KAI_GROUP.replace("SPEC", "priorityClassName: build, preemptibility: preemptible"), "", 100, True),
        (KAI_GROUP.replace("SPEC", "priorityClassName: train, preemptibility: non-preemptible"), "", 50, False),
        # Without a class, or one that is not there, the pods' own priority.
        (KAI_GROUP.replace("SPEC", ""), "", 7, True),
        (KAI_GROUP.replace("SPEC", "priorityClassName: nobody"), "", 7, True),
        # Owners say it by labels, or their pods do; who names KAI's queue means KAI's rule.
        (
            JOB_OF.replace("LABELS", "kai.scheduler/queue: a, priorityClassName: build")
            + pod("p", owner="batch/v1/Job/j"),
            "a",
            100,
            False,
        ),
        (
            JOB_OF.replace("LABELS", "") + pod("p", owner="batch/v1/Job/j", labels="kai.scheduler/queue: b"),
            "b",
            0,
            True,
        ),
        (JOB_OF.replace("LABELS", "") + pod("p", owner="batch/v1/Job/j", spec="priority: 5000"), "", 5000, True),
        (
            JOB_OF.replace("LABELS", "kueue.x-k8s.io/queue-name: u") + pod("p", owner="batch/v1/Job/j"),
            "default/u",
            0,
            True,
        ),
        # Others are preemptible as Kubernetes has it.
        (pod("p", spec="priority: 1000", labels="kai.scheduler/queue: a"), "a", 1000, False),
        (pod("p", spec="priority: 1000"), "", 1000, True),
        (pod("p", spec="priority: 1000", annotations="volcano.sh/preemptable: 'false'"), "", 1000, False),
        (pod("p", labels="kai.scheduler/preemptibility: non-preemptible"), "", 0, False),
    ],
)
def test_who_pays_who_goes_first_and_who_may_be_preempted(
    world: World, objects: str, queue: str, priority: int, preemptible: bool
) -> None:
    world.apply(CLASSES)
    world.apply(objects)
    found = world.group_of("p")
    assert (found.queue, found.priority, found.preemptible) == (queue, priority, preemptible)


def test_a_priority_class_may_come_late_and_change(world: World) -> None:
    world.apply(KAI_GROUP.replace("SPEC", "priorityClassName: train"))
    assert world.group_of("p").priority == 7
    world.apply(CLASSES)
    assert world.group_of("p").priority == 50
    world.record("priorityclass/train", payloads.PriorityClassDeleted("train", "train"))
    assert world.group_of("p").priority == 7


def everything() -> list[str]:
    """Objects of all kinds, each a text of its own, pods and objects named alike in many ways."""
    gang = 'gang.scheduling.koordinator.sh/name: g{}, gang.scheduling.koordinator.sh/min-available: "{}"'
    found = [*GANG_EXAMPLES.split("---\n"), *CLASSES.split("---\n"), KAI_GROUP.split("---\n")[0].replace("SPEC", "")]
    found.append(JOB_OF.replace("LABELS", "kai.scheduler/queue: a").removesuffix("---\n"))
    for number in range(8):
        name, spec = f"p{number}", "nodeName: n1" if number < 4 else ""
        found += [
            pod(name, labels=f"pod-group.scheduling.sigs.k8s.io: gang-example{number % 2 + 1}", spec=spec),
            pod(name, annotations=gang.format(number % 2, number), spec=spec),
            pod(name, annotations="pod-group-name: g", spec=spec),
            pod(name, owner="batch/v1/Job/j", spec=spec or f"priority: {number}"),
            pod(name, spec=spec),
        ]
    return found


@pytest.mark.parametrize("seed", range(8))
def test_groups_depend_on_what_there_is_and_not_on_how_it_came_about(seed: int) -> None:
    chance = random.Random(seed)
    world = World()
    for text in chance.choices(everything(), k=60):
        world.apply(text)
        if chance.random() < 0.2:
            for source in list(world.state.group_table.sources.values())[:1]:
                world.remove(source.kind, source.name)
        if chance.random() < 0.1 and world.state.pods:
            entry = world.state.pods[min(world.state.pods)]
            world.record(f"pod/{entry.pod.uid}", payloads.PodDeleted(entry.pod.uid, "default", entry.pod.name))
    # A state that goes on from a snapshot is the same, to the byte.
    restored = decode_state(encode_state(world.state))
    assert encode_state(restored) == encode_state(world.state)
    assert seen(restored.groups) == seen(world.state.groups)
    # And so are the groups of a cluster where all this was there from the start.
    fresh = World()
    for source in world.state.group_table.sources.values():
        fresh.record(f"group/{source.key}", payloads.GroupSourceObserved(source))
    for observed in world.state.priority_classes.values():
        fresh.record("priorityclass/x", observed)
    for uid in sorted(world.state.pods, reverse=True):
        fresh.add_pod(world.state.pods[uid].pod)
    assert seen(fresh.state.groups) == seen(world.state.groups)
    members = {uid: (entry.group, entry.pod_set, entry.group_problem) for uid, entry in world.state.pods.items()}
    assert {uid: (one.group, one.pod_set, one.group_problem) for uid, one in fresh.state.pods.items()} == members


def seen(groups: dict[str, Group]) -> dict[str, str]:
    return {key: json.dumps(msgspec.to_builtins(groups[key]), sort_keys=True) for key in sorted(groups)}


def test_a_pod_of_its_own_and_its_successor(world: World) -> None:
    world.apply(pod("p"))
    (document,) = documents(pod("p"))
    successor = read_pod({**document, "metadata": document["metadata"] | {"uid": "uid-second"}})
    world.add_pod(successor)
    world.record("pod/uid-p", payloads.PodDeleted("uid-p", "default", "p"))
    assert world.state.groups["Pod/default/p"].uid == "uid-second"
    assert world.state.group_table.pods_of("Pod/default/p") == {"uid-second"}
    world.delete_pod(successor)
    assert world.state.groups == {}
