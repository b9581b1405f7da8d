"""The podresources sockets, asked by the official gRPC client, and the sysfs beside them."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from kai_simulator.fleet.fleet import Fleet
from kai_simulator.fleet.kubelet.bitsets import from_cpulist
from kai_simulator.fleet.nodes import expand
from kai_simulator.fleet.profile import load_profile, parse_profile
from kaicore import podresources as api
from kaicore.errors import ConfigurationError

from tests.simulator.fleet.cluster import Cluster
from tests.simulator.fleet.conftest import JoinFleet
from tests.simulator.fleet.objects import small_fleet


def ask(socket: Path, path: str, request: Any, response: type[Any]) -> Any:
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(
            path, request_serializer=type(request).SerializeToString, response_deserializer=response.FromString
        )
        return call(request, timeout=20)


async def list_pods(socket: Path) -> api.ListPodResourcesResponse:
    request = api.ListPodResourcesRequest()
    return await asyncio.to_thread(ask, socket, api.LIST, request, api.ListPodResourcesResponse)


async def test_list_shows_what_app_containers_and_sidecars_hold(
    cluster: Cluster, join: JoinFleet, tmp_path: Path
) -> None:
    amounts = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"}
    resources = {"requests": amounts, "limits": amounts}
    async with join(podresources_dir=tmp_path / "pr"):
        await cluster.run_pod(
            "a",
            initContainers=[
                {"name": "init", "image": "i", "resources": resources},
                {"name": "side", "image": "i", "restartPolicy": "Always", "resources": resources},
            ],
            containers=[{"name": "main", "image": "i", "resources": resources}],
        )
        answer = await list_pods(tmp_path / "pr" / "node-0" / "kubelet.sock")
        (pod,) = answer.pod_resources
        assert (pod.name, pod.namespace) == ("a", "default")
        assert [container.name for container in pod.containers] == ["side", "main"]
        for container in pod.containers:
            assert len(container.cpu_ids) == 2
            (device,) = container.devices
            assert device.resource_name == "nvidia.com/gpu"
            assert [node.ID for node in device.topology.nodes] == [0]
            (memory,) = container.memory
            assert (memory.memory_type, memory.size) == ("memory", 1024**3)


async def test_get_and_allocatable(cluster: Cluster, join: JoinFleet, tmp_path: Path) -> None:
    socket = tmp_path / "pr" / "node-0" / "kubelet.sock"
    async with join(podresources_dir=tmp_path / "pr"):
        await cluster.run_pod("a")
        request = api.GetPodResourcesRequest(pod_name="a", pod_namespace="default")
        found = await asyncio.to_thread(ask, socket, api.GET, request, api.GetPodResourcesResponse)
        assert found.pod_resources.name == "a"
        missing = api.GetPodResourcesRequest(pod_name="b", pod_namespace="default")
        with pytest.raises(grpc.RpcError) as refused:
            await asyncio.to_thread(ask, socket, api.GET, missing, api.GetPodResourcesResponse)
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND
        everything = await asyncio.to_thread(
            ask,
            socket,
            api.GET_ALLOCATABLE_RESOURCES,
            api.AllocatableResourcesRequest(),
            api.AllocatableResourcesResponse,
        )
        assert list(everything.cpu_ids) == list(range(1, 16))
        assert len(everything.devices) == 8
        assert {(m.memory_type, m.topology.nodes[0].ID) for m in everything.memory} == {("memory", 0), ("memory", 1)}


async def test_a_device_of_two_zones_is_listed_for_each_and_one_without_for_none(
    cluster: Cluster, join: JoinFleet, tmp_path: Path
) -> None:
    text = """groups: [{name: node, zones: 2, perZone: {cpus: 4, memory: 8Gi}, nrt: {publisher: none},
                        devices: {a.com/nic: [{id: nic, zones: [0, 1]}], a.com/flat: [{id: f}]}}]"""
    async with join(expand(parse_profile(text, source="f")), podresources_dir=tmp_path / "pr"):
        await cluster.run_pod("a", amounts={"a.com/nic": "1", "a.com/flat": "1"})
        answer = await list_pods(tmp_path / "pr" / "node-0" / "kubelet.sock")
        devices = answer.pod_resources[0].containers[0].devices
        listed = [(d.resource_name, list(d.device_ids), [n.ID for n in d.topology.nodes]) for d in devices]
        assert sorted(listed) == [
            ("a.com/flat", ["f"], []),
            ("a.com/nic", ["nic"], [0]),
            ("a.com/nic", ["nic"], [1]),
        ]


async def test_a_kubelet_that_is_down_does_not_answer(cluster: Cluster, join: JoinFleet, tmp_path: Path) -> None:
    async with join(podresources_dir=tmp_path / "pr") as fleet:
        fleet.stop_kubelet("node-0")
        with pytest.raises(grpc.RpcError) as refused:
            await list_pods(tmp_path / "pr" / "node-0" / "kubelet.sock")
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_sysfs_says_which_cpu_is_where(join: JoinFleet, tmp_path: Path) -> None:
    specs = expand(load_profile("demo24"))
    async with join(specs, podresources_dir=tmp_path / "pr"):
        for spec in specs:
            system = tmp_path / "pr" / spec.name / "sys" / "devices" / "system"
            for zone, cpus in enumerate(spec.machine.zone_cpus):
                assert from_cpulist((system / "node" / f"node{zone}" / "cpulist").read_text()) == cpus
            siblings = (system / "cpu" / "cpu0" / "topology" / "thread_siblings_list").read_text()
            assert from_cpulist(siblings).bit_count() == 2
        trees = list((tmp_path / "pr" / ".machines").iterdir())
        assert len(trees) == 5, "nodes that are alike share a tree"
    assert not (tmp_path / "pr" / "gpu-0").exists()


async def test_a_path_too_long_for_a_socket_is_said_at_once(join: JoinFleet, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="too long for a unix socket"):
        async with join(podresources_dir=tmp_path / ("x" * 100)):
            pass


@pytest.mark.slow
async def test_a_thousand_sockets(join: JoinFleet, tmp_path: Path) -> None:
    specs = small_fleet(1000, publisher="none", timing="leasePeriod: 1h")
    async with join(specs, podresources_dir=tmp_path / "pr") as fleet:
        assert isinstance(fleet, Fleet)
        for number in (0, 500, 999):
            answer = await list_pods(tmp_path / "pr" / f"node-{number}" / "kubelet.sock")
            assert not answer.pod_resources
