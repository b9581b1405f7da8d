"""What the exporter of one node costs at 110 pods: memory and CPU of a real process, asked in both ways.

`make bench ARGS=exporter_node` runs it. `python -m tests.bench.exporter_node --parts` tells what memory each import
takes, one after the other, those that an exporter does without last.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from tests.bench.figures import Figure, figure
from tests.podresources import Kubelet, pod, serving, write_sysfs
from tests.servers import scratch_directory
from tests.service_process import service_process

PODS = 110
RUNS, RUN_S = 3, 10.0

_PARTS = (
    "asyncio",
    "msgspec",
    "grpclib.client",
    "h11",
    "kaicore.runtime.agent.process",
    "kai_exporter.main",
    # What it does without.
    "kaicore.kube.podresources",
    "prometheus_client",
    "structlog",
    "grpc.aio",
    "aiohttp",
    "uvicorn",
    "pydantic_settings",
)


@asynccontextmanager
async def _ingest() -> AsyncIterator[str]:
    """An ingest that takes whatever it is told."""

    async def take(request: web.Request) -> web.Response:
        report = await request.json()
        return web.json_response(
            {"node": report["node"], "status": "taken", "detail": "", "unknown": [], "refused": []}
        )

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/v1/clusters/{cluster}/nodes/{node}/placements", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _memory(pid: int) -> dict[str, float]:
    """Megabytes of a process: resident, its share of what it shares, and what no file is behind."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return {"rss": kib["Rss"] / 1024, "pss": kib["Pss"] / 1024, "anonymous": kib["Anonymous"] / 1024}


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _child() -> int:
    """The process that was started last: the exporter's."""
    return max(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


async def measure(directory: Path, *, state_files: bool) -> list[Figure]:
    """Return memory, and CPU while nothing changes."""
    kubelet = Kubelet()
    kubelet.pods = [
        pod(f"p{number}", cpus=[2 * number, 2 * number + 1], gpus={f"g{number}": [number % 2]})
        for number in range(PODS)
    ]
    write_sysfs(directory / "sys", {0: "0-127", 1: "128-255"})
    (directory / "token").write_text("token")
    arguments = [
        "--cluster",
        "bench",
        "--node-name",
        "n1",
        "--token-file",
        str(directory / "token"),
        "--http-port",
        "0",
    ]
    arguments += ["--podresources-socket", str(directory / "kubelet.sock"), "--sysfs-root", str(directory / "sys")]
    if state_files:
        arguments += ["--kubelet-state-dir", str(directory)]
        (directory / "cpu_manager_state").write_text("")
    kind = "with_state_files" if state_files else "polled"
    async with (
        serving(kubelet, directory / "kubelet.sock"),
        _ingest() as url,
        service_process("kai_exporter.main", {}, "--ingest-url", url, *arguments),
    ):
        await kubelet.asked(3)
        await asyncio.sleep(2)
        pid, shares = _child(), []
        for _ in range(RUNS):
            began = _cpu_s(pid)
            await asyncio.sleep(RUN_S)
            shares.append((_cpu_s(pid) - began) / RUN_S * 100)
        memory = _memory(pid)
    return [
        *(figure(f"exporter_of_{PODS}_pods_{kind}_{name}", [amount], "MB") for name, amount in memory.items()),
        figure(f"exporter_of_{PODS}_pods_{kind}_cpu", shares, "% of a core"),
    ]


def parts() -> list[Figure]:
    """What the imports add to the resident memory, one after the other."""
    script = (
        "import importlib, sys\n"
        "def rss(): return int(open('/proc/self/smaps_rollup').read().split('Rss:')[1].split()[0]) / 1024\n"
        "before = rss(); print('python', before)\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name); now = rss(); print(name, now - before); before = now\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *_PARTS], capture_output=True, text=True, check=True)
    rows = (line.split() for line in done.stdout.splitlines())
    return [figure(f"exporter_import_{name}", [float(mb)], "MB") for name, mb in rows]


def figures() -> list[Figure]:
    """Run the benchmark."""
    found = []
    for state_files in (False, True):
        with scratch_directory() as directory:
            found += asyncio.run(measure(directory, state_files=state_files))
    return found


if __name__ == "__main__":
    for one in parts() if "--parts" in sys.argv else figures():
        print(one.line())
