"""The way of the migration guides on a live cluster, and work that Kueue admits; `make beside`.

On the simulated API server, or on that of `KAI_TEST_KUBECONFIG`. Kueue itself is not here, but in
`test_under_kueue.py`: what it writes when it admits work is written as an administrator.
"""

import asyncio
import os
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kai_cli.running.load import Loader
from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.discovery import ObjectPaths
from kaicore.kube.kinds.shipped_crds import shipped_crds
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.yaml_text import load_yaml_all

from tests.e2e.cluster import PATIENCE_S, Cluster, Json
from tests.e2e.live_stack import LiveStack, ours, pod_manifest, running, running_on
from tests.given.cluster.fleets import TWO_ALIGNED_NODES
from tests.unit.docs.test_migration_guides import GUIDES, manifests

pytestmark = pytest.mark.slow
long = pytest.mark.skipif("KAI_TEST_LONG" not in os.environ, reason="takes minutes: make beside")

#: Guides that have no queue come first: beside queues, work that names none has no quota.
_ROUNDS = (("volcano", "koordinator"), ("kai", "kueue"))

JOBS = "/apis/batch/v1/namespaces/{namespace}/jobs"
PODS = "/api/v1/namespaces/{namespace}/pods"


FLEET = TWO_ALIGNED_NODES


async def add_definitions(cluster: Cluster) -> None:
    """Create the definitions of the schedulers that the guides are about."""
    demonstration = Path(str(resources.files("kai_apiserver.resources.demonstration")))
    others = [(demonstration / name).read_text() for name in ("kueue.yaml", "volcano.yaml")]
    documents = [one for text in [*shipped_crds().values(), *others] for one in load_yaml_all(text)]
    await define(cluster, documents)


async def define(cluster: Cluster, definitions: list[Json]) -> None:
    """Create definitions, and wait until objects of each can be made."""
    async with cluster.client() as client:
        loaded = await Loader(client).create(definitions)
        assert loaded.refused == []
        for definition in definitions:
            await until_served(client, definition)


async def until_served(client: KubeClient, definition: Json) -> None:
    """Wait until objects of a definition can be made."""
    group, versions = definition["spec"]["group"], definition["spec"]["versions"]
    path = f"/apis/{group}/{versions[0]['name']}/{definition['spec']['names']['plural']}"
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await client.get(path)
            except ApiStatus as error:
                if error.code != 404:
                    raise
                await asyncio.sleep(0.2)
            except ClusterUnavailable:
                # A real API server answers 429 for a moment: storage is (re)initializing.
                await asyncio.sleep(0.2)
            else:
                return


async def object_at(client: KubeClient, path: str) -> Json:
    answer: Json = msgspec.json.decode(await client.get(path))
    return answer


def work_of(guide: str, namespace: str, scheduler: str = "") -> list[Json]:
    """The manifests of a guide in a namespace; with another scheduler's name where one is given."""
    documents: list[Json] = list(load_yaml_all(manifests(guide)))
    for document in documents:
        if "namespace" in document["metadata"]:
            document["metadata"]["namespace"] = namespace
        if document["kind"] == "Job" and scheduler:
            document["spec"]["template"]["spec"]["schedulerName"] = scheduler
    return documents


async def take_away(live: LiveStack, documents: list[Json]) -> None:
    """Delete what guides made, and wait until all pods are gone."""
    async with live.client() as client, asyncio.timeout(PATIENCE_S):
        paths = ObjectPaths(client)
        for document in documents:
            await client.delete(f"{await paths.object(document)}?propagationPolicy=Background")
        while (await object_at(client, PODS.format(namespace=live.namespace)))["items"]:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


def decided(names: Iterable[str]) -> Any:
    names = set(names)

    def condition(state: ClusterState) -> bool:
        nodes = [state.pods[uid].pod.scheduler_name for uid, choice in state.shadows.choices.items() if choice.node]
        return all(nodes.count(name) >= 2 for name in names)

    return condition


