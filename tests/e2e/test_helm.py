"""The chart's life by Helm itself on a real API server: `make beside ARGS="--only helm"`.

What its pods run are processes of this machine (`tests.measured.beside.process_node`), with the Secrets, variables,
files and accounts that the chart gives them, on a Postgres and a NATS that are set up as `deploy` says. The earlier
version is an earlier chart, with the programs of today and without the newest migration.
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import psycopg
import pytest
import yaml
from kai_cli.upkeep.webhook_certificates import make_certificate
from kaicore.errors import ApiStatus
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.kube.wire import podresources
from kaicore.runtime.embedded import EmbeddedPostgres

from tests.e2e.cluster import PATIENCE_S, foreign_kubeconfig
from tests.given.servers.servers import scratch_directory
from tests.integration.test_nats_users import DeployedNats
from tests.measured.beside.process_node import ProcessNode

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        "KAI_TEST_HELM" not in os.environ or foreign_kubeconfig() is None,
        reason='needs Helm and a real API server: make beside ARGS="--only helm"',
    ),
]

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/chart"
#: Of commit 6557157f (2026-11-22), by `helm package`: the first with accounts that may read what today's watcher reads.
EARLIER_CHART = ROOT / "tests/measured/beside/charts/kai-ledger-0.1.0.tgz"
NAMESPACE = "kai-system"
REPOSITORY = "registry.example/kai-ledger"
SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
DATABASE_ROLES = ("migrate", "append", "watcher", "ingest", "scheduler", "binder", "hub", "read", "project")
BUS_USERS = ("relay", "scheduler", "binder", "ingest", "watcher", "projector", "hub")
PROCESSES = Path("/proc")
ONE: Json = {"replicas": 1}
#: Kinds of which others make and delete objects all the time, and those that a namespace always has.
_OTHERS = {"Event", "Lease", "Node", "CSINode", "ComponentStatus", "Endpoints", "EndpointSlice", "IPAddress"}
#: What an uninstallation leaves: docs/how-to/deploy.md.
_LEFT = {("CustomResourceDefinition", "", "noderesourcetopologies.topology.node.k8s.io")}
_OF_DEFINITIONS = {"APIService"}


def values(kubelet: Path) -> Json:
    """One instance of everything, and an exporter of a kubelet with its files in a folder."""
    exporter = {"kubeletDirectory": str(kubelet), "env": {"KAI_PODRESOURCES_SOCKET": SOCKET}}
    hub = dict.fromkeys(("relay", "scheduler", "projector", "api", "dispatch"), ONE)
    spoke = {**dict.fromkeys(("watcher", "binder", "ingest", "webhook"), ONE), "exporter": exporter}
    return {"cluster": "helm", "hub": hub, "spoke": spoke}


@dataclass
class Life:
    """A cluster with Helm, and the servers that the release uses by reference."""

    root: Path
    kubeconfig: Path
    client: KubeClient
    node: ProcessNode
    postgres: EmbeddedPostgres
    secrets: dict[str, str] = field(default_factory=dict)

    async def helm(self, *arguments: str, fails: bool = False) -> str:
        """Run Helm; what it said."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "KUBECONFIG": str(self.kubeconfig),
            **{f"HELM_{kind}_HOME": str(self.root / "helm") for kind in ("CACHE", "CONFIG", "DATA")},
        }
        process = await asyncio.create_subprocess_exec(
            os.environ["KAI_TEST_HELM"],
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
        )
        try:
            said = (await process.communicate())[0].decode()
        finally:
            if process.returncode is None:
                process.kill()
        assert (process.returncode != 0) is fails, said + await self.shown()
        return said

    async def get(self, path: str) -> Any:
        return msgspec.json.decode(await self.client.get(path))

    async def shown(self) -> str:
        """The pods, and the last words of their programs."""
        pods = (await self.get(f"/api/v1/namespaces/{NAMESPACE}/pods"))["items"]
        states = [f"{pod['metadata']['name']}: {pod.get('status', {}).get('containerStatuses')}" for pod in pods]
        logs = [f"{log.parent.name}: {log.read_text()[-1500:]}" for log in sorted(self.root.rglob("pods/*/*.log"))]
        return "\n".join(["", *states, *logs])

    def revision(self) -> str:
        """The migration that the database was brought to."""
        with psycopg.connect(self.postgres.url_of("kai_migrate")) as connection:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        assert row is not None
        return str(row[0])

    async def images(self) -> dict[str, str]:
        """The image of each Deployment and DaemonSet of the namespace, as soon as all of their pods are ready."""

        async def ready() -> dict[str, str]:
            found = {}
            # Helm waits for all but one tenth of a DaemonSet's pods, rounded up: here for none.
            for kind, counted in (("deployments", "readyReplicas"), ("daemonsets", "numberReady")):
                for one in (await self.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/{kind}"))["items"]:
                    if one["status"].get(counted) != 1:
                        return {}
                    (container,) = one["spec"]["template"]["spec"]["containers"]
                    found[one["metadata"]["name"]] = container["image"]
            return found

        images: dict[str, str] = await self.until(ready)
        return images

    async def objects(self) -> set[tuple[str, str, str]]:
        """Kind, namespace and name of everything there is, but for what others come and go with."""
        groups = (await self.get("/apis"))["groups"]
        versions = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
        found = set()
        for version in versions:
            for resource in (await self.get(version))["resources"]:
                if "list" not in resource["verbs"] or resource["kind"] in _OTHERS:
                    continue
                for one in (await self.get(f"{version}/{resource['name']}"))["items"] or ():
                    metadata = one["metadata"]
                    found.add((resource["kind"], metadata.get("namespace", ""), metadata["name"]))
        return found

    async def until(self, condition: Callable[[], Any]) -> Any:
        """Ask until the answer is yes, and return it."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not (answer := await condition()):  # noqa: ASYNC110  # an API server is asked, not awaited
                    await asyncio.sleep(0.3)
        except TimeoutError:
            raise AssertionError(await self.shown()) from None
        return answer

    async def places(self, name: str, image: str) -> None:
        """A pod that waits for kai-ledger is placed by the release, runs, and ends."""
        amounts = {"cpu": "1", "memory": "64Mi"}
        container = {
            "name": "main",
            "image": image,
            "command": [sys.executable, "-c", "print('done')"],
            "resources": {"requests": amounts, "limits": amounts},
        }
        spec = {"schedulerName": "kai-ledger", "restartPolicy": "Never", "containers": [container]}
        path = "/api/v1/namespaces/default/pods"
        await self.client.post(path, {"metadata": {"name": name}, "spec": spec})

        async def succeeded() -> bool:
            pod = await self.get(f"{path}/{name}")
            return str(pod["status"]["phase"]) == "Succeeded"

        await self.until(succeeded)
        await self.client.delete(f"{path}/{name}", {"gracePeriodSeconds": 0})

    async def leaks(self) -> list[str]:
        """The places of a secret where it does not belong: arguments, logs, or objects that are no Secrets."""
        places = read(self.root.rglob("pods/*/*.log"), PROCESSES.glob("[0-9]*/cmdline"))  # noqa: ASYNC240
        for path in ("events", "pods", "configmaps"):
            places[path] = (await self.client.get(f"/api/v1/{path}")).decode()
        return [
            f"{name} in {place}"
            for name, secret in self.secrets.items()
            for place, text in places.items()
            if secret in text
        ]


@pytest.fixture
async def life() -> AsyncIterator[Life]:
    kubeconfig = foreign_kubeconfig()
    assert kubeconfig is not None
    with scratch_directory() as root:
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(KubeClient(configured_access(str(kubeconfig))))
            postgres = EmbeddedPostgres(root / "postgres", durable=False)
            await postgres.start()
            stack.push_async_callback(postgres.kill)
            nats = await stack.enter_async_context(DeployedNats(root / "nats"))
            await stack.enter_async_context(kubelet_socket(root / "kubelet"))
            node = ProcessNode(root / "pods", client, kubeconfig, images=images(root))
            await stack.enter_async_context(node.running())
            made = Life(root, kubeconfig, client, node, postgres)
            await make_secrets(made, nats)
            yield made


def read(*files: Iterable[Path]) -> dict[str, str]:
    """The contents of files, as far as they are still there."""
    found = {}
    for file in itertools.chain(*files):
        with contextlib.suppress(OSError):
            found[str(file)] = file.read_text(errors="replace")
    return found


def images(root: Path) -> dict[str, dict[str, str]]:
    """The programs of this version; and those of an earlier one, that does not have the newest migration."""
    earlier = root / "earlier"
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "libs/kaicore/src", earlier / "libs/kaicore/src", ignore=without)
    shutil.copytree(ROOT / "migrations", earlier / "migrations", ignore=without)
    newest(earlier).unlink()
    programs = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return {
        f"{REPOSITORY}:this": programs,
        f"{REPOSITORY}:earlier": {**programs, "PYTHONPATH": str(earlier / "libs/kaicore/src")},
    }


def newest(root: Path) -> Path:
    """The newest migration of a version."""
    return max((root / "migrations/versions").glob("*.py"))


@contextlib.asynccontextmanager
async def kubelet_socket(folder: Path) -> AsyncIterator[None]:
    """The questions of an exporter to a kubelet with pods that hold nothing of it."""
    socket = folder / "pod-resources/kubelet.sock"
    socket.parent.mkdir(parents=True)
    server = grpc.aio.server()
    handlers = {
        path.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(
            nothing(response), request_deserializer=request.FromString, response_serializer=response.SerializeToString
        )
        for path, request, response in (
            (podresources.LIST, podresources.ListPodResourcesRequest, podresources.ListPodResourcesResponse),
            (
                podresources.GET_ALLOCATABLE_RESOURCES,
                podresources.AllocatableResourcesRequest,
                podresources.AllocatableResourcesResponse,
            ),
        )
    }
    service = podresources.LIST.split("/")[1]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


def nothing(response: type[Any]) -> Callable[[Any, Any], Any]:
    async def call(_: Any, __: Any) -> Any:
        return response()

    return call


async def make_secrets(life: Life, nats: DeployedNats) -> None:
    """The preparations of deploy/k8s/README.md."""
    await life.client.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    urls = {f"kai-database-{role}": life.postgres.url_of(f"kai_{role}") for role in DATABASE_ROLES}
    urls |= {f"kai-nats-{user}": nats.url_of(user) for user in BUS_USERS}
    life.secrets = {name: url.partition("//")[2].rpartition("@")[0].rpartition(":")[2] for name, url in urls.items()}
    session = "canary-of-the-session-secret-0123456789"
    life.secrets["session"] = session
    contents = {name: {"url": url} for name, url in urls.items()}
    contents["kai-api-access"] = {"access.yaml": "keys: []", "session-secret": session}
    contents["kai-hub-access"] = {"access.yaml": "keys: []"}
    certificate = make_certificate([f"kai-webhook.{NAMESPACE}.svc"], days=1)
    contents["kai-webhook-tls"] = {name: content.decode() for name, content in certificate.items()}
    life.secrets["key of the webhook"] = certificate["tls.key"].decode().splitlines()[1]
    for name, content in contents.items():
        body = {"metadata": {"name": name}, "stringData": content}
        await life.client.post(f"/api/v1/namespaces/{NAMESPACE}/secrets", body)


async def test_a_release_is_installed_upgraded_rolled_back_and_leaves_what_the_docs_say(life: Life) -> None:
    file = life.root / "values.yaml"
    file.write_text(yaml.safe_dump(values(life.root / "kubelet")))
    usual = ("-n", NAMESPACE, "-f", str(file), "--wait", "--timeout", "5m", "--set", f"image.repository={REPOSITORY}")
    before = await life.objects()

    # The hook migrates before there is any service.
    await life.helm("install", "kai", str(EARLIER_CHART), *usual, "--set", "image.tag=earlier")
    earlier = await life.images()
    assert set(earlier.values()) == {f"{REPOSITORY}:earlier"}
    first = life.revision()
    assert first < newest(ROOT).stem[:4]
    await life.places("of-the-earlier-version", f"{REPOSITORY}:earlier")

    # A hook that cannot migrate changes nothing.
    wrong = [*usual[:-3], "10s", *usual[-2:], "--set", "postgres.secrets.migrate=kai-no-such-secret"]
    said = await life.helm("upgrade", "kai", str(CHART), *wrong, "--set", "image.tag=this", fails=True)
    assert "pre-upgrade hooks failed" in said
    assert (await life.images(), life.revision()) == (earlier, first)

    this = (*usual, "--set", "image.tag=this,hub.dispatch.enabled=true,spoke.webhook.enabled=true")
    await life.helm("upgrade", "kai", str(CHART), *this)
    upgraded = await life.images()
    assert set(upgraded.values()) == {f"{REPOSITORY}:this"}
    assert upgraded.keys() == earlier.keys() | {"kai-hub", "kai-webhook"}
    assert life.revision() == newest(ROOT).stem[:4]
    await life.places("of-this-version", f"{REPOSITORY}:this")

    # The schema stays: the earlier services work on it.
    await life.helm("rollback", "kai", "1", "-n", NAMESPACE, "--wait", "--timeout", "5m")
    assert await life.images() == earlier
    assert life.revision() == newest(ROOT).stem[:4]
    await life.places("of-the-earlier-version-again", f"{REPOSITORY}:earlier")
    assert await life.leaks() == []

    await another_release(life, file)

    await life.helm("uninstall", "kai", "-n", NAMESPACE, "--wait", "--timeout", "2m")

    async def nothing_more() -> bool:
        return {one for one in await life.objects() - before if one[0] not in _OF_DEFINITIONS} == _LEFT

    try:
        await life.until(nothing_more)
    except AssertionError:
        raise AssertionError(sorted(await life.objects() - before)) from None
    assert before <= await life.objects()


async def another_release(life: Life, file: Path) -> None:
    """In another namespace of the same cluster there is room for a second one, and it goes alone."""
    namespace = "kai-second"
    await life.helm(
        *("install", "second", str(CHART), "-n", namespace, "--create-namespace", "-f", str(file), "--no-hooks"),
        *("--set", f"image.repository={REPOSITORY}", "--set", "image.tag=this"),
    )
    roles = (await life.get("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"))["items"]
    bound = {
        (subject["namespace"], subject["name"])
        for binding in roles
        for subject in binding.get("subjects", ())
        if subject["name"] == "kai-watcher"
    }
    assert bound == {(NAMESPACE, "kai-watcher"), (namespace, "kai-watcher")}
    said = await life.helm("install", "third", str(CHART), "-n", NAMESPACE, "-f", str(file), "--no-hooks", fails=True)
    assert "invalid ownership metadata" in said
    await life.helm("uninstall", "second", "-n", namespace, "--wait")
    with contextlib.suppress(ApiStatus):
        await life.client.delete(f"/api/v1/namespaces/{namespace}")

    async def gone() -> bool:
        return not any(namespace in part for one in await life.objects() for part in one)

    await life.until(gone)
    assert ("ClusterRole", "", "kai-watcher") in await life.objects()
