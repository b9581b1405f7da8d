"""Owners of pods, and the pods that their controllers would make."""

import hashlib
from typing import Any

import pytest
from kaicore.errors import InvalidObject
from kaicore.rules.groups.dialects.table import expand
from kaicore.rules.objects.made import successor
from kaicore.rules.objects.mappings import derived_uid
from kaicore.yaml_text import load_yaml

POD_SPEC = "{containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]}"


def owner(text: str, name: str = "x") -> dict[str, Any]:
    """An owner in namespace ml; POD stands for a pod template."""
    template = f"{{metadata: {{labels: {{app: demo}}}}, spec: {POD_SPEC}}}"
    document: dict[str, Any] = load_yaml(text.replace("POD", template))
    document["metadata"] = {"name": name, "namespace": "ml", "uid": "u-1", **(document.get("metadata") or {})}
    return document


def pods(text: str, nodes: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    return [made.object for made in expand(owner(text), nodes_for=lambda _: list(nodes))]


def names(objects: list[dict[str, Any]]) -> list[str]:
    """Names, generated letters as dots."""
    return [
        pod["metadata"]["generateName"] + "....." if pod["metadata"].get("generateName") else pod["metadata"]["name"]
        for pod in objects
    ]


JOB = "apiVersion: batch/v1\nkind: Job\nspec: {template: POD, %s}"
JOBSET = "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nspec: {replicatedJobs: [%s]}"
VOLCANO = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nspec: {%s}"
LWS = "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nspec: {%s}"
RAY = "{headGroupSpec: {template: POD}, workerGroupSpecs: [{groupName: gpu, replicas: 2, template: POD}]}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (JOB % "", ["x-....."]),
        (JOB % "parallelism: 2", ["x-....."] * 2),
        (JOB % "parallelism: 5, completions: 2", ["x-....."] * 2),
        (JOB % "parallelism: 2, suspend: true", []),
        (JOB % "completionMode: Indexed, parallelism: 2, completions: 3", ["x-0-.....", "x-1-....."]),
        (
            JOB % "completionMode: Indexed, parallelism: 2, completions: 5" + "\nstatus: {completedIndexes: '0-1,3'}",
            ["x-2-.....", "x-4-....."],
        ),
        (JOB % "" + "\nstatus: {conditions: [{type: Complete, status: 'True'}]}", []),
        (
            JOBSET % "{name: driver, template: {spec: {template: POD}}}, "
            "{name: w, replicas: 2, template: {spec: {parallelism: 2, completions: 2, template: POD}}}",
            ["x-driver-0-0-....."] + [f"x-w-{job}-{index}-....." for job in (0, 1) for index in (0, 1)],
        ),
        (
            JOBSET % "{name: a, template: {spec: {template: POD}}}, "
            "{name: b, dependsOn: [{name: a, status: Complete}], template: {spec: {template: POD}}}",
            ["x-a-0-0-....."],
        ),
        ("apiVersion: apps/v1\nkind: ReplicaSet\nspec: {replicas: 2, template: POD}", ["x-....."] * 2),
        ("apiVersion: v1\nkind: ReplicationController\nspec: {template: POD}", ["x-....."]),
        (
            "apiVersion: apps/v1\nkind: StatefulSet\nspec: {replicas: 2, ordinals: {start: 3}, template: POD}",
            ["x-3", "x-4"],
        ),
        ("apiVersion: apps/v1\nkind: DaemonSet\nspec: {template: POD}", ["x-....."] * 2),
        (
            LWS % "replicas: 2, leaderWorkerTemplate: {size: 3, workerTemplate: POD}",
            ["x-0", "x-0-1", "x-0-2", "x-1", "x-1-1", "x-1-2"],
        ),
        (
            "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\n"
            "spec: {pytorchReplicaSpecs: {Worker: {replicas: 2, template: POD}, Master: {template: POD}}}",
            ["x-master-0", "x-worker-0", "x-worker-1"],
        ),
        (
            "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\n"
            "spec: {mpiReplicaSpecs: {Launcher: {template: POD}, Worker: {replicas: 2, template: POD}}}",
            ["x-worker-0", "x-worker-1", "x-launcher-....."],
        ),
        (
            "apiVersion: kubeflow.org/v1\nkind: MPIJob\n"
            "spec: {mpiReplicaSpecs: {Launcher: {template: POD}, Worker: {template: POD}}}",
            ["x-worker-0", "x-launcher"],
        ),
        (
            f"apiVersion: ray.io/v1\nkind: RayCluster\nspec: {RAY}",
            ["x-head-.....", "x-gpu-worker-.....", "x-gpu-worker-....."],
        ),
    ],
)
def test_owner_makes_the_expected_pods(text: str, expected: list[str]) -> None:
    made = pods(text, nodes=("n1", "n2"))
    assert names(made) == expected
    assert len({pod["metadata"]["name"] for pod in made}) == len(made)
    assert len({pod["metadata"]["uid"] for pod in made}) == len(made)
    for pod in made:
        assert (pod["kind"], pod["metadata"]["namespace"], pod["metadata"]["labels"]["app"]) == ("Pod", "ml", "demo")
        (reference,) = pod["metadata"]["ownerReferences"]
        assert reference["controller"] is True


