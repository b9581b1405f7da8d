"""The groups of what owners make: every owner's pods are there, and all that its groups ask for; and queues."""

import asyncio
import re
from collections import Counter
from pathlib import Path

import pytest
from kaicore.analysis.trial.simulation.run import Simulation
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.model.group import min_pods, satisfied
from kaicore.rules.state.cluster_state import ClusterState

from tests.given.logs.simulating import brief, document_of, node, pod, world_of
from tests.given.work.groups import shape

TEMPLATE = "template: {spec: {containers: [{name: c}]}}"


def begun(text: str, folder: Path) -> tuple[ClusterState, list[str]]:
    world = world_of(text, folder)
    assert not world.problems, [str(problem) for problem in world.problems]
    simulation = Simulation(world, EngineConfig())
    asyncio.run(simulation.begin())
    return simulation.state, world.warnings


def owner(api_version: str, kind: str, spec: str) -> str:
    return f"---\napiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: o}}\nspec: {{{spec}}}\n"


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        (owner("batch/v1", "Job", f"parallelism: 3, {TEMPLATE}"), {"Job.batch/default/o": (">=1", 3)}),
        (
            owner("batch/v1", "Job", f"parallelism: 3, {TEMPLATE}").replace(
                "{name: o}", "{name: o, labels: {kueue.x-k8s.io/queue-name: q}}"
            ),
            {"Job.batch/default/o": (">=3", 3)},
        ),
        (
            owner(
                "batch.volcano.sh/v1alpha1",
                "Job",
                f"tasks: [{{name: ps, replicas: 1, {TEMPLATE}}},"
                f" {{name: worker, replicas: 3, minAvailable: 2, {TEMPLATE}}}]",
            ),
            {"Job.batch.volcano.sh/default/o": ("(ps>=1 worker>=2 -)/all>=3", 4)},
        ),
        (
            owner(
                "jobset.x-k8s.io/v1alpha2",
                "JobSet",
                f"replicatedJobs: [{{name: a, template: {{spec: {{{TEMPLATE}}}}}}},"
                f" {{name: b, replicas: 2, template: {{spec: {{parallelism: 2, completions: 2, {TEMPLATE}}}}}}}]",
            ),
            {"JobSet.jobset.x-k8s.io/default/o": ("(a>=1 b>=4)/all", 5)},
        ),
        (
            owner(
                "kubeflow.org/v1",
                "PyTorchJob",
                f"pytorchReplicaSpecs: {{Master: {{{TEMPLATE}}}, Worker: {{replicas: 2, {TEMPLATE}}}}}",
            ),
            {"PyTorchJob.kubeflow.org/default/o": ("(master>=1 worker>=2)/all", 3)},
        ),
        (
            owner(
                "kubeflow.org/v2beta1",
                "MPIJob",
                f"mpiReplicaSpecs: {{Launcher: {{{TEMPLATE}}}, Worker: {{replicas: 2, {TEMPLATE}}}}}",
            ),
            {"MPIJob.kubeflow.org/default/o": ("(launcher>=1 worker>=2)/all", 3)},
        ),
        (
            owner(
                "ray.io/v1",
                "RayJob",
                f"rayClusterSpec: {{headGroupSpec: {{{TEMPLATE}}},"
                f" workerGroupSpecs: [{{groupName: gpu, replicas: 2, numOfHosts: 2, {TEMPLATE}}}]}}",
            ),
            {"RayJob.ray.io/default/o": ("(headgroup>=1 gpu>=4 submitter)/all", 6)},
        ),
        (
            owner(
                "leaderworkerset.x-k8s.io/v1",
                "LeaderWorkerSet",
                f"replicas: 2, leaderWorkerTemplate: {{size: 3, worker{TEMPLATE[0].upper()}{TEMPLATE[1:]}}}",
            ),
            {
                f"LeaderWorkerSet.leaderworkerset.x-k8s.io/default/o:{group}": ("(leader>=1 workers>=2)/all", 3)
                for group in (0, 1)
            },
        ),
        (owner("apps/v1", "StatefulSet", f"replicas: 2, {TEMPLATE}"), {f"Pod/default/o-{n}": ("", 1) for n in (0, 1)}),
    ],
)
def test_what_owners_make_is_what_their_groups_ask_for(
    tmp_path: Path, text: str, groups: dict[str, tuple[str, int]]
) -> None:
    state, warnings = begun(node() + text, tmp_path)
    assert not warnings
    assert {entry.group_problem for entry in state.pods.values()} == {None}
    members = Counter(entry.group for entry in state.pods.values())
    assert {key: (shape(one.sets), members[key]) for key, one in state.groups.items()} == groups
    for key, one in state.groups.items():
        assert satisfied(one.sets, Counter(one.pod_set for one in state.pods.values() if one.group == key))


