"""Pods that the real Kueue admits are placed by kai-ledger, where Kueue says; `make beside ARGS="--only kueue"`.

The API server of `KAI_TEST_KUBECONFIG` has Kueue's own definitions, webhooks and controllers.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.discovery import ObjectPaths
from kaicore.rules.state.cluster_state import ClusterState

from tests.e2e.cluster import PATIENCE_S, Cluster, Json
from tests.e2e.guide_steps import FOUR_ALIGNED_NODES
from tests.e2e.live_stack import LiveStack, ours, pod_manifest, running_on
from tests.e2e.test_adopting import PODS, object_at, runs, take_away, work_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("KAI_TEST_KUEUE" not in os.environ, reason="needs Kueue itself: make beside"),
]

RACK = "cloud.provider.com/topology-rack"
HOST = "kubernetes.io/hostname"
GPU = "nvidia.com/gpu"
_KUEUE = "/apis/kueue.x-k8s.io/v1beta2"


FLEET = FOUR_ALIGNED_NODES


def queues(*, gpus: int, topology: bool = False) -> list[Json]:
    """A ClusterQueue of so many GPUs, with what it needs."""
    amounts = {"cpu": 64, "memory": "256Gi", GPU: gpus}
    flavor: Json = {"nodeLabels": {"kubernetes.io/os": "linux"}, "tolerations": [{"operator": "Exists"}]}
    spec: Json = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [
            {
                "coveredResources": list(amounts),
                "flavors": [
                    {"name": "any", "resources": [{"name": n, "nominalQuota": str(q)} for n, q in amounts.items()]}
                ],
            }
        ],
    }
    made = []
    if topology:
        levels = [{"nodeLabel": RACK}, {"nodeLabel": HOST}]
        made.append(_object("Topology", "fabric", {"levels": levels}))
        flavor["topologyName"] = "fabric"
    return [
        *made,
        _object("ResourceFlavor", "any", flavor),
        _object("ClusterQueue", "team", spec),
        _object("LocalQueue", "train", {"clusterQueue": "team"}),
    ]


def _object(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}


def job(name: str, *, pods: int, gpus: int, annotations: Json | None = None, priority: str = "") -> Json:
    """A Job of Guaranteed pods in the LocalQueue."""
    template = pod_manifest("", cpu="2", memory="4Gi", gpu=str(gpus))
    metadata = {"annotations": annotations or {}}
    labels = {"kueue.x-k8s.io/queue-name": "train"}
    if priority:
        labels["kueue.x-k8s.io/priority-class"] = priority
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "template": {"metadata": metadata, "spec": template["spec"]},
        },
    }


@asynccontextmanager
async def made(live: LiveStack, *documents: Json) -> AsyncIterator[KubeClient]:
    """Objects of all namespaces are taken away at the end, for the tests share Kueue."""
    await live.create(*documents)
    async with live.client() as client:
        try:
            yield client
        finally:
            # Without waiting: where a test has failed, its pods go with its namespace.
            await let_go(client, live, *reversed(documents))


async def workload(client: KubeClient, live: LiveStack, of: str, condition: Callable[[Json], bool]) -> Json:
    """Wait until Kueue's Workload of a Job or pod meets a condition."""
    path = f"{_KUEUE}/namespaces/{live.namespace}/workloads"
    async with asyncio.timeout(PATIENCE_S):
        while True:
            items: list[Json] = (await object_at(client, path))["items"]
            for one in items:
                if any(o["name"] == of for o in one["metadata"].get("ownerReferences", [])) and condition(one):
                    return one
            await asyncio.sleep(0.2)


def has(kind: str, status: str = "True") -> Callable[[Json], bool]:

    def condition(one: Json) -> bool:
        conditions = one.get("status", {}).get("conditions", [])
        return any(c["type"] == kind and c["status"] == status for c in conditions)

    return condition


