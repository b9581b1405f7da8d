"""Ours beside kube-scheduler, in turns, each on a real API server of its own: binds per second and CPU per pod.

The nodes are objects without kubelets, so nothing but scheduling is measured. A *backlog* waits when the scheduler
begins: what reads the API server for it, kube-scheduler itself or our watcher, is frozen until all pods are there;
compact, what shares a process with the watcher is frozen with it.
*Arrivals* come at a rate. Both sides write Kubernetes' events, and neither is held to a rate of requests.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import yaml
from kai_cli.running.clusters import Kubeconfigs
from kai_cli.running.load import Loader
from kai_cli.running.stack import ClusterSpec, Stack
from kai_cli.sources.paths import DataDirectory
from kaicore.errors import ApiStatus
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.ledger.log.postgres import PostgresLog

from tests.given.processes.service_process import frozen
from tests.given.servers.servers import scratch_directory
from tests.measured.bench.end_to_end import all_told, cpu_by_process, nodes_known, pod, process_of
from tests.measured.bench.figures import Figure, figure
from tests.measured.bench.scale.services import cpu_seconds
from tests.measured.beside.control_plane import ControlPlane, Program
from tests.measured.beside.programs import program

_NODES, _PODS, _ROUNDS = 1000, 3000, 2
#: Arriving pods per second, and how many come at once.
_RATE, _AT_ONCE = 400, 40
_OURS, _COMPACT, _THEIRS, _CLUSTER = "kai-ledger", "kai-ledger, compact", "default-scheduler", "bench"
_PATIENCE_S = 300.0
#: No node lifecycle: without kubelets it would find all nodes dead within a minute.
_CONTROLLERS = "serviceaccount-controller,serviceaccount-token-controller"
#: Of both sides.
_SERVERS = ("etcd", "kube-apiserver")
_UNBOUND = {"fieldSelector": "spec.nodeName=", "limit": "1"}


@dataclass(frozen=True, slots=True)
class _Raced:
    """A run's result: seconds from the beginning to the last binding, and CPU milliseconds per pod of each process."""

    seconds: float
    cpu_ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Side:
    """A running scheduler.

    Attributes:
        reader: process id of what reads the API server for it.
        cpu: CPU seconds so far by process.
        told: waits until its events are written.
    """

    reader: Callable[[], int]
    cpu: Callable[[], dict[str, float]]
    told: Callable[[], Any]


def figures() -> Iterator[Figure]:
    """Measure both sides in turns; nothing where there is no API server of Kubernetes and no Go to build it with."""
    try:
        for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"):
            program(name)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"skipped: beside: {error}\n")
        return
    for backlog in (True, False):
        runs: dict[str, list[_Raced]] = {_THEIRS: [], _OURS: [], _COMPACT: []}
        for _ in range(_ROUNDS):
            for scheduler, raced in runs.items():
                raced.append(asyncio.run(_race(scheduler, backlog=backlog)))
        yield from _of_runs(runs, f"{'backlog' if backlog else 'arrivals'}: {_NODES} nodes, {_PODS} pods")


def _of_runs(runs: dict[str, list[_Raced]], size: str) -> Iterator[Figure]:
    for scheduler, raced in runs.items():
        yield figure(f"{size}: bound by {scheduler}", [_PODS / run.seconds for run in raced], "pods/s")
        for name in sorted(raced[0].cpu_ms):
            yield figure(f"{size}: CPU of {name} with {scheduler}", [run.cpu_ms[name] for run in raced], "ms per pod")
        own = [sum(ms for name, ms in run.cpu_ms.items() if name not in _SERVERS) for run in raced]
        yield figure(f"{size}: CPU of all but {' and '.join(_SERVERS)} with {scheduler}", own, "ms per pod")
    for ours in (_OURS, _COMPACT):
        ratios = [theirs.seconds / one.seconds for theirs, one in zip(runs[_THEIRS], runs[ours], strict=True)]
        yield figure(f"{size}: bound per second, {ours} to {_THEIRS}", ratios, "ratio")


