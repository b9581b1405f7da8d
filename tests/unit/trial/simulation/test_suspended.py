"""Owners that are suspended: said, and shown as they would run where it is Kueue that is to resume them."""

from pathlib import Path

import pytest

from tests.given.logs.simulating import brief, document_of, node, world_of

KUEUE = "kueue.x-k8s.io/queue-name: lq"
TEMPLATE = """
        metadata: {labels: {app: a}}
        spec:
          restartPolicy: Never
          containers: [{name: main, image: i, resources: {limits: {cpu: 1, memory: 1Gi, nvidia.com/gpu: 1}}}]
"""
QUEUES = """---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: cq}
spec:
  namespaceSelector: {}
  resourceGroups:
    - coveredResources: [cpu, memory, nvidia.com/gpu]
      flavors:
        - name: any
          resources:
            - {name: cpu, nominalQuota: 100}
            - {name: memory, nominalQuota: 100Gi}
            - {name: nvidia.com/gpu, nominalQuota: GPUS}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: any}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: lq, namespace: default}
spec: {clusterQueue: cq}
"""


def job(labels: str = "", *, more: str = "") -> str:
    return f"""---
apiVersion: batch/v1
kind: Job
metadata: {{name: train, labels: {{{labels}}}}}
spec:
  suspend: true
  parallelism: 2
  completions: 2
  template:{TEMPLATE}{more}
"""


def test_a_suspended_job_of_kueue_is_shown_as_if_it_were_admitted_and_that_is_said(tmp_path: Path) -> None:
    """It made no pods, and nothing was said: the answer was an empty table."""
    world = world_of(node() + QUEUES.replace("GPUS", "4") + job(KUEUE), tmp_path)
    (warning,) = world.warnings
    assert "Job default/train: is suspended: 2 pods are shown as if LocalQueue lq admitted it" in warning
    assert len([pod for pod in brief(document_of(world)).values() if pod.startswith("n1 ")]) == 2


def test_a_suspended_job_of_kueue_waits_as_a_whole_where_its_queue_has_too_little(tmp_path: Path) -> None:
    document = document_of(world_of(node() + QUEUES.replace("GPUS", "1") + job(KUEUE), tmp_path))
    assert {pod["phase"] for pod in document["pods"]} == {"Pending"}


def test_a_job_that_another_controller_suspended_makes_no_pods_and_is_reported(tmp_path: Path) -> None:
    world = world_of(node() + job(), tmp_path)
    (warning,) = world.warnings
    assert "Job default/train: is suspended: 2 pods are left out" in warning
    assert world.pods == []


def test_a_suspended_job_that_is_done_is_not_spoken_of(tmp_path: Path) -> None:
    done = "status: {succeeded: 2, conditions: [{type: Complete, status: 'True'}]}"
    world = world_of(node() + QUEUES.replace("GPUS", "4") + job(KUEUE, more=done), tmp_path)
    assert (world.warnings, world.pods) == ([], [])


@pytest.mark.parametrize(
    ("text", "pods"),
    [
        (
            "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nspec: {suspend: true, replicatedJobs: "
            "[{name: w, replicas: 2, template: {spec: {template: POD}}}]}",
            2,
        ),
        (
            "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec: {runPolicy: {suspend: true}, "
            "pytorchReplicaSpecs: {Master: {template: POD}, Worker: {replicas: 2, template: POD}}}",
            3,
        ),
        (
            "apiVersion: ray.io/v1\nkind: RayCluster\nspec: {suspend: true, headGroupSpec: {template: POD}, "
            "workerGroupSpecs: [{groupName: g, replicas: 1, template: POD}]}",
            2,
        ),
    ],
    ids=["JobSet", "PyTorchJob", "RayCluster"],
)
def test_other_kinds_that_kueue_suspends_are_shown_too(tmp_path: Path, text: str, pods: int) -> None:
    spec = "{spec: {containers: [{name: main, resources: {limits: {cpu: 1, memory: 1Gi}}}]}}"
    owner = f"---\n{text.replace('POD', spec)}\nmetadata: {{name: train, labels: {{{KUEUE}}}}}\n"
    world = world_of(node() + QUEUES.replace("GPUS", "4") + owner, tmp_path)
    assert world.problems == []
    assert len(world.pods) == pods
    assert [f"{pods} pods are shown as if LocalQueue lq admitted it" in warning for warning in world.warnings] == [True]
