"""Exporter and ingest: how many observations a second, and what asking a thousand kubelets costs.

`python -m tests.measured.bench.exporter` runs it alone. The kubelets are in a process of their own, so that only the
exporter's CPU time is counted, and so is ingest's.
"""

import asyncio
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import structlog
import uvloop
from kai_exporter.exporter import Exporter, ExporterMetrics, PollPace
from kai_exporter.ingest_client import IngestClient
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.payloads import PodObserved
from kaicore.runtime.access.node_tokens import EVERY_NODE, node_token
from kaicore.runtime.agent.metrics import Registry
from kaicore.runtime.embedded import EmbeddedPostgres
from kaicore.runtime.service import Health

from tests.given.cluster.factory import pod as model_pod
from tests.given.cluster.podresources import Kubelet, pod, serving, write_sysfs
from tests.given.processes.ingest_service import SECRET, Facts, running_ingest
from tests.given.servers.servers import scratch_directory
from tests.given.work.reports import GPU, pod_report, report
from tests.measured.bench.figures import Figure, figure

CLUSTER = "bench"
NODES = 1000
PODS_PER_NODE = 4
POLL_S = 2.0
RUNS = 3


def _silent() -> Any:
    def drop(*_: Any) -> Any:
        raise structlog.DropEvent

    return structlog.wrap_logger(None, processors=[drop])


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _serve_kubelets(directory: Path) -> None:
    """Serve every node's podresources, as the simulated fleet does."""
    async with AsyncExitStack() as served:
        for number in range(NODES):
            kubelet = _kubelet(number, directory)
            await served.enter_async_context(serving(kubelet, directory / f"n{number}" / "kubelet.sock"))
        (directory / "ready").touch()
        await asyncio.Event().wait()


def _kubelet(number: int, directory: Path) -> Kubelet:
    """Return a kubelet with its pods, and write what is beside its socket."""
    node = directory / f"n{number}"
    node.mkdir()
    (node / "cpu_manager_state").touch()
    write_sysfs(node / "sys", {0: "0-31", 1: "32-63"})
    kubelet = Kubelet()
    kubelet.pods = [
        pod(
            f"p{number}-{index}",
            cpus=range(index * 8, index * 8 + 8),
            gpus={f"g{index}": [index // 2]},
            memory=[("memory", 2**34, (index // 2,))],
        )
        for index in range(PODS_PER_NODE)
    ]
    return kubelet


def _kubelets(directory: str) -> None:
    uvloop.run(_serve_kubelets(Path(directory)))


@contextmanager
def kubelets(directory: Path) -> Iterator[None]:
    """Run a thousand kubelets in a process of their own."""
    process = multiprocessing.get_context("spawn").Process(target=_kubelets, args=(str(directory),), daemon=True)
    process.start()
    try:
        while not (directory / "ready").exists():
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.join()


def _exporter(url: str) -> tuple[Exporter, IngestClient, Callable[[], float]]:
    registry = Registry()
    token = node_token(SECRET, cluster=CLUSTER, node=EVERY_NODE)
    client = IngestClient(url, cluster=CLUSTER, token=lambda: token, node=None, timeout_s=30)
    exporter = Exporter(
        client,
        pace=PollPace(poll_s=POLL_S, quiet_s=5 * POLL_S, drift_s=86_400, linger_s=0.2),
        metrics=ExporterMetrics(registry=registry),
        health=Health(),
        log=_silent(),
    )
    return exporter, client, lambda: registry.get_sample_value("kai_exporter_polls_total", {"result": "ok"}) or 0.0


async def steady_cpu(url: str, directory: Path, *, state_files: bool) -> tuple[list[float], list[float]]:
    """Return the exporter's CPU in per cent of a core, and in microseconds a poll, while nothing changes."""
    exporter, client, polls = _exporter(url)
    for number in range(NODES):
        node = directory / f"n{number}"
        state_dir = node if state_files else None
        exporter.add_node(node.name, socket=node / "kubelet.sock", sysfs_root=node / "sys", state_dir=state_dir)
    sending = asyncio.ensure_future(exporter.run())
    await asyncio.sleep(5 * POLL_S)
    assert polls() >= NODES
    shares, each = [], []
    for _ in range(RUNS):
        began, used, asked = time.perf_counter(), _cpu_s(), polls()
        await asyncio.sleep(3 * POLL_S)
        cpu_s = _cpu_s() - used
        shares.append(cpu_s / (time.perf_counter() - began) * 100)
        each.append(cpu_s / max(polls() - asked, 1) * 1e6)
    sending.cancel()
    await exporter.close()
    await client.close()
    return shares, each


async def observation_rate(url: str, facts: Facts, *, first: int, pods: int, batch: int) -> float:
    """Send reports of `batch` nodes at once, one pod each; return observations per second."""
    names = [f"o{first + number}" for number in range(pods)]
    for start in range(0, pods, 1000):
        await facts.append(
            *(
                (f"pod/uid-{name}", PodObserved(model_pod(name, cpu=8, memory=16, gpu=1, node_name=f"m-{name}")))
                for name in names[start : start + 1000]
            )
        )
    bodies = []
    for start in range(0, pods, batch):
        reports = [
            report(pod_report(name, node_0={"cpu": 8000, "memory": 2**34, GPU: 1}), node=f"m-{name}")
            for name in names[start : start + batch]
        ]
        bodies.append(msgspec.json.encode({"reports": reports}))
    headers = {"Authorization": f"Bearer {node_token(SECRET, cluster=CLUSTER, node=EVERY_NODE)}"}
    path = f"{url}/v1/clusters/{CLUSTER}/placements"
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.post(path, json={"reports": []}) as response:
            response.raise_for_status()
        began = time.perf_counter()
        for body in bodies:
            async with session.post(path, data=body) as response:
                response.raise_for_status()
        return pods / (time.perf_counter() - began)


async def measure(database_url: str, directory: Path) -> list[Figure]:
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(await PostgresLog.open(database_url))
        facts = Facts(log, CLUSTER)
        ingest = await stack.enter_async_context(running_ingest(log, CLUSTER, max_body=4 << 20))
        rates: dict[int, list[float]] = {1: [], 40: [], 500: []}
        first = 0
        for batch, runs in rates.items():
            pods = 1000 if batch == 1 else 4000
            for _ in range(RUNS):
                runs.append(await observation_rate(ingest.url, facts, first=first, pods=pods, batch=batch))
                first += pods
        await facts.append(
            *(
                (f"pod/uid-p{node}-{index}", PodObserved(model_pod(f"p{node}-{index}", node_name=f"n{node}")))
                for node in range(NODES)
                for index in range(PODS_PER_NODE)
            )
        )
        shares, each = await steady_cpu(ingest.url, directory, state_files=False)
        quiet, _ = await steady_cpu(ingest.url, directory, state_files=True)
    return [
        *(figure(f"ingest_observations_{batch}_a_request", runs, "1/s") for batch, runs in rates.items()),
        figure(f"exporter_cpu_{NODES}_sockets_every_{POLL_S:.0f}_s", shares, "% of a core"),
        figure("exporter_cpu_a_poll", each, "us"),
        figure(f"exporter_cpu_{NODES}_sockets_with_state_files", quiet, "% of a core"),
    ]


def figures() -> list[Figure]:
    with scratch_directory() as data, scratch_directory() as directory, kubelets(directory):
        server = EmbeddedPostgres(data)
        asyncio.run(server.start())
        try:
            upgrade(server.url)
            return uvloop.run(measure(server.url, directory))
        finally:
            asyncio.run(server.kill())


if __name__ == "__main__":
    for one in figures():
        print(one.line())