def left_to(names: Iterable[str]) -> Any:
    names = set(names)

    def condition(state: ClusterState) -> bool:
        there = [one.pod.scheduler_name for one in state.pods.values()]
        return all(there.count(name) >= 2 for name in names)

    return condition


def runs(scheduler: str, count: int) -> Any:

    def condition(state: ClusterState) -> bool:
        phases = [one.pod.phase for one in state.pods.values() if one.pod.scheduler_name == scheduler]
        return phases.count("Running") == count

    return condition


@long
def test_the_work_of_all_guides_is_decided_on_in_shadow_and_then_placed_and_can_go_back(cluster: Cluster) -> None:
    asyncio.run(add_definitions(cluster))
    root = cluster.root / "kai"
    with running(LiveStack(root, cluster, shadow="*", observed=True)) as shadow:
        position = asyncio.run(_decided_on(shadow))
    # The log of the shadow goes on.
    with running(LiveStack(root, cluster)) as live:
        state = asyncio.run(_placed_and_back(live))
    assert state.position > position
    assert state.counters.rejections == {}


async def _decided_on(shadow: LiveStack) -> int:
    for guides in _ROUNDS:
        documents = [one for guide in guides for one in work_of(guide, shadow.namespace)]
        await shadow.create(*documents)
        await shadow.until(decided(GUIDES[guide] for guide in guides))
        await take_away(shadow, documents)
    return (await shadow.check()).position


async def _placed_and_back(live: LiveStack) -> ClusterState:
    for guides in _ROUNDS:
        documents = [one for guide in guides for one in work_of(guide, live.namespace, "kai-ledger")]
        await live.create(*documents)
        await live.until(runs("kai-ledger", 2 * len(guides)))
        await take_away(live, documents)
        back = [one for guide in guides for one in work_of(guide, live.namespace)]
        await live.create(*back)
        await live.until(left_to(GUIDES[guide] for guide in guides))
        await take_away(live, back)
    return await live.check()


@long
def test_what_kueue_admits_is_placed_only_then_where_its_flavor_says(cluster: Cluster) -> None:
    with running_on(cluster) as live:
        asyncio.run(_admitted_and_preempted(live))