def test_pods_of_pod_groups_are_in_their_sets(tmp_path: Path) -> None:
    gang = (
        "---\napiVersion: scheduling.sigs.k8s.io/v1alpha1\nkind: PodGroup\nmetadata: {name: g}\nspec: {minMember: 2}\n"
    )
    member = "labels: {pod-group.scheduling.sigs.k8s.io: g}"
    state, warnings = begun(node() + pod("a", metadata=member) + gang + pod("b", metadata=member), tmp_path)
    assert not warnings
    key = "PodGroup.scheduling.sigs.k8s.io/default/g"
    assert (shape(state.groups[key].sets), state.group_table.pods_of(key)) == (">=2", set(state.pods))


def test_a_group_that_is_not_there_is_the_reason(tmp_path: Path) -> None:
    text = node() + pod("a", metadata="annotations: {pod-group-name: nope}") + pod("b")
    document = document_of(world_of(text, tmp_path))
    assert brief(document) == {"a": "Pending GroupNotFound", "b": "n1 node-0"}


def test_pods_of_owners_that_are_not_given_are_groups_by_their_references(tmp_path: Path) -> None:
    of = "ownerReferences: [{apiVersion: kubeflow.org/v1, kind: PyTorchJob, name: t, uid: x, controller: true}]"
    state, warnings = begun(node() + pod("a", metadata=of) + pod("b", metadata=of), tmp_path)
    lost = "PyTorchJob.kubeflow.org/default/t"
    assert warnings == [f"2 pods are of {lost}, which is not given: taken to start one by one"]
    assert {entry.group_problem for entry in state.pods.values()} == {None}
    assert shape(state.groups[lost].sets) == ">=1"


def test_what_is_wrong_is_said_once(tmp_path: Path) -> None:
    wrong = owner("scheduling.run.ai/v2alpha2", "PodGroup", "minMember: -1")
    job = owner("batch/v1", "Job", f"parallelism: none, {TEMPLATE}")
    world = world_of(node() + wrong + job, tmp_path)
    assert sorted(str(problem).rpartition(", ")[2] for problem in world.problems) == [
        "document 3: PodGroup.scheduling.run.ai default/o: spec.minMember: must be a whole number of 0 or more: -1",
        "document 4: Job default/o: spec.parallelism: must be a whole number: 'none'",
    ]


NATIVE = "---\napiVersion: scheduling.k8s.io/{}\nkind: {}\nmetadata: {{name: g}}\nspec: {}\n"
GANG_OF_3 = "{gang: {minCount: 3}}"
GANGS = {
    "Kubernetes 1.35": (
        NATIVE.format("v1alpha1", "Workload", f"{{podGroups: [{{name: a, policy: {GANG_OF_3}}}]}}"),
        "workloadRef: {name: g, podGroup: a}",
    ),
    "Kubernetes 1.36": (
        NATIVE.format("v1alpha2", "PodGroup", f"{{schedulingPolicy: {GANG_OF_3}, disruptionMode: PodGroup}}"),
        "schedulingGroup: {podGroupName: g}",
    ),
    "Kubernetes 1.37": (
        NATIVE.format("v1beta1", "PodGroup", f"{{schedulingPolicy: {GANG_OF_3}, disruptionMode: {{all: {{}}}}}}"),
        "schedulingGroup: {podGroupName: g}",
    ),
}


