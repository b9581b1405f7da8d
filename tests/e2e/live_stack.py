"""A whole stack as `kai up` runs it, as an operator sees it: kubeconfig, log, command line."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import msgspec
import psycopg
import pytest
from kai_cli.running.load import Loader
from kai_cli.sources.paths import DataDirectory, RunningCluster, RunningStack
from kaicore.analysis.replay.replay import checked_promises, replay_log
from kaicore.errors import LogUnavailable
from kaicore.kube.api.access import AccessSource, configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.audit import verify
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
from kaicore.runtime.fork_server import ForkedProcess

from tests.e2e.cluster import PATIENCE_S, Cluster, real_nodes
from tests.given.logs.invariants import differences
from tests.given.processes.kai_commands import kai, talking
from tests.given.servers.servers import lay_out_postgres, scratch_directory

#: More GPUs than any node has.
NEVER = "99"
#: Events after which the indexes of a state are compared with a rebuild.
_INDEXES_CHECKED_EVERY = 250

#: What the API server says to a user that lacks a right.
_FORBIDDEN = re.compile(r'is forbidden: User \\*"system:serviceaccount:kai-system:.*')


class LiveStack:
    """A `kai up` in a process of its own: on a cluster, or without one on the simulated cluster that it brings."""

    def __init__(
        self,
        root: Path,
        cluster: Cluster | None = None,
        *,
        profile: str = "mini",
        shadow: str = "",
        observed: bool = False,
        flags: Sequence[str] = (),
    ) -> None:
        """Args:
        observed: whether a shadow has exporters as well, with tokens that ingest has reviewed.
        flags: more of `kai up`.
        """
        self.directory = DataDirectory(root)
        self.namespace = "default" if cluster is None else cluster.namespace
        self._on = cluster
        self._observed = observed or not shadow
        of_cluster = ["--profile", profile] if cluster is None else cluster.flags
        if shadow:
            named = ("watcher", "ingest") if observed else ("watcher",)
            of_cluster = [*(of_cluster if cluster is None else cluster.flags_of(*named)), "--shadow", shadow]
        self._cluster = [*of_cluster, *flags]
        self._process: ForkedProcess | None = None
        self._output: TextIO | None = None
        #: What it said until it was ready.
        self.said: list[str] = []

    def start(self, *flags: str) -> None:
        """Start it, with these flags besides, and return when it is ready."""
        if not self.directory.postgres.exists():
            self.directory.claim()
            lay_out_postgres(self.directory.postgres)
        command = ("up", "--data-dir", str(self.directory.root), *self._cluster, *flags, "--cluster", "e2e")
        self._process, self._output = talking("kai_cli.main", *command)
        self.said = []
        for line in self._output:
            self.said.append(line.rstrip("\n"))
            if line.startswith("Ctrl-C"):
                if self._on is not None and self._observed:
                    self._on.observe(f"http://127.0.0.1:{self._port('ingest')}", cluster="e2e")
                return
        raise AssertionError("kai up ended: " + "\n".join(self.said))

    def interrupt(self) -> int:
        """Press Ctrl-C; the exit code."""
        assert self._process is not None
        assert self._output is not None
        self._process.send_signal(signal.SIGINT)
        self._output.read()
        self._output.close()
        return self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        """`kill -9` the supervisor."""
        assert self._process is not None
        assert self._output is not None
        self._process.kill()
        self._process.wait()
        self._output.close()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def running(self) -> RunningStack:
        running = self.directory.running()
        assert running is not None
        return running

    @property
    def cluster(self) -> RunningCluster:
        return self.running.clusters["e2e"]

    def _port(self, service: str) -> int:
        return int(json.loads((self.directory.root / "ports.json").read_text())[f"e2e-{service}"])

    def refusals(self) -> list[str]:
        """Lines of the services' logs about rights that they lacked."""
        logs = sorted(self.directory.logs.glob("e2e-*.log"))
        return [f"{log.stem}: {match[0]}" for log in logs for match in _FORBIDDEN.finditer(log.read_text())]

    def secrets(self) -> dict[str, str]:
        """The secrets of the stack, by what they are of."""
        root = self.directory.root
        files = [root / "postgres/password", root / "nats/nkey", *root.glob("clusters/*/node-token-secret")]
        secrets = {str(file): file.read_text().strip() for file in files if file.exists()}
        running = self.running
        for url in (running.database_url, running.nats_url):
            login = url.partition("//")[2].rpartition("@")[0]
            secrets[f"login of {url.partition(':')[0]}"] = login.rpartition(":")[2]
        return {name: secret for name, secret in secrets.items() if secret}

    def leaks(self) -> list[str]:
        """The places of a secret of the stack where it does not belong: a process's arguments, or a log."""
        assert self._process is not None
        places = {str(log): log.read_text(errors="replace") for log in self.directory.root.rglob("*.log")}
        pids = [self._process.pid]
        # Stacks of other tests have servers with the same passwords, so only processes of this one are looked at.
        for pid in pids:
            pids += children_of(pid)
            with suppress(OSError):
                places[f"process {pid}"] = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
        return [
            f"{name} in {place}"
            for name, secret in self.secrets().items()
            for place, text in places.items()
            if secret in text
        ]

    async def leaks_in_cluster(self) -> list[str]:
        """The secrets of the stack in events and pods of the cluster, all of which it may write."""
        async with self.client() as client:
            said = [await client.get(path) for path in ("/apis/events.k8s.io/v1/events", "/api/v1/pods")]
        return [name for name, secret in self.secrets().items() if secret.encode() in b"".join(said)]

    def pid_of(self, module: str) -> int:
        """The process id of a service, by its module: a child of the process that `kai up` forks services from."""
        assert self._process is not None
        for child in (one for forks in children_of(self._process.pid) for one in children_of(forks)):
            # A service that has just been killed may be gone by now.
            with suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{child}/comm").read_text().strip() == module.partition(".")[0].replace("_", "-"):
                    return child
        raise AssertionError(f"no {module} runs")

    def kill_service(self, module: str) -> None:
        """`kill -9` a service."""
        os.kill(self.pid_of(module), signal.SIGKILL)

    def ask(self, *arguments: str, code: int = 0) -> Any:
        """Run a `kai` command with `-o json` on the stack's data directory; its answer."""
        return alone(*arguments, "--data-dir", str(self.directory.root), code=code)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[KubeClient]:
        """A client with the administrator's rights."""
        async with KubeClient(self._admin()) as client:
            yield client

    async def admin_headers(self) -> dict[str, str]:
        """The headers of a request with the administrator's rights."""
        access = await self._admin()()
        return await access.headers()

    def _admin(self) -> AccessSource:
        kubeconfig = self.cluster.service_kubeconfig if self._on is None else str(self._on.kubeconfig)
        return configured_access(kubeconfig)

    async def create(self, *manifests: dict[str, Any]) -> None:
        """Create objects, in the tests' namespace where they name none."""
        placed = [
            {**manifest, "metadata": {"namespace": self.namespace, **manifest["metadata"]}} for manifest in manifests
        ]
        async with self.client() as client:
            loaded = await Loader(client).create(placed)
        assert loaded.refused == [], loaded.refused

    @asynccontextmanager
    async def log(self) -> AsyncIterator[EventLog]:
        """The log, as soon as its server is there."""
        opened: PostgresLog | None = None
        async with asyncio.timeout(PATIENCE_S):
            while opened is None:
                try:
                    opened = await PostgresLog.open(self.running.database_url)
                except LogUnavailable:
                    await asyncio.sleep(0.1)
        async with opened as log:
            yield log

    async def until(self, condition: Callable[[ClusterState], bool]) -> ClusterState:
        """Fold the log until the state meets a condition."""
        state = ClusterState("e2e")
        async with self.log() as log, asyncio.timeout(PATIENCE_S):
            while not condition(state):
                events = await log.read("e2e", after=state.position, limit=5000)
                for event in events:
                    state.fold(event)
                    if condition(state):
                        return state
                if not events:
                    await log.wait_beyond("e2e", state.position, timeout_s=5)
        return state

    async def seen(self, path: str, holds: Callable[[Any], bool]) -> Any:
        """Watch a collection until something holds of one of its objects; return that."""
        async with self.client() as client:
            listed = msgspec.json.decode(await client.get(path))
            for item in listed["items"]:
                if holds(item):
                    return item
            version = listed["metadata"]["resourceVersion"]
            async with client.watch(path, resource_version=version, timeout_s=int(PATIENCE_S)) as batches:
                async for lines in batches:
                    for line in lines:
                        change = msgspec.json.decode(line)
                        if change["type"] != "BOOKMARK" and holds(change["object"]):
                            return change["object"]
        raise AssertionError(f"{path}: it did not come to that")

    async def check(self) -> ClusterState:
        """The log is intact, every cycle replays, nothing was promised twice, indexes are what entries make of them."""
        async with self.log() as log:
            report = await replay_log(log, "e2e")
            assert report.differences == []
            audit = await verify(log, "e2e")
            assert audit.ok, str(audit)
            promises = (await checked_promises(log, "e2e", upto=audit.head.position)).report
            assert promises.twice == []
            state = ClusterState("e2e")
            while events := await log.read("e2e", after=state.position, limit=_INDEXES_CHECKED_EVERY):
                state.fold_all(events)
                assert differences(state) == [], state.position
            return state

    def database_roles(self) -> dict[str, str]:
        """By service, the role as which it is connected to the database."""
        assert self.running is not None
        with psycopg.connect(self.running.database_url) as connection:
            rows = connection.execute(
                "SELECT application_name, usename FROM pg_stat_activity WHERE application_name LIKE 'kai-%'"
            )
            return dict(rows.fetchall())


