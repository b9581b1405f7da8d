"""Deployments and ReplicaSets run: pods are made, replaced, rolled out, and go with their owners."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.given.processes.tasks import going
from tests.tools.apiserver.client import PODS, Client

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"
READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}

Json = dict[str, Any]

SERVER_OPTIONS = {"job_backoff_s": 0.05}


@asynccontextmanager
async def kubelet(client: Client, statuses: Callable[[Json], Json | None]) -> AsyncIterator[list[int]]:
    """Give every new pod a status; yields the numbers of pods that there were, one after the other."""
    counts: list[int] = []

    async def run() -> None:
        there: set[str] = set()
        async with client.watch(PODS) as watch:
            while True:
                event = await watch.next()
                metadata = event["object"]["metadata"]
                (there.discard if event["type"] == "DELETED" else there.add)(metadata["name"])
                counts.append(len(there))
                status = statuses(event["object"]) if event["type"] == "ADDED" else None
                if status is not None:
                    await client.merge(f"{PODS}/{metadata['name']}/status", {"status": status})

    async with going(run()):
        yield counts


def running(pod: Json) -> Json:
    del pod
    return {"phase": "Running", "conditions": [READY]}


def deployment(name: str = "web", *, image: str = "a", replicas: int = 3, **spec: Any) -> Json:
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": image}]},
    }
    selector = {"matchLabels": {"app": name}}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": selector, "template": template, **spec},
    }


async def until(client: Client, path: str, holds: Callable[[Json], bool]) -> Json:
    async with asyncio.timeout(60), client.watch(path.rpartition("/")[0]) as watch:
        while True:
            seen: Json = (await watch.next())["object"]
            if seen["metadata"]["name"] == path.rpartition("/")[2] and holds(seen):
                return seen


def rolled_out(seen: Json) -> bool:
    """The condition that `kubectl rollout status` waits for."""
    status, replicas = seen["status"], seen["spec"]["replicas"]
    return (
        status.get("observedGeneration") == seen["metadata"]["generation"]
        and status.get("updatedReplicas", 0) == replicas
        and status.get("replicas", 0) == replicas
        and status.get("availableReplicas", 0) == replicas
    )


async def images(client: Client) -> list[str]:
    items = (await client.get(PODS)).json["items"]
    return [item["spec"]["containers"][0]["image"] for item in items if "deletionTimestamp" not in item["metadata"]]


async def test_a_deployment_has_its_pods_by_way_of_a_replica_set(client: Client) -> None:
    async with kubelet(client, running):
        await client.post(DEPLOYMENTS, deployment())
        seen = await until(client, f"{DEPLOYMENTS}/web", rolled_out)
    conditions = {item["type"]: (item["status"], item["reason"]) for item in seen["status"]["conditions"]}
    assert conditions == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("True", "ReplicaSetUpdated"),
    }
    (replica_set,) = (await client.get(REPLICA_SETS)).json["items"]
    assert replica_set["metadata"]["ownerReferences"][0]["uid"] == seen["metadata"]["uid"]
    digest = replica_set["metadata"]["labels"]["pod-template-hash"]
    assert replica_set["metadata"]["name"] == f"web-{digest}"
    assert replica_set["status"]["availableReplicas"] == 3
    for pod in (await client.get(PODS)).json["items"]:
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["controller"], owner["uid"]) == (
            "ReplicaSet",
            True,
            replica_set["metadata"]["uid"],
        )
        assert pod["metadata"]["name"].startswith(f"web-{digest}-")
        assert pod["metadata"]["labels"] == {"app": "web", "pod-template-hash": digest}


async def test_a_pod_that_is_deleted_or_fails_is_replaced(client: Client) -> None:
    failing: list[str] = []

    def statuses(pod: Json) -> Json:
        if len(failing) < 3:
            failing.append(pod["metadata"]["name"])
            return {"phase": "Failed", "reason": "OutOfcpu"}
        return running(pod)

    async with kubelet(client, statuses):
        await client.post(DEPLOYMENTS, deployment(replicas=1))
        await until(client, f"{DEPLOYMENTS}/web", rolled_out)
        pods = {item["metadata"]["name"]: item for item in (await client.get(PODS)).json["items"]}
        (standing,) = pods.keys() - {*failing}
        async with client.watch(PODS) as watch:
            await client.delete(f"{PODS}/{standing}?gracePeriodSeconds=0")
            await watch.until("DELETED", standing)
        await until(client, f"{DEPLOYMENTS}/web", rolled_out)
        assert standing not in (await client.get(PODS)).items


async def test_a_new_template_is_rolled_out_pod_by_pod(client: Client) -> None:
    async with kubelet(client, running) as counts:
        await client.post(DEPLOYMENTS, deployment(replicas=4))
        await until(client, f"{DEPLOYMENTS}/web", rolled_out)
        counts.clear()
        template = deployment(image="b")["spec"]["template"]
        await client.merge(f"{DEPLOYMENTS}/web", {"spec": {"template": template}})
        await until(client, f"{DEPLOYMENTS}/web", rolled_out)
    assert await images(client) == ["b"] * 4
    assert min(counts) >= 4
    sizes = sorted(item["spec"]["replicas"] for item in (await client.get(REPLICA_SETS)).json["items"])
    assert sizes == [0, 4]


async def test_a_template_of_before_uses_its_replica_set_again(client: Client) -> None:
    async with kubelet(client, running):
        await client.post(DEPLOYMENTS, deployment(replicas=1))
        await until(client, f"{DEPLOYMENTS}/web", rolled_out)
        for revision, image in ((2, "b"), (3, "a")):
            template = deployment(image=image)["spec"]["template"]
            await client.merge(f"{DEPLOYMENTS}/web", {"spec": {"template": template}})
            seen = await until(client, f"{DEPLOYMENTS}/web", rolled_out)
            assert seen["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == str(revision)
    assert len((await client.get(REPLICA_SETS)).json["items"]) == 2


async def test_scaling_makes_and_deletes_pods(client: Client) -> None:
    async with kubelet(client, running):
        await client.post(DEPLOYMENTS, deployment(replicas=1))
        await until(client, f"{DEPLOYMENTS}/web", rolled_out)
        for replicas in (5, 2, 0):
            scale = {"spec": {"replicas": replicas}}
            assert (await client.merge(f"{DEPLOYMENTS}/web", scale)).status == 200
            seen = await until(client, f"{DEPLOYMENTS}/web", rolled_out)
            assert len(await images(client)) == replicas
    assert "replicas" not in seen["status"]


async def test_what_a_deployment_made_goes_with_it(client: Client) -> None:
    async with kubelet(client, running):
        await client.post(DEPLOYMENTS, deployment())
        await until(client, f"{DEPLOYMENTS}/web", rolled_out)
        names = (await client.get(PODS)).items
        async with client.watch(PODS) as watch:
            await client.delete(f"{DEPLOYMENTS}/web")
            for _ in names:
                await watch.until("DELETED")
    assert (await client.get(REPLICA_SETS)).items == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"selector": {"matchLabels": {"app": "other"}}}, "spec.template.metadata.labels"),
        ({"selector": {}}, "spec.selector"),
        ({"selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}, "spec.selector.matchExpressions"),
        ({"replicas": -1}, "spec.replicas"),
    ],
)
async def test_a_deployment_that_makes_no_sense_is_refused(client: Client, change: Json, field: str) -> None:
    answer = await client.post(
        DEPLOYMENTS, deployment(**change) if "replicas" not in change else deployment(replicas=-1)
    )
    assert answer.status == 422, answer
    assert any(field in cause["field"] for cause in answer.json["details"]["causes"])
