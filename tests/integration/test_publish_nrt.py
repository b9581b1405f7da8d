"""An exporter that publishes its node's NodeResourceTopology, on the simulated API server."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kai_apiserver.server import ApiServer, ApiServerOptions
from kai_exporter.kubelet import decode_allocatable
from kai_exporter.publishing import (
    DIGEST_ANNOTATION,
    PATH,
    KubeletConfig,
    Machine,
    Published,
    TopologyPublisher,
    node_topology,
    pods_fingerprint,
    read_kubelet_config,
    read_machine,
)
from kaicore.errors import ApiStatus, ClusterUnavailable, ConfigurationError, InvalidObject
from kaicore.kube.normalize.node import normalize_topology
from kaicore.kube.wire.podresources import AllocatableResourcesResponse, ContainerMemory, PodResources
from kaicore.kube.wire.resources import TOPOLOGIES
from kaicore.rules.model.node import TopologyPolicy, TopologyScope
from kaicore.rules.numa.kubelet.settings import infer_settings
from kaicore.rules.numa.kubelet.versions import PodLevel
from kaicore.runtime.agent.api_server import PodApiServer
from kaicore.yaml_text import load_yaml_all

from tests.given.cluster.factory import amounts_of, node
from tests.given.cluster.podresources import GPU, container, decoded, devices, numa, pod
from tests.given.servers.kube import as_pod_of
from tests.tools.fleet.cluster import NODES, Cluster

GI = 2**30
CRD = Path(__file__).resolve().parents[2] / "deploy/k8s/crds"
CONFIG = KubeletConfig(
    "restricted",
    "pod",
    {"prefer-closest-numa-nodes": "true"},
    {"full-pcpus-only": "true", "distribute-cpus-across-numa": "false"},
    {"PodLevelResourceManagers": True, "PodLevelResources": True, "GracefulNodeShutdown": False},
)


def machine(tmp_path: Path) -> Machine:
    """Two NUMA nodes as sysfs shows them."""
    for number, cpus in enumerate(("0-7", "8-15")):
        entry = tmp_path / f"devices/system/node/node{number}"
        (entry / "hugepages/hugepages-2048kB").mkdir(parents=True)
        (entry / "cpulist").write_text(f"{cpus}\n")
        (entry / "meminfo").write_text(
            f"Node {number} MemTotal:   {32 * 1024 * 1024} kB\nNode {number} MemFree: 1 kB\n"
        )
        (entry / "distance").write_text("10 21\n" if not number else "21 10\n")
        (entry / "hugepages/hugepages-2048kB/nr_hugepages").write_text("512\n")
    return read_machine(tmp_path, subject="Node n1")


def allocatable() -> AllocatableResourcesResponse:
    """One CPU reserved, one GPU on each NUMA node and one of none."""
    return AllocatableResourcesResponse(
        cpu_ids=range(1, 16),
        devices=devices(GPU, {"g0": [0], "g1": [1], "loose": []}),
        memory=[
            ContainerMemory(memory_type="memory", size=30 * GI, topology=numa(0)),
            ContainerMemory(memory_type="memory", size=31 * GI, topology=numa(1)),
            ContainerMemory(memory_type="hugepages-2Mi", size=GI, topology=numa(1)),
        ],
    )


def contents(tmp_path: Path, *pods: PodResources, config: KubeletConfig = CONFIG) -> dict[str, Any]:
    given = decode_allocatable(allocatable().SerializeToString(), subject="n1")
    return node_topology(given, [decoded(one) for one in pods], machine(tmp_path), config)


def test_what_is_published_is_read_as_it_was_meant(tmp_path: Path) -> None:
    held = pod("a", container(cpus=[1, 2], gpus={"g1": [1]}, memory=[("memory", 4 * GI, (0, 1))]))
    body = contents(tmp_path, held, pod("b"))
    body |= {"apiVersion": "topology.node.k8s.io/v1alpha2", "metadata": {"name": "n1"}}
    lost: list[InvalidObject] = []
    topology = normalize_topology(TOPOLOGIES.at("v1alpha2").decode(json.dumps(body).encode()), lost.append)
    assert lost == []
    first, second = topology.zones
    assert [amounts_of(one) for one in (first, second)] == [
        {"cpu": (8, 7, 5), "memory": (32, 30, 26), GPU: (1, 1, 1)},
        {"cpu": (8, 8, 8), "hugepages-2Mi": (1, 1, 1), "memory": (32, 31, 27), GPU: (1, 1, 0)},
    ]
    assert second.costs == {"node-0": 21, "node-1": 10}
    assert (topology.policy, topology.scope) == (TopologyPolicy.RESTRICTED, TopologyScope.POD)
    assert topology.fingerprint == pods_fingerprint([("default", "a")]), "pods with exclusive resources only"
    assert topology.fingerprint_method == "with-exclusive-resources"
    settings = infer_settings(topology, node("n1", kubelet_version="v1.37.2"))
    assert (settings.prefers_closest, settings.whole_cores_only, settings.spreading) == (True, True, None)
    assert settings.pod_level is PodLevel.BUDGET, "gates of the kubelet's own configuration"


def test_fingerprints_are_those_of_the_plugin() -> None:
    """Vectors of `k8stopologyawareschedwg/podfingerprint`."""
    assert pods_fingerprint([]) == "pfp0v001ef46db3751d8e999"
    assert pods_fingerprint([("default", "pod-a")]) == "pfp0v0019131e707ccadb65c"
    both = [("kube-system", "pod-b"), ("default", "pod-a")]
    assert pods_fingerprint(both) == "pfp0v0013c74a72bae9bd313"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topologyManagerPolicy: [1]", r"config.yaml: Expected `str`.*\$.topologyManagerPolicy"),
        ("featureGates: {A: maybe}", r"Expected `bool`.*\$.featureGates"),
        ("{", "is no YAML"),
        (None, "No such file"),
    ],
)
def test_a_kubelet_configuration_that_cannot_be_read_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_kubelet_config(path)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(ApiServerOptions(controllers=False, https=True)) as one:
        yield one


@pytest.fixture
async def cluster(server: ApiServer) -> AsyncIterator[Cluster]:
    async with Cluster(server.http_url, server.admin_token) as one:
        await one.client.post(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        yield one


async def with_crd(cluster: Cluster) -> None:
    for path in sorted(CRD.glob("*noderesourcetopolog*")):
        for document in load_yaml_all(path.read_text()):
            await cluster.client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", document)


@pytest.fixture
async def pod_api_server(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PodApiServer]:
    account = tmp_path / "account"
    account.mkdir()
    as_pod_of(server, account, monkeypatch)
    async with PodApiServer(user_agent="kai-exporter") as one:
        yield one


async def test_an_object_is_made_renewed_and_belongs_to_its_node(
    cluster: Cluster, pod_api_server: PodApiServer, tmp_path: Path
) -> None:
    publisher = TopologyPublisher(pod_api_server, "n1")
    body = contents(tmp_path)
    with pytest.raises(ApiStatus, match="404"):
        await publisher.publish(body)
    await with_crd(cluster)
    assert await publisher.publish(body) is Published.WRITTEN
    assert await publisher.publish(body) is Published.UNCHANGED
    made = await cluster.get(PATH, "n1")
    assert made is not None
    assert made["metadata"]["ownerReferences"][0]["kind"] == "Node"
    (tmp_path / "later").mkdir()
    changed = contents(tmp_path / "later", pod("a", container(cpus=[1])))
    assert await publisher.publish(changed) is Published.WRITTEN
    renewed = await cluster.get(PATH, "n1")
    assert renewed is not None
    assert renewed["zones"] == changed["zones"]


async def test_token_that_is_refused_is_read_anew_and_a_server_that_is_gone_is_unavailable(
    cluster: Cluster, server: ApiServer, pod_api_server: PodApiServer, tmp_path: Path
) -> None:
    token = tmp_path / "account/token"
    good = token.read_text()
    token.write_text("expired")
    async with PodApiServer(user_agent="kai-exporter") as late:
        with pytest.raises(ApiStatus, match="401"):
            await late.get("/api/v1/nodes/n1")
        token.write_text(good)
        assert b'"n1"' in await late.get("/api/v1/nodes/n1")
    await server.stop()
    with pytest.raises(ClusterUnavailable, match="GET /api/v1/nodes/n1: "):
        await pod_api_server.get("/api/v1/nodes/n1")


async def test_an_object_of_another_publisher_is_never_overwritten(cluster: Cluster, tmp_path: Path) -> None:
    await with_crd(cluster)
    publisher, body = TopologyPublisher(cluster.client, "n1"), contents(tmp_path)
    theirs = {"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": {"name": "n1"}}
    await cluster.client.post(PATH, theirs | {"zones": []})
    assert await publisher.publish(body) is Published.OTHERS
    await cluster.client.delete(f"{PATH}/n1")
    assert await publisher.publish(body) is Published.WRITTEN, "once it is gone it is ours to make"
    # Then the other comes back and writes to the object that we have made.
    await cluster.client.patch(f"{PATH}/n1", {"attributes": [{"name": "topologyManagerPolicy", "value": "none"}]})
    assert await publisher.publish(body) is Published.OTHERS
    left = await cluster.get(PATH, "n1")
    assert left is not None
    assert left["attributes"] == [{"name": "topologyManagerPolicy", "value": "none"}]
    assert DIGEST_ANNOTATION in left["metadata"]["annotations"]
