"""The cost of questions: CPU seconds of `kai` commands, process start included, and the API's answers.

`python -m tests.measured.bench.questions` runs it alone. The log is that of a cluster in which jobs came, ran and went.
"""

import asyncio
import atexit
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.envelope import Unit
from kaicore.runtime.embedded import EmbeddedPostgres

from tests.given.cluster.factory import amounts, pod
from tests.given.logs.new_events import as_new
from tests.given.processes.service_process import ready, service_process
from tests.given.servers.servers import scratch_directory
from tests.given.work.workloads import OWNER, Workloads
from tests.measured.bench.figures import Figure, figure

RUNS = 5
SIZES = (100, 68_000)
_NODES, _WAVE = 100, 200
_MANIFEST = """
apiVersion: v1
kind: Node
metadata: {name: n}
status:
  allocatable: {cpu: "8", memory: 32Gi, pods: "110"}
  conditions: [{type: Ready, status: "True"}]
---
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: default}
spec:
  schedulerName: kai-ledger
  containers: [{name: main, resources: {requests: {cpu: "1"}}}]
"""


def history(size: int) -> Workloads:
    """At least so many events; a pod called `never` waits at their end."""
    made = Workloads(f"c{size}")
    zone = amounts(cpu=32, memory=256, gpu=4)
    made.add_nodes(min(_NODES, size // 10), zone, zone)
    made.add_pod(pod("never", cpu=1, memory=1, gpu=5))
    wave = 0
    while len(made.events) < size:
        wave += 1
        pods = [
            made.add_pod(pod(f"train-{wave}-{number}", cpu=2, memory=4, gpu=1, owner=OWNER))
            for number in range(min(_WAVE, size // 10))
        ]
        made.cycle()
        made.run(pods)
        for one in pods:
            made.see(one, phase="Succeeded")
            made.delete_pod(made.state.pods[one.uid].pod)
    return made


async def store(url: str, made: Workloads) -> None:
    async with await PostgresLog.open(url) as log:
        units = [Unit((as_new(event),)) for event in made.events]
        for start in range(0, len(units), 500):
            await log.append(made.cluster, units[start : start + 500])


def cpu_seconds(*arguments: str) -> float:
    """Run a `kai` command; CPU seconds of its process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "kai_cli.main", *arguments],
        capture_output=True,
        check=False,
        env=_environment(),
    )
    assert done.returncode == 0, done.stderr.decode()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@cache
def _environment() -> dict[str, str]:
    """Return what commands run in: as installed, with modules that were compiled before."""
    compiled = tempfile.mkdtemp(prefix="kai-bench-compiled-")
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("KAI_")}
    outside.pop("PYTHONDONTWRITEBYTECODE", None)
    return outside | {"PYTHONPYCACHEPREFIX": compiled}


def _commands() -> Iterator[Figure]:
    yield figure("kai --help: CPU", [cpu_seconds("--help") for _ in range(RUNS)], "s")
    yield figure("kai --version: CPU", [cpu_seconds("--version") for _ in range(RUNS)], "s")
    with tempfile.TemporaryDirectory() as directory:
        manifest = Path(directory) / "one.yaml"
        manifest.write_text(_MANIFEST)
        yield figure("kai simulate, one pod: CPU", [cpu_seconds("simulate", str(manifest)) for _ in range(RUNS)], "s")


async def _questions(url: str) -> list[Figure]:
    measured = []
    await asyncio.to_thread(upgrade, url)
    for size in SIZES:
        await store(url, history(size))
    for size in SIZES:
        cluster, log = f"c{size}", ("--cluster", f"c{size}", "--database-url", url)
        first = await asyncio.to_thread(cpu_seconds, "why", "never", *log)
        measured.append(figure(f"kai why, {size} events, no API, no snapshot: CPU", [first], "s"))
        runs = [await asyncio.to_thread(cpu_seconds, "why", "never", *log) for _ in range(RUNS)]
        measured.append(figure(f"kai why, {size} events, no API, the first one's snapshot: CPU", runs, "s"))
    async with service_process("kai_api.main", {"KAI_DATABASE_URL": url, "KAI_ANONYMOUS": "loopback"}) as address:
        await ready(address)
        for size in SIZES:
            cluster, api = f"c{size}", ("--cluster", f"c{size}", "--api-url", f"http://{address}")
            runs, clocked = [], []
            for _ in range(RUNS):
                began = time.perf_counter()
                runs.append(await asyncio.to_thread(cpu_seconds, "why", "never", *api))
                clocked.append(time.perf_counter() - began)
            measured.append(figure(f"kai why, {size} events, API: CPU", runs, "s"))
            measured.append(figure(f"kai why, {size} events, API: until answered", clocked, "s"))
            paths = {"": cluster, "/pods": f"{cluster}/pods", "/why": f"{cluster}/why/Pod/never?namespace=default"}
            for name, path in paths.items():
                took = [await asyncio.to_thread(_get, f"http://{address}/v1/clusters/{path}") for _ in range(RUNS)]
                measured.append(figure(f"GET /v1/clusters/C{name}, {size} events", [one * 1000 for one in took], "ms"))
    return measured


def _get(url: str) -> float:
    began = time.perf_counter()
    with urllib.request.urlopen(url) as response:
        response.read()
    return time.perf_counter() - began


def figures() -> Iterator[Figure]:
    yield from _commands()
    with scratch_directory() as directory:
        yield from asyncio.run(_with_server(directory))


async def _with_server(directory: Path) -> list[Figure]:
    async with EmbeddedPostgres(directory) as server:
        return await _questions(server.url)


if __name__ == "__main__":
    for one in figures():
        print(one.line(), flush=True)