def children_of(pid: int) -> list[int]:
    """The processes that a process has started; none where it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def alone(*arguments: str, code: int = 0) -> Any:
    """Run a `kai` command with `-o json`; its answer."""
    done = kai(*arguments, "-o", "json", timeout=PATIENCE_S)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


@contextmanager
def running(stack: LiveStack) -> Iterator[LiveStack]:
    """Run a stack; no service may have lacked a right."""
    try:
        stack.start()
        yield stack
    finally:
        if stack.alive:
            stack.interrupt()
    assert stack.refusals() == []


def own_stack_for_module(profile: str, directory: str) -> Any:
    """The fixture `stack` of a module: a stack on the cluster that it brings, in a directory of that name."""

    @pytest.fixture(scope="module")
    def stack() -> Iterator[LiveStack]:
        with scratch_directory() as root:
            (root / "profile.yaml").write_text(profile)
            with running(LiveStack(root / directory, profile=str(root / "profile.yaml"))) as live:
                yield live

    return stack


@contextmanager
def running_on(cluster: Cluster, scheduler_config: str = "{}") -> Iterator[LiveStack]:
    """Run a stack on a cluster, with the scheduler's settings as YAML."""
    config = cluster.root / "config.yaml"
    config.write_text(scheduler_config)
    with running(LiveStack(cluster.root / "kai", cluster, flags=("--scheduler-config", str(config)))) as live:
        yield live


