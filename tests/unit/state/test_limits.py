"""Declared limits of how long pods run: deadlines, and the maximum execution times of Kueue and Volcano."""

import json
from typing import Any

import pytest
from kaicore.kube.kinds.table import group_kind
from kaicore.rules.deciding.run_length import limit_us
from kaicore.rules.events import payloads
from kaicore.rules.groups.dialects.jobset import JOBSET_NAME_LABEL
from kaicore.rules.groups.kueue import KUEUE_GROUP_LABEL, TOTAL_COUNT
from kaicore.rules.groups.labels import KUEUE_LIMIT_LABEL, VOLCANO_LIMIT_ANNOTATION
from kaicore.rules.model.pod import Owner
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import Cluster, pod

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


def _kueue_workload(seconds: int, *, past: int = 0, owner: Owner | None = None) -> dict[str, Any]:
    reference = None
    if owner is not None:
        reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"ownerReferences": [{**reference, "controller": True}]} if reference else {},
        "spec": {"maximumExecutionTimeSeconds": seconds},
        "status": {"accumulatedPastExecutionTimeSeconds": past},
    }


def _see_workload(cluster: Cluster, name: str, given: dict[str, Any]) -> Owner:
    metadata = given.pop("metadata")
    return observe(cluster, given, **metadata, name=name, uid=f"uid-{name}")


def test_maximum_execution_time_of_a_workload_of_kueue_holds_for_what_it_stands_for() -> None:
    cluster = Cluster()
    job = observe(cluster, _JOB)
    alone = Owner("Pod", "alone", "uid-alone", "v1")
    group = {"labels": {KUEUE_GROUP_LABEL: "g"}, "annotations": {TOTAL_COUNT: "1"}}
    for one in (pod("of-job", owner=job), pod("alone"), pod("of-group", **group), pod("other")):
        cluster.add_pod(one)
    _see_workload(cluster, "job-x-1", _kueue_workload(600, past=200, owner=job))
    _see_workload(cluster, "pod-alone-2", _kueue_workload(60, owner=alone))
    _see_workload(cluster, "g", _kueue_workload(50, past=70))
    state = decode_state(encode_state(cluster.state))
    for one in (cluster.state, state):
        limits = [limit_us(one, one.pods[f"uid-{name}"]) for name in ("of-job", "alone", "of-group", "other")]
        assert limits == [400_000_000, 60_000_000, 1_000_000, -1]
    cluster.record("group/Workload", payloads.GroupSourceDeleted("Workload.kueue.x-k8s.io", "uid-g", "default", "g"))
    _see_workload(cluster, "job-x-1", _kueue_workload(0, owner=job))
    assert [limit_us(cluster.state, cluster.state.pods[f"uid-of-{name}"]) for name in ("job", "group")] == [-1, -1]
