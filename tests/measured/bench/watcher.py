"""The watcher at full size: 50,000 pods of 3 kB from an API server into a durable log, each in a process of its own.

`python -m tests.measured.bench.watcher` runs it alone; `--pods` makes it smaller. Times of starting begin with the
process.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from kaicore.kube.api.access import plain_access
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.reflector_core import ListPage, ReflectorCore
from kaicore.kube.kinds.facts import Facts
from kaicore.kube.kinds.table import POD
from kaicore.kube.wire.resources import PODS as POD_RESOURCE
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.port import Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import PodObserved
from kaicore.runtime.embedded import EmbeddedPostgres

from tests.given.servers.api_server_process import ApiServerProcess
from tests.given.servers.servers import scratch_directory
from tests.measured.bench.apiserver import Load, pod
from tests.measured.bench.figures import Figure, figure

PODS, RUNS, CHANGES = 50_000, 3, 300

_PATIENCE_S = 600
_NAMESPACE = "/api/v1/namespaces/default/pods"


async def create(load: Load, count: int) -> None:
    """Create pods over a few connections."""

    def creation(number: int) -> Callable[[], Awaitable[None]]:
        body = msgspec.json.encode(pod(number))
        return lambda: load.send("POST", _NAMESPACE, body)

    await load.all(creation(number) for number in range(count))


@asynccontextmanager
async def watcher(url: str, cluster: str, kubeconfig: Path) -> AsyncIterator[None]:
    """Run a watcher's process; it is ended in order."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kai_watcher.main", "--cluster", cluster, "--database-url", url),
        *("--kubeconfig", str(kubeconfig)),
        env=os.environ | {"KAI_LOG_LEVEL": "warning"},
    )
    try:
        yield
    finally:
        process.terminate()
        assert await process.wait() == 0


async def last_claim(log: PostgresLog, cluster: str, *, after: int) -> int:
    while True:
        claims = await log.read(cluster, after=after, where=Filter(types=("WatcherStarted",)))
        if claims:
            return claims[-1].position
        await log.wait_beyond(cluster, (await log.head(cluster)).position, timeout_s=1)


async def reach(log: PostgresLog, cluster: str, position: int) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        head = 0
        while head < position:
            head = await log.wait_beyond(cluster, head, timeout_s=5)


async def first_start(log: PostgresLog, url: str, cluster: str, *, kubeconfig: Path, pods: int) -> float:
    began = time.perf_counter()
    async with watcher(url, cluster, kubeconfig):
        await reach(log, cluster, pods + 1)
        return time.perf_counter() - began


async def next_start(log: PostgresLog, url: str, cluster: str, *, kubeconfig: Path, marker: str, load: Load) -> float:
    """Seconds until a watcher that starts again has found the one pod that changed meanwhile."""
    await load.send("PATCH", f"{_NAMESPACE}/train-00007", label(marker), "application/merge-patch+json")
    head = (await log.head(cluster)).position
    began = time.perf_counter()
    async with watcher(url, cluster, kubeconfig):
        await reach(log, cluster, head + 2)
        return time.perf_counter() - began


def label(value: str) -> bytes:
    """A patch that changes a pod in something material."""
    return msgspec.json.encode({"metadata": {"labels": {"marker": value}}})


async def change_latencies(log: PostgresLog, url: str, cluster: str, *, kubeconfig: Path, load: Load) -> list[float]:
    """Milliseconds from a change's acknowledgement to the wake of a reader of the log, in order."""
    latencies = []
    before = (await log.head(cluster)).position
    async with watcher(url, cluster, kubeconfig):
        await last_claim(log, cluster, after=before)
        # The list's end cannot be seen; a change that comes through shows that the watch is on.
        for number in range(CHANGES + 1):
            head = (await log.head(cluster)).position
            patch = label(f"l{number}")
            await load.send("PATCH", f"{_NAMESPACE}/train-00009", patch, "application/merge-patch+json")
            began = time.perf_counter()
            await reach(log, cluster, head + 1)
            latencies.append((time.perf_counter() - began) * 1000)
    return sorted(latencies[1:])


async def page_of(load: Load, server: ApiServerProcess) -> bytes:
    async with KubeClient(plain_access(server.http_url, token=server.admin_token)) as client:
        return await client.list_page("/api/v1/pods", limit=500)


def translation_us(page: bytes) -> float:
    """Microseconds per pod from a list's bytes to the unit that records it."""
    core, facts = ReflectorCore(POD_RESOURCE), Facts("bench")
    began = time.perf_counter()
    changes = core.take_page(page)
    for change in changes:
        facts.translate(POD, change, now=0)
    assert not isinstance(core.request, ListPage) or core.request.continue_token
    return (time.perf_counter() - began) / len(changes) * 1e6


async def recorded_pods(log: PostgresLog, cluster: str) -> int:
    """The number of pods that a log knows."""
    uids = set()
    after = 0
    while events := await log.read(cluster, after=after, limit=5000, where=Filter(types=("PodObserved",))):
        after = events[-1].position
        payloads = (decode_payload(event) for event in events)
        uids |= {payload.pod.uid for payload in payloads if isinstance(payload, PodObserved)}
    return len(uids)


async def measure(url: str, directory: Path, pods: int) -> list[Figure]:
    measured = []
    async with (
        await PostgresLog.open(url) as log,
        ApiServerProcess(directory, "--no-https", "--data-dir", directory / "data") as server,
    ):
        load = Load(server)
        await create(load, pods)
        page = await page_of(load, server)
        runs = [translation_us(page) for _ in range(RUNS * 3)]
        measured.append(figure("watcher: a listed pod into a fact", runs, "us"))
        kubeconfig = server.http_kubeconfig
        # Two priority classes are there from the beginning.
        runs = [await first_start(log, url, f"bench{run}", kubeconfig=kubeconfig, pods=pods + 2) for run in range(RUNS)]
        measured.append(figure(f"watcher: process start until {pods} pods are in a new log", runs, "s"))
        assert await recorded_pods(log, "bench0") == pods
        runs = [
            await next_start(log, url, "bench0", kubeconfig=kubeconfig, marker=f"m{run}", load=load)
            for run in range(RUNS)
        ]
        measured.append(figure(f"watcher: process start until the one changed pod of {pods} is recorded", runs, "s"))
        latencies = await change_latencies(log, url, "bench0", kubeconfig=kubeconfig, load=load)
        for name, share in (("p50", 50), ("p99", 99)):
            measured.append(figure(f"watcher: change to log, {name}", [latencies[len(latencies) * share // 100]], "ms"))
        await load.close()
    return measured


def figures(pods: int = PODS) -> Iterator[Figure]:
    with scratch_directory() as directory:
        server = EmbeddedPostgres(directory / "postgres")
        asyncio.run(server.start())
        try:
            upgrade(server.url)
            yield from asyncio.run(measure(server.url, directory, pods))
        finally:
            asyncio.run(server.stop())


def main() -> None:
    """Print the figures, one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=PODS)
    for measured in figures(parser.parse_args().pods):
        print(measured.line(), flush=True)


if __name__ == "__main__":
    main()
