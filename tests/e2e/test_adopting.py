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
import yaml
from kai_cli.load import Loader
from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.kube.client import KubeClient
from kaicore.kube.object_paths import ObjectPaths
from kaicore.kube.shipped_crds import shipped_crds
from kaicore.rules.state.cluster_state import ClusterState

from tests.e2e.cluster import PATIENCE_S, Cluster, Json
from tests.e2e.live_stack import TWO_ALIGNED_NODES, LiveStack, ours, pod_manifest, running
from tests.unit.docs.test_migration_guides import GUIDES, manifests

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("KAI_TEST_LONG" not in os.environ, reason="takes minutes: make beside"),
]

#: Guides that have no queue come first: beside queues, work that names none has no quota.
_ROUNDS = (("volcano", "koordinator"), ("kai", "kueue"))

JOBS = "/apis/batch/v1/namespaces/{namespace}/jobs"
PODS = "/api/v1/namespaces/{namespace}/pods"


@pytest.fixture
def cluster_profile() -> str:
    return TWO_ALIGNED_NODES


async def add_definitions(cluster: Cluster) -> None:
    """Create the definitions of the schedulers that the guides are about."""
    demonstration = Path(str(resources.files("kai_apiserver.demonstration")))
    others = [(demonstration / name).read_text() for name in ("kueue.yaml", "volcano.yaml")]
    documents = [one for text in [*shipped_crds().values(), *others] for one in yaml.safe_load_all(text)]
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
    """The manifests of a guide in a namespace; with another scheduler's name where one is told."""
    documents: list[Json] = list(yaml.safe_load_all(manifests(guide)))
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
    """A shadow has a node for both pods of each scheduler."""
    names = set(names)

    def condition(state: ClusterState) -> bool:
        nodes = [state.pods[uid].pod.scheduler_name for uid, choice in state.shadows.choices.items() if choice.node]
        return all(nodes.count(name) >= 2 for name in names)

    return condition


def left_to(names: Iterable[str]) -> Any:
    """Both pods of each scheduler are there."""
    names = set(names)

    def condition(state: ClusterState) -> bool:
        there = [one.pod.scheduler_name for one in state.pods.values()]
        return all(there.count(name) >= 2 for name in names)

    return condition


def runs(scheduler: str, count: int) -> Any:
    """So many pods of a scheduler run."""

    def condition(state: ClusterState) -> bool:
        phases = [one.pod.phase for one in state.pods.values() if one.pod.scheduler_name == scheduler]
        return phases.count("Running") == count

    return condition


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


def test_what_kueue_admits_is_placed_only_then_where_its_flavor_says(cluster: Cluster) -> None:
    with running(LiveStack(cluster.root / "kai", cluster)) as live:
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
    """What Kueue writes on a gated pod when it admits it: its flavor's labels, and the gates are gone."""
    selector = {"op": "add", "path": "/spec/nodeSelector", "value": {"kubernetes.io/hostname": node}}
    patch = [selector, {"op": "remove", "path": "/spec/schedulingGates"}]
    await client.patch(path, patch, content_type="application/json-patch+json")


async def _admit_job(client: KubeClient, path: str, *, node: str) -> None:
    """What Kueue writes into a Job when it admits it."""
    selector = {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}}}
    await _patch(client, path, {"spec": {"suspend": False, **selector}})


async def _patch(client: KubeClient, path: str, patch: Json) -> None:
    await client.patch(path, patch, content_type="application/merge-patch+json")
