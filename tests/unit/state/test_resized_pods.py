"""Pods that are resized in place: what they hold follows, in the node's account, their class and the node's stream."""

from typing import Any

import msgspec
import pytest
from kaicore.kube.api.reflector_core import ObjectSeen
from kaicore.kube.kinds.facts import Facts
from kaicore.kube.kinds.table import KINDS
from kaicore.kube.normalize.pod import normalize_pod
from kaicore.kube.wire.resources import PODS
from kaicore.rules.deciding.why import story_of
from kaicore.rules.events.payloads import NodeCharged, PodObserved
from kaicore.rules.model.pod import Pod

from tests.given.cluster.factory import Cluster, amounts, container, on_zone, pod

ZONE = amounts(cpu=8, memory=16)


def running(cluster: Cluster) -> Pod:
    one = cluster.add_pod(pod("p", cpu=4, memory=4))
    assert cluster.cycle().placements
    return cluster.add_pod(msgspec.structs.replace(one, node_name="n1", phase="Running"))


def resized(cluster: Cluster, one: Pod, *, cpu: int, memory: int) -> Pod:
    return cluster.add_pod(msgspec.structs.replace(one, containers=(container(cpu=cpu, memory=memory),)))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster().add_node("n1", ZONE, ZONE, kubelet_version="v1.38.0")


def used(cluster: Cluster) -> list[int]:
    columns = cluster.state.columns
    return [int(columns.used[0, columns.resources[name]]) for name in ("cpu", "memory", "pods")]


def test_a_resize_is_charged_to_the_node_and_its_zones_when_they_are_observed(cluster: Cluster) -> None:
    one = running(cluster)
    zones, cpu = cluster.state.columns.zones, cluster.state.columns.zones.resources["cpu"]
    resized(cluster, one, cpu=6, memory=4)
    assert used(cluster) == [6000, 4 * 2**30, 1]
    assert zones.used[0, :2, cpu].tolist() == [4000, 0], "KEP-5554: the kubelet says which CPUs came"
    cluster.report(one, on_zone("node-0", amounts(cpu=6, memory=4)), init=())
    assert zones.used[0, :2, cpu].tolist() == [6000, 0]
    cluster.add_pod(pod("q", cpu=6, memory=2))
    assert [zone.zone for zone in cluster.cycle().placements[0].placement.zone_amounts()] == ["node-1"]  # type: ignore[union-attr]


def test_a_resized_pod_that_ends_leaves_nothing_behind(cluster: Cluster) -> None:
    one = resized(cluster, running(cluster), cpu=6, memory=4)
    cluster.add_pod(msgspec.structs.replace(one, containers=(container(cpu=2, memory=2),), phase="Succeeded"))
    assert used(cluster) == [0, 0, 0]
    cluster.delete_pod(one)
    assert used(cluster) == [0, 0, 0]


def test_its_story_says_so(cluster: Cluster) -> None:
    resized(cluster, running(cluster), cpu=6, memory=4)
    shown = [line.text for line in story_of([event for event in cluster.events if event.stream == "pod/uid-p"])]
    assert shown[-1] == "resized in place: main: cpu=6 memory=4Gi"


def wire(
    spec_cpu: str, allocated: str, *, version: int = 1, reason: str = "", node: str = "n1", running: str | None = None
) -> dict[str, object]:
    resources = {"requests": {"cpu": spec_cpu, "memory": "1Gi"}, "limits": {"cpu": spec_cpu, "memory": "1Gi"}}
    conditions = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    container_status: dict[str, object] = {"name": "main", "allocatedResources": {"cpu": allocated, "memory": "1Gi"}}
    if running is not None:
        container_status["resources"] = {"requests": {"cpu": running, "memory": "1Gi"}}
    status = {
        "phase": "Running",
        "qosClass": "Guaranteed",
        "conditions": conditions,
        "containerStatuses": [container_status],
    }
    return {
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "resourceVersion": str(version)},
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": resources}]},
        "status": status,
    }


@pytest.mark.parametrize(
    ("spec", "allocated", "reason", "held"),
    [
        ("4", "4", "", 4000),
        ("6", "4", "", 6000),
        ("2", "4", "", 4000),
        ("6", "4", "Deferred", 6000),
        ("6", "4", "Infeasible", 4000),
    ],
)
def test_what_a_pod_holds_while_it_is_resized(spec: str, allocated: str, reason: str, held: int) -> None:
    """KEP-1287; `Infeasible` is said of Guaranteed pods beside static managers (kubernetes/kubernetes#128287)."""
    seen = PODS.decode(msgspec.json.encode(wire(spec, allocated, reason=reason)))
    assert normalize_pod(seen).containers[0].requests == {"cpu": held, "memory": 2**30}


@pytest.mark.parametrize(
    ("spec", "allocated", "running", "reason", "held"),
    [
        ("4", "4", "4000m", "", 4000),
        ("2", "2", "4", "", 4000),
        ("6", "6", "4", "", 6000),
        ("6", "4", "2", "Infeasible", 4000),
        ("6", "2", "4", "Infeasible", 4000),
    ],
)
def test_a_pod_that_shrinks_holds_what_its_runtime_has(
    spec: str, allocated: str, running: str, reason: str, held: int
) -> None:
    """`k8s.io/component-helpers` v0.34.4, `resource/helpers.go`: determineContainerReqs."""
    seen = PODS.decode(msgspec.json.encode(wire(spec, allocated, running=running, reason=reason)))
    assert normalize_pod(seen).containers[0].requests == {"cpu": held, "memory": 2**30}


@pytest.mark.parametrize(
    ("spec", "allocated", "running", "reason", "held"),
    [
        ("4", None, None, "", 4000),
        ("2", "4", "4", "", 4000),
        ("2", "2", "4", "", 4000),
        ("6", "4", "4", "Deferred", 6000),
        ("60", "4", "4", "Infeasible", 4000),
    ],
)
def test_requests_of_the_pod_itself_hold_what_counts_while_they_are_resized(
    spec: str, allocated: str | None, running: str | None, reason: str, held: int
) -> None:
    """KEP-5419; `k8s.io/component-helpers` v0.37.2, `resource/helpers.go`: effectivePodLevelResources."""
    document: Any = wire("1", "1", reason=reason)
    document["spec"]["resources"] = {"requests": {"cpu": spec}}
    if allocated and running:
        of_pod = {
            "allocatedResources": {"cpu": allocated, "memory": "9Gi"},
            "resources": {"requests": {"cpu": running}},
        }
        document["status"] |= of_pod
    seen = normalize_pod(PODS.decode(msgspec.json.encode(document)))
    assert seen.pod_resources == {"cpu": held}
    assert seen.containers[0].requests["cpu"] == 1000


def test_a_resize_moves_the_stream_of_the_node() -> None:
    facts, kind = Facts("c"), next(kind for kind in KINDS if kind.name == "Pod")
    payloads = []
    for version, cpu in enumerate(("4", "4", "6"), start=1):
        seen = PODS.decode(msgspec.json.encode(wire(cpu, "4", version=version)))
        unit = facts.translate(kind, ObjectSeen(seen), now=version)
        payloads.append([type(event.payload) for event in unit.events] if unit is not None else None)
    assert payloads == [[PodObserved], None, [PodObserved, NodeCharged]]
