"""Declared limits of how long pods run: deadlines, and the maximum execution times of Kueue and Volcano."""

import json
from typing import Any

import pytest
from kaicore.kube.kinds.table import group_kind
from kaicore.rules.deciding.limits import limit_us
from kaicore.rules.events import payloads
from kaicore.rules.groups.dialects.jobset import JOBSET_NAME_LABEL
from kaicore.rules.groups.labels import KUEUE_LIMIT_LABEL, VOLCANO_LIMIT_ANNOTATION
from kaicore.rules.model.pod import Owner

from tests.factory import Cluster, pod

_JOB = {"apiVersion": "batch/v1", "kind": "Job"}
_SET = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
_TORCH = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}
_RAY = {"apiVersion": "ray.io/v1", "kind": "RayJob"}
_VOLCANO = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup"}
_KUEUE = {"labels": {KUEUE_LIMIT_LABEL: "60"}}
_RUNS = {"annotations": {VOLCANO_LIMIT_ANNOTATION: "1m30s"}}


def observe(cluster: Cluster, given: dict[str, Any], **metadata: Any) -> Owner:
    """Record an object; return it as the owner of pods."""
    kind = group_kind(given["apiVersion"], given["kind"])
    assert kind is not None
    named = {"name": "x", "namespace": "default", "uid": f"uid-{given['kind']}", "resourceVersion": "1", **metadata}
    source = kind.normalize(kind.decode(json.dumps({"metadata": named, **given}).encode()), lambda _: None)
    cluster.record(f"group/{source.key}", payloads.GroupSourceObserved(source))
    return Owner(given["kind"], "x", named["uid"], given["apiVersion"])


@pytest.mark.parametrize(
    ("given", "metadata", "seconds"),
    [
        ({**_JOB, "spec": {"activeDeadlineSeconds": 600}}, {}, 600),
        ({**_JOB, "spec": {"activeDeadlineSeconds": 600}}, _KUEUE, 60),
        ({**_JOB, "spec": {"activeDeadlineSeconds": 30}}, _KUEUE, 30),
        (_JOB, _RUNS, 90),
        (_JOB, {"labels": {KUEUE_LIMIT_LABEL: "soon"}, "annotations": {VOLCANO_LIMIT_ANNOTATION: "long"}}, None),
        (_JOB, {"labels": {KUEUE_LIMIT_LABEL: "0"}, "annotations": {VOLCANO_LIMIT_ANNOTATION: "-5s"}}, None),
        ({**_TORCH, "spec": {"pytorchReplicaSpecs": {"Worker": {}}, "runPolicy": {"activeDeadlineSeconds": 7}}}, {}, 7),
        ({**_RAY, "spec": {"activeDeadlineSeconds": 8}}, {}, 8),
        (_JOB, {}, None),
    ],
)
def test_limit_of_a_pod_is_the_least_that_its_owner_declares(
    given: dict[str, Any], metadata: dict[str, Any], seconds: int | None
) -> None:
    cluster = Cluster()
    member = pod("a", owner=observe(cluster, given, **metadata))
    cluster.add_pod(member)
    assert limit_us(cluster.state, cluster.state.pods[member.uid]) == (-1 if seconds is None else seconds * 1_000_000)


def test_limit_of_a_pod_of_a_jobset_is_the_least_of_both_owners() -> None:
    cluster = Cluster()
    jobset = observe(cluster, {**_SET, "spec": {"replicatedJobs": [{"name": "w"}]}}, **_KUEUE)
    job = observe(cluster, {**_JOB, "spec": {"activeDeadlineSeconds": 600}})
    cluster.add_pod(pod("a", owner=job, labels={JOBSET_NAME_LABEL: jobset.name}))
    cluster.add_pod(pod("b", owner=job, labels={JOBSET_NAME_LABEL: jobset.name}, active_deadline_s=5))
    limits = [limit_us(cluster.state, cluster.state.pods[f"uid-{name}"]) for name in "ab"]
    assert limits == [60_000_000, 5_000_000]


def test_limit_of_a_pod_group_of_volcano_holds_for_its_pods() -> None:
    cluster = Cluster()
    observe(cluster, {**_VOLCANO, "spec": {"minMember": 1}}, **_RUNS)
    cluster.add_pod(pod("a", annotations={"scheduling.k8s.io/group-name": "x"}))
    assert limit_us(cluster.state, cluster.state.pods["uid-a"]) == 90_000_000


def test_limits_on_the_pod_itself_count_too() -> None:
    cluster = Cluster()
    cluster.add_pod(pod("a", **_KUEUE))
    cluster.add_pod(pod("b", **_RUNS))
    limits = [limit_us(cluster.state, cluster.state.pods[f"uid-{name}"]) for name in "ab"]
    assert limits == [60_000_000, 90_000_000]
