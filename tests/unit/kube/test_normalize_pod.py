"""Pods from the wire into the model."""

from typing import Any

import pytest
from kaicore.errors import InvalidObject
from kaicore.kube.normalize.pod import normalize_pod
from kaicore.kube.wire.resources import PODS
from kaicore.rules.model.pod import (
    LAST_CHECKPOINT_ANNOTATION,
    Container,
    ContainerKind,
    Owner,
    Pod,
    QosClass,
    Toleration,
)
from kaicore.rules.model.selector import Requirement

from tests.given.cluster import wire

GI = 2**30


def normalized(document: wire.Wire) -> Pod:
    return normalize_pod(PODS.decode(wire.encode(document)))


def resources(requests: wire.Wire | None = None, limits: wire.Wire | None = None) -> wire.Wire:
    return {"name": "c", "resources": {"requests": requests, "limits": limits}}


def test_pod_in_full_is_normalized() -> None:
    document = wire.pod(
        "train-0",
        namespace="ml",
        version="77",
        labels={"app": "train"},
        annotations={"kai.scheduler/queue": "a", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
        ownerReferences=[
            {"kind": "Node", "name": "other", "uid": "u0"},
            {"kind": "Job", "name": "train", "uid": "u1", "apiVersion": "batch/v1", "controller": True},
        ],
        priority=1000,
        priorityClassName="high",
        preemptionPolicy="Never",
        nodeSelector={"gpu": "h100"},
        schedulingGates=[{"name": "b"}, {"name": "a"}],
        overhead={"cpu": "250m"},
        activeDeadlineSeconds=600,
        tolerations=[
            {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "k", "value": "v"},
            {"key": "cores", "operator": "Gt", "value": "8"},
        ],
        status={"nominatedNodeName": "n9", "qosClass": "Burstable"},
    )
    document["metadata"]["creationTimestamp"] = "2026-01-01T00:00:01Z"
    document["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00+00:00"
    pod = normalized(document)
    assert pod == Pod(
        uid="uid-train-0",
        namespace="ml",
        name="train-0",
        resource_version="77",
        created_at=1767225601,
        scheduler_name="kai-ledger",
        qos=QosClass.BURSTABLE,
        containers=(Container(name="main", requests={"cpu": 1000, "memory": GI}, limits={"cpu": 1000, "memory": GI}),),
        priority=1000,
        priority_class="high",
        preemption_policy="Never",
        labels={"app": "train"},
        annotations={"kai.scheduler/queue": "a"},
        overhead={"cpu": 250},
        node_selector={"gpu": "h100"},
        # A toleration by an operator that we do not know tolerates nothing.
        tolerations=(
            Toleration(key="gpu", operator="Exists", effect="NoSchedule"),
            Toleration(key="k", value="v"),
        ),
        scheduling_gates=("a", "b"),
        owner=Owner(kind="Job", name="train", uid="u1", api_version="batch/v1"),
        deletion_at=1767225660,
        nominated_node="n9",
        active_deadline_s=600,
    )


@pytest.mark.parametrize(
    ("text", "at", "is_lost"),
    [
        ("2026-01-01T00:00:00Z", 1767225600, False),
        ("2026-01-01T02:00:00.25+02:00", 1767225600, False),
        ("2026-01-01T00:00:00", 0, True),
        ("lately", 0, True),
        ("", 0, False),
    ],
)
def test_last_checkpoint_is_a_fact_of_the_pod_and_one_that_is_no_time_is_lost(
    text: str, at: int, is_lost: bool
) -> None:
    lost: list[InvalidObject] = []
    read = PODS.decode(wire.encode(wire.pod(annotations={LAST_CHECKPOINT_ANNOTATION: text})))
    one = normalize_pod(read, lost=lost.append)
    assert (one.checkpoint_at, one.annotations) == (at, {})
    assert [error.field for error in lost] == ["metadata.annotations[kai.scheduler/last-checkpoint-time]"] * is_lost


def test_fields_that_are_missing_or_null_have_their_defaults() -> None:
    nothing = {"metadata": {"name": "p", "uid": "u", "labels": None, "annotations": None, "creationTimestamp": None}}
    pod = normalized(nothing)
    assert (pod.phase, pod.scheduler_name, pod.qos, pod.containers) == (
        "Pending",
        "default-scheduler",
        QosClass.BEST_EFFORT,
        (),
    )
    nulls = wire.pod(affinity=None, tolerations=None, volumes=None, initContainers=None, resources=None, priority=None)
    assert normalized(nulls) == normalized(wire.pod())


def test_containers_are_in_the_order_of_the_kubelet() -> None:
    pod = normalized(
        wire.pod(
            containers=[{"name": "a"}, {"name": "b"}],
            initContainers=[{"name": "i"}, {"name": "s", "restartPolicy": "Always"}, {"name": "j"}],
        )
    )
    assert [(container.name, container.kind) for container in pod.containers] == [
        ("i", ContainerKind.INIT),
        ("s", ContainerKind.SIDECAR),
        ("j", ContainerKind.INIT),
        ("a", ContainerKind.APP),
        ("b", ContainerKind.APP),
    ]


def test_a_limit_without_a_request_is_a_request() -> None:
    limits = {"cpu": "2", "nvidia.com/gpu": "1"}
    (container,) = normalized(wire.pod(containers=[resources({"cpu": "500m"}, limits)])).containers
    assert container.requests == {"cpu": 500, "nvidia.com/gpu": 1}
    assert container.limits == {"cpu": 2000, "nvidia.com/gpu": 1}


@pytest.mark.parametrize(
    ("containers", "qos"),
    [
        ([resources(limits={"cpu": "1", "memory": "1Gi"})], "Guaranteed"),
        ([resources({"cpu": "1", "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"})], "Guaranteed"),
        ([resources(limits={"cpu": "1000m", "memory": "1073741824"}), resources(limits={"cpu": "1"})], "Burstable"),
        ([resources({"cpu": "1"}, {"cpu": "2", "memory": "1Gi"})], "Burstable"),
        ([resources({"memory": "1Gi"})], "Burstable"),
        ([resources(limits={"memory": "1Gi"})], "Burstable"),
        ([resources(limits={"nvidia.com/gpu": "8"})], "BestEffort"),
        ([resources({"cpu": "0", "memory": "0"})], "BestEffort"),
        ([{"name": "c"}], "BestEffort"),
    ],
)
def test_qos_as_kubernetes_computes_it(containers: list[Any], qos: str) -> None:
    assert normalized(wire.pod(containers=containers)).qos == qos
    assert normalized(wire.pod(containers=containers, status={"qosClass": "nonsense"})).qos == qos
    # Sidecars and init containers count alike.
    assert normalized(wire.pod(containers=[], initContainers=containers)).qos == qos


def test_pod_level_resources_decide_qos_and_default_from_limits() -> None:
    containers = [resources({"cpu": "1"})]
    pod = normalized(wire.pod(containers=containers, resources={"limits": {"cpu": "4", "memory": "8Gi"}}))
    assert pod.pod_resources == {"cpu": 4000, "memory": 8 * GI}
    assert pod.qos is QosClass.GUARANTEED
    asked = {"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}
    assert normalized(wire.pod(resources=asked)).pod_resources == {"cpu": 2000}
    assert normalized(wire.pod(resources={})).pod_resources is None


def test_required_node_affinity_is_read() -> None:
    terms = [
        {
            "matchExpressions": [{"key": "zone", "operator": "In", "values": ["b", "a"]}],
            "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}],
        },
        {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]},
    ]
    pod = normalized(wire.pod(affinity=required(terms)))
    assert pod.node_affinity == (
        (
            Requirement(key="zone", operator="In", values=("a", "b")),
            Requirement(key="metadata.name", operator="In", values=("n1",), field=True),
        ),
        (Requirement(key="gpu", operator="Exists"),),
    )
    assert pod.unsupported == ()


def required(terms: list[Any]) -> wire.Wire:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def test_a_selector_that_selects_nothing_is_not_taken_for_no_selector() -> None:
    assert normalized(wire.pod(affinity=required([]))).node_affinity == ((),)
    assert normalized(wire.pod(affinity=required([{}]))).node_affinity == ((),)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (
            {"affinity": required([{"matchFields": [{"key": "metadata.uid", "operator": "In", "values": ["u"]}]}])},
            "node affinity by field metadata.uid",
        ),
    ],
)
def test_what_cannot_be_honoured_is_named(spec: dict[str, Any], named: str) -> None:
    assert normalized(wire.pod(**spec)).unsupported == (named,)


