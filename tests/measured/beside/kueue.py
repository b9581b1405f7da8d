"""Kueue as it is, beside an API server on this machine's loopback: its definitions, webhooks and controllers.

Its manifests are those of its module, put together as its `config/default` does (Kueue v0.17.0), but that its Service
is a name for this machine: the API server dials its webhooks here, and holds them to the certificate of the Service.
There is no kubelet to mount the certificate that Kueue makes for itself, so its files are written here. Its server of
pending workloads is off, and it acts as administrator.
"""

import asyncio
import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml
from kai_cli.running.load import Loader
from kaicore.errors import ClusterUnavailable
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.yaml_text import load_yaml, load_yaml_all

from tests.e2e.cluster import PATIENCE_S
from tests.given.servers.ports import free_port
from tests.measured.beside.control_plane import Program
from tests.measured.beside.programs import AUTOSCALER, KUEUE, sources

Json = dict[str, Any]

_SYSTEM, _SERVICE, _SECRET = "kueue-system", "kueue-webhook-service", "kueue-webhook-server-cert"
#: Served without a Kueue of its own beside it: the Cluster Autoscaler's.
_PROVISIONING = "config/crd/autoscaling.x-k8s.io_provisioningrequests.yaml"
_INTEGRATIONS = ("batch/job", "pod", "deployment")


@contextmanager
def kueue(kubeconfig: Path, root: Path) -> Iterator[None]:
    """Run Kueue on an API server.

    Args:
        kubeconfig: an administrator's.
        root: for what it keeps.

    Raises:
        FileNotFoundError: its program, or its manifests, are not there.
    """
    root.mkdir(exist_ok=True)
    webhooks, health = free_port(), free_port()
    asyncio.run(_install(kubeconfig, webhooks))
    certificates = root / "certificates"
    certificates.mkdir()
    (root / "config.yaml").write_text(yaml.safe_dump(_configuration(webhooks, health, certificates)))
    flags = ("--config", str(root / "config.yaml"), "--kubeconfig", str(kubeconfig), "--zap-log-level=2")
    program = Program(root, "kueue", *flags)
    try:
        program.until(lambda: asyncio.run(_mounted(kubeconfig, certificates)))
        program.until(lambda: asyncio.run(_admits(kubeconfig)))
        yield
    finally:
        program.stop()


def _configuration(webhooks: int, health: int, certificates: Path) -> Json:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": _SYSTEM,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhooks, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {
            "enable": True,
            "webhookServiceName": _SERVICE,
            "webhookSecretName": _SECRET,
        },
        "integrations": {"frameworks": list(_INTEGRATIONS)},
        "featureGates": {"VisibilityOnDemand": False},
    }


async def _install(kubeconfig: Path, webhooks: int) -> None:
    """Create its definitions and what its webhooks need; the definitions are served when this returns."""
    definitions = list(_definitions(webhooks))
    async with KubeClient(configured_access(str(kubeconfig))) as client:
        loaded = await Loader(client).create([{"apiVersion": "v1", "kind": "Namespace", "metadata": _named(_SYSTEM)}])
        more = await Loader(client).create([*_service(), *definitions, *_webhooks(webhooks)])
        assert not [*loaded.refused, *more.refused], (loaded, more)
        for definition in definitions:
            name = definition["metadata"]["name"]
            await _until_established(client, f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")


def _named(name: str, **more: str) -> Json:
    return {"name": name, **more}


def _service() -> list[Json]:
    spec = {"type": "ExternalName", "externalName": "localhost"}
    metadata = _named(_SERVICE, namespace=_SYSTEM)
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec},
        {"apiVersion": "v1", "kind": "Secret", "metadata": _named(_SECRET, namespace=_SYSTEM)},
    ]


def _definitions(webhooks: int) -> Iterator[Json]:
    crds = sources(KUEUE) / "config/components/crd"
    patches = [one["path"] for one in load_yaml((crds / "kustomization.yaml").read_text())["patches"]]
    converted = {(patch := load_yaml((crds / path).read_text()))["metadata"]["name"]: patch for path in patches}
    for path in sorted((crds / "bases").iterdir()):
        definition: Json = load_yaml(path.read_text())
        if patch := converted.get(definition["metadata"]["name"]):
            definition["spec"]["conversion"] = patch["spec"]["conversion"]
            _at_home(definition["spec"]["conversion"]["webhook"], webhooks)
        yield definition
    yield load_yaml((sources(AUTOSCALER) / "cluster-autoscaler/apis" / _PROVISIONING).read_text())


def _webhooks(port: int) -> Iterator[Json]:
    """Its webhook configurations, with the namespaces that its kustomization leaves out."""
    folder = sources(KUEUE) / "config/components/webhook"
    patches = [load_yaml(one["patch"]) for one in load_yaml((folder / "kustomization.yaml").read_text())["patches"]]
    left_out = {hook["name"]: hook for patch in patches for hook in patch["webhooks"]}
    for document in load_yaml_all((folder / "manifests.yaml").read_text()):
        if document is None:
            continue
        document["metadata"]["name"] = f"kueue-{document['metadata']['name']}"
        for hook in document["webhooks"]:
            hook.update(left_out.get(hook["name"], {}))
            _at_home(hook, port)
        yield document


def _at_home(webhook: Json, port: int) -> None:
    webhook["clientConfig"]["service"] |= {"namespace": _SYSTEM, "name": _SERVICE, "port": port}


async def _until_established(client: KubeClient, path: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            definition = msgspec.json.decode(await client.get(path))
            conditions = definition.get("status", {}).get("conditions") or []
            if any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
                return
            await asyncio.sleep(0.1)


async def _mounted(kubeconfig: Path, certificates: Path) -> bool:
    """Write the certificate where Kueue has its Secret mounted, as a kubelet would; whether there is one."""
    async with KubeClient(configured_access(str(kubeconfig))) as client:
        path = f"/api/v1/namespaces/{_SYSTEM}/secrets/{_SECRET}"
        data = msgspec.json.decode(await client.get(path)).get("data") or {}
    if "tls.crt" not in data:
        return False
    for name in ("ca.crt", "ca.key", "tls.key", "tls.crt"):
        (certificates / name).touch(0o600)
        (certificates / name).write_bytes(base64.b64decode(data[name]))
    return True


async def _admits(kubeconfig: Path) -> bool:
    """True if its webhooks answer: an object of the older version is converted, defaulted and judged."""
    cohort = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Cohort", "metadata": _named("kai-beside-probe")}
    async with KubeClient(configured_access(str(kubeconfig))) as client:
        try:
            await client.post("/apis/kueue.x-k8s.io/v1beta1/cohorts", cohort)
        except ClusterUnavailable:  # "failed calling webhook" is an internal error of the API server
            return False
        await client.delete("/apis/kueue.x-k8s.io/v1beta1/cohorts/kai-beside-probe")
        return True
