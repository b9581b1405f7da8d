"""The operator on a real control plane: objects go by Kubernetes' own garbage collector, roll-outs by its controllers.

Wants `KAI_TEST_KUBECONFIG` of an administrator, and a kube-controller-manager: what the simulated API server does of
both is in tests/integration/operator.
"""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import helm_python
import msgspec
import pytest
import yaml
from kaicore.errors import ApiStatus
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.discovery import ObjectPaths
from kaicore.kube.kinds.operands.specs import API_VERSION, OPERAND_KINDS
from kaicore.yaml_text import load_yaml

from scripts import chart
from tests.e2e.cluster import PATIENCE_S, foreign_kubeconfig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(foreign_kubeconfig() is None, reason="no real cluster: KAI_TEST_KUBECONFIG"),
]

Json = dict[str, Any]
CONFIG = "/apis/kai.scheduler/v1/configs/kai-config"
SHARDS = "/apis/kai.scheduler/v1/schedulingshards"
SHARD = "e2e"


class Site:
    """A namespace of a real cluster where an operator works."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.namespace = f"kai-operator-{secrets.token_hex(4)}"

    async def get(self, path: str) -> Json:
        return dict(msgspec.json.decode(await self.client.get(path)))

    async def operands(self) -> set[str]:
        """Everything that the operator made, by kind and name."""
        there: set[str] = set()
        for kind, (path, plural) in OPERAND_KINDS.items():
            selector = "labelSelector=app.kubernetes.io/managed-by=kai-operator"
            items = (await self.get(f"/{path}/namespaces/{self.namespace}/{plural}?{selector}"))["items"]
            there |= {f"{kind} {item['metadata']['name']}" for item in items}
        return there

    async def gone(self, path: str) -> bool:
        try:
            await self.client.get(path)
        except ApiStatus as error:
            if error.code != 404:
                raise
            return True
        return False

    async def until(self, look: Callable[[], Awaitable[Any]], holds: Callable[[Any], object]) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            while not holds(seen := await look()):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        return seen

    async def make(self, kind: str, path: str, spec: Json) -> None:
        plural, _, name = path.rpartition("/")
        await self.client.post(
            plural, {"kind": kind, "apiVersion": API_VERSION, "metadata": {"name": name}, "spec": spec}
        )

    async def exporter_wanted(self, wanted: bool | None) -> None:
        await self.client.patch(CONFIG, {"spec": {"numaPlacementExporter": {"service": {"enabled": wanted}}}})

    async def condition(self, path: str, kind: str) -> tuple[str, str]:
        status = (await self.get(path)).get("status") or {}
        return next(
            ((one["status"], one["reason"]) for one in status.get("conditions", ()) if one["type"] == kind), ("", "")
        )


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """The chart's operator, its objects applied, run here with the token of its account."""
    helm_python.disable_logging()
    kubeconfig = foreign_kubeconfig()
    assert kubeconfig is not None
    async with KubeClient(configured_access(str(kubeconfig))) as client:
        site = Site(client)
        values = {
            "operator": {"enabled": True},
            "hub": {"scheduler": {"shards": []}},
            "spoke": {"exporter": {"enabled": False}},
        }
        rendered = chart.rendered(values, namespace=site.namespace)["templates/operator.yaml"]
        paths = ObjectPaths(client)
        if not await site.gone(CONFIG):
            pytest.skip("there is a Config in this cluster: its operator is left alone")
        await client.post("/api/v1/namespaces", {"metadata": {"name": site.namespace}})
        templates = tmp_path / "templates"
        templates.mkdir()
        try:
            for document in chart.documents(rendered):
                if document["kind"] == "ConfigMap":
                    for name, text in document["data"].items():
                        (templates / name).write_text(text)
                if document["kind"] != "Deployment":
                    path = f"{await paths.object(document)}?fieldManager=kai-e2e&force=true"
                    await client.patch(path, document, content_type="application/apply-patch+yaml")
            async with operator(site, load_yaml(kubeconfig.read_text()), tmp_path, templates):
                yield site
        finally:
            for path in (CONFIG, f"{SHARDS}/{SHARD}", f"/api/v1/namespaces/{site.namespace}"):
                with suppress(ApiStatus):
                    await client.delete(path)


@asynccontextmanager
async def operator(site: Site, kubeconfig: Json, root: Path, templates: Path) -> AsyncIterator[None]:
    """Run an operator with the rights of its account; it must meet no refusal."""
    account = f"/api/v1/namespaces/{site.namespace}/serviceaccounts/kai-operator/token"
    answer = msgspec.json.decode(await site.client.post(account, {"spec": {"expirationSeconds": 3600}}))
    document = {
        **kubeconfig,
        "users": [{**user, "user": {"token": answer["status"]["token"]}} for user in kubeconfig["users"]],
    }
    (root / "kubeconfig").write_text(yaml.safe_dump(document))
    given = {
        "kubeconfig": root / "kubeconfig",
        "namespace": site.namespace,
        "templates-dir": templates,
        "image": "kai:e2e",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kai_operator.main"),
        *(part for name, value in given.items() for part in (f"--{name}", str(value))),
        env={**os.environ, "KAI_PARENT_PID": str(os.getpid())},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield
        process.terminate()
        _, output = await process.communicate()
        assert b"Forbidden" not in output, output.decode()
        assert b"Traceback" not in output, output.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_exporter_by_its_three_states_and_a_removed_shard_leave_nothing_behind(site: Site) -> None:
    exporter = {"ServiceAccount kai-exporter", "DaemonSet kai-exporter"}
    shard = {
        f"{kind} kai-scheduler-{SHARD}" for kind in ("ConfigMap", "PodDisruptionBudget", "ServiceAccount", "Deployment")
    }
    shared = shard - {f"Deployment kai-scheduler-{SHARD}"} | {
        f"{kind} kai-scheduler-{SHARD}" for kind in ("StatefulSet", "Service")
    }

    async def until(*wanted: set[str]) -> None:
        await site.until(site.operands, lambda there: there == set().union(*wanted))

    await site.make("Config", CONFIG, {})
    await site.until(lambda: site.condition(CONFIG, "Available"), lambda seen: seen == ("True", "NotWanted"))
    pool = {"partitionLabelValue": site.namespace, "plugins": {"numa": {"enabled": True}}}
    await site.make("SchedulingShard", f"{SHARDS}/{SHARD}", pool)
    await until(shard, exporter)  # where nothing is said: while a shard enables NUMA
    await site.exporter_wanted(False)
    await until(shard)
    await site.exporter_wanted(True)
    await until(shard, exporter)
    await site.client.patch(f"{SHARDS}/{SHARD}", {"spec": {"plugins": {"numa": {"enabled": False}}}})
    await site.exporter_wanted(None)
    await until(shard)
    await site.client.patch(
        f"{SHARDS}/{SHARD}", {"spec": {"replicaMode": "Shared", "plugins": {"numa": {"enabled": True}}}}
    )
    await until(shared, exporter)
    # Whoever collects what has no owner any more is Kubernetes.
    if await site.gone(f"/api/v1/namespaces/{site.namespace}/serviceaccounts/default"):
        pytest.skip("no kube-controller-manager runs in this cluster: nothing collects garbage")
    await site.client.delete(f"{SHARDS}/{SHARD}")
    await until()
    await site.exporter_wanted(True)
    await until(exporter)
    await site.client.delete(CONFIG)
    await until()
    for plural in ("controllerrevisions", "replicasets"):
        path = f"/apis/apps/v1/namespaces/{site.namespace}/{plural}"
        await site.until(lambda path=path: site.get(path), lambda one: not one["items"])
