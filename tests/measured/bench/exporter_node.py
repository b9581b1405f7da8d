"""The cost of one node's exporter at 110 pods: memory and CPU of a real process, asked in both ways.

Then with `https` to ingest, and as one that publishes its node's NodeResourceTopology by a pod's service account.

`make bench ARGS=exporter_node` runs it. `python -m tests.measured.bench.exporter_node --parts` tells what memory each
import takes, one after the other, those that an exporter does without last.
"""

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from kai_apiserver.http.listeners import certificate_files
from kai_apiserver.server import ApiServer, ApiServerOptions
from kai_exporter.publishing import PATH
from kaicore.kube.api.access import plain_access
from kaicore.kube.api.client import KubeClient
from kaicore.kube.wire.podresources import AllocatableResourcesResponse
from kaicore.yaml_text import load_yaml_all

from tests.given.cluster.podresources import Kubelet, pod, serving, write_sysfs
from tests.given.processes.service_process import service_process
from tests.given.servers.servers import scratch_directory
from tests.measured.bench.figures import Figure, figure

PODS = 110
RUNS, RUN_S = 3, 10.0
KINDS = ("polled", "with_state_files", "https", "publishing")
CRD = next((Path(__file__).parents[3] / "deploy/k8s/crds").glob("*noderesourcetopolog*"))

_PARTS = (
    "asyncio",
    "msgspec",
    "grpclib.client",
    "h11",
    "kaicore.runtime.agent.process",
    "kai_exporter.main",
    # What it does without.
    "kaicore.kube.wire.podresources",
    "prometheus_client",
    "structlog",
    "grpc.aio",
    "aiohttp",
    "uvicorn",
    "pydantic_settings",
)


@asynccontextmanager
async def _ingest(certificate: tuple[Path, Path] | None) -> AsyncIterator[str]:

    async def take(request: web.Request) -> web.Response:
        report = await request.json()
        return web.json_response(
            {"node": report["node"], "status": "taken", "detail": "", "unknown": [], "refused": []}
        )

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/v1/clusters/{cluster}/nodes/{node}/placements", take)
    runner = web.AppRunner(app)
    await runner.setup()
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{runner.addresses[0][1]}"
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


async def measure(directory: Path, kind: str) -> list[Figure]:
    """Return memory, and CPU while nothing changes; `kind` is one of `KINDS`."""
    kubelet = Kubelet()
    kubelet.pods = [
        pod(f"p{number}", cpus=[2 * number, 2 * number + 1], gpus={f"g{number}": [number % 2]})
        for number in range(PODS)
    ]
    kubelet.allocatable = AllocatableResourcesResponse(cpu_ids=range(256))
    write_sysfs(directory / "sys", {0: "0-127", 1: "128-255"})
    (directory / "token").write_text("token")
    # By variables, as a DaemonSet sets them: flags take a parser.
    environment = {
        "KAI_CLUSTER": "bench",
        "KAI_NODE_NAME": "n1",
        "KAI_TOKEN_FILE": str(directory / "token"),
        "KAI_HTTP_PORT": "0",
        "KAI_PODRESOURCES_SOCKET": str(directory / "kubelet.sock"),
        "KAI_SYSFS_ROOT": str(directory / "sys"),
    }
    if kind != "polled":
        environment["KAI_KUBELET_STATE_DIR"] = str(directory)
        (directory / "cpu_manager_state").write_text("")
    async with AsyncExitStack() as stack:
        certificate, module = None, "kai_exporter.main"
        if kind in ("https", "publishing"):
            authority, *files = certificate_files(directory, "127.0.0.1")
            certificate = (files[0], files[1])
            environment["KAI_INGEST_CA_FILE"] = str(authority)
        if kind == "publishing":
            environment |= await stack.enter_async_context(_api_server(directory))
            environment["KAI_PUBLISH_NRT"] = "true"
            module = "tests.measured.bench.exporter_in_a_pod"
        await stack.enter_async_context(serving(kubelet, directory / "kubelet.sock"))
        environment["KAI_INGEST_URL"] = await stack.enter_async_context(_ingest(certificate))
        await stack.enter_async_context(service_process(module, environment))
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


@asynccontextmanager
async def _api_server(directory: Path) -> AsyncIterator[dict[str, str]]:
    """Serve a simulated API server; yield the variables of a pod there, and tell if nothing was published."""
    (directory / "config.yaml").write_text("topologyManagerPolicy: restricted\n")
    account = directory / "account"
    account.mkdir()
    async with (
        ApiServer(ApiServerOptions(controllers=False, https=True)) as server,
        KubeClient(plain_access(server.http_url, token=server.admin_token)) as client,
    ):
        await client.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        for document in load_yaml_all(CRD.read_text()):
            await client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", document)
        (account / "token").write_text(server.admin_token)
        (account / "ca.crt").write_bytes(server.authority or b"")
        address = urlsplit(server.https_url)
        yield {
            "BENCH_SERVICE_ACCOUNT": str(account),
            "KUBERNETES_SERVICE_HOST": str(address.hostname),
            "KUBERNETES_SERVICE_PORT": str(address.port),
        }
        await client.get(f"{PATH}/n1")


def parts() -> list[Figure]:
    """The resident memory that imports add, one after the other."""
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
    found = []
    for kind in KINDS:
        with scratch_directory() as directory:
            found += asyncio.run(measure(directory, kind))
    return found


if __name__ == "__main__":
    for one in parts() if "--parts" in sys.argv else figures():
        print(one.line())
