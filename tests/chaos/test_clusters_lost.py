"""Three clusters of real processes under one hub: one is drained, one is frozen (API server, binder) and thaws.

Only `make chaos` runs it; `tests/integration/test_several_clusters.py` has the same in one process, for the gate.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kai_cli.running import clusters as cluster_commands
from kai_cli.running import dispatches as dispatch_commands
from kai_cli.sources.paths import RunningCluster
from kai_cli.sources.source import HubSource
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.rules.hub.cluster_side import DISPATCH_MARK

from tests.e2e.live_stack import PATIENCE_S, LiveStack, running
from tests.given.servers.servers import scratch_directory

LEASE_S = 3.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(6 * PATIENCE_S),
    pytest.mark.skipif("KAI_TEST_LONG" not in os.environ, reason="takes minutes of many processes: make chaos"),
]


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveStack]:
    monkeypatch.setenv("KAI_HUB_LEASE_S", str(LEASE_S))
    # `processes_of` looks for command lines and environments.
    monkeypatch.setenv("KAI_FORK_SERVICES", "no")
    with scratch_directory() as root, running(LiveStack(root, flags=("--clusters", "3"))) as live:
        yield live


def job(name: str) -> dict[str, Any]:
    resources = {"limits": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "parallelism": 2,
            "completions": 2,
            "template": {
                "metadata": {"annotations": {"simulator.kai.scheduler/run-seconds": "600"}},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "x", "resources": resources}],
                },
            },
        },
    }


def processes_of(cluster: str, *services: str) -> list[int]:
    """The processes of a cluster's services, by their environment."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            command = (directory / "cmdline").read_bytes().decode()
            environment = (directory / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if any(f"kai_{service}.main" in command for service in services) and (
            f"KAI_CLUSTER={cluster}\0" in environment or f"/clusters/{cluster}/" in environment
        ):
            found.append(int(directory.name))
    assert len(found) >= len(services), (cluster, services, found)
    return found


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def submit(stack: LiveStack, name: str, *clusters: str) -> None:
    file = stack.directory.root / f"{name}.json"
    file.write_text(json.dumps(job(name)))
    root = stack.directory.root
    await asyncio.to_thread(dispatch_commands.submit, file, cluster=list(clusters), source=HubSource(data_dir=root))


async def until(stack: LiveStack, name: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async with asyncio.timeout(2 * PATIENCE_S):
        while True:
            rows = await asyncio.to_thread(stack.ask, "get", "dispatches", name)
            if rows and condition(rows[0]):
                return dict(rows[0])
            await asyncio.sleep(0.5)


async def bound(clusters: dict[str, RunningCluster]) -> dict[str, set[str]]:
    there: dict[str, set[str]] = {}
    for name, cluster in clusters.items():
        async with KubeClient(configured_access(cluster.service_kubeconfig)) as client:
            pods = msgspec.json.decode(await client.get("/api/v1/namespaces/default/pods"))["items"]
        for pod in pods:
            mark = pod["metadata"].get("annotations", {}).get(DISPATCH_MARK, "")
            if mark and pod["spec"].get("nodeName"):
                there.setdefault(mark.partition("/")[0], set()).add(name)
    return there


async def test_dispatches_move_from_a_drained_and_a_frozen_cluster_and_run_once(stack: LiveStack) -> None:
    root, clusters = stack.directory.root, stack.running.clusters
    assert set(clusters) == {"e2e", "e2e-2", "e2e-3"}
    await submit(stack, "first")
    first = (await until(stack, "first", lambda row: row["stage"] == "Started"))["cluster"]

    with frozen(*processes_of("e2e-2", "scheduler")):
        await submit(stack, "drained", "e2e-2")
        await until(stack, "drained", lambda row: row["cluster"] == "e2e-2")
    await until(stack, "drained", lambda row: row["stage"] == "Started")

    with frozen(*processes_of("e2e-3", "scheduler", "apiserver", "binder", "watcher")):
        await cluster_commands.cluster_drain(first, source=HubSource(data_dir=root))
        await submit(stack, "elsewhere")
        await until(stack, "elsewhere", lambda row: row["stage"] == "Started" and row["cluster"] != first)

    with frozen(*processes_of("e2e-3", "scheduler")):
        await until_ready(stack, "e2e-3")
        await submit(stack, "stranded", "e2e-3", "e2e-2", "e2e")
        row = await until(stack, "stranded", lambda row: row["stage"] in ("Given", "Started"))
        if row["cluster"] == "e2e-3":
            with frozen(*processes_of("e2e-3", "apiserver", "binder", "watcher")):
                await until(stack, "stranded", lambda row: row["stage"] == "Started" and row["cluster"] != "e2e-3")
    await until_ready(stack, "e2e-3")
    there = await bound(clusters)
    assert set(there) == {"first", "drained", "elsewhere", "stranded"}
    assert all(len(where) == 1 for where in there.values()), there
    assert stack.ask("replay", "--cluster", "hub")["differences"] == []


async def until_ready(stack: LiveStack, cluster: str) -> None:
    """Wait until a cluster's lease is renewed again."""
    async with asyncio.timeout(2 * PATIENCE_S):
        while True:
            rows = await asyncio.to_thread(stack.ask, "cluster", "list")
            if any(row["name"] == cluster and row["state"] in ("Ready", "Drained") for row in rows):
                return
            await asyncio.sleep(0.5)
