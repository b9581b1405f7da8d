"""Services of the release before and of this version side by side: replaced while pods come, and then they go back.

Dispatches are under way meanwhile: given by either hub to the agent of the release before, started by this one.
"""

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from kai_cli.running.load import Loader
from kai_cli.upkeep.webhook_certificates import make_certificate
from kaicore.analysis.replay.replay import checked_promises, replay_log
from kaicore.analysis.trial.dispatching import HubLog, read_dispatch, replay_choices, submit_dispatch
from kaicore.analysis.trial.simulation import Located
from kaicore.errors import ApiStatus
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.port import Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.audit import verify
from kaicore.rules.events.envelope import Event
from kaicore.rules.groups.labels import KUEUE_QUEUE_LABEL
from kaicore.rules.hub.hub_state import HUB
from kaicore.runtime.fork_server import ForkedProcess, Program, request
from kaicore.yaml_text import load_yaml_all

from tests.conftest import as_role
from tests.e2e.cluster import DEPLOY, PATIENCE_S, SYSTEM, TWO_GPU_NODES, Cluster, answers, foreign_kubeconfig
from tests.e2e.live_stack import pod_manifest
from tests.given.processes.compiled import share_compiled
from tests.given.processes.kai_commands import server

ROOT = Path(__file__).parents[2]
#: The release before, v0.2.0: by its commit, which also a clone without tags has.
RELEASE = "469db6f9"
#: In the order of docs/how-to/upgrade.md: those that read cycles come before the scheduler, which writes them.
SERVICES = (
    *("relay", "ingest", "exporter", "hub", "binder", "projector", "api", "webhook", "scheduler", "watcher"),
    "operator",
)
#: Those that others reach at one address, whichever version answers.
_REACHED = ("ingest", "webhook")
_JOBS = "/apis/batch/v1/namespaces/{}/jobs"
_SHARDS = "/apis/kai.scheduler/v1/schedulingshards"
#: Seconds between two pods.
_PAUSE_S = 0.2
_LOOK_S = 0.02

#: What the commands import that it runs.
_COMMANDS = ("kai_cli.upkeep.database", "kai_cli.running.clusters", "kai_cli.running.dispatches")
#: The release before as a server that its programs are forked from (`tests.given.processes.kai_commands`).
_SERVE = """
import socket, sys, kaicore
from kaicore.runtime.fork_server import serve
release, control, listening, *modules = sys.argv[1:]
assert kaicore.__file__.startswith(release), kaicore.__file__
with socket.socket(fileno=int(control)) as ours, socket.socket(fileno=int(listening)) as asked:
    serve(ours, modules, asked)
"""

pytestmark = [
    pytest.mark.slow,
    # Thirty starts of services and the imports of two versions are a fortieth of the gate.
    pytest.mark.skipif("KAI_TEST_LONG" not in os.environ, reason="takes 25 s of CPU: make chaos"),
    pytest.mark.skipif(foreign_kubeconfig() is not None, reason="pods are made for the simulated fleet"),
]


FLEET = TWO_GPU_NODES


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Path]:
    """A socket on which programs of the release before are asked for.

    Their sources are those of this checkout's own history, on the libraries of today.
    """
    archive = ["git", "-C", str(ROOT), "archive", RELEASE, "libs", "services", "migrations", "deploy/k8s"]
    done = subprocess.run(archive, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no {RELEASE} in this checkout's history: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        # Python 3.11 has filters from 3.11.4 on.
        tar.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    share_compiled(ROOT, tmp_path)
    sources = [tmp_path / "libs/kaicore/src", *sorted(tmp_path.glob("services/*/src"))]
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    address = tmp_path / "socket"
    with its, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(address))
        listening.listen(64)
        given = [its.fileno(), listening.fileno()]
        modules = [f"kai_{service}.main" for service in SERVICES]
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, str(tmp_path), *map(str, given), *modules, *_COMMANDS],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources))},
            cwd=tmp_path,
            pass_fds=given,
        )
    yield address
    ours.recv(64)
    ours.close()
    process.wait()


