"""Objects of every dialect, and the trees that they stand for: peers' own objects."""

import pytest
from kaicore.errors import InvalidObject
from kaicore.rules.model.group import MatchPolicy, TopologyConstraint
from kaicore.rules.model.node import KAI_TOPOLOGY

from tests.given.work.groups import shape, source

KAI = "apiVersion: scheduling.run.ai/v2alpha2\nkind: PodGroup\nmetadata: {name: g}\nspec: "
SIGS = "apiVersion: scheduling.sigs.k8s.io/v1alpha1\nkind: PodGroup\nmetadata: {name: g}\nspec: "
VOLCANO = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: g}\nspec: "
NATIVE = "apiVersion: scheduling.k8s.io/v1alpha2\nkind: PodGroup\nmetadata: {name: g}\nspec: "
JOB = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: "
JOBSET = "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: j}\nspec: "
PYTORCH = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: j}\nspec: "
TF = "apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {name: j}\nspec: "
MPI = "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata: {name: j}\nspec: "
RAY = "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: r}\nspec: "
RAY_JOB = "apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {name: r}\nspec: "
POD_GANG = "apiVersion: scheduler.grove.io/v1alpha1\nkind: PodGang\nmetadata: {name: g}\nspec: "
LWS = "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: l}\nspec: "


@pytest.mark.parametrize(
    ("spec", "tree"),
    [
        # KAI: a number of pods; nothing said is one.
        (KAI + "{}", ">=1"),
        (KAI + "{minMember: 4, queue: team-a}", ">=4"),
        # Sub-groups, all of them unless it says how many.
        (KAI + "{subGroups: [{name: a, minMember: 2}, {name: b}]}", "(a>=2 b>=1)/all"),
        (KAI + "{minSubGroup: 1, subGroups: [{name: a, minMember: 2}, {name: b, minMember: 0}]}", "(a>=2 b)/1"),
        # A tree, in whatever order it is written: Grove's prefill and decode.
        (
            KAI + "{subGroups: [{name: pl, parent: prefill, minMember: 1}, {name: pw, parent: prefill, minMember: 4},"
            " {name: prefill}, {name: decode, minSubGroup: 1},"
            " {name: d0, parent: decode, minMember: 2}, {name: d1, parent: decode, minMember: 2}]}",
            "(prefill(pl>=1 pw>=4)/all decode(d0>=2 d1>=2)/1)/all",
        ),
        # Segments of a PyTorchJob: sub-groups of an elastic worker group, which asks for pods itself.
        (
            KAI + "{subGroups: [{name: master, minMember: 1}, {name: worker, minMember: 4},"
            " {name: worker-0, parent: worker, minMember: 2}, {name: worker-1, parent: worker, minMember: 2}]}",
            "(master>=1 worker(worker-0>=2 worker-1>=2)/all>=4)/all",
        ),
        (SIGS + "{minMember: 2}", ">=2"),
        (SIGS + "{}", ""),
        # Volcano: tasks count where the whole asks for no less than they do together.
        (VOLCANO + "{minMember: 3}", ">=3"),
        (VOLCANO + "{minMember: 2, minTaskMember: {ps: 1, worker: 2}}", "(ps worker -)/all>=2"),
        # Kubernetes 1.36 and later.
        (NATIVE + "{schedulingPolicy: {basic: {}}}", ""),
        # All jobs of a JobSet start together; a job has no more pods than completions.
        (
            JOBSET + "{replicatedJobs: [{name: driver, template: {spec: {}}},"
            " {name: workers, replicas: 2, template: {spec: {parallelism: 4, completions: 3}}}]}",
            "(driver>=1 workers>=6)/all",
        ),
        # A minimum of the whole leaves the leader in and lets workers come later.
        (
            PYTORCH + "{pytorchReplicaSpecs: {Master: {}, Worker: {replicas: 7}},"
            " runPolicy: {schedulingPolicy: {minAvailable: 3}}}",
            "(master>=1 worker>=2)/all>=3",
        ),
        (
            PYTORCH + "{pytorchReplicaSpecs: {Worker: {replicas: 8}}, elasticPolicy: {minReplicas: 2}}",
            "(worker>=2)/all>=2",
        ),
        # With more than leaders and workers it is unknown which of them have the minimum: any pods.
        (
            TF + "{tfReplicaSpecs: {PS: {replicas: 2}, Worker: {replicas: 4}, Chief: {}},"
            " runPolicy: {schedulingPolicy: {minAvailable: 5}}}",
            "(chief ps worker)/all>=5",
        ),
        # A launcher that is made when the workers run cannot be waited for.
        (
            MPI
            + "{launcherCreationPolicy: WaitForWorkersReady, mpiReplicaSpecs: {Launcher: {}, Worker: {replicas: 2}}}",
            "(launcher worker>=2)/all",
        ),
        # Ray: the head, and all workers of each group, hosts and all; with the autoscaler the least of them.
        (
            RAY + "{workerGroupSpecs: [{groupName: gpu, replicas: 4, minReplicas: 2, numOfHosts: 2},"
            " {groupName: cpu, replicas: 1, minReplicas: 3}]}",
            "(headgroup>=1 gpu>=8 cpu>=3)/all",
        ),
        (
            RAY + "{enableInTreeAutoscaling: true, workerGroupSpecs: ["
            "{groupName: gpu, replicas: 4, minReplicas: 2, numOfHosts: 2},"
            " {groupName: cpu, replicas: 3}, {groupName: idle, replicas: 3, suspend: true}]}",
            "(headgroup>=1 gpu>=4 cpu>=3 idle)/all",
        ),
        # The pod that submits a RayJob comes when the cluster is there.
        (
            RAY_JOB + "{rayClusterSpec: {workerGroupSpecs: [{groupName: gpu, replicas: 1}]}}",
            "(headgroup>=1 gpu>=1 submitter)/all",
        ),
        (RAY_JOB + "{clusterSelector: {ray.io/cluster: shared}}", ">=1"),
        (LWS + "{replicas: 2, leaderWorkerTemplate: {size: 4}}", "(leader>=1 workers>=3)/all"),
        # Workers that are made after their leader start together, after it.
        (LWS + "{startupPolicy: LeaderReady, leaderWorkerTemplate: {size: 4}}", "(leader>=1 workers>=3)/1"),
        (LWS + "{leaderWorkerTemplate: {size: 1}}", "(leader>=1)/all"),
        # Grove: cliques, and those of a replica of a scaling group that has a place of its own.
        (POD_GANG + "{podgroups: [{name: a, minReplicas: 2}, {name: b, minReplicas: 1}]}", "(a>=2 b>=1)/all"),
        (
            POD_GANG
            + "{podgroups: [{name: d, minReplicas: 1}, {name: pl, minReplicas: 1}, {name: pw, minReplicas: 4}],"
            " topologyConstraintGroupConfigs: [{name: p-0, podGroupNames: [pl, pw]}, {name: p-1, podGroupNames: [x]}]}",
            "(p-0(pl>=1 pw>=4)/all d>=1)/all",
        ),
    ],
)
def test_source_gives_the_expected_tree(spec: str, tree: str) -> None:
    assert shape(source(spec).templates[0].sets) == tree


