"""kai-fleet as a process: flags, health, metrics, control; and `kill -9`."""

import asyncio
import json
import re
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kai_apiserver.server import ApiServer
from kai_fleet.main import SERVICE
from kai_fleet.node.nrt import pods_fingerprint

from tests.given.processes.kai_commands import Spawned, spawned
from tests.tools.fleet.cluster import NODES, NRT, PATIENCE_S, PODS, Cluster, fingerprint
from tests.tools.fleet.objects import GROUP, NO_LAG

PROFILE = "groups:" + GROUP.format(
    count=2, policy="restricted", scope="container", publisher="rte", delay="20ms", period="0", timing="", lag=NO_LAG
)


class FleetProcess:
    def __init__(self, process: Spawned, port: int, *, token: str) -> None:
        self.process = process
        self._session = aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {token}"})

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self._session.get(path, headers=headers) as response:
            return response.status, await response.text()

    async def post(self, path: str, body: Any) -> tuple[int, str]:
        async with self._session.post(path, data=body if isinstance(body, bytes) else json.dumps(body)) as response:
            return response.status, await response.text()

    async def holding(self, node: str) -> dict[str, Any]:
        status, text = await self.get(f"/simulator/nodes/{node}")
        assert status == 200
        return json.loads(text)["holding"]  # type: ignore[no-any-return]

    async def close(self) -> None:
        await self._session.close()
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            assert await self.process.wait() == 0


@asynccontextmanager
async def fleet_process(server: ApiServer, directory: Path) -> AsyncIterator[FleetProcess]:
    """Start kai-fleet and wait until all nodes have joined."""
    server.write_http_kubeconfig(directory / "kubeconfig")
    (directory / "profile.yaml").write_text(PROFILE)
    process = await spawned(
        *("kai_fleet.main", "--kubeconfig", str(directory / "kubeconfig")),
        *("--profile", str(directory / "profile.yaml")),
        *("--data-dir", str(directory / "data")),
        "--install-crds",
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    port = 0
    log: list[str] = []
    async for raw in process.stderr:
        line = raw.decode()
        log.append(line)
        if match := re.search(r'"address": "[0-9.]+:(\d+)"', line):
            port = int(match[1])
        if "all nodes have joined" in line:
            break
    else:
        pytest.fail(f"kai-fleet ended: {''.join(log)}")
    drain = asyncio.create_task(process.stderr.read())
    running = FleetProcess(process, port, token=server.admin_token)
    try:
        yield running
    finally:
        await running.close()
        await drain


async def test_health_metrics_and_control(server: ApiServer, cluster: Cluster, tmp_path: Path) -> None:
    async with fleet_process(server, tmp_path) as fleet:
        assert await fleet.get("/readyz") == (200, "[+]nodes ok\n[+]checkpoints ok\nready\n")
        pod = await cluster.run_pod("a", amounts={"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"})
        assert pod["spec"]["nodeName"] == "node-0"
        held = await fleet.holding("node-0")
        assert held["default/a"]["stage"] == "running"
        assert held["default/a"]["containers"]["main"]["devices"] == {"nvidia.com/gpu": ["gpu-00"]}
        _, metrics = await fleet.get("/metrics")
        assert "kai_fleet_admissions_total 1.0" in metrics
        assert "kai_fleet_active_pods 1.0" in metrics
        assert "kai_fleet_nodes 2.0" in metrics
        _, nodes = await fleet.get("/simulator/nodes")
        assert [node["name"] for node in json.loads(nodes)] == ["node-0", "node-1"]

        device = {"resource": "nvidia.com/gpu", "id": "gpu-07", "healthy": False}
        assert (await fleet.post("/simulator/nodes/node-0/devices", device))[0] == 200
        await cluster.until(NODES, "node-0", lambda n: n and n["status"]["allocatable"]["nvidia.com/gpu"] == "7")
        wrong = {"wrongFingerprint": True, "lagSeconds": 0, "lose": 0}
        assert (await fleet.post("/simulator/nodes/node-0/publisher", wrong))[0] == 200
        right = pods_fingerprint([("default", "a")])
        await cluster.until(NRT, "node-0", lambda t: t and fingerprint(t) not in ("", right))
        status, text = await fleet.post("/simulator/nodes/node-1/lag", {"statusSeconds": 2})
        late = {"statusSeconds": 2.0, "podresourcesSeconds": 0.0, "syncSeconds": 0.0}
        assert (status, json.loads(text)["lag"]) == (200, late)
        status, text = await fleet.post("/simulator/nodes/node-1/lag", {"statusSeconds": -1, "sync": 1})
        assert (status, _error(text).split(":")[0]) == (400, "statusSeconds")
        status, text = await fleet.post("/simulator/nodes/node-1/kubelet", {"running": False})
        assert (status, json.loads(text)["kubelet"]) == (200, "down")
        await cluster.create_pod("b", node="node-1")
        assert (await fleet.post("/simulator/nodes/node-1/heartbeats", {"silent": True}))[0] == 200
        assert (await fleet.post("/simulator/nodes/node-1/kubelet", {"running": True}))[0] == 200
        await cluster.pod_in("Running", "b")
        _, text = await fleet.get("/simulator/nodes/node-1")
        assert json.loads(text)["lag"] == late, "a kubelet that starts again lags as before"

        assert (await fleet.post("/simulator/nodes/nope/kubelet", {"running": True}))[0] == 404
        assert (await fleet.post("/simulator/nodes/node-0/devices", {**device, "id": "x"}))[0] == 404
        status, text = await fleet.post("/simulator/nodes/node-0/kubelet", {"running": "perhaps"})
        assert (status, _error(text).partition(":")[0]) == (400, "running")
        assert (await fleet.post("/simulator/nodes/node-0/kubelet", b"{"))[0] == 400


def _error(text: str) -> str:
    body = json.loads(text)
    assert body.keys() == {"error"}
    return str(body["error"])


async def test_control_is_for_users_that_the_api_server_allows(
    server: ApiServer, cluster: Cluster, tmp_path: Path
) -> None:
    """Else any process that reaches the port could stop a kubelet."""
    role = {
        "metadata": {"name": "looks"},
        "rules": [{"verbs": ["get"], "nonResourceURLs": ["/simulator/*"]}],
    }
    await cluster.client.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", role)
    binding = {
        "metadata": {"name": "looks"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "looks"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "looker"}],
    }
    await cluster.client.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    looker, stranger = [await _token(cluster, name) for name in ("looker", "stranger")]
    async with fleet_process(server, tmp_path) as fleet:
        for headers, method, status, message in (
            ({"Authorization": ""}, "GET", 401, "no bearer token"),
            ({"Authorization": "Bearer nonsense"}, "POST", 401, "does not know this token"),
            (stranger, "GET", 403, "system:serviceaccount:default:stranger may not get /simulator/nodes/node-0"),
            (looker, "POST", 403, "may not post /simulator/nodes/node-0/kubelet"),
            (looker, "GET", 200, "running"),
        ):
            path = "/simulator/nodes/node-0" + ("/kubelet" if method == "POST" else "")
            body = {"running": False} if method == "POST" else None
            async with fleet._session.request(method, path, headers=headers, json=body) as response:
                text = await response.text()
                assert (response.status, message in text) == (status, True), text
                assert status == 200 or _error(text)
        assert json.loads((await fleet.get("/simulator/nodes/node-0"))[1])["kubelet"] == "running"
        status, text = await fleet.get("/nowhere")
        assert (status, _error(text)) == (404, "Not Found")


