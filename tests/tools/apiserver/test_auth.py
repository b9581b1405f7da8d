"""Tokens, RBAC, reviews."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kai_apiserver.server import ApiServer

from tests.tools.apiserver.client import NODES, PODS, Client, binding, node, pod
from tests.tools.apiserver.conftest import ServerFactory

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


async def account_token(client: Client, name: str = "exporter", **spec: Any) -> str:
    if (await client.get(f"{ACCOUNTS}/{name}")).status == 404:
        await client.post(ACCOUNTS, {"metadata": {"name": name}})
    answer = await client.post(f"{ACCOUNTS}/{name}/token", {"spec": spec})
    assert answer.status == 201, answer
    token: str = answer.json["status"]["token"]
    return token


async def review(client: Client, token: str, **spec: Any) -> Any:
    return (await client.post(TOKEN_REVIEWS, {"spec": {"token": token, **spec}})).json["status"]


async def test_a_token_bound_to_a_node_names_it(client: Client) -> None:
    await client.post(NODES, node("n1"))
    token = await account_token(client, boundObjectRef={"kind": "Node", "apiVersion": "v1", "name": "n1"})
    status = await review(client, token)
    assert status["authenticated"] is True
    assert status["user"]["username"] == "system:serviceaccount:default:exporter"
    assert "system:serviceaccounts:default" in status["user"]["groups"]
    assert status["user"]["extra"]["authentication.kubernetes.io/node-name"] == ["n1"]
    await client.delete(f"{NODES}/n1")
    assert "authenticated" not in await review(client, token), "the node is gone"


async def test_a_token_bound_to_a_pod_names_the_pod_and_its_node(client: Client) -> None:
    await client.post(NODES, node("n1"))
    uid = (await client.post(PODS, pod("p"))).json["metadata"]["uid"]
    await client.post(f"{PODS}/p/binding", binding("p", "n1"))
    token = await account_token(client, boundObjectRef={"kind": "Pod", "name": "p", "uid": uid})
    extra = (await review(client, token))["user"]["extra"]
    assert extra["authentication.kubernetes.io/pod-name"] == ["p"]
    assert extra["authentication.kubernetes.io/node-name"] == ["n1"]
    await client.delete(f"{PODS}/p?gracePeriodSeconds=0")
    assert "authenticated" not in await review(client, token)


async def test_tokens_are_for_their_audience(client: Client) -> None:
    token = await account_token(client, audiences=["kai-ingest"])
    assert (await review(client, token, audiences=["kai-ingest"]))["audiences"] == ["kai-ingest"]
    assert "authenticated" not in await review(client, token, audiences=["somebody-else"])


async def test_token_is_refused_after_its_end(start_server: ServerFactory) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    server = await start_server(controllers=False, clock=lambda: moment)
    async with Client(server.http_url, server.admin_token) as client:
        token = await account_token(client, expirationSeconds=600)
        assert (await review(client, token))["authenticated"] is True
        moment += timedelta(seconds=601)
        assert "authenticated" not in await review(client, token)


async def test_token_of_another_issuer_is_refused(client: Client, server: ApiServer) -> None:
    token = await account_token(client)
    header, payload, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
    claims["sub"] = "system:admin"
    forged = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    for bad in (f"{header}.{forged}.{signature}", f"{header}.{payload}.AAAA", "a.b.c", "x"):
        assert "authenticated" not in await review(client, bad)
        async with Client(server.http_url, bad) as stranger:
            assert (await stranger.get(PODS)).status == 401
    async with Client(server.http_url, token) as account:
        await client.delete(f"{ACCOUNTS}/exporter")
        assert (await account.get(PODS)).status == 401, "the account is gone"


async def test_token_request_that_cannot_be_met_is_refused(client: Client) -> None:
    assert (await client.post(f"{ACCOUNTS}/nope/token", {"spec": {}})).status == 404
    await client.post(ACCOUNTS, {"metadata": {"name": "a"}})
    for spec, code in (
        ({"expirationSeconds": 1}, 400),
        ({"boundObjectRef": {"kind": "Node", "name": "nope"}}, 404),
        ({"boundObjectRef": {"kind": "ConfigMap", "name": "x"}}, 400),
    ):
        assert (await client.post(f"{ACCOUNTS}/a/token", {"spec": spec})).status == code


async def test_roles_say_what_an_account_may_do(client: Client, server: ApiServer) -> None:
    token = await account_token(client, "binder")
    async with Client(server.http_url, token) as account:
        refused = await account.get(PODS)
        assert (refused.status, refused.json["message"]) == (
            403,
            'pods is forbidden: User "system:serviceaccount:default:binder" cannot list resource "pods" in API group '
            '"" in the namespace "default"',
        )
        assert (await account.get("/api")).status == 200, "discovery is for every authenticated user"
        rules = [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
            {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "resourceNames": ["mine"]},
        ]
        await client.post(f"{RBAC}/clusterroles", {"metadata": {"name": "binder"}, "rules": rules})
        bound = {
            "metadata": {"name": "binder"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "binder"},
            "subjects": [{"kind": "ServiceAccount", "name": "binder", "namespace": "default"}],
        }
        await client.post(f"{RBAC}/namespaces/default/rolebindings", bound)
        assert (await account.get(PODS)).status == 200
        assert (await account.get("/api/v1/pods")).status == 403, "only in its namespace"
        assert (await account.post(f"{PODS}/nope/binding", binding("nope", "n"))).status == 404
        assert (await account.delete(f"{PODS}/p")).status == 403
        assert (await account.get("/api/v1/namespaces/default/configmaps/mine")).status == 404
        assert (await account.get("/api/v1/namespaces/default/configmaps/yours")).status == 403
        await client.post(f"{RBAC}/clusterrolebindings", bound)
        assert (await account.get("/api/v1/pods")).status == 200
        asked = {"spec": {"resourceAttributes": {"verb": "create", "resource": "pods", "subresource": "binding"}}}
        own = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        assert (await account.post(own, asked)).json["status"] == {"allowed": True}


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"user": "x", "groups": ["system:masters"], "resourceAttributes": {"verb": "get", "resource": "pods"}}, True),
        ({"user": "x", "resourceAttributes": {"verb": "get", "resource": "pods"}}, False),
        ({"user": "x", "nonResourceAttributes": {"verb": "get", "path": "/healthz"}}, True),
        ({"user": "x", "nonResourceAttributes": {"verb": "get", "path": "/metrics"}}, False),
    ],
)
async def test_access_review_answers_as_the_roles_say(client: Client, spec: dict[str, Any], allowed: bool) -> None:
    assert (await client.post(ACCESS_REVIEWS, {"spec": spec})).json["status"]["allowed"] is allowed


async def test_an_anonymous_client_sees_only_health(server: ApiServer) -> None:
    async with Client(server.http_url, None) as anonymous:
        for path in ("/healthz", "/livez", "/readyz", "/version"):
            assert (await anonymous.get(path)).status == 200
        for path in ("/api", "/metrics", "/simulator/faults"):
            answer = await anonymous.get(path)
            assert (answer.status, answer.json["reason"]) == (403, "Forbidden")
