"""The guide from KAI followed where KAI runs itself: `make beside ARGS="--only guide-kai"`.

What is in the cluster is what KAI's own pod-grouper, queue-controller and binder wrote, by KAI's own definitions.
"""

import asyncio
import os
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
import yaml
from kai_cli.load import Loader
from kaicore.kube.client import KubeClient
from kaicore.kube.workloads.kubeflow import training_job_pods

from tests.beside.peers import KAI_SCHEDULER, kai_definitions, run_peer
from tests.e2e.cluster import Cluster, Json
from tests.e2e.guide_steps import (
    FOUR_ALIGNED_NODES,
    created,
    job,
    of_ours,
    placements_are_right,
    read_what_is_there,
    reasons_of,
    run,
    shadow_is_right,
    until_items,
    until_pods,
)
from tests.e2e.live_stack import LiveStack, ours, running
from tests.e2e.test_adopting import decided, object_at, take_away, until_served, work_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("KAI_TEST_GUIDE") != "kai", reason="needs KAI itself: make beside"),
]

_GROUPS = "/apis/scheduling.run.ai/v2alpha2/namespaces/{namespace}/podgroups"
_QUEUES = "/apis/scheduling.run.ai/v2/queues"
_BIND_REQUESTS = "/apis/scheduling.run.ai/v1alpha2/bindrequests"