def test_the_same_owner_has_the_same_pods() -> None:
    text = JOB % "parallelism: 2"
    assert pods(text) == pods(text)


def labels(pod: dict[str, Any], prefix: str) -> dict[str, str]:
    every = pod["metadata"]["labels"]
    return {key.removeprefix(prefix): value for key, value in every.items() if key.startswith(prefix)}


def reference(pod: dict[str, Any]) -> tuple[str, str]:
    owner_reference = pod["metadata"]["ownerReferences"][0]
    return owner_reference["kind"], owner_reference["name"]


def test_each_of_many_pods_has_a_name_and_uid_of_its_own() -> None:
    made = pods(JOB % "parallelism: 8000, completions: 8000")
    assert len({pod["metadata"]["name"] for pod in made}) == len({pod["metadata"]["uid"] for pod in made}) == 8000


def test_an_indexed_pod_says_its_index_in_label_annotation_and_hostname() -> None:
    pod = pods(JOB % "completionMode: Indexed, completions: 1")[0]
    index = "batch.kubernetes.io/job-completion-index"
    assert pod["metadata"]["labels"][index] == pod["metadata"]["annotations"][index] == "0"
    assert pod["spec"]["hostname"] == "x-0"
    assert labels(pod, "batch.kubernetes.io/")["job-name"] == pod["metadata"]["labels"]["job-name"] == "x"


def test_pods_of_a_jobset_say_where_in_it_they_are() -> None:
    pod = pods(JOBSET % "{name: a, template: {spec: {template: POD}}}, "
               "{name: w, replicas: 2, template: {spec: {template: POD}}}")[2]  # fmt: skip
    indexes = labels(pod, "jobset.sigs.k8s.io/")
    assert indexes.pop("job-key") == hashlib.sha1(b"ml/x-w-1").hexdigest()
    assert indexes == {
        "jobset-name": "x",
        "jobset-uid": "u-1",
        "replicatedjob-name": "w",
        "replicatedjob-replicas": "2",
        "global-replicas": "3",
        "job-index": "1",
        "job-global-index": "2",
        "restart-attempt": "0",
    }
    assert reference(pod) == ("Job", "x-w-1")


def test_leaders_and_workers_of_a_group_share_its_key() -> None:
    text = LWS % (
        "leaderWorkerTemplate: {size: 5, subGroupPolicy: {subGroupSize: 2}, workerTemplate: POD, "
        "leaderTemplate: {metadata: {labels: {app: demo}}, spec: {containers: [{name: head}]}}}"
    )
    leader, *workers = pods(text)
    assert leader["spec"]["containers"][0]["name"] == "head"
    assert reference(leader) == ("StatefulSet", "x")
    assert {reference(worker) for worker in workers} == {("StatefulSet", "x-0")}
    group_labels = [labels(pod, "leaderworkerset.sigs.k8s.io/") for pod in (leader, *workers)]
    assert len({item["group-key"] for item in group_labels}) == 1
    assert [item["worker-index"] for item in group_labels] == ["0", "1", "2", "3", "4"]
    # Of five pods in twos the leader is one too many, and joins the first.
    assert [item["subgroup-index"] for item in group_labels] == ["0", "0", "0", "1", "1"]
    assert workers[0]["metadata"]["annotations"]["leaderworkerset.sigs.k8s.io/leader-name"] == "x-0"
    assert leader["metadata"]["annotations"]["leaderworkerset.sigs.k8s.io/size"] == "5"


def test_masters_lead_training_jobs() -> None:
    master, worker = pods(
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\n"
        "spec: {pytorchReplicaSpecs: {Master: {template: POD}, Worker: {template: POD}}}"
    )
    assert labels(master, "training.kubeflow.org/") == {
        "operator-name": "pytorchjob-controller",
        "job-name": "x",
        "job-role": "master",
        "replica-type": "master",
        "replica-index": "0",
    }
    assert "job-role" not in labels(worker, "training.kubeflow.org/")


