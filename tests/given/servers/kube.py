"""A simulated API server in this process, with words for what tests do to a cluster."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from kai_apiserver.server import ApiServer, ApiServerOptions
from kaicore.kube.api import service_account
from kaicore.kube.api.access import AccessSource, plain_access
from kaicore.kube.api.client import KubeClient
from kaicore.yaml_text import load_yaml

from tests.given.processes.waiting import eventually

Json = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
STORAGE_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"

CRDS = Path(__file__).parents[3] / "deploy/k8s/crds"
_DEFINITION = CRDS / "noderesourcetopologies.yaml"


class Api:
    """An API server and the administrator's client."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.client = KubeClient(self.access())

    def access(self) -> AccessSource:
        return plain_access(self.server.http_url, token=self.server.admin_token)

    def faults(self, **rule: Any) -> None:
        """Make something go wrong; see `kai_apiserver.http.faults`."""
        match = {key: rule.pop(key) for key in ("verb", "resource", "subresource", "name") if key in rule}
        self.server.faults.add({"match": match, "fault": rule})

    async def struck(self) -> None:
        """Wait until a fault has struck; the server does not tell of it."""
        await eventually(lambda: any(rule.hits for rule in self.server.faults.rules), every_s=0.002)

    async def get(self, path: str) -> Json:
        return json.loads(await self.client.get(path))  # type: ignore[no-any-return]

    async def post(self, path: str, document: Json) -> Json:
        return json.loads(await self.client.post(path, document))  # type: ignore[no-any-return]

    async def merge(self, path: str, document: Json) -> Json:
        return json.loads(await self.client.patch(path, document))  # type: ignore[no-any-return]

    async def install_topologies(self, *versions: str) -> None:
        """Serve NodeResourceTopologies, by default in all versions."""
        document = load_yaml(_DEFINITION.read_text())
        if versions:
            document["spec"]["versions"] = [
                version | {"storage": version["name"] == versions[0]}
                for version in document["spec"]["versions"]
                if version["name"] in versions
            ]
        await self.client.post(DEFINITIONS, document)

    async def install_pod_groups(self, group: str, *, status: bool = True) -> str:
        """Serve PodGroups of an API group, with a status subresource or without; return where they are."""
        document = load_yaml((CRDS / f"podgroups/{group}.yaml").read_text())
        (version,) = document["spec"]["versions"]
        if not status:
            del version["subresources"]
        await self.client.post(DEFINITIONS, document)
        return f"/apis/{group}/{version['name']}/namespaces/default/podgroups"

    async def install_hyper_jobs(self) -> str:
        """Serve HyperJobs; return where they are."""
        await self.client.post(DEFINITIONS, load_yaml((CRDS / "jobs/topology.volcano.sh.yaml").read_text()))
        return "/apis/topology.volcano.sh/v1alpha1/namespaces/default/hyperjobs"

    async def install_queues(self) -> str:
        """Serve KAI's Queues; return where they are."""
        await self.client.post(DEFINITIONS, load_yaml((CRDS / "queues/scheduling.run.ai.yaml").read_text()))
        return "/apis/scheduling.run.ai/v2/queues"

    async def install(self, group: str, version: str, kind: str, *, scope: str = "Namespaced") -> str:
        """Serve a kind of which anything goes; return where its objects are."""
        plural = f"{kind.lower()}s"
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        spec = {
            "group": group,
            "scope": scope,
            "names": {"plural": plural, "kind": kind},
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        }
        await self.client.post(DEFINITIONS, {"metadata": {"name": f"{plural}.{group}"}, "spec": spec})
        namespace = "/namespaces/default" if scope == "Namespaced" else ""
        return f"/apis/{group}/{version}{namespace}/{plural}"

    async def pod(self, name: str, *, node: str = "", labels: dict[str, str] | None = None, **spec: Any) -> Json:
        """Create a pod with a whole CPU, on a node already if one is named."""
        container = {"name": "main", "image": "x", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
        given = {"schedulerName": "kai-ledger", "containers": [container], **({"nodeName": node} if node else {})}
        return await self.post(PODS, {"metadata": {"name": name, "labels": labels or {}}, "spec": given | spec})

    async def node(self, name: str, **labels: str) -> Json:
        """Create a node that is ready."""
        held = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        status = {"allocatable": held, "capacity": held, "conditions": [{"type": "Ready", "status": "True"}]}
        return await self.post(NODES, {"metadata": {"name": name, "labels": labels}, "status": status})

    async def pod_status(self, name: str, **status: Any) -> Json:
        """Set parts of a pod's status, as its kubelet would."""
        return await self.merge(f"{PODS}/{name}/status", {"status": status})

    async def reject(self, name: str, reason: str = "TopologyAffinityError") -> Json:
        """Refuse a pod, as its kubelet would."""
        message = "Pod was rejected: Resources cannot be allocated with Topology locality"
        return await self.pod_status(name, phase="Failed", reason=reason, message=message)

    async def bind(self, name: str, node: str) -> Json:
        """Bind a pod, as a scheduler does."""
        return await self.post(f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": {"name": node}})

    async def delete_pod(self, name: str) -> None:
        await self.client.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    async def until(self, path: str, holds: Callable[[Json], object]) -> Json:
        """Wait until an object is as it should be, and return it."""
        async with asyncio.timeout(60):
            while not holds(seen := await self.get(path)):
                version = seen["metadata"]["resourceVersion"]
                collection = path.rpartition("/")[0]
                async with self.client.watch(collection, resource_version=version, timeout_s=5) as chunks:
                    async for _ in chunks:
                        break
        return seen

    async def items(self, path: str) -> list[Json]:
        return (await self.get(path))["items"]  # type: ignore[no-any-return]


@asynccontextmanager
async def simulated(*, clock: Callable[[], datetime] | None = None, **options: Any) -> AsyncIterator[Api]:
    """Run an API server, in memory and without controllers by default."""
    async with ApiServer(ApiServerOptions(**{"controllers": False, **options}), clock=clock) as server:
        api = Api(server)
        async with api.client:
            yield api


def as_pod_of(server: ApiServer, account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be a pod of a cluster, with the administrator's rights and its account in a folder."""
    (account / "token").write_text(server.admin_token)
    assert server.authority is not None
    (account / "ca.crt").write_bytes(server.authority)
    monkeypatch.setattr(service_account, "SERVICE_ACCOUNT", account)
    address = urlsplit(server.https_url)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(address.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(address.port))
