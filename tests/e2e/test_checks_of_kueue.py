"""Admission checks, groups of pods, and Kueue left to itself, under Kueue as it is; `make beside ARGS="--only kueue"`.

What answers a check here stands for a controller of somebody else: an outside judge, and the Cluster Autoscaler.
"""

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from kaicore.kube.api.client import KubeClient

from tests.e2e.cluster import PATIENCE_S, Cluster, Json
from tests.e2e.live_stack import LiveStack, pod_manifest, running_on
from tests.e2e.test_adopting import PODS, object_at, take_away
from tests.e2e.test_under_kueue import (
    FLEET,
    has,
    job,
    let_go,
    made,
    on_nodes,
    placed_in,
    pods_of,
    queues,
    told_why,
    workload,
)

__all__ = ["FLEET"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("KAI_TEST_KUEUE" not in os.environ, reason="needs Kueue itself: make beside"),
]

_KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
_PROVISIONING = "/apis/autoscaling.x-k8s.io/v1"
_QUEUE = {"kueue.x-k8s.io/queue-name": "train"}
_MARK = "kueue.x-k8s.io/podset"


def checked(name: str, controller: str, *, parameters: Json | None = None) -> list[Json]:
    """An admission check, and a ClusterQueue of 8 GPUs that asks for it."""
    spec: Json = {"controllerName": controller}
    if parameters is not None:
        spec["parameters"] = parameters
    check = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": {"name": name},
        "spec": spec,
    }
    documents = queues(gpus=8)
    (queue,) = [one for one in documents if one["kind"] == "ClusterQueue"]
    queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": name}]}
    return [check, *documents]


def condition(kind: str) -> Json:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": kind, "status": "True", "reason": "Judged", "message": "by the test", "lastTransitionTime": now}


async def _until(client: KubeClient, path: str, holds: Callable[[Json], bool]) -> Json:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await object_at(client, path)
            if holds(found):
                return found
            await asyncio.sleep(0.2)


async def _let_in(client: KubeClient, live: LiveStack, of: str) -> None:
    """Say of a workload's checks that they are ready, as their controller would."""
    one = await workload(client, live, of, has("QuotaReserved"))
    path = f"{_KUEUE}/namespaces/{live.namespace}/workloads/{one['metadata']['name']}"
    one = await _until(client, path, lambda found: bool(found["status"].get("admissionChecks")))
    states = [
        {**state, "state": "Ready", "lastTransitionTime": condition("")["lastTransitionTime"], "message": "let in"}
        for state in one["status"]["admissionChecks"]
    ]
    await client.patch(f"{path}/status", {"status": {"admissionChecks": states}})


def test_what_passes_an_admission_check_starts_also_in_a_queue_on_hold(cluster: Cluster) -> None:
    with running_on(cluster) as live:
        asyncio.run(_judged(live))


async def _judged(live: LiveStack) -> None:
    documents = checked("judge", "tests.kai-ledger/judge")
    async with made(live, *documents) as client:
        path = f"{_KUEUE}/admissionchecks/judge"
        await client.patch(f"{path}/status", {"status": {"conditions": [condition("Active")]}})
        judged, alone = job("judged", pods=2, gpus=2), pod_manifest("alone", cpu="2", memory="4Gi", gpu="2")
        alone["metadata"]["labels"] = _QUEUE
        await live.create(judged, alone)
        for name in ("judged", "alone"):
            await workload(client, live, name, has("QuotaReserved"))
        assert "kueue.x-k8s.io/admission" in (await told_why(live, "alone", "SchedulingGated"))["SchedulingGated"]
        pods = (await object_at(client, PODS.format(namespace=live.namespace)))["items"]
        assert [one["metadata"]["name"] for one in pods] == ["alone"], "its quota is reserved, and its check is open"
        for name in ("judged", "alone"):
            await _let_in(client, live, name)
        state = await live.until(
            lambda state: len(on_nodes(state, "judged")) == 2 and len(on_nodes(state, "alone")) == 1
        )
        assert all(_MARK in one.pod.labels for one in state.pods.values() if one.pod.scheduler_name == "kai-ledger")
        # A queue on hold admits nothing, and what it has admitted goes on: a pod that is lost has a successor.
        await client.patch(f"{_KUEUE}/clusterqueues/team", {"spec": {"stopPolicy": "Hold"}})
        await live.until(lambda state: any(queue.stopped for queue in state.queues.values()))
        lost = next(one for one in await pods_of(client, live, "judged", 2) if one["status"]["phase"] == "Running")
        await client.delete(f"{PODS.format(namespace=live.namespace)}/{lost['metadata']['name']}")
        uid = lost["metadata"]["uid"]
        await live.until(
            lambda state: (
                len(on_nodes(state, "judged")) == 2
                and (uid not in state.pods or state.pods[uid].pod.phase != "Running")
            )
        )
        await take_away(live, [placed_in(live, judged), placed_in(live, alone)])
    await live.check()


