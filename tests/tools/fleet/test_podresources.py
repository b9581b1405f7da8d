"""The podresources sockets, asked by the official gRPC client, and the sysfs beside them."""

import asyncio
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import grpc
import pytest
from kai_fleet.fleet import Fleet
from kai_fleet.kubelet import Kubelet
from kai_fleet.kubelet.machine import from_cpulist
from kai_fleet.node import podresources_server, runtime
from kai_fleet.node.podresources_server import list_pods as list_pods_of
from kai_fleet.profiles.nodes import expand
from kai_fleet.profiles.profile import load_profile, parse_profile
from kaicore.errors import ConfigurationError
from kaicore.kube.wire import podresources as api

from tests.tools.fleet.cluster import PATIENCE_S, Cluster, eventually
from tests.tools.fleet.conftest import JoinFleet
from tests.tools.fleet.objects import small_fleet


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


async def test_get_and_allocatable_answer_as_the_kubelet(cluster: Cluster, join: JoinFleet, tmp_path: Path) -> None:
    socket = tmp_path / "pr" / "node-0" / "kubelet.sock"
    async with join(podresources_dir=tmp_path / "pr"):
        await cluster.run_pod("a")
        request = api.GetPodResourcesRequest(pod_name="a", pod_namespace="default")
        answer = await asyncio.to_thread(ask, socket, api.GET, request, api.GetPodResourcesResponse)
        assert answer.pod_resources.name == "a"
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


async def test_state_files_tell_of_what_their_managers_gave_and_took(
    cluster: Cluster, join: JoinFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "RECONCILE_PERIOD_S", 0.5)
    directory = tmp_path / "pr" / "node-0"

    def written() -> dict[str, int]:
        files = ("cpu_manager_state", "memory_manager_state", "device-plugins/kubelet_internal_checkpoint")
        return {Path(name).name.split("_")[0]: (directory / name).stat().st_mtime_ns for name in files}

    def newer(than: dict[str, int]) -> set[str]:
        return {name for name, at in written().items() if at > than[name]}

    async with join(podresources_dir=tmp_path / "pr"):
        start = written()
        await cluster.run_pod("shared", amounts={"cpu": "100m"})
        assert newer(start) == set()
        before = written()
        await cluster.run_pod("exclusive", amounts={"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"})
        assert newer(before) == {"cpu", "memory", "kubelet"}
        before = written()
        await cluster.delete_pod("exclusive", grace=0)
        await eventually(lambda: newer(before) == {"cpu"})


async def test_calls_that_come_together_are_answered_a_few_at_a_time(
    join: JoinFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = 0
    answered: Counter[int] = Counter()

    def list_and_count(kubelet: Kubelet, half_way: Collection[str]) -> api.ListPodResourcesResponse:
        answered[rounds] += 1
        return list_pods_of(kubelet, half_way)

    monkeypatch.setattr(podresources_server, "list_pods", list_and_count)
    request = api.ListPodResourcesRequest().SerializeToString()
    async with join(podresources_dir=tmp_path / "pr"):
        with grpc.insecure_channel(f"unix:{tmp_path / 'pr' / 'node-0' / 'kubelet.sock'}") as channel:
            call = channel.unary_unary(api.LIST)
            asked = [call.future(request, timeout=PATIENCE_S) for _ in range(64)]
            while not all(one.done() for one in asked):
                rounds += 1
                await asyncio.sleep(0)
            for one in asked:
                one.result()
    assert answered.total() == 64
    # What was answered between two looks may belong to two rounds.
    assert max(answered.values()) <= 2 * podresources_server._ANSWERS_A_ROUND


async def test_what_fails_meanwhile_is_not_taken_for_a_bad_directory(join: JoinFleet, tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="of the body"):
        async with join(podresources_dir=tmp_path / "pr"):
            raise TimeoutError("of the body")


async def test_connections_end_with_the_fleet(join: JoinFleet, tmp_path: Path) -> None:
    async with join(podresources_dir=tmp_path / "pr"):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "pr" / "node-0" / "kubelet.sock")
        assert await reader.read(1)
    async with asyncio.timeout(PATIENCE_S):
        await reader.read()
    writer.close()
    await writer.wait_closed()


@pytest.mark.slow
async def test_fleet_serves_a_hundred_sockets(join: JoinFleet, tmp_path: Path) -> None:
    specs = small_fleet(100, publisher="none", timing="leasePeriod: 1h")
    async with join(specs, podresources_dir=tmp_path / "pr") as fleet:
        assert isinstance(fleet, Fleet)
        for number in (0, 50, 99):
            answer = await list_pods(tmp_path / "pr" / f"node-{number}" / "kubelet.sock")
            assert not answer.pod_resources