async def _token(cluster: Cluster, name: str) -> dict[str, str]:
    await cluster.client.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": name}})
    answer = await cluster.client.post(f"/api/v1/namespaces/default/serviceaccounts/{name}/token", {"spec": {}})
    return {"Authorization": f"Bearer {json.loads(answer)['status']['token']}"}


@pytest.mark.slow
async def test_killed_after_its_disk_was_full_a_fleet_starts_again_with_what_every_pod_held(
    server: ApiServer, cluster: Cluster, tmp_path: Path
) -> None:
    amounts = {"cpu": "2", "memory": "2Gi", "nvidia.com/gpu": "1"}
    async with fleet_process(server, tmp_path) as fleet:
        for number in range(6):
            await cluster.run_pod(f"p{number}", node=f"node-{number % 2}", amounts=amounts)
        await cluster.delete_pod("p0", grace=0)
        await cluster.until(PODS, "p0", lambda pod: pod is None)
        # No file may grow any more: as on a full disk, every write fails, and no pod stops.
        resource.prlimit(fleet.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        await cluster.run_pod("meanwhile", node="node-0", amounts=amounts)
        status, report = await fleet.get("/readyz")
        assert status == 503
        assert "[-]checkpoints failed: " in report
        assert "kubelets.jsonl: File too large" in report
        resource.prlimit(fleet.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        async with asyncio.timeout(PATIENCE_S):
            while (await fleet.get("/readyz"))[0] != 200:  # noqa: ASYNC110  # a process is asked, as a probe does
                await asyncio.sleep(0.05)
        before = {node: await fleet.holding(node) for node in ("node-0", "node-1")}
        fleet.process.kill()
        await fleet.process.wait()
    await cluster.delete_pod("p1", grace=0)
    await cluster.create_pod("late", amounts=amounts)
    async with fleet_process(server, tmp_path) as fleet:
        await cluster.pod_in("Running", "late")
        after = {node: await fleet.holding(node) for node in ("node-0", "node-1")}
        assert {f"default/{name}" for name in ("p2", "p4", "meanwhile", "late")} == set(after["node-0"])
        assert {"default/p3", "default/p5"} == set(after["node-1"])
        for node, pods in after.items():
            for name, held in pods.items():
                assert name == "default/late" or held == before[node][name]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ((), "--data-dir or $KAI_DATA_DIR: is required"),
        (("--data-dir", "d", "--profile", "nope"), "profile nope: neither one of"),
        (("--data-dir", "d", "--kubeconfig", "nowhere"), "nowhere"),
    ],
)
def test_settings_that_cannot_work_are_said_in_one_line(
    flags: tuple[str, ...],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KAI_DATA_DIR", raising=False)
    monkeypatch.setattr(sys, "argv", ["kai-fleet", *flags])
    with pytest.raises(SystemExit) as ended:
        SERVICE.main()
    assert ended.value.code == 2
    assert problem in capfd.readouterr().err


OPERATIONS = Path(__file__).parents[3] / "docs/how-to/run-on-one-machine.md"


async def test_the_documented_line_joins_a_fleet(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kai fleet` as the guide has it, on an API server that knows nothing of NodeResourceTopologies."""
    (line,) = [line for line in OPERATIONS.read_text().splitlines() if line.startswith("kai fleet ")]
    server.write_http_kubeconfig(tmp_path / "FILE")
    monkeypatch.chdir(tmp_path)
    process = await spawned("kai_cli.main", *line.partition("#")[0].split()[1:], stderr=subprocess.PIPE)
    text, pipe = "", process.stderr
    assert pipe is not None
    while "all nodes have joined" not in text:
        text = (await pipe.readline()).decode()
        assert text, f"kai fleet ended with {await process.wait()}"
    process.send_signal(signal.SIGTERM)
    await pipe.read()
    assert await process.wait() == 0
    assert (tmp_path / "DIR").is_dir()