@pytest.mark.parametrize(
    "spec",
    [
        # What is said of a topology is for groups.
        {"annotations": {"volcano.sh/network-topology-mode": "hard"}},
        {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}},
        {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "configMap": {"name": "x"}}]},
    ],
)
def test_constraint_that_can_be_honoured_or_is_harmless_is_accepted(spec: dict[str, Any]) -> None:
    assert normalized(wire.pod(**spec)).unsupported == ()


def test_annotations_of_workload_apis_are_kept_and_our_own_prediction_is_not() -> None:
    kept = {
        "kai.scheduler/topology": "t",
        "kai.scheduler/numa-placement-observed": "[]",
        "kai.scheduler/rank": "3",
        "kueue.x-k8s.io/podset-required-topology": "rack",
        "gang.scheduling.koordinator.sh/name": "g",
        "pod-group.scheduling.sigs.k8s.io/name": "g",
        "scheduling.k8s.io/group-name": "g",
        "scheduling.koordinator.sh/network-topology-selector": "{}",
        "volcano.sh/network-topology-mode": "hard",
        "leaderworkerset.sigs.k8s.io/size": "4",
        "network-topology.x/y": "z",
        "batch.kubernetes.io/job-completion-index": "0",
        "kubernetes.io/config.mirror": "0f1e2d",
    }
    dropped = {
        "kai.scheduler/numa-placement-predicted": "[]",
        "prometheus.io/scrape": "true",
    }
    assert normalized(wire.pod(annotations=kept | dropped)).annotations == kept


def test_quantities_that_people_write_as_numbers() -> None:
    (container,) = normalized(wire.pod(containers=[resources(limits={"cpu": 0.5, "memory": 1e3})])).containers
    assert container.limits == {"cpu": 500, "memory": 1000}


@pytest.mark.parametrize(
    ("phase", "ready", "deleted", "unready"),
    [
        ("Running", "False", None, True),
        ("Running", "Unknown", None, True),
        ("Running", "True", None, False),
        ("Running", "False", "2026-01-01T00:00:00Z", False),
        ("Pending", "False", None, False),
        ("Succeeded", "False", None, False),
    ],
)
def test_only_a_pod_that_runs_on_is_unready(phase: str, ready: str, deleted: str | None, unready: bool) -> None:
    document = wire.pod("p", status={"phase": phase, "conditions": [{"type": "Ready", "status": ready}]})
    document["metadata"]["deletionTimestamp"] = deleted
    assert normalized(document).unready is unready