def test_jobs_that_start_one_after_the_other_are_groups_of_their_own() -> None:
    jobs = "replicatedJobs: [{name: a, template: {spec: {}}}, {name: b, replicas: 2, template: {spec: {}}, DEPENDS}]"
    depends = jobs.replace("DEPENDS", "dependsOn: [{name: a, status: Ready}]")
    templates = source(JOBSET + f"{{{depends}}}").templates
    assert [(one.name, shape(one.sets)) for one in templates] == [("", "(a>=1)/all"), ("b", ">=2")]
    in_order = jobs.replace(", DEPENDS", "")
    templates = source(JOBSET + f"{{startupPolicy: {{startupPolicyOrder: InOrder}}, {in_order}}}").templates
    assert [(one.name, shape(one.sets)) for one in templates] == [("", ""), ("a", ">=1"), ("b", ">=2")]


def test_kai_pod_group_gives_queue_priority_and_delays() -> None:
    parsed = source(
        KAI + "{minMember: 1, queue: team-a, priorityClassName: train, preemptibility: non-preemptible,"
        " stalenessGracePeriod: 5m, preemptionDelay: 1h30m, schedulingBackoff: -1, markUnschedulable: true,"
        " topologyConstraint: {topology: dc, requiredTopologyLevel: block, preferredTopologyLevel: rack}}"
    )
    assert (parsed.queue, parsed.priority_class, parsed.preemptible, parsed.kai) == ("team-a", "train", False, True)
    assert (parsed.staleness_grace_us, parsed.preemption_delay_us) == (300_000_000, 5_400_000_000)
    assert parsed.kept == {"markUnschedulable": "true", "schedulingBackoff": "-1"}
    assert parsed.templates[0].sets[0].topology == TopologyConstraint(
        "dc", "block", "rack", "spec.topologyConstraint", KAI_TOPOLOGY
    )


@pytest.mark.parametrize(
    ("mode", "whole"),
    [("PodGroup", True), ("{all: {}}", True), ("Pod", False), ("{single: {}}", False), ("null", False)],
)
def test_native_pod_groups_may_be_disrupted_as_a_whole_only(mode: str, whole: bool) -> None:
    assert source(NATIVE + f"{{disruptionMode: {mode}}}").ends_whole is whole


