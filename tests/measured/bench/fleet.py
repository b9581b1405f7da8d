"""The fleet at full size: the kubelet model alone, then 1,000 nodes at a simulated API server in a process of its own.

`python -m tests.measured.bench.fleet` runs it alone. Pods are made by another process; the fleet is in this one.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import uvloop
from kai_fleet.fleet import Fleet
from kai_fleet.kubelet import Container, Kubelet, Pod
from kai_fleet.main import running_fleet
from kai_fleet.node.state_files import StateFiles
from kai_fleet.profiles.nodes import expand
from kai_fleet.profiles.profile import load_profile
from kaicore.kube.api.access import AccessSource, plain_access
from kaicore.kube.api.client import KubeClient
from kaicore.kube.wire import podresources as api
from kaicore.runtime.service import configure_logging

from tests.given.servers.api_server_process import ApiServerProcess
from tests.measured.bench.figures import Figure, figure
from tests.tools.fleet.cluster import eventually

NODES, PODS, RUNS, IDLE_S = 1_000, 4_000, 3, 10
PODS_PATH = "/api/v1/namespaces/default/pods"
AMOUNTS = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"}


# --- the model --------------------------------------------------------------------------------------------------------


def model_rate(rounds: int = 1_000) -> float:
    """Admissions a second, release included, of a quarter of a node each."""
    spec = expand(load_profile("bench1000"))[0]
    kubelet = Kubelet(spec.machine, spec.config)
    amounts = {"cpu": 8_000, "memory": 64 * 1024**3, "nvidia.com/gpu": 2}
    containers = (Container("main", "app", amounts, amounts),)
    pods = [Pod(f"uid-{number}", "default", f"p{number}", containers) for number in range(4)]
    begun = time.perf_counter()
    for _ in range(rounds):
        for pod in pods:
            assert kubelet.admit(pod) is None
        for pod in pods:
            kubelet.terminated(pod.uid)
    return rounds * len(pods) / (time.perf_counter() - begun)


def state_files_cost(rounds: int = 50, pods: int = 8) -> float:
    """Milliseconds of CPU that the kubelet's state files cost per pod, with so many pods on the node."""
    spec = expand(load_profile("bench1000"))[0]
    kubelet = Kubelet(spec.machine, spec.config)
    amounts = {"cpu": 2_000, "memory": 8 * 1024**3, "nvidia.com/gpu": 1}
    containers = (Container("main", "app", amounts, amounts),)
    with tempfile.TemporaryDirectory() as directory:
        files = StateFiles(Path(directory), kubelet)
        spent = 0.0
        for number in range(rounds * pods):
            kubelet.terminated(f"6c5f3038-adfc-485d-9943-{number - pods:012}")
            assert kubelet.admit(Pod(f"6c5f3038-adfc-485d-9943-{number:012}", "default", "p", containers)) is None
            begun = time.process_time()
            files.changed(kubelet)
            spent += time.process_time() - begun
    return spent / (rounds * pods) * 1000


# --- pods, from another process ---------------------------------------------------------------------------------------


def pod(number: int, run: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"run{run}-{number}",
            "annotations": {"simulator.kai.scheduler/run-seconds": "600"},
        },
        "spec": {
            "nodeName": f"node-{number % NODES}",
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "pause", "resources": {"limits": AMOUNTS}}],
        },
    }


async def create(url: str, token: str, run: int) -> None:
    async with KubeClient(plain_access(url, token=token)) as client:
        numbers = iter(range(PODS))

        async def worker() -> None:
            for number in numbers:
                await client.post(PODS_PATH, pod(number, run))

        await asyncio.gather(*(worker() for _ in range(16)))


# --- the fleet --------------------------------------------------------------------------------------------------------


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


async def start_and_idle(source: AccessSource) -> tuple[float, float, float]:
    """Seconds until all nodes have joined, MB, and per cent of a core while nothing happens."""
    with tempfile.TemporaryDirectory() as data:
        begun = time.perf_counter()
        async with running_fleet(expand(load_profile("bench1000")), source, Path(data), install_crds=True):
            took = time.perf_counter() - begun
            await asyncio.sleep(2)
            cpu = time.process_time()
            await asyncio.sleep(IDLE_S)
            return took, resident_mb(), (time.process_time() - cpu) / IDLE_S * 100


