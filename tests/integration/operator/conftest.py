"""A simulated API server with the operator's definitions and rights, and an operator that acts with them."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from kai_operator.carrying_out import Hands, OperatorMetrics
from kai_operator.main import API, Operator, OperatorSettings, watch, what_is_given
from kaicore.errors import ApiStatus
from kaicore.kube.api.access import AccessSource, plain_access
from kaicore.kube.api.client import KubeClient
from kaicore.kube.kinds.operands.specs import MANAGED_BY, OPERAND_KINDS, OPERATOR
from kaicore.runtime.service import Health, ServiceContext, get_logger
from kaicore.yaml_text import load_yaml, load_yaml_all
from prometheus_client import CollectorRegistry

from tests.given.processes.tasks import going
from tests.given.processes.waiting import eventually
from tests.given.servers.kube import CRDS, DEFINITIONS, Api, Json, simulated

NAMESPACE = "kai-system"
CONFIGS = "/apis/kai.scheduler/v1/configs"
SHARDS = "/apis/kai.scheduler/v1/schedulingshards"
MANIFEST = CRDS.parent / "operator.yaml"

_PLACES = {
    "ServiceAccount": "api/v1/namespaces/{namespace}/serviceaccounts",
    "ClusterRole": "apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
}


class Site:
    """A cluster that an operator works on, and the words for what tests do to it."""

    def __init__(self, api: Api, token: str) -> None:
        self.api = api
        self.token = token
        self.access: AccessSource = plain_access(api.server.http_url, token=token)

    async def config(self, **spec: Any) -> Json:
        return await self.api.post(CONFIGS, {"metadata": {"name": "kai-config"}, "spec": spec})

    async def shard(self, name: str, **spec: Any) -> Json:
        """Make a shard of a node pool of its name."""
        given = {"partitionLabelValue": name, **spec}
        return await self.api.post(SHARDS, {"metadata": {"name": name}, "spec": given})

    def path(self, kind: str, name: str = "") -> str:
        """The place of operands of a kind, or of one of them."""
        group, plural = OPERAND_KINDS[kind]
        return f"/{group}/namespaces/{NAMESPACE}/{plural}" + (f"/{name}" if name else "")

    async def operands(self) -> set[str]:
        """Kind and name of everything that the operator has made."""
        return {
            f"{kind} {item['metadata']['name']}"
            for kind in OPERAND_KINDS
            for item in await self.api.items(self.path(kind))
            if (item["metadata"].get("labels") or {}).get(MANAGED_BY) == OPERATOR
        }

    async def until_operands(self, *wanted: str) -> None:
        """Wait until these and no others are there."""
        await self.until(self.operands, lambda operands: operands == set(wanted))

    async def condition(self, path: str, kind: str) -> Json:
        """A condition of an owner; empty without it."""
        status = (await self.api.get(path)).get("status") or {}
        return next((one for one in status.get("conditions", ()) if one["type"] == kind), {})

    async def until_condition(self, path: str, kind: str, status: str, reason: str) -> str:
        """Wait until a condition is so; return its message."""
        condition = await self.until(
            lambda: self.condition(path, kind), lambda one: (one.get("status"), one.get("reason")) == (status, reason)
        )
        return str(condition["message"])

    async def until(self, look: Callable[[], Any], holds: Callable[[Any], object]) -> Any:
        return await eventually(look, holds, every_s=0.05)

    async def gone(self, path: str) -> bool:
        """True if an object is not there."""
        try:
            await self.api.get(path)
        except ApiStatus as error:
            return error.code == 404
        return False

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[ServiceContext]:
        """Run an operator until the block ends."""
        context = ServiceContext(name="operator", health=Health(API), log=get_logger())
        settings = OperatorSettings(image="kai:test")
        async with KubeClient(self.access) as client:
            given = await what_is_given(settings, client, context)
            hands = Hands(client, NAMESPACE, metrics=OperatorMetrics(CollectorRegistry()), log=context.log)
            operator = Operator(context, hands, given, resync_s=60)
            watching = partial(watch, context, self.access, NAMESPACE)
            async with going(operator.run(watching), until=context.stopping):
                yield context


def documents() -> Iterator[Json]:
    """The rights in operator.yaml."""
    for document in load_yaml_all(MANIFEST.read_text()):
        if document["kind"] in _PLACES:
            yield document


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A cluster with the operator's definitions and rights."""
    async with simulated(controllers=True, node_grace_s=0) as api:
        for file in sorted((CRDS / "operator").glob("*.yaml")):
            await api.post(DEFINITIONS, load_yaml(file.read_text()))
        await api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for document in documents():
            place = _PLACES[document["kind"]].format(namespace=document["metadata"].get("namespace"))
            await api.post(f"/{place}", document)
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/kai-operator/token"
        answer = await api.post(account, {"spec": {"expirationSeconds": 3600}})
        yield Site(api, answer["status"]["token"])
