"""The guide from KAI followed where KAI runs itself: `make beside ARGS="--only guide-kai"`.

What is in the cluster is what KAI's own pod-grouper, queue-controller and binder wrote, by KAI's own definitions.
"""

import asyncio
import os
from contextlib import ExitStack

import msgspec
import pytest
from kai_cli.running.load import Loader
from kaicore.rules.groups.dialects.kubeflow import training_job_pods
from kaicore.rules.state.cluster_state import ClusterState

from tests.e2e import guide_steps as steps
from tests.e2e.cluster import Cluster, Json
from tests.e2e.live_stack import LiveStack, ours, running
from tests.e2e.test_adopting import decided, define, work_of
from tests.measured.beside.peers import KAI_SCHEDULER, kai_definitions, run_peer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("KAI_TEST_GUIDE") != "kai", reason="needs KAI itself: make beside"),
]

_GROUPS = "/apis/scheduling.run.ai/v2alpha2/namespaces/{namespace}/podgroups"
_QUEUES = "/apis/scheduling.run.ai/v2/queues"

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


FLEET = steps.FOUR_ALIGNED_NODES


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
    template = steps.job(name, scheduler, pods=1, gpus=2, metadata=in_queue("research"))["spec"]["template"]
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
        new = steps.job("new", KAI_SCHEDULER, pods=2, gpus=2, metadata=in_queue("research"))
        steps.new_work_fits(cluster, KAI_SCHEDULER, new, pods=2)
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
    await define(cluster, [*kai_definitions(), _PYTORCH_JOBS])
    await steps.created(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kai-scheduler"}})


async def _before(cluster: Cluster) -> None:
    """KAI alone: it runs the guide's work, and a gang of which its pod-grouper tells the size."""
    await steps.created(cluster, *work_of("kai", cluster.namespace), queue("mine"))
    await steps.until_pods(cluster, steps.run(KAI_SCHEDULER, 2))
    await made_pytorch_job(cluster, "torch", KAI_SCHEDULER, workers=2)
    await steps.until_pods(cluster, steps.run(KAI_SCHEDULER, 5))
    async with cluster.client() as client:
        groups = await steps.until_items(
            client, _GROUPS.format(namespace=cluster.namespace), lambda items: len(items) == 3
        )
        least = sorted((_work_of_group(one), one["spec"]["minMember"]) for one in groups)
        assert least == [("kai-train", 1), ("kai-train", 1), ("torch", 3)], (
            "a group per pod of a Job, as the guide says"
        )
        await steps.until_items(client, _QUEUES, lambda items: _allocated(items, "research") == "10")


def _work_of_group(group: Json) -> str:
    (owner,) = group["metadata"]["ownerReferences"]
    name: str = owner["name"]
    return name


def _allocated(queues: list[Json], name: str) -> str:
    """GPUs that a Queue's status says its work holds."""
    (status,) = [one.get("status", {}) for one in queues if one["metadata"]["name"] == name]
    return str(status.get("allocated", {}).get("nvidia.com/gpu", ""))


async def _in_shadow(cluster: Cluster, shadow: LiveStack) -> None:
    """KAI runs two more pods; a gang goes over its queue's limit, for KAI as for the shadow."""
    await steps.created(cluster, steps.job("more", KAI_SCHEDULER, pods=2, gpus=2, metadata=in_queue("research")))
    await steps.until_pods(cluster, steps.run(KAI_SCHEDULER, 7))
    await made_pytorch_job(cluster, "late", KAI_SCHEDULER, workers=2)
    await shadow.until(lambda state: decided([KAI_SCHEDULER])(state) and len(state.pods) == 10)
    assert await steps.shown(shadow, "late-worker-1", "OverLimit") == (
        "queue research would be 4 gpu over its limit: 6 gpu asked for, 2 left"
    )
    async with cluster.client() as client:
        await steps.until_items(client, _GROUPS.format(namespace=cluster.namespace), _late_is_over_its_limit)
    steps.shadow_is_right(shadow, KAI_SCHEDULER, pods=2)
    await shadow.check()
    assert steps.written_by_us((await steps.settled(cluster, _QUEUES)).values()) == []


def _late_is_over_its_limit(groups: list[Json]) -> bool:
    (late,) = [one for one in groups if _work_of_group(one) == "late"]
    conditions = late.get("status", {}).get("schedulingConditions", [])
    return "OverLimit" in [reason["reason"] for one in conditions for reason in one["reasons"]]


async def _one_queue(cluster: Cluster, live: LiveStack) -> None:
    """A queue of ours beside KAI's, on the same nodes."""
    mine = {**in_queue("mine"), "annotations": {"kai.scheduler/batch-min-member": "2"}}
    await live.create(steps.job("ours", "kai-ledger", pods=2, gpus=4, metadata=mine))
    await live.create(steps.job("big", "kai-ledger", pods=1, gpus=8, metadata=in_queue("mine")))
    state = await live.until(steps.of_ours("ours", 2))
    assert _least_of(state, "ours") == 2
    (big,) = steps.names_of(await steps.until_pods(cluster, lambda items: steps.names_of(items, "big") != []), "big")
    await steps.shown(live, big, "NumaNeverFits")
    queues = {one["name"]: one["running"] for one in live.ask("get", "queues")["items"]}
    assert queues == {"department": 9, "mine": 2, "research": 7}
    steps.placements_are_right(live)
    groups = await steps.settled(cluster, _GROUPS.format(namespace=cluster.namespace))
    assert {_work_of_group(one) for one in groups.values()} == {"kai-train", "torch", "more", "late"}
    there = await steps.settled(cluster, _QUEUES)
    assert [_allocated([*there.values()], name) for name in ("research", "mine")] == ["14", ""]
    assert steps.written_by_us(there.values()) == []
    assert state.counters.rejections == {}
    await live.check()


def _least_of(state: ClusterState, prefix: str) -> int:
    """The number of pods of ours that must start together."""
    (key,) = {entry.group for entry in ours(state, prefix)}
    root, *below = state.groups[key].sets
    return sum(one.min_pods for one in below) or root.min_pods


async def _all(cluster: Cluster, live: LiveStack) -> None:
    """KAI is stopped, its objects are left; work that waited there is made anew with the other name.

    What KAI runs counts in no limit of ours: the queue may hold its 16 GPUs once more.
    """
    await steps.gone(cluster, "/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs/late", "late")
    await made_pytorch_job(cluster, "late", "kai-ledger", workers=2)
    state = await live.until(steps.of_ours("late", 3))
    assert _least_of(state, "late") == 3
    over = {**in_queue("research"), "annotations": {"kai.scheduler/batch-min-member": "6"}}
    await live.create(steps.job("over", "kai-ledger", pods=6, gpus=2, metadata=over))
    name, *_ = steps.names_of(
        await steps.until_pods(cluster, lambda items: len(steps.names_of(items, "over")) == 6), "over"
    )
    assert await steps.shown(live, name, "OverLimit") == (
        "queue research would be 2 gpu over its limit: 12 gpu asked for, 10 left"
    )
    async with cluster.client() as client:
        await steps.until_items(client, _QUEUES, lambda items: _allocated(items, "research") == "6")
        await steps.until_items(client, _QUEUES, lambda items: _allocated(items, "mine") == "8")
    steps.placements_are_right(live)
    assert state.counters.rejections == {}
    await live.check()


async def _back(cluster: Cluster) -> None:
    """New work is KAI's again, and so are the Queues' statuses; what we placed goes on."""
    await steps.created(cluster, steps.job("back", KAI_SCHEDULER, pods=1, gpus=2, metadata=in_queue("research")))
    await steps.until_pods(cluster, steps.run(KAI_SCHEDULER, 1, "back"))
    async with cluster.client() as client:
        await steps.until_items(client, _QUEUES, lambda items: _allocated(items, "research") == "16")
    await steps.until_pods(cluster, steps.run("kai-ledger", 5))
