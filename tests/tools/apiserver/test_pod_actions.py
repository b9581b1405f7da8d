"""Bindings and evictions, beyond what is recorded."""

from typing import Any

from tests.tools.apiserver.client import PODS, Client, binding, pod

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def eviction(name: str, **options: Any) -> dict[str, Any]:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options}


async def ready_pod(client: Client, name: str) -> None:
    made = pod(name)
    made["metadata"]["labels"] = {"app": "guarded"}
    await client.post(PODS, made)
    await client.post(f"{PODS}/{name}/binding", binding(name, "n1"))
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await client.merge(f"{PODS}/{name}/status", {"status": status})


async def test_gated_terminating_and_other_pods_are_not_bound(client: Client) -> None:
    await client.post(PODS, pod("gated", schedulingGates=[{"name": "example.com/g"}]))
    refused = await client.post(f"{PODS}/gated/binding", binding("gated", "n1"))
    assert (refused.status, refused.json["message"]) == (
        409,
        'Operation cannot be fulfilled on pods/binding "gated": pod gated has non-empty .spec.schedulingGates',
    )
    opened = await client.merge(f"{PODS}/gated", {"spec": {"schedulingGates": None}})
    assert opened.status == 200
    assert (await client.post(f"{PODS}/gated/binding", binding("gated", "n1"))).status == 201
    await client.post(PODS, pod("p"))
    await client.merge(f"{PODS}/p", {"metadata": {"finalizers": ["example.com/wait"]}})
    await client.delete(f"{PODS}/p")
    assert (await client.post(f"{PODS}/p/binding", binding("p", "n1"))).status == 409


async def test_a_binding_of_another_incarnation_is_refused(client: Client) -> None:
    await client.post(PODS, pod("p"))
    other = binding("p", "n1", uid="00000000-0000-0000-0000-000000000000")
    refused = await client.post(f"{PODS}/p/binding", other)
    assert (refused.status, refused.json["reason"]) == (409, "Conflict")


async def test_malformed_binding_is_refused(client: Client) -> None:
    await client.post(PODS, pod("p"))
    nowhere = await client.post(f"{PODS}/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node"}})
    assert (nowhere.status, nowhere.json["message"]) == (500, "target.name: Required value")
    elsewhere = {"metadata": {"name": "p"}, "target": {"kind": "Rack", "name": "r1"}}
    assert (await client.post(f"{PODS}/p/binding", elsewhere)).status == 500
    assert (await client.post(f"{PODS}/p/binding", {"target": {"kind": "Node", "name": "n1"}})).status == 400
    assert (await client.post(f"{PODS}/p/binding", binding("q", "n1"))).status == 400


async def test_bound_pod_has_the_topology_labels_of_its_node(client: Client) -> None:
    zone, region = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
    labels = {zone: "z1", region: "r1", "kubernetes.io/hostname": "n1"}
    await client.post("/api/v1/nodes", {"metadata": {"name": "n1", "labels": labels}})
    await client.post(PODS, pod("p"))
    await client.post(f"{PODS}/p/binding", binding("p", "n1"))
    assert (await client.get(f"{PODS}/p")).json["metadata"]["labels"] == {zone: "z1", region: "r1"}


async def test_pods_of_a_namespace_that_is_on_its_way_out_are_neither_bound_nor_evicted(client: Client) -> None:
    pods = "/api/v1/namespaces/going/pods"
    await client.post("/api/v1/namespaces", {"metadata": {"name": "going"}})
    await client.post(pods, pod("p") | {"metadata": {"name": "p", "finalizers": ["example.com/wait"]}})
    await client.delete("/api/v1/namespaces/going")
    for refused in (
        await client.post(f"{pods}/p/binding", binding("p", "n1")),
        await client.post(f"{pods}/p/eviction", eviction("p")),
    ):
        assert (refused.status, refused.json["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")


async def test_a_dry_bind_binds_nothing(client: Client) -> None:
    await client.post(PODS, pod("p"))
    assert (await client.post(f"{PODS}/p/binding?dryRun=All", binding("p", "n1"))).status == 201
    assert "nodeName" not in (await client.get(f"{PODS}/p")).json["spec"]


async def test_binding_clears_the_nomination(client: Client) -> None:
    await client.post(PODS, pod("p"))
    await client.merge(f"{PODS}/p/status", {"status": {"nominatedNodeName": "n1"}})
    await client.post(f"{PODS}/p/binding", binding("p", "n1"))
    assert "nominatedNodeName" not in (await client.get(f"{PODS}/p")).json["status"]


async def test_an_uncounted_budget_refuses_and_says_when_to_retry(client: Client) -> None:
    await ready_pod(client, "a")
    selector = {"matchLabels": {"app": "guarded"}}
    await client.post(BUDGETS, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": selector}})
    refused = await client.post(f"{PODS}/a/eviction", eviction("a"))
    assert (refused.status, refused.json["reason"], refused.headers["Retry-After"]) == (429, "TooManyRequests", "10")
    await client.post(BUDGETS, {"metadata": {"name": "c"}, "spec": {"maxUnavailable": 1, "selector": selector}})
    assert (await client.post(f"{PODS}/a/eviction", eviction("a"))).status == 500


async def test_pod_that_no_budget_counts_is_evicted(client: Client) -> None:
    selector = {"matchLabels": {"app": "guarded"}}
    await client.post(BUDGETS, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": selector}})
    made = pod("pending")
    made["metadata"]["labels"] = {"app": "guarded"}
    await client.post(PODS, made)
    assert (await client.post(f"{PODS}/pending/eviction", eviction("pending"))).status == 201
    assert (await client.get(f"{PODS}/pending")).status == 404
    assert (await client.post(f"{PODS}/nope/eviction", eviction("nope"))).status == 404
    await ready_pod(client, "a")
    assert (await client.post(f"{PODS}/a/eviction", eviction("other"))).status == 400


async def test_logs_say_honestly_that_there_are_none(client: Client) -> None:
    await client.post(PODS, pod("p"))
    answer = await client.get(f"{PODS}/p/log")
    assert answer.status == 400
    assert "simulation" in answer.json["message"]
    assert (await client.get(f"{PODS}/nope/log")).status == 404


async def test_a_bound_pods_spec_hardly_changes(client: Client) -> None:
    await client.post(PODS, pod("p"))
    image = {"spec": {"containers": [{"name": "c", "image": "other:2"}]}}
    changed = await client.strategic(f"{PODS}/p", image)
    assert (changed.status, changed.json["metadata"]["generation"]) == (200, 2)
    more = {"spec": {"containers": [{"name": "d", "image": "x"}]}}
    assert (await client.strategic(f"{PODS}/p", more)).status == 422
    tolerations = changed.json["spec"]["tolerations"]
    added = await client.merge(f"{PODS}/p", {"spec": {"tolerations": [*tolerations, {"operator": "Exists"}]}})
    assert added.status == 200
    assert (await client.merge(f"{PODS}/p", {"spec": {"tolerations": []}})).status == 422
    gate = {"spec": {"schedulingGates": [{"name": "example.com/late"}]}}
    assert (await client.merge(f"{PODS}/p", gate)).status == 422
