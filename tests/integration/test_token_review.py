"""Tokens as a kubelet projects them into the exporter's pod, reviewed by the (simulated) API server."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

import msgspec
import pytest
from kai_apiserver.server import ApiServer, ApiServerOptions
from kai_ingest.authentication import (
    AuthenticationUnavailable,
    KubernetesTokens,
    NotAllowed,
    NotAuthenticated,
    review_token,
)
from kaicore.kube.api.access import plain_access
from kaicore.kube.api.client import KubeClient

CORE = "/api/v1"
NAMESPACE = f"{CORE}/namespaces/kai-system"


@dataclass
class Cluster:
    """The administrator's client, and what it takes to have an exporter's token."""

    server: ApiServer
    client: KubeClient

    async def prepare(self) -> None:
        await self.client.post(f"{CORE}/namespaces", {"metadata": {"name": "kai-system"}})
        await self.client.post(f"{CORE}/nodes", {"metadata": {"name": "gpu-7"}})
        for account in ("kai-exporter", "other"):
            await self.client.post(f"{NAMESPACE}/serviceaccounts", {"metadata": {"name": account}})
            spec = {
                "serviceAccountName": account,
                "nodeName": "gpu-7",
                "containers": [{"name": "main", "image": "i"}],
            }
            await self.client.post(f"{NAMESPACE}/pods", {"metadata": {"name": account}, "spec": spec})

    async def token(self, account: str = "kai-exporter", *, audience: str = "kai-ingest", bound: bool = True) -> str:
        pod = msgspec.json.decode(await self.client.get(f"{NAMESPACE}/pods/{account}"))
        spec: dict[str, object] = {"audiences": [audience], "expirationSeconds": 3600}
        if bound:
            reference = {"kind": "Pod", "apiVersion": "v1", "name": account, "uid": pod["metadata"]["uid"]}
            spec["boundObjectRef"] = reference
        path = f"{NAMESPACE}/serviceaccounts/{account}/token"
        answer = msgspec.json.decode(await self.client.post(path, {"spec": spec}))
        return str(answer["status"]["token"])

    def authenticator(self) -> KubernetesTokens:
        return KubernetesTokens(
            partial(review_token, self.client),
            audience="kai-ingest",
            service_accounts=frozenset({"kai-system:kai-exporter"}),
            clock=lambda: 0.0,
        )


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with (
        ApiServer(ApiServerOptions(controllers=False)) as server,
        KubeClient(plain_access(server.http_url, token=server.admin_token)) as client,
    ):
        made = Cluster(server, client)
        await made.prepare()
        yield made


async def test_the_token_of_an_exporters_pod_names_its_node_while_the_pod_is_there(cluster: Cluster) -> None:
    token = await cluster.token()
    assert await cluster.authenticator().node_of(token, client="10.0.0.1") == "gpu-7"
    await cluster.client.delete(f"{NAMESPACE}/pods/kai-exporter", {"gracePeriodSeconds": 0})
    with pytest.raises(NotAuthenticated):
        await cluster.authenticator().node_of(token, client="10.0.0.1")


async def test_token_of_no_exporter_pod_names_no_node(cluster: Cluster) -> None:
    for token, error, message in (
        ("made-up", NotAuthenticated, None),
        (await cluster.token(audience="others"), NotAuthenticated, None),
        (await cluster.token("other"), NotAllowed, "is no exporter: 'system:serviceaccount:kai-system:other'"),
        (await cluster.token(bound=False), NotAllowed, "must name one node"),
    ):
        with pytest.raises(error, match=message):
            await cluster.authenticator().node_of(token, client="10.0.0.1")


async def test_token_review_without_an_answer_is_not_cached() -> None:
    async with KubeClient(plain_access("http://127.0.0.1:1")) as client:
        authenticator = KubernetesTokens(
            partial(review_token, client), audience="a", service_accounts=frozenset(), clock=lambda: 0.0
        )
        with pytest.raises(AuthenticationUnavailable, match=r"TokenReview: POST /apis/authentication\.k8s\.io/"):
            await authenticator.node_of("t", client="10.0.0.1")