def test_what_a_provisioning_request_is_granted_for_starts(cluster: Cluster) -> None:
    with running_on(cluster) as live:
        asyncio.run(_provisioned(live))


async def _provisioned(live: LiveStack) -> None:
    config = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ProvisioningRequestConfig",
        "metadata": {"name": "capacity"},
        "spec": {
            "provisioningClassName": "check-capacity.autoscaling.x-k8s.io",
            "managedResources": ["nvidia.com/gpu"],
        },
    }
    of = {"apiGroup": "kueue.x-k8s.io", "kind": config["kind"], "name": "capacity"}
    documents = checked("capacity", "kueue.x-k8s.io/provisioning-request", parameters=of)
    async with made(live, config, *documents) as client:
        grown = job("grown", pods=2, gpus=2)
        await live.create(grown)
        path = f"{_PROVISIONING}/namespaces/{live.namespace}/provisioningrequests"
        (request,) = (await _until(client, path, lambda found: bool(found["items"])))["items"]
        assert request["spec"]["podSets"][0]["count"] == 2
        granted = {"status": {"conditions": [condition("Accepted"), condition("Provisioned")]}}
        await client.patch(f"{path}/{request['metadata']['name']}/status", granted)
        await live.until(lambda state: len(on_nodes(state, "grown")) == 2)
        annotations = [one["metadata"]["annotations"] for one in await pods_of(client, live, "grown", 2)]
        named = "autoscaling.x-k8s.io/consume-provisioning-request"
        assert [one[named] for one in annotations] == [request["metadata"]["name"]] * 2
        await take_away(live, [placed_in(live, grown)])
    await live.check()


def test_a_lost_member_of_a_pod_group_is_followed_by_its_replacement(cluster: Cluster) -> None:
    with running_on(cluster) as live:
        asyncio.run(_group_of_pods(live))


def _member(name: str) -> Json:
    manifest: Json = pod_manifest(name, cpu="2", memory="4Gi", gpu="2")
    manifest["metadata"]["labels"] = {**_QUEUE, "kueue.x-k8s.io/pod-group-name": "band"}
    manifest["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] = "2"
    return manifest


async def _group_of_pods(live: LiveStack) -> None:
    async with made(live, *queues(gpus=4)) as client:
        first, second, third = map(_member, ("band-1", "band-2", "band-3"))
        await live.create(first)
        assert "kueue.x-k8s.io/admission" in (await told_why(live, "band-1", "SchedulingGated"))["SchedulingGated"]
        await live.create(second)
        await live.until(lambda state: len(on_nodes(state, "band")) == 2)
        await let_go(client, live, first)
        path = f"{PODS.format(namespace=live.namespace)}/band-1"
        kept = await _until(client, path, lambda found: found["status"]["phase"] in ("Failed", "Succeeded"))
        assert kept["metadata"]["finalizers"] == ["kueue.x-k8s.io/managed"], "Kueue keeps it until it has a successor"
        await live.create(third)
        state = await live.until(lambda state: len(on_nodes(state, "band-3")) == 1)
        assert len(on_nodes(state, "band-2")) == 1, "the other member goes on"
        await _until(client, PODS.format(namespace=live.namespace), lambda found: len(found["items"]) == 2)
        # Without its Workload a group is over; with it, Kueue keeps what is deleted until it has successors.
        gone = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "band"}}
        await take_away(live, [placed_in(live, gone), placed_in(live, second), placed_in(live, third)])
    await live.check()


def test_kueue_alone_keeps_its_quotas_where_its_objects_are_left_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAI_LEAVE_OUT", "kueue.x-k8s.io")
    with running_on(cluster, "actions: [allocate]") as live:
        asyncio.run(_left_out(live))


async def _left_out(live: LiveStack) -> None:
    documents: list[Any] = queues(gpus=4)
    async with made(live, *documents) as client:
        first, late = job("first", pods=2, gpus=2), job("late", pods=2, gpus=2)
        await live.create(first)
        state = await live.until(lambda state: len(on_nodes(state, "first")) == 2)
        assert not state.queues
        await live.create(late)
        await workload(client, live, "late", has("QuotaReserved", "False"))
        await let_go(client, live, first)
        state = await live.until(lambda state: len(on_nodes(state, "late")) == 2)
        assert not state.queues
        await take_away(live, [placed_in(live, late)])
    await live.check()
