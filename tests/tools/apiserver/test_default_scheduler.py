"""Pods of `default-scheduler` are scheduled plainly, with the reasons of waiting ones."""

from typing import Any

from tests.tools.apiserver.client import NODES, PODS, Client, pod

Json = dict[str, Any]
EVENTS = "/api/v1/namespaces/default/events"

SERVER_OPTIONS = {"default_scheduler": True, "node_grace_s": 0}


async def add_node(
    client: Client, name: str, *, cpu: str = "4", taints: list[Json] | None = None, labels: Json | None = None
) -> None:
    amounts = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
    body: Json = {"metadata": {"name": name, "labels": labels or {}}, "spec": {}, "status": {"allocatable": amounts}}
    if taints:
        body["spec"]["taints"] = taints
    assert (await client.post(NODES, body)).status == 201


def asking(name: str, cpu: str = "1", **spec: Any) -> Json:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    return pod(name, **{"containers": [container], **spec})


async def comes_to(client: Client, name: str) -> str:
    """The node that a pod is put on."""
    async with client.watch(f"{PODS}?fieldSelector=metadata.name={name}") as watch:
        while True:
            seen = (await watch.next())["object"]
            if seen["spec"].get("nodeName"):
                return str(seen["spec"]["nodeName"])


async def waits_for(client: Client, name: str) -> str:
    """The reasons in a pod's condition."""
    async with client.watch(f"{PODS}?fieldSelector=metadata.name={name}") as watch:
        while True:
            seen = (await watch.next())["object"]
            for condition in seen["status"].get("conditions", ()):
                if (condition["type"], condition["status"]) == ("PodScheduled", "False"):
                    return str(condition["message"])


async def test_a_pod_goes_to_the_node_with_the_most_room(client: Client) -> None:
    await add_node(client, "small", cpu="2")
    await add_node(client, "large", cpu="8")
    where = []
    for number in range(5):
        await client.post(PODS, asking(f"p{number}"))
        where.append(await comes_to(client, f"p{number}"))
    assert where == ["large", "large", "large", "large", "small"]
    (event,) = [item for item in (await client.get(EVENTS)).json["items"] if item["involvedObject"]["name"] == "p0"]
    assert (event["reason"], event["message"]) == ("Scheduled", "Successfully assigned default/p0 to large")


async def test_a_pod_waits_until_another_has_ended(client: Client) -> None:
    await add_node(client, "n", cpu="1")
    await client.post(PODS, asking("first"))
    assert await comes_to(client, "first") == "n"
    await client.post(PODS, asking("second"))
    assert await waits_for(client, "second") == "0/1 nodes are available: 1 Insufficient cpu."
    events = (await client.get(EVENTS)).json["items"]
    assert [item["reason"] for item in events if item["involvedObject"]["name"] == "second"] == ["FailedScheduling"]
    await client.merge(f"{PODS}/first/status", {"status": {"phase": "Succeeded"}})
    assert await comes_to(client, "second") == "n"


async def test_a_pod_waits_until_there_is_a_node(client: Client) -> None:
    await client.post(PODS, asking("p"))
    assert await waits_for(client, "p") == "no nodes available to schedule pods"
    await add_node(client, "n")
    assert await comes_to(client, "p") == "n"


async def test_taints_selectors_and_affinity_count(client: Client) -> None:
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    await add_node(client, "gpu", cpu="32", taints=[taint], labels={"disk": "ssd", "size": "9"})
    await add_node(client, "a", labels={"disk": "ssd", "size": "3"})
    await add_node(client, "b", labels={"disk": "hdd", "size": "7"})

    def affine(key: str, operator: str, *values: str) -> Json:
        terms = [{"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}]
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}

    expected: dict[str, tuple[str, Json]] = {
        "selected": ("a", {"nodeSelector": {"disk": "ssd"}}),
        "in": ("b", {"affinity": affine("disk", "In", "hdd")}),
        "large": ("b", {"affinity": affine("size", "Gt", "5")}),
        "tolerant": ("gpu", {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}),
    }
    for name, (node, spec) in expected.items():
        await client.post(PODS, asking(name, **spec))
        assert await comes_to(client, name) == node, name
    await client.post(PODS, asking("nowhere", nodeSelector={"disk": "tape"}))
    assert await waits_for(client, "nowhere") == (
        "0/3 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: present}, "
        "2 node(s) didn't match Pod's node affinity/selector."
    )


async def test_pods_of_other_schedulers_and_gated_pods_are_left_alone(client: Client) -> None:
    await add_node(client, "n")
    await client.post(PODS, asking("ours", schedulerName="kai-ledger"))
    await client.post(PODS, asking("gated", schedulingGates=[{"name": "later"}]))
    await client.post(PODS, asking("last"))
    assert await comes_to(client, "last") == "n"
    for name in ("ours", "gated"):
        assert "nodeName" not in (await client.get(f"{PODS}/{name}")).json["spec"]
    await client.merge(f"{PODS}/gated", {"spec": {"schedulingGates": None}})
    assert await comes_to(client, "gated") == "n"


async def test_pods_of_other_schedulers_take_room(client: Client) -> None:
    await add_node(client, "n", cpu="1")
    await client.post(PODS, asking("other", schedulerName="kai-ledger", nodeName="n"))
    await client.post(PODS, asking("p"))
    assert await waits_for(client, "p") == "0/1 nodes are available: 1 Insufficient cpu."
    await client.delete(f"{PODS}/other?gracePeriodSeconds=0")
    assert await comes_to(client, "p") == "n"
