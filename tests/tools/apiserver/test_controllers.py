"""Garbage, namespaces, disruption budgets, node lifecycle."""

from typing import Any

from tests.tools.apiserver.client import CONFIG_MAPS, NODES, PODS, Client, binding, config_map, node, pod
from tests.tools.apiserver.conftest import ServerFactory
from tests.tools.apiserver.test_pod_actions import BUDGETS, eviction, ready_pod

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

SERVER_OPTIONS = {"node_grace_s": 0.2}


async def owner(client: Client, name: str) -> dict[str, Any]:
    uid = (await client.post(CONFIG_MAPS, config_map(name))).json["metadata"]["uid"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "blockOwnerDeletion": True}


def owned(name: str, *owners: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name, "ownerReferences": list(owners)}}


async def test_dependents_follow_their_last_owner(client: Client) -> None:
    first, second = await owner(client, "first"), await owner(client, "second")
    await client.post(CONFIG_MAPS, owned("both", first, second))
    await client.post(CONFIG_MAPS, owned("one", first))
    async with client.watch(CONFIG_MAPS) as watch:
        await client.delete(f"{CONFIG_MAPS}/first")
        left = await watch.until("MODIFIED", "both")
        assert [item["name"] for item in left["object"]["metadata"]["ownerReferences"]] == ["second"]
        await watch.until("DELETED", "one")
        await client.delete(f"{CONFIG_MAPS}/second")
        await watch.until("DELETED", "both")


async def test_what_is_created_for_an_owner_that_is_gone_goes_too(client: Client) -> None:
    gone = await owner(client, "gone")
    await client.delete(f"{CONFIG_MAPS}/gone")
    await client.post(CONFIG_MAPS, config_map("gone"))  # another one of that name is no owner
    async with client.watch(CONFIG_MAPS) as watch:
        await client.post(CONFIG_MAPS, owned("late", gone))
        await watch.until("DELETED", "late")


async def test_owners_of_unknown_kinds_are_taken_to_exist(client: Client) -> None:
    unknown = {"apiVersion": "example.com/v1", "kind": "Thing", "name": "t", "uid": "u"}
    gone = await owner(client, "gone")
    await client.post(CONFIG_MAPS, owned("kept", unknown))
    await client.post(CONFIG_MAPS, owned("marker", gone))
    async with client.watch(CONFIG_MAPS) as watch:
        await client.delete(f"{CONFIG_MAPS}/gone")
        await watch.until("DELETED", "marker")
    assert "kept" in (await client.get(CONFIG_MAPS)).items


async def test_foreground_deletion_waits_for_the_dependents(client: Client) -> None:
    await client.post(CONFIG_MAPS, owned("child", await owner(client, "parent")))
    await client.merge(f"{CONFIG_MAPS}/child", {"metadata": {"finalizers": ["example.com/wait"]}})
    async with client.watch(CONFIG_MAPS) as watch:
        marked = await client.delete(f"{CONFIG_MAPS}/parent?propagationPolicy=Foreground")
        assert marked.json["metadata"]["finalizers"] == ["foregroundDeletion"]
        while not (await watch.until("MODIFIED", "child"))["object"]["metadata"].get("deletionTimestamp"):
            pass
        assert (await client.get(f"{CONFIG_MAPS}/parent")).status == 200
        await client.merge(f"{CONFIG_MAPS}/child", {"metadata": {"finalizers": []}})
        await watch.until("DELETED", "child")
        await watch.until("DELETED", "parent")


async def test_orphaned_dependents_stay(client: Client) -> None:
    await client.post(CONFIG_MAPS, owned("child", await owner(client, "parent")))
    async with client.watch(CONFIG_MAPS) as watch:
        await client.delete(f"{CONFIG_MAPS}/parent", {"propagationPolicy": "Orphan"})
        await watch.until("DELETED", "parent")
    assert "ownerReferences" not in (await client.get(f"{CONFIG_MAPS}/child")).json["metadata"]


async def test_a_namespace_goes_after_its_contents(client: Client) -> None:
    await client.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
    pods = "/api/v1/namespaces/team/pods"
    await client.post("/api/v1/namespaces/team/configmaps", config_map("c"))
    await client.post(pods, pod("bound"))
    await client.post(f"{pods}/bound/binding", binding("bound", "n1"))
    async with client.watch("/api/v1/namespaces") as watch, client.watch(pods) as pod_watch:
        await client.delete("/api/v1/namespaces/team")
        while not (await pod_watch.until("MODIFIED", "bound"))["object"]["metadata"].get("deletionTimestamp"):
            pass
        assert (await client.get("/api/v1/namespaces/team")).json["status"]["phase"] == "Terminating"
        assert (await client.get("/api/v1/namespaces/team/configmaps")).items == []
        await client.delete(f"{pods}/bound?gracePeriodSeconds=0")
        await watch.until("DELETED", "team")