class Versions:
    """The services of one cluster, each as a process of this version or of the release before."""

    def __init__(self, cluster: Cluster, release: Path, *, name: str, database_url: str, nats_url: str) -> None:
        self._cluster, self._root, self._name = cluster, cluster.root, name
        self._servers = {True: release, False: server()}
        self._database_url, self._nats_url = database_url, nats_url
        self._listening = {service: socket.create_server(("127.0.0.1", 0)) for service in _REACHED}
        self._running: dict[str, ForkedProcess] = {}
        self._numbers = count()
        (self._root / "secret").write_text("s" * 32)
        for file, content in make_certificate(["localhost"], days=1).items():
            (self._root / file).write_bytes(content)

    def _settings(self, service: str) -> dict[str, str]:
        reads = dict.fromkeys(("relay", "api", "webhook"), "kai_read")
        role = {**reads, "projector": "kai_project"}.get(service, "kai_append")
        settings = {
            "KAI_CLUSTER": self._name,
            "KAI_CLUSTERS": self._name,
            "KAI_NATS_URL": self._nats_url,
            "KAI_DATABASE_URL": as_role(self._database_url, role),
            "KAI_PARENT_PID": str(os.getpid()),
        }
        if service in ("watcher", "binder"):
            settings["KAI_KUBECONFIG"] = str(self._cluster.kubeconfig_of(service))
        if service in ("ingest", "exporter"):
            settings["KAI_NODE_TOKEN_SECRET_FILE"] = str(self._root / "secret")
        if service == "exporter":
            settings["KAI_INGEST_URL"] = f"http://{self.address('ingest')}"
            settings["KAI_PODRESOURCES_DIR"] = str(self._root / "pr")
        if service == "webhook":
            settings |= {"KAI_TLS_CERT_FILE": f"{self._root}/tls.crt", "KAI_TLS_KEY_FILE": f"{self._root}/tls.key"}
        if service == "operator":
            settings |= {"KAI_KUBECONFIG": str(self._cluster.kubeconfig), "KAI_IMAGE": "kai:test"}
        return settings | ({"KAI_ANONYMOUS": "loopback"} if service == "api" else {})

    def address(self, service: str) -> str:
        """The address where others reach a service."""
        return "127.0.0.1:{1}".format(*self._listening[service].getsockname())

    def run(
        self,
        module: str,
        *arguments: str,
        older: bool,
        log: Path,
        settings: Mapping[str, str],
        inherit: tuple[int, ...] = (),
    ) -> ForkedProcess:
        """Start a program of either version."""
        program = Program(module, arguments, {**os.environ, **settings}, inherit, str(self._root))
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
            log.open("wb") as output,
            Path(os.devnull).open("rb") as empty,
        ):
            connection.connect(str(self._servers[older]))
            return request(connection, program, (empty.fileno(), output.fileno(), output.fileno()))

    async def run_older(self, *arguments: str | Path) -> None:
        """Run a command of the release before to its end, as the log's owner."""
        log, settings = self._root / f"command-{next(self._numbers)}.log", {"KAI_DATABASE_URL": self._database_url}
        words = map(str, arguments)
        process = await asyncio.to_thread(self.run, "kai_cli.main", *words, older=True, log=log, settings=settings)
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0, log.read_text()

    async def replace(self, service: str, *, older: bool) -> None:
        """Start a process of a version; when it is ready, end the one that ran."""
        before = self._running.get(service)
        process, is_ready, log = self._start(service, older=older)
        self._running[service] = process
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await asyncio.to_thread(is_ready):
                    assert process.poll() is None, f"{service} ended"
                    await asyncio.sleep(_LOOK_S)
        except (TimeoutError, AssertionError) as error:
            raise AssertionError(f"{service} is not ready: {log.read_text()[-2000:]}") from error
        if before is not None:
            before.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(before.wait, PATIENCE_S) == 0, service

    def _start(self, service: str, *, older: bool) -> tuple[ForkedProcess, Callable[[], bool], Path]:
        log = self._root / f"{service}-{next(self._numbers)}.log"
        reached = self._listening.get(service)
        with socket.create_server(("127.0.0.1", 0)) if reached is None else reached.dup() as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/readyz"
            own = {"KAI_HTTP_FD": str(listener.fileno())} | ({"KAI_REPLICA": log.stem} if service == "binder" else {})
            process = self.run(
                f"kai_{service}.main",
                older=older,
                log=log,
                inherit=(listener.fileno(),),
                settings=self._settings(service) | own,
            )
        # There the other version answers as well.
        is_ready = (lambda: b'listening"' in log.read_bytes()) if reached is not None else (lambda: answers(url))
        return process, is_ready, log

    def kill(self) -> None:
        """End all, as a crash would."""
        for process in self._running.values():
            process.kill()
            process.wait()
        for listening in self._listening.values():
            listening.close()