def test_a_ray_job_is_a_cluster_and_a_submitter() -> None:
    made = pods(f"apiVersion: ray.io/v1\nkind: RayJob\nspec: {{rayClusterSpec: {RAY}, submitterPodTemplate: POD}}")
    assert [labels(pod, "ray.io/").get("node-type") for pod in made] == ["head", "worker", "worker", None]
    assert reference(made[0])[0] == "RayCluster"
    assert reference(made[-1]) == ("Job", "x")
    assert [container["name"] for container in made[1]["spec"]["initContainers"]] == ["wait-gcs-ready"]


def test_a_ray_service_is_a_cluster() -> None:
    made = pods(f"apiVersion: ray.io/v1\nkind: RayService\nspec: {{rayClusterConfig: {RAY}}}")
    assert [labels(pod, "ray.io/").get("node-type") for pod in made] == ["head", "worker", "worker"]
    assert reference(made[0])[0] == "RayCluster"


def test_exclusive_placement_is_asked_for_as_the_webhooks_do() -> None:
    text = "metadata: {annotations: {leaderworkerset.sigs.k8s.io/exclusive-topology: rack}}\n"
    pod = pods(text + LWS % "leaderWorkerTemplate: {workerTemplate: POD}")[0]
    assert set(pod["spec"]["affinity"]) == {"podAffinity", "podAntiAffinity"}


def test_pods_of_a_deployment_belong_to_its_replica_set() -> None:
    pod = pods("apiVersion: apps/v1\nkind: Deployment\nspec: {template: POD}")[0]
    revision = pod["metadata"]["labels"]["pod-template-hash"]
    assert reference(pod) == ("ReplicaSet", f"x-{revision}")
    assert pod["metadata"]["name"].startswith(f"x-{revision}-")


def test_a_daemons_pod_is_for_its_node_alone() -> None:
    pod = pods("apiVersion: apps/v1\nkind: DaemonSet\nspec: {template: POD}", nodes=("n7",))[0]
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n7"]}]
    assert {"node.kubernetes.io/unschedulable"} <= {item["key"] for item in pod["spec"]["tolerations"]}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("apiVersion: batch/v1\nkind: Job", "Job ml/x: spec: is missing: None"),
        ("apiVersion: batch/v1\nkind: Job\nspec: {}", "Job ml/x: spec.template: is missing: None"),
        (JOB % "parallelism: two", "Job ml/x: spec.parallelism: must be a whole number of 0 or more: 'two'"),
        (
            JOB % "completionMode: Indexed, parallelism: 1",
            "Job ml/x: spec.completions: is needed with completionMode Indexed: None",
        ),
        (
            JOBSET % "{name: a, template: {spec: {parallelism: -1, template: POD}}}",
            "JobSet ml/x: spec.replicatedJobs[0].template.spec.parallelism: must be a whole number of 0 or more: -1",
        ),
        (
            "apiVersion: apps/v1\nkind: Deployment\nspec: {template: {metadata: {labels: [a]}, spec: {}}}",
            "Deployment ml/x: spec.template.metadata.labels: must be a mapping: ['a']",
        ),
        (
            "apiVersion: ray.io/v1\nkind: RayJob\nspec: {rayClusterSpec: {headGroupSpec: {}}}",
            "RayJob ml/x: spec.rayClusterSpec.headGroupSpec.template: is missing: None",
        ),
        (LWS % "leaderWorkerTemplate: {size: 0, workerTemplate: POD}", "size: must be a whole number of 1 or more: 0"),
        (JOBSET % "7", "JobSet ml/x: spec.replicatedJobs: must be a list of mappings: [7]"),
    ],
)
def test_what_an_owner_says_wrongly_is_named(text: str, problem: str) -> None:
    with pytest.raises(InvalidObject) as caught:
        pods(text)
    assert str(caught.value).endswith(problem)


def test_a_successor_is_another_pod() -> None:
    generated, fixed = pods(JOB % "")[0], pods("apiVersion: apps/v1\nkind: StatefulSet\nspec: {template: POD}")[0]
    for pod, same_name in ((generated, False), (fixed, True)):
        after = successor({**pod, "status": {"phase": "Failed"}, "spec": {**pod["spec"], "nodeName": "n1"}})
        assert after["metadata"]["uid"] != pod["metadata"]["uid"]
        assert (after["metadata"]["name"] == pod["metadata"]["name"]) is same_name
        assert "nodeName" not in after["spec"]
        assert "status" not in after


