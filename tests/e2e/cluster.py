"""The cluster that the end-to-end tests schedule on: an API server with nodes, and an account for each service.

The API server is that of the kubeconfig `KAI_TEST_KUBECONFIG`, by default a simulated one. Its nodes come from
`kai fleet`, which needs nothing but an API server; with `KAI_TEST_REAL_NODES` set they are those that are there. The
roles of `deploy/k8s` are applied as they are, and each service gets the token of its own account and no other.
"""

import asyncio
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest
import yaml
from kaicore.errors import ApiStatus
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.yaml_text import load_yaml, load_yaml_all

from tests.given.cluster.fleets import fleet, nodes
from tests.given.processes.kai_commands import forked
from tests.given.servers.servers import scratch_directory

Json = dict[str, Any]

#: Seconds that anything may take on a busy machine.
PATIENCE_S = 120.0

#: A fleet with kubelets that align what they can, and reject nothing for it.
TWO_GPU_NODES = fleet(nodes(2, 2, gpus=2))

SYSTEM = "kai-system"
DEPLOY = Path(__file__).parents[2] / "deploy/k8s"
_ACCESS_KINDS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
}
_TOKEN_SECONDS = 6 * 3600
_SERVICES = ("watcher", "binder", "ingest")


def foreign_kubeconfig() -> Path | None:
    """The kubeconfig of the API server to test on; None for a simulated one."""
    named = os.environ.get("KAI_TEST_KUBECONFIG")
    return Path(named) if named else None


def real_nodes() -> bool:
    return bool(os.environ.get("KAI_TEST_REAL_NODES"))