@asynccontextmanager
async def pods_arriving(cluster: Cluster) -> AsyncIterator[list[str]]:
    """Create one pod after the other until the block ends; yield the list of their names."""
    names: list[str] = []

    async def arrive() -> None:
        async with cluster.client() as client:
            loader = Loader(client)
            while not ended.is_set():
                pod = pod_manifest(f"p{len(names)}", seconds=0.2, cpu="1", memory="1Gi")
                pod["metadata"]["namespace"] = cluster.namespace
                assert (await loader.create([pod])).refused == []
                names.append(pod["metadata"]["name"])
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), _PAUSE_S)

    ended = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(arrive())
        try:
            yield names
        finally:
            ended.set()


@asynccontextmanager
async def reviewed(address: str) -> AsyncIterator[list[bool]]:
    """Have the webhook judge one topology after the other until the block ends; yield its answers."""
    answers: list[bool] = []
    kind = {"group": "kai.scheduler", "version": "v1alpha1", "kind": "Topology"}
    request = {"uid": "r", "operation": "CREATE", "name": "t", "kind": kind}
    topology = {"apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": {"name": "t"}}
    spec = {"levels": [{"nodeLabel": "example.com/rack"}]}
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {**request, "object": {**topology, "spec": spec}},
    }

    async def ask() -> None:
        while not ended.is_set():
            # As an API server does, it asks on a connection of its own. A process that ends closes those that it took
            # and was not asked on yet.
            with suppress(aiohttp.ServerDisconnectedError):
                async with (
                    aiohttp.ClientSession(raise_for_status=True) as session,
                    session.post(f"https://{address}/validate", json=review, ssl=False) as answer,
                ):
                    answers.append((await answer.json())["response"]["allowed"])
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), 2 * _PAUSE_S)

    ended = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ask())
        try:
            yield answers
        finally:
            ended.set()


async def resume(cluster: Cluster, jobs: Iterable[str]) -> None:
    """Resume Jobs, as Kueue does."""
    async with cluster.client() as client:
        for name in jobs:
            path, resumed = f"{_JOBS.format(cluster.namespace)}/{name}", {"spec": {"suspend": False}}
            await client.patch(path, resumed, content_type="application/merge-patch+json")


async def prepare(cluster: Cluster, cluster_name: str) -> None:
    """Create what an operator and the agent of a hub's cluster need."""
    async with cluster.client() as client:
        files = [*sorted((DEPLOY / "crds/operator").glob("*.yaml")), DEPLOY.parent / "hub/rights-for-dispatches.yaml"]
        objects = [document for file in files for document in load_yaml_all(file.read_text())]
        assert (await Loader(client).create(objects)).refused == []
        config = {"apiVersion": "kai.scheduler/v1", "kind": "Config", "metadata": {"name": "kai-config"}}
        await client.post("/apis/kai.scheduler/v1/configs", {**config, "spec": {"cluster": cluster_name}})