async def running(fleet: Fleet, expected: int) -> None:
    """Wait until so many pods in all were admitted and every status was written."""
    await eventually(lambda: fleet.metrics.registry.get_sample_value("kai_fleet_admissions_total") == expected)
    await fleet.writer.idle()


async def admissions(source: AccessSource, server: ApiServerProcess) -> AsyncIterator[tuple[float, float]]:
    """Pods a second from creation until all statuses say Running, and milliseconds of the fleet's CPU for each."""
    with tempfile.TemporaryDirectory() as data:
        async with running_fleet(expand(load_profile("bench1000")), source, Path(data), install_crds=True) as fleet:
            for run in range(RUNS):
                begun, cpu = time.perf_counter(), time.process_time()
                child = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "tests.measured.bench.fleet", server.http_url, server.admin_token, str(run))
                )
                await running(fleet, (run + 1) * PODS)
                took = time.perf_counter() - begun
                await child.wait()
                yield PODS / took, (time.process_time() - cpu) / PODS * 1000
                await delete_all(source, fleet)


async def delete_all(source: AccessSource, fleet: Fleet) -> None:
    async with KubeClient(source) as client:
        await client.delete(PODS_PATH, {"gracePeriodSeconds": 0})
    await eventually(lambda: not any(node.agent.pods for node in fleet.nodes.values()))


async def podresources_rate(source: AccessSource) -> float:
    """Calls of List a second, one after the other, by the official client over kept connections."""
    with tempfile.TemporaryDirectory(prefix="pr") as directory:
        sockets = Path(directory) / "pr"
        specs = expand(load_profile("bench1000"))
        async with running_fleet(specs, source, Path(directory), podresources_dir=sockets, install_crds=True):
            return await asyncio.to_thread(_ask_all, [sockets / spec.name / "kubelet.sock" for spec in specs[:100]])


def _ask_all(sockets: list[Path], rounds: int = 10) -> float:
    channels = [grpc.insecure_channel(f"unix:{socket}") for socket in sockets]
    calls: list[Any] = [
        channel.unary_unary(
            api.LIST,
            request_serializer=api.ListPodResourcesRequest.SerializeToString,
            response_deserializer=api.ListPodResourcesResponse.FromString,
        )
        for channel in channels
    ]
    request = api.ListPodResourcesRequest()
    for call in calls:
        call(request)
    begun = time.perf_counter()
    for _ in range(rounds):
        for call in calls:
            call(request)
    took = time.perf_counter() - begun
    for channel in channels:
        channel.close()
    return rounds * len(calls) / took


async def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        async with ApiServerProcess(Path(directory)) as server:
            source = plain_access(server.http_url, token=server.admin_token)
            idle = [await start_and_idle(source) for _ in range(2)]
            pods = [admission async for admission in admissions(source, server)]
            calls = [await podresources_rate(source)]
    starts, memory, cpu = zip(*idle, strict=True)
    rates, costs = zip(*pods, strict=True)
    return [
        figure("fleet: 1,000 nodes joined", starts, "s"),
        figure("fleet: memory of 1,000 nodes", memory, "MB"),
        figure("fleet: CPU of 1,000 idle nodes", cpu, "% of a core"),
        figure("fleet: pods created, admitted and running, 1,000 nodes", rates, "pods/s"),
        figure("fleet: CPU per pod admitted and running", costs, "ms"),
        figure("fleet: podresources List, by the official client", calls, "1/s"),
    ]


def figures() -> Iterator[Figure]:
    yield figure("fleet: admissions of the kubelet model", [model_rate() for _ in range(RUNS)], "1/s")
    yield figure("fleet: CPU of the state files per pod", [state_files_cost() for _ in range(RUNS)], "ms")
    yield from uvloop.run(measure())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        uvloop.run(create(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    else:
        configure_logging("bench", level="error")
        for one in figures():
            print(one.line(), flush=True)