async def told_why(live: LiveStack, name: str, code: str) -> dict[str, str]:
    """Ask why a pod waits until a reason is among the answers; their messages."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            why = await asyncio.to_thread(live.ask, "why", f"{live.namespace}/{name}")
            shown = {one["code"]: one["message"] for one in why["reasons"]}
            if code in shown:
                return shown
            await asyncio.sleep(0.5)


def on_nodes(state: ClusterState, prefix: str) -> list[str]:
    return sorted(entry.node for entry in ours(state, prefix) if entry.pod.phase == "Running")


def test_the_guide_of_kueue_is_followed_under_kueue_itself(cluster: Cluster) -> None:
    with running_on(cluster) as live:
        asyncio.run(_guide(live))


async def _reserved(client: KubeClient, queue: str) -> dict[str, str]:
    """The holdings of a ClusterQueue as Kueue reports them, by resource."""
    status = (await object_at(client, f"{_KUEUE}/clusterqueues/{queue}"))["status"]
    return {one["name"]: one["total"] for one in status["flavorsReservation"][0]["resources"]}


async def _guide(live: LiveStack) -> None:
    documents = work_of("kueue", live.namespace, "kai-ledger")
    async with made(live, *documents) as client:
        state = await live.until(runs("kai-ledger", 2))
        admitted = await workload(client, live, "kueue-train", has("Admitted"))
        (assigned,) = admitted["status"]["admission"]["podSetAssignments"]
        assert assigned["resourceUsage"][GPU] == "4"
        # Both count the same: what the queue holds here is what Kueue says it holds, each pod once.
        (held,) = [one for one in live.ask("get", "queues")["items"] if one["name"] == "ClusterQueue/team"]
        ours_held = {one["resource"]: one["allocated"] for one in held["resources"]}
        assert ours_held[GPU] == "4"
        async with asyncio.timeout(PATIENCE_S):
            # Kueue writes the status of a ClusterQueue some time after it has admitted.
            while await _reserved(client, "team") != ours_held:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        big = job("big", pods=4, gpus=4)
        await live.create(big)
        await workload(client, live, "big", has("QuotaReserved", "False"))
        pods = await object_at(client, PODS.format(namespace=live.namespace))
        assert [one for one in pods["items"] if one["metadata"]["name"].startswith("big")] == []
        await let_go(client, live, big)
    assert state.counters.rejections == {}
    await live.check()


def test_a_jobs_pods_start_where_kueues_topology_assignment_has_them(cluster: Cluster) -> None:
    with running_on(cluster) as live:
        asyncio.run(_in_a_rack(live))


async def _in_a_rack(live: LiveStack) -> None:
    async with made(live, *queues(gpus=32, topology=True)) as client:
        together = job("rack", pods=4, gpus=3, annotations={"kueue.x-k8s.io/podset-required-topology": RACK})
        await live.create(together)
        state = await live.until(runs("kai-ledger", 4))
        admitted = await workload(client, live, "rack", has("Admitted"))
        (assigned,) = admitted["status"]["admission"]["podSetAssignments"]
        assert on_nodes(state, "rack") == assigned_nodes(assigned["topologyAssignment"])
        # Kueue has room for it on nodes, and no zone of theirs has: 1 + 1 GPUs are left on each.
        halves = job("halves", pods=1, gpus=2, annotations={"kueue.x-k8s.io/podset-required-topology": HOST})
        halves["spec"]["template"]["spec"]["nodeSelector"] = {HOST: on_nodes(state, "rack")[0]}
        await live.create(halves)
        await workload(client, live, "halves", has("Admitted"))
        pods = await pods_of(client, live, "halves", 1)
        shown = await told_why(live, pods[0]["metadata"]["name"], "NumaZoneShort")
        assert "NodeSelectorMismatch" in shown, "the other nodes are not those of Kueue's assignment"
        await take_away(live, [placed_in(live, together), placed_in(live, halves)])
    await live.check()


def assigned_nodes(assignment: Json) -> list[str]:
    """The nodes of an assignment, once for each pod; its slices give values by level, and how many pods each has."""
    nodes: list[str] = []
    last = len(assignment["levels"]) - 1
    for part in assignment["slices"]:
        count = part["domainCount"]
        names, pods = part["valuesPerLevel"][last], part["podCounts"]
        for index in range(count):
            name = names.get("universal") or names["individual"].get("prefix", "") + names["individual"]["roots"][
                index
            ] + names["individual"].get("suffix", "")
            nodes += [name] * (pods.get("universal") or pods["individual"][index])
    return sorted(nodes)


async def pods_of(client: KubeClient, live: LiveStack, prefix: str, count: int) -> list[Json]:
    """Wait until there are so many pods of a name."""
    path = PODS.format(namespace=live.namespace)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = [p for p in (await object_at(client, path))["items"] if p["metadata"]["name"].startswith(prefix)]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.2)


async def let_go(client: KubeClient, live: LiveStack, *documents: Json) -> None:
    paths = ObjectPaths(client)
    for document in documents:
        await client.delete(f"{await paths.object(placed_in(live, document))}?propagationPolicy=Background")


def placed_in(live: LiveStack, document: Json) -> Json:
    return {**document, "metadata": {"namespace": live.namespace, **document["metadata"]}}


def test_what_kueue_preempts_ends_and_frees_its_place_here_too(cluster: Cluster) -> None:
    with running_on(cluster) as live:
        asyncio.run(_preempted(live))


async def _preempted(live: LiveStack) -> None:
    important = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "WorkloadPriorityClass",
        "metadata": {"name": "high"},
        "value": 100,
    }
    async with made(live, important, *queues(gpus=32)) as client:
        low, high = job("low", pods=8, gpus=4), job("high", pods=8, gpus=4, priority="high")
        await live.create(low)
        await live.until(runs("kai-ledger", 8))
        await live.create(high)
        await workload(client, live, "high", has("Admitted"))
        await workload(client, live, "low", has("Admitted", "False"))
        state = await live.until(lambda state: len(on_nodes(state, "high")) == 8)
        assert on_nodes(state, "low") == []
        await let_go(client, live, high)
        state = await live.until(lambda state: len(on_nodes(state, "low")) == 8)
        await take_away(live, [placed_in(live, low)])
    assert state.counters.rejections == {}
    await live.check()


def test_plain_pods_wait_for_kueue_and_then_start(cluster: Cluster) -> None:
    with running_on(cluster) as live:
        asyncio.run(_pods(live))


async def _pods(live: LiveStack) -> None:
    async with made(live, *queues(gpus=4)) as client:
        first, late = _pod("first", gpus=4), _pod("late", gpus=1)
        await live.create(first)
        await live.until(lambda state: len(on_nodes(state, "first")) == 1)
        await live.create(late)
        shown = await told_why(live, "late", "SchedulingGated")
        assert "kueue.x-k8s.io/admission" in shown["SchedulingGated"]
        await workload(client, live, "late", has("QuotaReserved", "False"))
        await let_go(client, live, first)
        await live.until(lambda state: len(on_nodes(state, "late")) == 1)
        await take_away(live, [placed_in(live, late)])
    await live.check()


def _pod(name: str, *, gpus: int) -> Json:
    manifest = pod_manifest(name, cpu="2", memory="4Gi", gpu=str(gpus))
    manifest["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "train"}
    return manifest
