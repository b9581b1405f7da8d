"""Use of rights, and who controls the simulation."""

from typing import Any

from kai_apiserver.server import ApiServer

from tests.tools.apiserver.client import CONFIG_MAPS, PODS, Client, config_map
from tests.tools.apiserver.test_auth import RBAC, account_token

BINDER = "system:serviceaccount:default:binder"


async def allow(client: Client, *rules: dict[str, Any], account: str = "binder") -> None:
    """Bind a cluster role of these rules to a service account."""
    await client.post(f"{RBAC}/clusterroles", {"metadata": {"name": account}, "rules": list(rules)})
    binding = {
        "metadata": {"name": account},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "default"}],
    }
    assert (await client.post(f"{RBAC}/clusterrolebindings", binding)).status == 201


async def test_a_request_is_counted_with_the_rule_that_allowed_it(client: Client, server: ApiServer) -> None:
    token = await account_token(client, "binder")
    await allow(
        client,
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
        {"nonResourceURLs": ["/metrics"], "verbs": ["get"]},
    )
    async with Client(server.http_url, token) as account:
        await account.get(PODS)
        await account.get(PODS)
        await account.merge(f"{PODS}/a/status", {})
        await account.merge(f"{PODS}/b/status", {})
        await account.get("/metrics")
        await account.get("/apis")
        await account.get(CONFIG_MAPS)
    counted = (await client.get("/simulator/rights")).json
    rule, pods = "ClusterRole binder, rule", {"user": BINDER, "group": "", "namespace": "default", "requests": 2}
    assert sorted(counted["allowed"], key=lambda use: use["rule"]) == [
        {**pods, "rule": f"{rule} 0", "verb": "list", "resource": "pods"},
        {**pods, "rule": f"{rule} 1", "verb": "patch", "resource": "pods/status"},
        {"user": BINDER, "rule": f"{rule} 2", "verb": "get", "path": "/metrics", "requests": 1},
    ]
    assert counted["refused"] == [{**pods, "verb": "list", "resource": "configmaps", "requests": 1}]
    await client.delete("/simulator/rights")
    assert (await client.get("/simulator/rights")).json == {"allowed": [], "refused": []}


async def test_rights_that_are_only_asked_about_are_not_used(client: Client, server: ApiServer) -> None:
    token = await account_token(client, "binder")
    await allow(client, {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})
    async with Client(server.http_url, token) as account:
        for resource in ("pods", "secrets"):
            asked = {"spec": {"resourceAttributes": {"verb": "list", "resource": resource}}}
            await account.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", asked)
    assert (await client.get("/simulator/rights")).json == {"allowed": [], "refused": []}


async def test_only_the_administrators_token_controls_the_simulation(client: Client, server: ApiServer) -> None:
    token = await account_token(client, "binder")
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    await allow(client, everything, {"nonResourceURLs": ["*"], "verbs": ["*"]})
    async with Client(server.http_url, token) as account, Client(server.http_url, None) as anonymous:
        assert (await account.get("/version")).status == 200
        for stranger in (account, anonymous):
            for method, path in (
                ("GET", "/simulator/faults"),
                ("POST", "/simulator/faults"),
                ("DELETE", "/simulator/faults"),
                ("POST", "/simulator/compact"),
                ("GET", "/simulator/rights"),
            ):
                assert (await stranger.request(method, path, {} if method == "POST" else None)).status == 403, path
    assert (await client.get("/simulator/faults")).json == {"rules": []}


async def test_nobody_is_impersonated(client: Client) -> None:
    refused = await client.get(CONFIG_MAPS, headers={"Impersonate-User": "jane"})
    assert (refused.status, "own token" in refused.json["message"]) == (400, True)


async def test_server_side_apply_that_would_make_an_object_takes_the_right_to_make_it(
    client: Client, server: ApiServer
) -> None:
    token = await account_token(client, "applier")
    await allow(client, {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]}, account="applier")
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}
    async with Client(server.http_url, token) as account:
        refused = await account.apply(f"{CONFIG_MAPS}/a", document, manager="one")
        assert (refused.status, "cannot create" in refused.json["message"]) == (403, True)
        await client.post(CONFIG_MAPS, config_map("a"))
        assert (await account.apply(f"{CONFIG_MAPS}/a", document, manager="one")).status == 200
