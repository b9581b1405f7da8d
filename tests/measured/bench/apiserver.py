"""The simulated API server at full size: 5,000 nodes and 50,000 pods of 3 kB, over HTTP from another process.

`python -m tests.measured.bench.apiserver` runs it alone; `--nodes` and `--pods` make it smaller. The server keeps a
journal, as it does in use.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp

from tests.given.servers.api_server_process import ApiServerProcess
from tests.measured.bench.figures import Figure, figure

NODES, PODS, CONNECTIONS, RUNS = 5_000, 50_000, 16, 5
WATCHERS, BINDS = 6, 3_000


def node(number: int) -> dict[str, Any]:
    name = f"node-{number:05}"
    capacity = {"cpu": "96", "memory": "768Gi", "nvidia.com/gpu": "8", "pods": "110"}
    labels = {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": f"z{number % 4}",
        "rack": f"r{number // 16}",
    }
    status = {"capacity": capacity, "allocatable": capacity, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def pod(number: int) -> dict[str, Any]:
    """A pod of a training job, some 3 kB once it is stored."""
    resources = {"cpu": "12", "memory": "96Gi", "nvidia.com/gpu": "1"}
    variables: list[dict[str, Any]] = [
        {"name": f"SETTING_{index}", "value": f"value-{number}-{index}"} for index in range(30)
    ]
    variables.append({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    mounts = [{"name": f"v{index}", "mountPath": f"/data/{index}"} for index in range(3)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"train-{number:05}",
            "labels": {"app": "train", "kai.scheduler/queue": "research", "group": f"g{number // 64}"},
            "annotations": {"kai.scheduler/min-member": "64", "example.com/owner": "someone@example.com"},
        },
        "spec": {
            "schedulerName": "kai-ledger",
            "nodeSelector": {"topology.kubernetes.io/zone": f"z{number % 4}"},
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.com/team/train:1.4.2",
                    "command": ["python", "-m", "train", "--rank", str(number)],
                    "env": variables,
                    "volumeMounts": mounts,
                    "resources": {"requests": resources, "limits": resources},
                }
            ],
            "volumes": [{"name": f"v{index}", "emptyDir": {}} for index in range(3)],
        },
    }


class Load:
    """A client that sends many requests at once."""

    def __init__(self, server: ApiServerProcess) -> None:
        self._url = server.http_url
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, headers={"Authorization": f"Bearer {server.admin_token}"}, read_bufsize=2**22
        )

    async def close(self) -> None:
        await self._session.close()

    async def send(self, method: str, path: str, body: bytes, content_type: str = "application/json") -> None:
        headers = {"Content-Type": content_type}
        async with self._session.request(method, self._url + path, data=body, headers=headers) as answer:
            read = await answer.read()
            assert answer.status in (200, 201), read

    async def all(self, work: Iterable[Callable[[], Awaitable[None]]]) -> float:
        """Do all the work over a few connections; return how much of it per second."""
        queue = iter(work)
        done = 0

        async def worker() -> None:
            nonlocal done
            for item in queue:
                await item()
                done += 1

        began = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))
        return done / (time.perf_counter() - began)

    async def list_pods(self) -> tuple[float, int]:
        """Seconds to read a list of all pods, and its bytes."""
        began = time.perf_counter()
        size = 0
        async with self._session.get(f"{self._url}/api/v1/pods", timeout=aiohttp.ClientTimeout(600)) as answer:
            async for chunk in answer.content.iter_any():
                size += len(chunk)
        return time.perf_counter() - began, size

    async def watch(self, expected: int, ready: asyncio.Event) -> None:
        """Watch all pods until so many events have come; they are counted, not decoded."""
        async with self._session.get(f"{self._url}/api/v1/pods?limit=1") as answer:
            rv = (await answer.json())["metadata"]["resourceVersion"]
        timeout = aiohttp.ClientTimeout(600)
        async with self._session.get(
            f"{self._url}/api/v1/pods?watch=1&resourceVersion={rv}", timeout=timeout
        ) as answer:
            ready.set()
            seen = 0
            async for chunk in answer.content.iter_any():
                seen += chunk.count(b"\n")
                if seen >= expected:
                    return


def _creation(load: Load, path: str, obj: dict[str, Any]) -> Callable[[], Awaitable[None]]:
    body = json.dumps(obj).encode()
    return lambda: load.send("POST", path, body)


def _binding(load: Load, number: int) -> Callable[[], Awaitable[None]]:
    name = f"train-{number:05}"
    target = {"kind": "Node", "name": f"node-{number % NODES:05}"}
    placement = {"kai.scheduler/numa-placement-predicted": '[{"zone":"node-0","amount":{"cpu":"12"}}]'}
    body = json.dumps({"metadata": {"name": name, "annotations": placement}, "target": target}).encode()
    return lambda: load.send("POST", f"/api/v1/namespaces/default/pods/{name}/binding", body)


def _running(load: Load, number: int) -> Callable[[], Awaitable[None]]:
    body = b'{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}'
    path = f"/api/v1/namespaces/default/pods/train-{number:05}/status"
    return lambda: load.send("PATCH", path, body, "application/strategic-merge-patch+json")


async def fan_out(load: Load, numbers: Iterable[int]) -> float:
    """Bind and start pods while six watchers look on; return pods per second until the last watcher has seen it all."""
    chosen = list(numbers)
    ready = [asyncio.Event() for _ in range(WATCHERS)]
    watchers = [asyncio.create_task(load.watch(2 * len(chosen), event)) for event in ready]
    await asyncio.gather(*(event.wait() for event in ready))

    def both(number: int) -> Callable[[], Awaitable[None]]:
        bind, run = _binding(load, number), _running(load, number)

        async def work() -> None:
            await bind()
            await run()

        return work

    began = time.perf_counter()
    await load.all(both(number) for number in chosen)
    await asyncio.gather(*watchers)
    return len(chosen) / (time.perf_counter() - began)


def _resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024


async def measure(nodes: int = NODES, pods: int = PODS) -> list[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        server = ApiServerProcess(directory, "--data-dir", directory / "data", "--no-https")
        await server.start()
        load = Load(server)
        try:
            figures = await _measure(load, server, nodes, pods)
        finally:
            await load.close()
            await server.kill()
        again = ApiServerProcess(directory, "--data-dir", directory / "data", "--no-https")
        began = time.perf_counter()
        await again.start()
        figures.append(figure("apiserver_start_after_kill", [time.perf_counter() - began], "s"))
        await again.stop()
    return figures


async def _measure(load: Load, server: ApiServerProcess, nodes: int, pods: int) -> list[Figure]:
    await load.all(_creation(load, "/api/v1/nodes", node(number)) for number in range(nodes))
    path = "/api/v1/namespaces/default/pods"
    rates = []
    for part in range(RUNS):
        numbers = range(part * pods // RUNS, (part + 1) * pods // RUNS)
        made = [_creation(load, path, pod(number)) for number in numbers]
        rates.append(await load.all(made))
    figures = [figure("apiserver_pod_creates", rates, "1/s")]
    lists = [await load.list_pods() for _ in range(RUNS)]
    figures.append(figure("apiserver_list_all_pods", [seconds for seconds, _ in lists], "s"))
    figures.append(figure("apiserver_pod_bytes", [lists[0][1] / pods], "B"))
    free = iter(range(pods))
    binds = min(BINDS, pods // (2 * RUNS))
    rates = [await load.all(_binding(load, n) for n in list(islice(free, binds))) for _ in range(RUNS)]
    figures.append(figure("apiserver_binds", rates, "1/s"))
    rates = [await fan_out(load, islice(free, binds)) for _ in range(RUNS)]
    figures.append(figure("apiserver_binds_and_starts_6_watchers", rates, "1/s"))
    figures.append(figure("apiserver_resident", [_resident_mb(server.pid)], "MB"))
    return figures


def figures() -> list[Figure]:
    """Measure at full size."""
    return asyncio.run(measure())


def main() -> None:
    """Print the figures, one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--pods", type=int, default=PODS)
    arguments = parser.parse_args()
    for measured in asyncio.run(measure(arguments.nodes, arguments.pods)):
        print(measured.line())


if __name__ == "__main__":
    main()
