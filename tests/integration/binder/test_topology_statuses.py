"""The nodes of topologies are written into their statuses, on a simulated API server."""

from pathlib import Path

import pytest
from kaicore.kube.api.client import KubeClient
from kaicore.kube.kinds.table import topology_kind
from kaicore.rules.events.payloads import NodeObserved
from kaicore.yaml_text import load_yaml

from tests.given.cluster.factory import node
from tests.given.processes.waiting import eventually
from tests.given.servers.kube import DEFINITIONS, Json
from tests.integration.binder.conftest import Scene

CRDS = Path(__file__).parents[3] / "deploy/k8s/crds/topologies"
HYPER_NODES = "/apis/topology.volcano.sh/v1alpha1/hypernodes"
CLUSTER_NETWORK_TOPOLOGIES = "/apis/scheduling.koordinator.sh/v1alpha1/clusternetworktopologies"


@pytest.fixture
async def topologies(scene: Scene) -> Scene:
    """A scene that serves HyperNodes and ClusterNetworkTopologies, with the nodes n1 and n2."""
    for group in ("topology.volcano.sh", "scheduling.koordinator.sh"):
        await scene.api.client.post(DEFINITIONS, load_yaml((CRDS / f"{group}.yaml").read_text()))
    await scene.append(*((name, NodeObserved(node(name, labels={"spine": "s1"}))) for name in ("n1", "n2")))
    return scene


async def make(scene: Scene, path: str, name: str, spec: Json) -> Json:
    """Create an object, and record what a watcher would."""
    group, version, plural = path.split("/")[2:]
    names = {"hypernodes": "HyperNode", "clusternetworktopologies": "ClusterNetworkTopology"}
    body = {"apiVersion": f"{group}/{version}", "kind": names[plural], "metadata": {"name": name}, "spec": spec}
    made = await scene.api.post(path, body)
    kind = topology_kind(body["apiVersion"], body["kind"])
    assert kind is not None
    model = kind.normalize(kind.decode(await scene.api.client.get(f"{path}/{name}")), lambda _: None)
    await scene.append((f"{plural}/{name}", kind.observed(model)))
    return made


def by_pattern(pattern: str) -> Json:
    return {"tier": 1, "members": [{"type": "Node", "selector": {"regexMatch": {"pattern": pattern}}}]}


async def test_statuses_are_written_and_follow_the_nodes(topologies: Scene) -> None:
    layers = [
        {"topologyLayer": "SpineLayer", "labelKey": ["spine"]},
        {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "SpineLayer"},
    ]
    await make(topologies, HYPER_NODES, "s0", by_pattern("^n"))
    await make(topologies, CLUSTER_NETWORK_TOPOLOGIES, "default", {"networkTopologySpec": layers})
    binder = topologies.start()
    seen = await topologies.api.until(f"{HYPER_NODES}/s0", lambda one: one.get("status", {}).get("nodeCount") == 2)
    assert [(one["type"], one["status"]) for one in seen["status"]["conditions"]] == [
        ("Ready", "True"),
        ("Overlapping", "False"),
    ]
    path = f"{CLUSTER_NETWORK_TOPOLOGIES}/default"
    seen = await topologies.api.until(path, lambda one: "status" in one)
    assert [one["nodeNum"] for one in seen["status"]["detailStatus"]] == [2, 2]
    await topologies.append(("n3", NodeObserved(node("n3"))))
    await topologies.api.until(f"{HYPER_NODES}/s0", lambda one: one["status"]["nodeCount"] == 3)
    # The node is in no spine. What is written can be seen before the binder has its answer.
    written = await eventually(
        lambda: binder.metric("side_writes_total", kind="topology-status", result="written"), lambda count: count >= 3
    )
    assert written == 3


@pytest.mark.parametrize(("mode", "count"), [("auto", 99), ("on", 2)])
async def test_a_status_that_another_controller_writes_is_left_to_it_unless_it_is_to_be_ours(
    topologies: Scene, mode: str, count: int
) -> None:
    await make(topologies, HYPER_NODES, "s0", by_pattern("^n"))
    async with KubeClient(topologies.api.access(), user_agent="vc-controller-manager/v1.16") as volcano:
        await volcano.patch(f"{HYPER_NODES}/s0/status", {"status": {"nodeCount": 99}})
    binder = topologies.start(topology_statuses=mode)
    # Written after the other one's.
    await make(topologies, HYPER_NODES, "s1", by_pattern("^x"))
    await topologies.api.until(f"{HYPER_NODES}/s1", lambda one: "status" in one)
    seen = await topologies.api.until(f"{HYPER_NODES}/s0", lambda one: one["status"]["nodeCount"] == count)
    assert seen["status"]["nodeCount"] == count
    # It may have looked more than once.
    left = binder.metric("side_writes_total", kind="topology-status", result="left")
    assert bool(left) == (mode == "auto")


async def test_nothing_is_written_where_it_is_not_wanted(topologies: Scene) -> None:
    await make(topologies, HYPER_NODES, "s0", by_pattern("^n"))
    await topologies.start(topology_statuses="off").stop()
    assert "status" not in await topologies.api.get(f"{HYPER_NODES}/s0")