async def shard(cluster: Cluster, name: str) -> None:
    """Have a shard of one's own made, and wait for its scheduler, which an operator makes."""
    async with cluster.client() as client:
        spec = {"partitionLabelValue": name}
        made = {"apiVersion": "kai.scheduler/v1", "kind": "SchedulingShard", "metadata": {"name": name}}
        await client.post(_SHARDS, {**made, "spec": spec})
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(ApiStatus):
                    await client.get(f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/kai-scheduler-{name}")
                    return
                await asyncio.sleep(_LOOK_S)


def suspended_job(namespace: str, name: str) -> dict[str, Any]:
    """Return a Job as for Kueue: it is given to a cluster, and nothing of it starts until it is resumed."""
    pod = pod_manifest(name, seconds=0.2, cpu="1", memory="1Gi")
    template = {"metadata": {"annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]}
    metadata = {"name": name, "namespace": namespace, "labels": {KUEUE_QUEUE_LABEL: "team"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"suspend": True, "template": template},
    }


async def made(cluster: Cluster, job: str) -> None:
    """Wait until the agent has made a dispatch's Job."""
    async with cluster.client() as client, asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(ApiStatus):
                await client.get(f"{_JOBS.format(cluster.namespace)}/{job}")
                return
            await asyncio.sleep(_LOOK_S)


async def bound(log: PostgresLog, cluster: str, count: int) -> list[Event]:
    """Wait until so many pods are bound; return the events that say so."""
    position = 0
    async with asyncio.timeout(PATIENCE_S):
        while len(events := await log.read(cluster, limit=100_000, where=Filter(types=("PodBound",)))) < count:
            position = await log.wait_beyond(cluster, position, timeout_s=5)
    return events


@pytest.mark.usefixtures("database_url")  # makes the roles
async def test_each_service_is_replaced_while_pods_come_and_goes_back(
    cluster: Cluster, release: Path, empty_database_url: str, nats_url: str, cluster_name: str
) -> None:
    versions = Versions(cluster, release, name=cluster_name, database_url=empty_database_url, nats_url=nats_url)
    appending = as_role(empty_database_url, "kai_append")
    await versions.run_older("migrate")
    await prepare(cluster, cluster_name)
    jobs = {name: suspended_job(cluster.namespace, name) for name in ("before", "between")}
    file = cluster.root / "job.json"
    file.write_bytes(msgspec.json.encode(jobs["before"]))
    try:
        await asyncio.gather(*(versions.replace(service, older=True) for service in SERVICES))
        await asyncio.to_thread(upgrade, empty_database_url)
        await shard(cluster, "old")
        async with pods_arriving(cluster) as names, reviewed(versions.address("webhook")) as allowed:
            await versions.run_older("cluster", "add", cluster_name)
            await versions.run_older("submit", file)
            await made(cluster, "before")
            for service in SERVICES:
                await versions.replace(service, older=False)
                if service == "hub":
                    async with await PostgresLog.open(appending) as log:
                        await submit_dispatch(HubLog(log), read_dispatch("between", [Located("", jobs["between"])]))
                    await made(cluster, "between")
            await shard(cluster, "new")
            await resume(cluster, jobs)
            for service in SERVICES:
                await versions.replace(service, older=True)
            await shard(cluster, "back")
        assert len(allowed) > len(SERVICES)
        assert all(allowed)
        async with await PostgresLog.open(appending) as log:
            events = await bound(log, cluster_name, len(names) + len(jobs))
            # Nothing is lost, and nothing is bound or promised twice.
            assert Counter(event.subject.partition("/")[2].partition("-")[0] for event in events) == Counter(
                [*names, *jobs]
            )
            audit = await verify(log, cluster_name)
            assert audit.ok, str(audit)
            assert (await checked_promises(log, cluster_name, upto=audit.head.position)).report.twice == []
            assert (await replay_log(log, cluster_name)).differences == []
            seen = await log.read(cluster_name, limit=100_000, where=Filter(types=("PodObserved",)))
            await check_dispatches(log, jobs)
    finally:
        versions.kill()
    came = {event.subject: event.recorded_at for event in reversed(seen)}
    waits = sorted(event.recorded_at - came[event.subject] for event in events)
    figures = {
        "pods": len(waits),
        "median_wait_ms": waits[len(waits) // 2] // 1000,
        "longest_wait_ms": waits[-1] // 1000,
    }
    sys.stdout.write(f"{figures}\n")


async def check_dispatches(log: PostgresLog, names: Iterable[str]) -> None:
    """See that each dispatch was given and started once, and taken from nobody."""
    types = ("DispatchGiven", "DispatchStarted", "DispatchRecalled", "DispatchReleased", "DispatchReturned")
    steps = await log.read(HUB, limit=1000, where=Filter(types=types))
    assert sorted((step.subject, step.type) for step in steps) == sorted(
        (name, step) for name in names for step in types[:2]
    )
    # By either hub.
    assert len({step.actor for step in steps if step.type == types[0]}) == 2
    assert (await verify(log, HUB)).ok
    assert (await replay_choices(log)).differences == []