class Child:
    """A process of ours that ends with the tests, whatever happens."""

    def __init__(self, log: Path, *command: str | Path, inherit: tuple[int, ...] = ()) -> None:
        self._log = log
        module, *arguments = map(str, command)
        # The server that it is forked from puts itself there.
        environment = {**os.environ, "KAI_PARENT_PID": str(os.getpid())}
        with log.open("ab") as output, Path(os.devnull).open("rb") as empty:
            streams = (empty.fileno(), output.fileno(), output.fileno())
            self._process = forked(module, *arguments, streams=streams, environment=environment, inherit=inherit)

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait until something holds of it."""
        deadline = time.monotonic() + PATIENCE_S
        while not ready():
            assert self._process.poll() is None, self._log.read_text()[-5000:]
            assert time.monotonic() < deadline, self._log.read_text()[-5000:]
            time.sleep(0.05)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE_S) == 0, self._log.read_text()[-5000:]


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as response:
            return int(response.status) == 200
    except OSError:
        return False


class Cluster:
    """A cluster in which each service has an account of its own.

    Attributes:
        simulated: whether its API server is the simulated one.
        namespace: the tests' own, gone with `stop`.
        kubeconfig: the administrator's.
    """

    def __init__(self, root: Path, *, profile: str = "mini") -> None:
        given = foreign_kubeconfig()
        self.simulated = given is None
        self.root = root
        self.namespace = f"kai-e2e-{secrets.token_hex(4)}"
        self.kubeconfig = given or root / "admin.kubeconfig"
        self._profile = profile
        self._fleet_listens = socket.create_server(("127.0.0.1", 0))
        self._server: Child | None = None
        self._fleet: Child | None = None
        self._exporters: list[Child] = []

    def start(self) -> None:
        """Start what is ours of it, and prepare the rest."""
        self.root.mkdir(exist_ok=True)
        if self.simulated:
            outputs = ["--kubeconfig-out", self.tls_kubeconfig, "--http-kubeconfig-out", self.kubeconfig]
            data = ["--data-dir", self.root / "apiserver"]
            self._server = Child(self.root / "apiserver.log", "kai_apiserver.main", *outputs, *data)
            self._server.until(self.kubeconfig.exists)
        asyncio.run(self._prepare())
        if not real_nodes():
            self._fleet = Child(
                self.root / "fleet.log",
                *("kai_fleet.main", "--kubeconfig", self.kubeconfig, "--profile", self._profile),
                *("--data-dir", self.root / "fleet", "--podresources-dir", self._sockets),
                *("--install-crds", "--http-fd", str(self._fleet_listens.fileno())),
                inherit=(self._fleet_listens.fileno(),),
            )
            self._fleet.until(lambda: answers(f"{self._fleet_address}/readyz"))

    @property
    def _fleet_address(self) -> str:
        return f"http://127.0.0.1:{self._fleet_listens.getsockname()[1]}"

    @property
    def _sockets(self) -> Path:
        return self.root / "pr"

    async def _prepare(self) -> None:
        async with self.client() as client:
            for document in access_manifests():
                metadata = document["metadata"]
                place = _ACCESS_KINDS[document["kind"]].format(namespace=metadata.get("namespace", ""))
                path = f"{place}/{metadata['name']}?fieldManager=kai-e2e&force=true"
                await client.patch(path, document, content_type="application/apply-patch+yaml")
            await client.post("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
            for service in _SERVICES:
                token = await self._token(client, f"kai-{service}")
                self.kubeconfig_of(service).write_text(self._with_token(token))

    async def _token(self, client: KubeClient, account: str, **spec: Any) -> str:
        path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        answer = await client.post(path, {**body, "spec": {"expirationSeconds": _TOKEN_SECONDS, **spec}})
        return str(msgspec.json.decode(answer)["status"]["token"])

    def _with_token(self, token: str) -> str:
        """The administrator's kubeconfig with other credentials."""
        config = load_yaml(self.kubeconfig.read_text())
        (context,) = [item["context"] for item in config["contexts"] if item["name"] == config["current-context"]]
        config["users"] = [{"name": context["user"], "user": {"token": token}}]
        return yaml.safe_dump(config)

    @property
    def tls_kubeconfig(self) -> Path:
        """The administrator's, for clients that send no credentials without TLS, as those in Go."""
        return self.root / "tls.kubeconfig" if self.simulated else self.kubeconfig

    def kubeconfig_of(self, service: str) -> Path:
        """The kubeconfig of a service's own account."""
        return self.root / f"{service}.kubeconfig"

    @property
    def flags(self) -> list[str]:
        """The arguments of `kai up` about it."""
        return self.flags_of(*_SERVICES)

    def flags_of(self, *services: str) -> list[str]:
        """The part of `flags` that is about some services."""
        return [part for name in services for part in ("--kubeconfig", f"{name}={self.kubeconfig_of(name)}")]

    def observe(self, ingest_url: str, *, cluster: str) -> None:
        """Run an exporter per node of the fleet, each with a token that names its node, as the DaemonSet has it."""
        if self._fleet is None or self._exporters:
            return
        for directory in self._node_directories():
            token = self.root / f"{directory.name}.token"
            token.write_text(asyncio.run(self._node_token(directory.name)))
            self._exporters.append(
                Child(
                    self.root / f"exporter-{directory.name}.log",
                    *("kai_exporter.main", "--cluster", cluster, "--ingest-url", ingest_url),
                    *("--node-name", directory.name, "--podresources-socket", directory / "kubelet.sock"),
                    *("--sysfs-root", directory / "sys", "--kubelet-state-dir", directory, "--token-file", token),
                )
            )

    def _node_directories(self) -> list[Path]:
        return sorted(socket.parent for socket in self._sockets.glob("*/kubelet.sock"))

    async def _node_token(self, node: str) -> str:
        bound = {"apiVersion": "v1", "kind": "Node", "name": node}
        async with self.client() as client:
            uid = msgspec.json.decode(await client.get(f"/api/v1/nodes/{node}"))["metadata"]["uid"]
            reference = {**bound, "uid": uid}
            return await self._token(client, "kai-exporter", audiences=["kai-ingest"], boundObjectRef=reference)

    def fleet_url(self, path: str) -> str:
        """The address where the simulated fleet takes its orders."""
        return f"{self._fleet_address}/simulator/{path}"

    @asynccontextmanager
    async def client(self, service: str = "") -> AsyncIterator[KubeClient]:
        """A client with the administrator's rights, or with those of a service."""
        kubeconfig = self.kubeconfig_of(service) if service else self.kubeconfig
        async with KubeClient(configured_access(str(kubeconfig))) as client:
            yield client

    def stop(self) -> None:
        """Take away what the tests made, and end what is ours."""
        for exporter in self._exporters:
            exporter.stop()
        if not self.simulated:
            asyncio.run(self._clear())
        if self._fleet is not None:
            nodes = [directory.name for directory in self._node_directories()]
            self._fleet.stop()
            if not self.simulated:
                asyncio.run(self._delete_nodes(nodes))
        if self._server is not None:
            self._server.stop()
        self._fleet_listens.close()

    async def _clear(self) -> None:
        """Delete the namespace while the kubelets still end its pods."""
        path = f"/api/v1/namespaces/{self.namespace}"
        async with self.client() as client, asyncio.timeout(PATIENCE_S):
            await client.delete(path)
            while await _exists(client, path):  # noqa: ASYNC110  # nothing announces a namespace's end
                await asyncio.sleep(0.2)

    async def _delete_nodes(self, nodes: list[str]) -> None:
        async with self.client() as client:
            for node in nodes:
                await client.delete(f"/api/v1/nodes/{node}")


@contextmanager
def cluster_of(profile: str) -> Iterator[Cluster]:
    """Run a cluster with a fleet, which is named or given as YAML."""
    with scratch_directory() as root:
        if "\n" in profile:
            (root / "profile.yaml").write_text(profile)
            profile = str(root / "profile.yaml")
        running = Cluster(root, profile=profile)
        try:
            running.start()
            yield running
        finally:
            running.stop()


def cluster_for_module(profile: str) -> Any:
    """The fixture `cluster` of a module with tests that share one."""

    @pytest.fixture(scope="module")
    def cluster() -> Iterator[Cluster]:
        with cluster_of(profile) as running:
            yield running

    return cluster


async def _exists(client: KubeClient, path: str) -> bool:
    try:
        await client.get(path)
    except ApiStatus as error:
        if error.code == 404:
            return False
        raise
    return True


def access_manifests() -> Iterator[Json]:
    """Accounts, roles and bindings of the production manifests, namespaces first."""
    documents = [
        document
        for file in sorted(DEPLOY.glob("*.yaml"))
        for document in load_yaml_all(file.read_text())
        if document and document.get("kind") in _ACCESS_KINDS
    ]
    order = list(_ACCESS_KINDS)
    yield from sorted(documents, key=lambda document: order.index(document["kind"]))