async def test_budgets_count_and_evictions_spend(client: Client) -> None:
    for name in ("a", "b"):
        await ready_pod(client, name)
    selector = {"matchLabels": {"app": "guarded"}}
    async with client.watch(BUDGETS) as watch:
        await client.post(BUDGETS, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": selector}})
        status = (await watch.until("MODIFIED", "b"))["object"]["status"]
        assert (status["expectedPods"], status["currentHealthy"], status["desiredHealthy"]) == (2, 2, 1)
        assert (status["disruptionsAllowed"], status["observedGeneration"]) == (1, 1)
        assert status["conditions"][0]["reason"] == "SufficientPods"
        assert (await client.post(f"{PODS}/a/eviction", eviction("a"))).status == 201
        refused = await client.post(f"{PODS}/b/eviction", eviction("b"))
        assert refused.status == 429
        assert refused.json["details"]["causes"][0]["reason"] == "DisruptionBudget"
        await client.delete(f"{PODS}/a?gracePeriodSeconds=0")
        while (shown := (await watch.until("MODIFIED", "b"))["object"]["status"])["expectedPods"] != 1:
            pass
        assert (shown["disruptionsAllowed"], shown["currentHealthy"]) == (0, 1)
        await ready_pod(client, "c")
        while not (await watch.until("MODIFIED", "b"))["object"]["status"]["disruptionsAllowed"]:
            pass
    assert (await client.post(f"{PODS}/b/eviction", eviction("b"))).status == 201


async def test_percentages_round_up(client: Client) -> None:
    for name in "abc":
        await ready_pod(client, name)
    selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["guarded"]}]}
    async with client.watch(BUDGETS) as watch:
        await client.post(BUDGETS, {"metadata": {"name": "b"}, "spec": {"maxUnavailable": "50%", "selector": selector}})
        status = (await watch.until("MODIFIED", "b"))["object"]["status"]
    assert (status["desiredHealthy"], status["disruptionsAllowed"]) == (1, 2)


async def test_volumes_are_bound_to_the_claims_that_they_name(client: Client) -> None:
    volumes, claims = "/api/v1/persistentvolumes", "/api/v1/namespaces/default/persistentvolumeclaims"
    spec = {"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"]}
    async with client.watch(volumes) as watch:

        async def becomes(phase: str) -> dict[str, Any]:
            while (volume := (await watch.until("MODIFIED", "v"))["object"])["status"]["phase"] != phase:
                pass
            return volume

        await client.post(volumes, {"metadata": {"name": "v"}, "spec": spec})
        await becomes("Available")
        reference = {"claimRef": {"namespace": "default", "name": "c"}}
        await client.merge(f"{volumes}/v", {"spec": reference})
        request = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        made = (await client.post(claims, {"metadata": {"name": "c"}, "spec": request})).json
        bound = await becomes("Bound")
        assert bound["spec"]["claimRef"]["uid"] == made["metadata"]["uid"]
        claim = (await client.get(f"{claims}/c")).json
        assert claim["spec"]["volumeName"] == "v"
        assert claim["status"] == {"phase": "Bound", "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"]}
        assert claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] == "yes"
        await client.delete(f"{claims}/c")
        await becomes("Released")


async def test_old_events_are_forgotten(start_server: ServerFactory) -> None:
    server = await start_server(event_ttl_s=0.2)
    events = "/api/v1/namespaces/default/events"
    async with Client(server.http_url, server.admin_token) as client, client.watch(events) as watch:
        old = {"metadata": {"name": "old"}, "lastTimestamp": "2020-01-01T00:00:00Z", "involvedObject": {}}
        new = {"metadata": {"name": "new"}, "lastTimestamp": "2999-01-01T00:00:00Z", "involvedObject": {}}
        for event in (new, old):
            await client.post(events, event)
        await watch.until("DELETED", "old")
        assert (await client.get(events)).items == ["new"]


async def test_a_silent_node_becomes_unreachable_and_comes_back(client: Client) -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}
    await client.post(NODES, node("n1") | {"status": ready})
    await client.post(NODES, node("static") | {"status": ready})
    async with client.watch(NODES) as watch:
        await client.post(LEASES, {"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1"}})
        silent = (await watch.until("MODIFIED", "n1"))["object"]
        (condition,) = silent["status"]["conditions"]
        assert (condition["status"], condition["reason"]) == ("Unknown", "NodeStatusUnknown")
        taints = [(taint["key"], taint["effect"]) for taint in silent["spec"]["taints"]]
        unreachable = "node.kubernetes.io/unreachable"
        assert taints == [(unreachable, "NoSchedule"), (unreachable, "NoExecute")]
        heartbeat = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:01:00Z"}
        await client.strategic(f"{NODES}/n1/status", {"status": {"conditions": [heartbeat]}})
        while (await watch.until("MODIFIED", "n1"))["object"]["spec"].get("taints"):
            pass
    static = (await client.get(f"{NODES}/static")).json
    assert static["status"]["conditions"][0]["status"] == "True", "it never had a lease"


async def test_conditions_become_taints_and_other_taints_stay(client: Client) -> None:
    taint = {"key": "mine", "effect": "NoSchedule"}
    await client.post(NODES, node("n1") | {"spec": {"taints": [taint]}})
    async with client.watch(NODES) as watch:
        await client.merge(f"{NODES}/n1/status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}})
        while len(taints := (await watch.until("MODIFIED", "n1"))["object"]["spec"]["taints"]) < 3:
            pass
        not_ready = "node.kubernetes.io/not-ready"
        assert [(item["key"], item["effect"]) for item in taints] == [
            ("mine", "NoSchedule"),
            (not_ready, "NoSchedule"),
            (not_ready, "NoExecute"),
        ]
        await client.merge(f"{NODES}/n1", {"spec": {"unschedulable": True}})
        await client.merge(f"{NODES}/n1/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        while len(taints := (await watch.until("MODIFIED", "n1"))["object"]["spec"]["taints"]) != 2:
            pass
    assert [item["key"] for item in taints] == ["mine", "node.kubernetes.io/unschedulable"]