@pytest.mark.parametrize("version", GANGS)
@pytest.mark.parametrize(("gpus", "placed"), [(2, 0), (3, 3)])
def test_native_gangs_of_every_version_start_as_a_whole_or_not_at_all(
    tmp_path: Path, version: str, gpus: int, placed: int
) -> None:
    group, spec = GANGS[version]
    text = node(gpus=gpus, zones=1) + group + "".join(pod(name, spec=spec) for name in ("a", "b", "c"))
    placements = brief(document_of(world_of(text, tmp_path)))
    assert sum(where.startswith("n1") for where in placements.values()) == placed


WANTS_A_GPU = "template: {spec: {containers: [{name: c, resources: {limits: {cpu: 1, nvidia.com/gpu: 1}}}]}}"
JOBS = {
    "a Job with a queue of Kueue": owner("batch/v1", "Job", f"parallelism: 3, completions: 3, {WANTS_A_GPU}").replace(
        "{name: o}", "{name: o, labels: {kueue.x-k8s.io/queue-name: q}}"
    ),
    "a Volcano Job": owner(
        "batch.volcano.sh/v1alpha1", "Job", f"minAvailable: 3, tasks: [{{name: w, replicas: 3, {WANTS_A_GPU}}}]"
    ),
}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(("gpus", "placed"), [(2, 0), (3, 3)])
def test_jobs_that_are_a_whole_start_as_one_or_not_at_all(tmp_path: Path, job: str, gpus: int, placed: int) -> None:
    world = world_of(node(gpus=gpus, zones=1) + JOBS[job], tmp_path)
    assert world.warnings == []
    placements = brief(document_of(world))
    assert sum(where.startswith("n1") for where in placements.values()) == placed


_GUIDE = (
    (Path(__file__).parents[4] / "docs" / "reference" / "groups.md")
    .read_text()
    .partition("## Manifests to begin with")[2]
)
DOCUMENTED = re.findall(r"```yaml\n(.*?)```", _GUIDE, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(DOCUMENTED)))
def test_the_documented_manifests_are_gangs_of_two(tmp_path: Path, number: int) -> None:
    nodes = node(gpus=4, cpus=32)
    state, warnings = begun(nodes + "---\n" + DOCUMENTED[number], tmp_path)
    assert warnings == []
    (group,) = [one for one in state.groups.values() if state.group_table.pods_of(one.key)]
    assert min_pods(group.sets) == len(state.group_table.pods_of(group.key)) == 2
    placed = brief(document_of(world_of(nodes + "---\n" + DOCUMENTED[number], tmp_path)))
    assert all(where.startswith("n1 ") for where in placed.values())


QUEUES = """
---
{apiVersion: scheduling.run.ai/v2, kind: Queue, metadata: {name: team-a}, spec: {parentQueue: research}}
---
{apiVersion: scheduling.run.ai/v2, kind: Queue, metadata: {name: research}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: lq, namespace: ml}
spec: {clusterQueue: c}
"""


def test_queues_of_manifests_are_those_of_the_state(tmp_path: Path) -> None:
    state, warnings = begun(node() + pod("a") + QUEUES, tmp_path)
    assert not warnings
    assert sorted(state.queues) == ["ml/lq", "research", "team-a"]
    assert [one.name for one in state.queue_registry.tree.queues] == ["default", "research", "team-a"]


def test_what_is_wrong_with_a_queue_is_a_problem(tmp_path: Path) -> None:
    text = "\n---\n{apiVersion: kueue.x-k8s.io/v1beta1, kind: LocalQueue, metadata: {name: lq}, spec: {}}\n"
    world = world_of(node() + pod("a") + text, tmp_path)
    assert [(problem.field, problem.problem) for problem in world.problems] == [("spec.clusterQueue", "is missing")]