async def _race(scheduler: str, *, backlog: bool) -> _Raced:
    async with AsyncExitStack() as stack:
        root = stack.enter_context(scratch_directory())
        plane = ControlPlane(root / "kubernetes", controllers=_CONTROLLERS)
        stack.callback(plane.stop)
        plane.start()
        client = await stack.enter_async_context(KubeClient(configured_access(str(plane.kubeconfig))))
        await _made(client, [_node(number) for number in range(_NODES)])
        await _account(client)
        theirs = scheduler == _THEIRS
        running = _kube_scheduler if theirs else partial(_ours, compact=scheduler == _COMPACT)
        side = await stack.enter_async_context(running(root, plane.kubeconfig))
        name = _THEIRS if theirs else _OURS
        pods = [_pod(number, name) for number in range(_PODS)]
        await _bound(client, [_pod(_PODS + number, name) for number in range(20)])

        def used() -> dict[str, float]:
            return side.cpu() | {name: cpu_seconds(plane.pids[name]) for name in _SERVERS}

        before = used()
        if backlog:
            with frozen(side.reader()):
                await _made(client, pods)
            began = time.monotonic()
            await _bound(client, [])
        else:
            began = time.monotonic()
            await _bound(client, pods)
        seconds = time.monotonic() - began
        await side.told()
        after = used()
        return _Raced(seconds, {name: (after[name] - before[name]) / _PODS * 1000 for name in after})


@asynccontextmanager
async def _kube_scheduler(root: Path, kubeconfig: Path) -> Any:
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 10_000, "burst": 10_000},
    }
    (root / "scheduler.yaml").write_text(yaml.safe_dump(config))
    running = Program(root, "kube-scheduler", "--config", str(root / "scheduler.yaml"), "--secure-port=0")
    try:
        yield _Side(
            lambda: running.pid,
            lambda: {"kube-scheduler": cpu_seconds(running.pid)},
            # It tells no one what it has not written yet.
            lambda: asyncio.sleep(3),
        )
    finally:
        running.stop()


@asynccontextmanager
async def _ours(root: Path, kubeconfig: Path, *, compact: bool) -> Any:
    with ExitStack() as held:
        os.environ["KAI_SIDE_WRITES_PER_S"] = "10000"
        held.callback(os.environ.pop, "KAI_SIDE_WRITES_PER_S")
        lock = held.enter_context(DataDirectory(root / "kai").lock())
        stack = Stack(
            DataDirectory(root / "kai"), lock=lock, report=lambda _: None, log_level="warning", compact=compact
        )
        try:
            await stack.start()
            await stack.add_cluster(ClusterSpec(name=_CLUSTER, kubeconfigs=Kubeconfigs(kubeconfig), exporter=False))
            async with await PostgresLog.open(stack.database_url) as log, asyncio.timeout(_PATIENCE_S):
                await nodes_known(log, _CLUSTER, _NODES, by="NodeObserved")
            yield _Side(
                lambda: process_of(stack, f"{_CLUSTER}-watcher").pid or 0,
                lambda: cpu_by_process(stack, [_CLUSTER]),
                lambda: all_told(stack, _CLUSTER),
            )
        finally:
            await stack.stop()


async def _account(client: KubeClient) -> None:
    """Wait for the account without which no pod is taken."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            try:
                await client.get("/api/v1/namespaces/default/serviceaccounts/default")
            except ApiStatus:
                await asyncio.sleep(0.2)
            else:
                return


async def _made(client: KubeClient, objects: list[dict[str, Any]]) -> None:
    refused = (await Loader(client).create(objects)).refused
    assert not refused, refused[0]


async def _bound(client: KubeClient, arriving: list[dict[str, Any]]) -> None:
    """Create pods at the rate, and wait until all that there are have nodes."""
    loading = asyncio.create_task(_arrive(client, arriving))
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            listed = msgspec.json.decode(await client.get("/api/v1/pods", _UNBOUND))["items"]
            if loading.done() and not listed:
                break
            await asyncio.sleep(0.25)
    await loading


async def _arrive(client: KubeClient, pods: list[dict[str, Any]]) -> None:
    began = time.monotonic()
    for first in range(0, len(pods), _AT_ONCE):
        await asyncio.sleep(max(0.0, began + first / _RATE - time.monotonic()))
        await _made(client, pods[first : first + _AT_ONCE])


def _node(number: int) -> dict[str, Any]:
    amounts = {"cpu": "128", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8", "rdma/hca": "8"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "a node without a kubelet"}
    name = f"n{number:04}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
    }


def _pod(number: int, scheduler: str) -> dict[str, Any]:
    made = pod(number)
    # The API server marks new nodes as not ready, and no controller here takes that away.
    made["spec"] |= {"schedulerName": scheduler, "tolerations": [{"operator": "Exists"}]}
    return made