def test_uids_are_made_of_what_they_are_made_for() -> None:
    assert derived_uid("a", "b") == derived_uid("a", "b") != derived_uid("ab")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            VOLCANO % "tasks: [{name: ps, template: POD, replicas: 1}, {template: POD, replicas: 2}]",
            ["x-ps-0", "x-default1-0", "x-default1-1"],
        ),
        (VOLCANO % "tasks: [{name: ps, template: POD}]", []),
        (VOLCANO % "tasks: [{template: POD, replicas: 1}]" + "\nstatus: {state: {phase: Running}}", ["x-default0-0"]),
        *(
            (VOLCANO % "tasks: [{template: POD, replicas: 1}]" + f"\nstatus: {{state: {{phase: {phase}}}}}", [])
            for phase in ("Completed", "Aborted", "Failed", "Terminated", "Completing")
        ),
    ],
)
def test_volcano_job_makes_the_expected_pods(text: str, expected: list[str]) -> None:
    assert names(pods(text)) == expected


def test_a_pod_of_a_partition_says_so() -> None:
    policy = "partitionPolicy: {totalPartitions: 2, partitionSize: 2}"
    found = pods(VOLCANO % f"tasks: [{{name: w, replicas: 4, template: POD, {policy}}}]")
    assert [pod["metadata"]["labels"]["volcano.sh/partition-id"] for pod in found] == ["0", "0", "1", "1"]


@pytest.mark.parametrize("group", ["topology.volcano.sh", "training.volcano.sh"])
@pytest.mark.parametrize("field", ["template", "templateSpec"])
def test_pods_of_a_hyper_job_are_those_of_its_jobs(group: str, field: str) -> None:
    text = (
        f"apiVersion: {group}/v1alpha1\nkind: HyperJob\nspec: {{replicatedJobs: [{{name: a, replicas: 2,"
        f" {field}: {{tasks: [{{name: w, replicas: 2, template: POD}}]}}}}]}}"
    )
    between: list[dict[str, Any]] = []
    found = list(expand(owner(text), nodes_for=lambda _: [], between=between.append))
    assert names([made.object for made in found]) == [f"x-a-{job}-w-{index}" for job in (0, 1) for index in (0, 1)]
    assert {made.spec_field for made in found} == {f"spec.replicatedJobs[0].{field}.tasks[0].template.spec"}
    jobs = [job["metadata"] for job in between]
    assert [job["labels"]["volcano.sh/hyperjob-replicatedjob-index"] for job in jobs] == ["0", "1"]
    assert {job["ownerReferences"][0]["uid"] for job in jobs} == {"u-1"}


def test_a_pod_of_a_volcano_job_is_named_labelled_and_annotated_as_its_controller_does() -> None:
    text = VOLCANO % (
        "schedulerName: kai-ledger, queue: research, priorityClassName: high, volumes: [{volumeClaimName: data}, "
        "{volumeClaimName: data}, {mountPath: /x}], tasks: [{name: worker, replicas: 2, topologyPolicy: restricted, "
        "template: POD}]"
    )
    text += '\nmetadata: {annotations: {volcano.sh/preemptable: "true"}}\nstatus: {version: 3, retryCount: 1}'
    pod = pods(text)[1]
    assert pod["metadata"]["labels"] == {
        "app": "demo",
        "volcano.sh/job-name": "x",
        "volcano.sh/job-namespace": "ml",
        "volcano.sh/queue-name": "research",
        "volcano.sh/task-index": "1",
        "volcano.sh/task-spec": "worker",
    }
    assert pod["metadata"]["annotations"] == {
        "scheduling.k8s.io/group-name": "x-u-1",
        "volcano.sh/job-name": "x",
        "volcano.sh/job-retry-count": "1",
        "volcano.sh/job-version": "3",
        "volcano.sh/numa-topology-policy": "restricted",
        "volcano.sh/preemptable": "true",
        "volcano.sh/queue-name": "research",
        "volcano.sh/task-index": "1",
        "volcano.sh/task-spec": "worker",
        "volcano.sh/template-uid": "x-worker",
    }
    spec = pod["spec"]
    assert (spec["schedulerName"], spec["priorityClassName"]) == ("kai-ledger", "high")
    assert spec["volumes"] == [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    assert pod["metadata"]["ownerReferences"][0]["kind"] == "Job"