def test_koordinator_annotations_give_match_policy_and_gang_group() -> None:
    text = """
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata:
  name: gang-example1
  annotations:
    gang.scheduling.koordinator.sh/groups: '["default/gang-example1", "default/gang-example2"]'
    gang.scheduling.koordinator.sh/match-policy: MATCH
    gang.scheduling.koordinator.sh/mode: NonStrict
    gang.scheduling.koordinator.sh/total-number: "3"
spec: {minMember: 1, scheduleTimeoutSeconds: 60}
"""
    parsed = source(text.replace("MATCH", "only-waiting"))
    assert parsed.together == ("default/gang-example1", "default/gang-example2")
    assert parsed.match_policy is MatchPolicy.ONLY_WAITING
    assert parsed.kept == {"mode": "NonStrict", "total-number": "3", "scheduleTimeoutSeconds": "60"}
    # What is said wrongly is as if it were not said.
    assert source(text.replace("MATCH", "sometimes")).match_policy is MatchPolicy.ONCE_SATISFIED
    assert source(text.replace('\'["default/gang-example1"', "'[gang-example1")).together == ()
    # The scheduler-plugins without Koordinator count what runs.
    assert source(SIGS + "{minMember: 2}").match_policy is MatchPolicy.WAITING_AND_RUNNING


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            KAI + "{minMember: four}",
            "PodGroup.scheduling.run.ai default/g: spec.minMember: must be a whole number of 0 or more: 'four'",
        ),
        (
            KAI + "{minMember: -1}",
            "PodGroup.scheduling.run.ai default/g: spec.minMember: must be a whole number of 0 or more: -1",
        ),
        (KAI + "{minMember: 1, minSubGroup: 1}", "spec.minSubGroup: excludes minMember: 1"),
        (KAI + "{minSubGroup: 1}", "spec.minSubGroup: asks for sub-groups and there are none: 1"),
        (KAI + "{minSubGroup: 3, subGroups: [{name: a}]}", "spec.subGroups: asks for 3 sub-groups and has 1: ''"),
        (
            KAI + "{subGroups: [{name: a, minSubGroup: 1}]}",
            r"subGroups\[0\].minSubGroup: asks for sub-groups of a leaf",
        ),
        (KAI + "{subGroups: [{name: a}, {name: a}]}", r"spec.subGroups\[1\].name: is there twice or empty: 'a'"),
        (
            KAI + "{subGroups: [{name: a, parent: b}]}",
            r"spec.subGroups\[0\].parent: is no sub-group of this group: 'b'",
        ),
        (KAI + "{subGroups: [{name: a, parent: b}, {name: b, parent: a}]}", "spec.subGroups: is below itself: 'a'"),
        (KAI + "{stalenessGracePeriod: 60}", "spec.stalenessGracePeriod: must be a text of printable characters: 60"),
        (VOLCANO + "{minTaskMember: {a: -2}}", r"spec.minTaskMember.a: must be a whole number of 0 or more: -2"),
        (VOLCANO + "{subGroupPolicy: [{name: a}, {name: a}]}", "spec.subGroupPolicy: need names, each of them once"),
        (PYTORCH + "{}", "PyTorchJob.kubeflow.org default/j: spec.pytorchReplicaSpecs: has no replicas: None"),
        (POD_GANG + "{podgroups: [{name: a}, {name: a}]}", "spec.podgroups: need names, each of them once"),
        (
            POD_GANG + "{podgroups: [{name: a, minReplicas: -1}]}",
            r"spec.podgroups\[0\].minReplicas: must be a whole number of 0 or more: -1",
        ),
        (
            LWS + "{leaderWorkerTemplate: {size: 0}}",
            "spec.leaderWorkerTemplate.size: must be a whole number of 1 or more: 0",
        ),
        (
            JOB.replace("{name: j}", "{name: j, annotations: {kai.scheduler/batch-min-member: all}}") + "{}",
            r"metadata.annotations\[kai.scheduler/batch-min-member\]: is no count of 1 or more: 'all'",
        ),
    ],
)
def test_what_cannot_be_is_named(spec: str, problem: str) -> None:
    with pytest.raises(InvalidObject, match=problem):
        source(spec)


def test_any_source_may_choose_how_its_nodes_are_asked_for() -> None:
    annotated = "annotations: {kai.scheduler/provisioning-class: c}"
    for text in (JOBSET + "{replicatedJobs: [{name: a, template: {spec: {}}}]}", KAI + "{minMember: 1}"):
        assert source(text).provisioning_class == ""
        assert source(text.replace("metadata: {", f"metadata: {{{annotated}, ")).provisioning_class == "c"