#: Enough of Kubeflow's for KAI's pod-grouper, which reads the owner of a pod.
_PYTORCH_JOBS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "pytorchjobs.kubeflow.org"},
    "spec": {
        "group": "kubeflow.org",
        "scope": "Namespaced",
        "names": {
            "kind": "PyTorchJob",
            "listKind": "PyTorchJobList",
            "plural": "pytorchjobs",
            "singular": "pytorchjob",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest.fixture
def cluster_profile() -> str:
    return FOUR_ALIGNED_NODES


def in_queue(name: str) -> Json:
    return {"labels": {"kai.scheduler/queue": name}}


def queue(name: str) -> Json:
    """A queue below the guide's department."""
    boundless = {"quota": -1, "limit": -1}
    gpu = {"quota": 8, "limit": 16, "overQuotaWeight": 1}
    resources = {"cpu": boundless, "memory": boundless, "gpu": gpu}
    spec = {"parentQueue": "department", "resources": resources}
    return {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


async def made_pytorch_job(cluster: Cluster, name: str, scheduler: str, *, workers: int) -> None:
    """Create a PyTorchJob, and its pods as the training operator makes them."""
    template = job(name, scheduler, pods=1, gpus=2, metadata=in_queue("research"))["spec"]["template"]
    manifest = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": cluster.namespace, **in_queue("research")},
        "spec": {
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": template},
                "Worker": {"replicas": workers, "template": template},
            }
        },
    }
    place = f"/apis/kubeflow.org/v1/namespaces/{cluster.namespace}/pytorchjobs"
    async with cluster.client() as client:
        made = msgspec.json.decode(await client.post(place, manifest))
        pods = [one.object for one in training_job_pods(made)]
        for pod in pods:
            pod["metadata"].pop("uid")
        assert (await Loader(client).create(pods)).refused == []


def test_the_guide_of_kai_is_followed_beside_kai_itself(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_define(cluster))
    root = cluster.root / "kai"
    with ExitStack() as kai:
        run_peer(kai, cluster.root, cluster.tls_kubeconfig, KAI_SCHEDULER)
        asyncio.run(_before(cluster))
        simulated, warnings = read_what_is_there(
            cluster, KAI_SCHEDULER, [job("new", KAI_SCHEDULER, pods=2, gpus=2, metadata=in_queue("research"))]
        )
        print(simulated, warnings)
        with running(LiveStack(root, cluster, shadow=KAI_SCHEDULER, observed=True)) as shadow:
            asyncio.run(_in_shadow(cluster, shadow))
        monkeypatch.setenv("KAI_QUEUE_STATUSES", "false")
        with running(LiveStack(root, cluster)) as live:
            asyncio.run(_one_queue(cluster, live))
    monkeypatch.delenv("KAI_QUEUE_STATUSES")
    with running(LiveStack(root, cluster)) as live:
        asyncio.run(_all(cluster, live))
    with ExitStack() as kai:
        run_peer(kai, cluster.root, cluster.tls_kubeconfig, KAI_SCHEDULER)
        asyncio.run(_back(cluster))


async def _define(cluster: Cluster) -> None:
    definitions = [*kai_definitions(), _PYTORCH_JOBS]
    async with cluster.client() as client:
        assert (await Loader(client).create(definitions)).refused == []
        for definition in definitions:
            await until_served(client, definition)
    await created(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kai-scheduler"}})


async def _before(cluster: Cluster) -> None:
    """KAI alone: it runs the guide's work, and a gang of which its pod-grouper tells the size."""
    await created(cluster, *work_of("kai", cluster.namespace), queue("mine"))
    await until_pods(cluster, run(KAI_SCHEDULER, 2))
    await made_pytorch_job(cluster, "torch", KAI_SCHEDULER, workers=2)
    await until_pods(cluster, run(KAI_SCHEDULER, 5))
    async with cluster.client() as client:
        await until_items(client, _GROUPS.format(namespace=cluster.namespace), lambda items: len(items) == 3)
        await until_items(client, _QUEUES, lambda items: _allocated(items, "research") == "10")


def _allocated(queues: list[Json], name: str) -> str:
    (status,) = [one.get("status", {}) for one in queues if one["metadata"]["name"] == name]
    return str(status.get("allocated", {}).get("nvidia.com/gpu", ""))


async def _in_shadow(cluster: Cluster, shadow: LiveStack) -> None:
    """KAI runs two more pods; a gang goes over its queue's limit, for KAI as for the shadow."""
    await created(cluster, job("more", KAI_SCHEDULER, pods=2, gpus=2, metadata=in_queue("research")))
    await until_pods(cluster, run(KAI_SCHEDULER, 7))
    await made_pytorch_job(cluster, "late", KAI_SCHEDULER, workers=2)
    state = await shadow.until(lambda state: decided([KAI_SCHEDULER])(state) and len(state.pods) >= 10)
    told = await reasons_of(shadow, "late-worker-1")
    print("SHADOW", told, shadow_is_right(shadow, KAI_SCHEDULER, pods=2))
    print("GROUPS", state.groups)
    await shadow.check()


async def _one_queue(cluster: Cluster, live: LiveStack) -> None:
    """A queue of ours beside KAI's, on the same nodes."""
    mine = {**in_queue("mine"), "annotations": {"kai.scheduler/batch-min-member": "2"}}
    await live.create(job("ours", "kai-ledger", pods=2, gpus=4, metadata=mine))
    await live.create(job("big", "kai-ledger", pods=1, gpus=8, metadata=in_queue("mine")))
    state = await live.until(of_ours("ours", 2))
    (big,) = await until_pods_of(cluster, "big")
    print("WHY", await reasons_of(live, big))
    print("QUEUES", live.ask("get", "queues"))
    placements_are_right(live)
    async with cluster.client() as client:
        print("THEIR QUEUES", [(q["metadata"]["name"], q.get("status")) for q in (await object_at(client, _QUEUES))["items"]])
        print("GROUPS", [(g["metadata"]["name"], g["spec"], g["status"]) for g in (await object_at(client, _GROUPS.format(namespace=cluster.namespace)))["items"]])
    assert state.counters.rejections == {}
    await live.check()


async def until_pods_of(cluster: Cluster, prefix: str) -> list[str]:
    def there(items: list[Json]) -> bool:
        return any(one["metadata"]["name"].startswith(prefix) for one in items)
    return [one["metadata"]["name"] for one in await until_pods(cluster, there) if one["metadata"]["name"].startswith(prefix)]


async def _all(cluster: Cluster, live: LiveStack) -> None:
    """KAI is stopped, its objects are left; work that waited there is made anew with the other name."""
    async with cluster.client() as client:
        await _delete(client, cluster, "/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs/late")
        await until_pods(cluster, lambda items: not any(one["metadata"]["name"].startswith("late") for one in items))
        await made_pytorch_job(cluster, "late", "kai-ledger", workers=2)
        print("WHY", await reasons_of(live, "late-worker-1"))
        await _delete(client, cluster, "/apis/batch/v1/namespaces/{namespace}/jobs/kai-train")
        await live.until(of_ours("late", 3))
        await asyncio.sleep(5)
        print("THEIR QUEUES", [(q["metadata"]["name"], q.get("status")) for q in (await object_at(client, _QUEUES))["items"]])
        print("GROUPS", [(g["metadata"]["name"], g["spec"], g["status"]) for g in (await object_at(client, _GROUPS.format(namespace=cluster.namespace)))["items"]])
    print("QUEUES", live.ask("get", "queues"))
    placements_are_right(live)
    state = await live.check()
    assert state.counters.rejections == {}


async def _delete(client: KubeClient, cluster: Cluster, path: str) -> None:
    await client.delete(f"{path.format(namespace=cluster.namespace)}?propagationPolicy=Background")


async def _back(cluster: Cluster) -> None:
    await created(cluster, job("back", KAI_SCHEDULER, pods=1, gpus=2, metadata=in_queue("research")))
    await until_pods(cluster, run(KAI_SCHEDULER, 1, "back"))
    async with cluster.client() as client:
        await asyncio.sleep(3)
        print("THEIR QUEUES", [(q["metadata"]["name"], q.get("status")) for q in (await object_at(client, _QUEUES))["items"]])