async def _admitted_and_preempted(live: LiveStack) -> None:
    jobs, pods = (place.format(namespace=live.namespace) for place in (JOBS, PODS))
    job = next(one for one in work_of("kueue", live.namespace, "kai-ledger") if one["kind"] == "Job")
    job["spec"]["suspend"] = True
    gated = pod_manifest("alone", cpu="2", memory="4Gi", gpu="2")
    gated["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "train", "kueue.x-k8s.io/managed": "true"}
    gated["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}, {"name": "kueue.x-k8s.io/topology"}]
    await live.create(job, gated, pod_manifest("free", cpu="1", memory="1Gi"))
    state = await live.until(runs("kai-ledger", 1))
    assert [entry.pod.name for entry in ours(state) if entry.node] == ["free"], "the others are not admitted"
    why = live.ask("why", f"{live.namespace}/alone")
    assert any("kueue.x-k8s.io/admission" in one["message"] for one in why["reasons"])
    async with live.client() as client:
        await _admit_pod(client, f"{pods}/alone", node="gpu-1")
        await _admit_job(client, f"{jobs}/kueue-train", node="gpu-0")
        state = await live.until(runs("kai-ledger", 4))
        nodes = {entry.pod.name.split("-")[0]: entry.node for entry in ours(state) if entry.pod.name != "free"}
        assert nodes == {"alone": "gpu-1", "kueue": "gpu-0"}
        # Kueue preempts by suspending the Job: what its pods held is free for others.
        await _patch(client, f"{jobs}/kueue-train", {"spec": {"suspend": True}})
        await live.until(runs("kai-ledger", 2))
        await live.create(*(_of_node(f"next-{number}", "gpu-0") for number in range(2)))
        state = await live.until(runs("kai-ledger", 4))
    assert state.counters.rejections == {}
    await live.check()


def _of_node(name: str, node: str) -> Json:
    manifest = pod_manifest(name, cpu="2", memory="4Gi", gpu="4")
    manifest["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return manifest


async def _admit_pod(client: KubeClient, path: str, *, node: str) -> None:
    """Kueue's writes on a gated pod when it admits it: its flavor's labels, and the gates are gone."""
    selector = {"op": "add", "path": "/spec/nodeSelector", "value": {"kubernetes.io/hostname": node}}
    patch = [selector, {"op": "remove", "path": "/spec/schedulingGates"}]
    await client.patch(path, patch, content_type="application/json-patch+json")


async def _admit_job(client: KubeClient, path: str, *, node: str) -> None:
    """Kueue's writes into a Job when it admits it."""
    selector = {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}}}
    await _patch(client, path, {"spec": {"suspend": False, **selector}})


async def _patch(client: KubeClient, path: str, patch: Json) -> None:
    await client.patch(path, patch, content_type="application/merge-patch+json")


def test_a_job_that_ran_before_the_stack_began_keeps_its_slices_when_a_pod_is_made_anew(cluster: Cluster) -> None:
    """Slice 0 is on gpu-1 and slice 1 on gpu-0, where less room is left, so that a pod by itself would go there."""
    asyncio.run(add_definitions(cluster))
    stack = LiveStack(cluster.root / "kai", cluster)
    asyncio.run(_bound_by_another(stack, {0: "gpu-1", 1: "gpu-1", 2: "gpu-0", 3: "gpu-0"}))
    with running(stack) as live:
        asyncio.run(_made_anew(live, "sliced-1-", "gpu-1"))


def _sliced_job() -> Json:
    kueue, template = "kueue.x-k8s.io", pod_manifest("", cpu="1", memory="1Gi", gpu="2")
    slices = {f"{kueue}/podset-slice-required-topology": "kubernetes.io/hostname", f"{kueue}/podset-slice-size": "2"}
    counts = {"parallelism": 4, "completions": 4, "completionMode": "Indexed"}
    spec = {**counts, "template": {"metadata": {"annotations": slices}, "spec": template["spec"]}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sliced"}, "spec": spec}


async def _bound_by_another(stack: LiveStack, nodes: dict[int, str]) -> None:
    """Another scheduler's remains: the pods of a Job on these nodes by their index, and a pod beside slice 1."""
    levels = [{"nodeLabel": "kubernetes.io/hostname"}]
    topology = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Topology", "metadata": {"name": "hosts"}}
    await stack.create(
        {**topology, "spec": {"levels": levels}}, _sliced_job(), pod_manifest("beside", cpu="1", memory="1Gi", gpu="2")
    )
    path = PODS.format(namespace=stack.namespace)
    async with stack.client() as client, asyncio.timeout(PATIENCE_S):
        while len(items := (await object_at(client, path))["items"]) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        for item in items:
            name = item["metadata"]["name"]
            node = "gpu-0" if name == "beside" else nodes[int(name.split("-")[1])]
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
            await client.post(f"{path}/{name}/binding", {**binding, "target": {"kind": "Node", "name": node}})


async def _made_anew(live: LiveStack, prefix: str, node: str) -> None:
    """A pod is deleted, and its Job makes another, which comes to this node."""
    state = await live.until(runs("kai-ledger", 5))
    (old,) = ours(state, prefix)
    async with live.client() as client:
        await client.delete(f"{PODS.format(namespace=live.namespace)}/{old.pod.name}")

    def placed(state: ClusterState) -> bool:
        return any(entry.node for entry in ours(state, prefix) if entry.pod.uid != old.pod.uid)

    state = await live.until(placed)
    assert {entry.node for entry in ours(state, prefix) if entry.pod.uid != old.pod.uid} == {node}
    await live.check()