def ours(state: ClusterState, prefix: str = "") -> list[PodEntry]:
    return [
        entry
        for entry in state.pods.values()
        if entry.pod.scheduler_name == "kai-ledger" and entry.pod.name.startswith(prefix)
    ]


def miss_causes(state: ClusterState) -> set[str]:
    """The contradictions between kubelets and predictions, explained or not."""
    causes = {key.rpartition("/")[2] for by_cause in state.counters.misses.values() for key in by_cause}
    return causes | {miss.cause for miss in state.misses.open.values()}


def finished(count: int, prefix: str = "") -> Callable[[ClusterState], bool]:
    """All of `count` pods have run to their end."""

    def condition(state: ClusterState) -> bool:
        entries = [entry for entry in ours(state, prefix) if entry.pod.phase == "Succeeded"]
        return len(entries) >= count

    return condition


def bound(count: int, prefix: str = "") -> Callable[[ClusterState], bool]:
    """`count` pods have come to a node."""

    def condition(state: ClusterState) -> bool:
        return sum(entry.stage in (Stage.BOUND, Stage.FINISHED) for entry in ours(state, prefix)) >= count

    return condition


def pod_manifest(name: str, *, seconds: float | None = None, **requests: str) -> dict[str, Any]:
    """A Guaranteed pod that ends after `seconds` or never; `gpu` stands for the resource name of GPUs.

    Real kubelets are spared the GPUs, which they may not have, and get an image that can sleep (`KAI_TEST_IMAGE`).
    """
    named = {("nvidia.com/gpu" if key == "gpu" else key): value for key, value in requests.items()}
    annotations = {} if seconds is None else {"simulator.kai.scheduler/run-seconds": str(seconds)}
    container: dict[str, Any] = {"name": "main", "image": "x"}
    if real_nodes():
        if named.get("nvidia.com/gpu") != NEVER:
            named.pop("nvidia.com/gpu", None)
        container["image"] = os.environ.get("KAI_TEST_IMAGE", "busybox")
        container["command"] = ["sleep", "3600" if seconds is None else str(seconds)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "schedulerName": "kai-ledger",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{**container, "resources": {"requests": named, "limits": named}}],
        },
    }
