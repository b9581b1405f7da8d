"""Volcano Jobs and Kubernetes' own groups on an API server: watcher, log, scheduler, binder, and the status."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.discovery import ServedResources, served_version
from kaicore.kube.kinds.table import GROUP_KINDS
from kaicore.kube.wire.resources import OptionalResource
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.groups.dialects.table import expand
from kaicore.rules.groups.labels import NATIVE_POD_GROUP, VOLCANO_JOB, WORKLOAD

from tests.given.servers.kube import DEFINITIONS, PODS, Api, Json, simulated
from tests.integration.binder.conftest import PATIENCE_S, RunningBinder
from tests.integration.scheduling import scheduling
from tests.integration.watcher.conftest import RunningWatcher

NATIVE = "scheduling.k8s.io"
RESOURCES = {kind.name: kind.resource for kind in GROUP_KINDS if isinstance(kind.resource, OptionalResource)}


def versions(*names: str) -> list[Json]:
    """Versions of a definition of which anything goes, the first of them stored."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return [
        {"name": name, "served": True, "storage": name == names[0], "schema": schema, "subresources": {"status": {}}}
        for name in names
    ]


class Stage:
    """An API server with a node, and the services that make something of its pods."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def serve(self, kind: str, *names: str) -> str:
        """Serve a kind in some versions; return where its objects are, in the first of them."""
        resource = RESOURCES[kind]
        spec = {
            "group": resource.group,
            "scope": "Namespaced",
            "names": {"plural": resource.plural, "kind": kind.partition(".")[0]},
            "versions": versions(*names),
        }
        metadata = {
            "name": f"{resource.plural}.{resource.group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        }
        await self.api.client.post(DEFINITIONS, {"metadata": metadata, "spec": spec})
        return f"/apis/{resource.group}/{names[0]}/namespaces/default/{resource.plural}"

    async def gang(self, *names: str, group: str) -> None:
        for name in names:
            await self.api.pod(name, schedulingGroup={"podGroupName": group})

    async def until(self, path: str, holds: Callable[[Json], object]) -> Json:
        async with asyncio.timeout(PATIENCE_S):
            while not holds(seen := await self.api.get(path)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return seen

    async def nodes(self, *names: str) -> list[str]:
        """The nodes of pods, empty for those that have none."""
        return [(await self.api.get(f"{PODS}/{name}"))["spec"].get("nodeName", "") for name in names]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with simulated() as api:
        await api.node("n1")
        yield Stage(api)


@asynccontextmanager
async def running(stage: Stage, database_url: str) -> AsyncIterator[None]:
    """Run watcher, scheduler and binder on an API server."""
    cluster = f"c-{uuid4().hex[:8]}"
    async with await PostgresLog.open(database_url, application="test") as log:
        watcher = RunningWatcher(stage.api, log, cluster)
        binder = RunningBinder(stage.api, log, cluster)
        try:
            await watcher.ready()
            async with scheduling(log, cluster, config=EngineConfig()):
                yield
        finally:
            await binder.kill()
            await watcher.kill()


def scheduled(name: str, status: str) -> Callable[[Json], object]:

    def holds(shown: Json) -> bool:
        conditions = shown.get("status", {}).get("conditions", ())
        return any((one["type"], one["status"]) == (name, status) for one in conditions)

    return holds


@pytest.mark.parametrize(
    ("served", "condition"),
    [
        (("v1alpha2",), "PodGroupScheduled"),
        (("v1beta1",), "PodGroupInitiallyScheduled"),
        (("v1alpha2", "v1alpha3", "v1beta1"), "PodGroupInitiallyScheduled"),
    ],
)
async def test_a_native_group_starts_as_a_whole_and_is_told_so(
    stage: Stage, database_url: str, served: tuple[str, ...], condition: str
) -> None:
    path = await stage.serve(NATIVE_POD_GROUP, *served)
    spec: Json = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    await stage.api.post(path, {"metadata": {"name": "g"}, "spec": spec})
    await stage.gang("a", "b", group="g")
    async with running(stage, database_url):
        waiting = await stage.until(f"{path}/g", scheduled(condition, "False"))
        assert waiting["status"]["conditions"][0]["reason"] == "NotEnoughPods"
        assert await stage.nodes("a", "b") == ["", ""]
        await stage.gang("c", group="g")
        started = await stage.until(f"{path}/g", scheduled(condition, "True"))
        assert [one["reason"] for one in started["status"]["conditions"]] == ["Scheduled"]
        for name in ("a", "b", "c"):
            await stage.until(f"{PODS}/{name}", lambda pod: pod["spec"].get("nodeName") == "n1")


async def test_a_minimum_may_change_while_the_group_runs(stage: Stage, database_url: str) -> None:
    path = await stage.serve(NATIVE_POD_GROUP, "v1beta1")
    spec: Json = {"schedulingPolicy": {"gang": {"minCount": 4}}}
    await stage.api.post(path, {"metadata": {"name": "g"}, "spec": spec})
    await stage.gang("a", "b", group="g")
    async with running(stage, database_url):
        await stage.until(f"{path}/g", scheduled("PodGroupInitiallyScheduled", "False"))
        await stage.api.merge(f"{path}/g", {"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})
        for name in ("a", "b"):
            await stage.until(f"{PODS}/{name}", lambda pod: pod["spec"].get("nodeName"))
        await stage.until(f"{path}/g", scheduled("PodGroupInitiallyScheduled", "True"))
        # More are wanted now: what runs goes on, what comes waits until there are enough.
        await stage.api.merge(f"{path}/g", {"spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}})
        await stage.gang("c", group="g")
        await stage.gang("d", group="g")
        for name in ("c", "d"):
            await stage.until(f"{PODS}/{name}", lambda pod: pod["spec"].get("nodeName"))
        assert await stage.nodes("a", "b") == ["n1", "n1"]


async def test_the_highest_served_version_is_the_one_that_is_read(stage: Stage) -> None:
    await stage.serve(NATIVE_POD_GROUP, "v1alpha2", "v1beta1")
    await stage.serve(WORKLOAD, "v1alpha1")
    async with KubeClient(stage.api.access()) as client:
        for kind, version in ((NATIVE_POD_GROUP, "v1beta1"), (WORKLOAD, "v1alpha1"), (VOLCANO_JOB, None)):
            assert await served_version(client, RESOURCES[kind]) == version
            assert await ServedResources(client, fresh_s=1).version(RESOURCES[kind]) == version


def volcano_job(**task: Any) -> Json:
    """A job of a parameter server and two workers."""
    container = {"name": "main", "image": "x", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
    template = {"spec": {"containers": [container]}}
    tasks = [
        {"name": "ps", "replicas": 1, "template": template},
        {"name": "worker", "replicas": 2, "template": template, **task},
    ]
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "v", "namespace": "default"},
        "spec": {"schedulerName": "kai-ledger", "tasks": tasks},
    }


async def test_a_volcano_job_starts_as_a_whole_with_its_podgroup_and_without(stage: Stage, database_url: str) -> None:
    jobs = await stage.serve(VOLCANO_JOB, "v1alpha1")
    groups = await stage.api.install_pod_groups("scheduling.volcano.sh")
    job = await stage.api.post(jobs, volcano_job())
    first, *others = [made.object for made in expand(job, nodes_for=lambda _: [])]
    async with running(stage, database_url):
        await stage.api.post(PODS, first)
        # One more pod that waits for no other tells that a cycle has passed the first of the gang.
        await stage.api.pod("alone")
        await stage.until(f"{PODS}/alone", lambda pod: pod["spec"].get("nodeName"))
        assert await stage.nodes("v-ps-0") == [""]
        # Volcano's controller is late: the job itself says who starts together.
        for pod in others:
            await stage.api.post(PODS, pod)
        for name in ("v-ps-0", "v-worker-0", "v-worker-1"):
            await stage.until(f"{PODS}/{name}", lambda pod: pod["spec"].get("nodeName") == "n1")
        # Now the PodGroup is there, and its status is written.
        name = f"v-{job['metadata']['uid']}"
        spec = {"minMember": 3, "minTaskMember": {"ps": 1, "worker": 2}, "queue": ""}
        await stage.api.post(groups, {"metadata": {"name": name}, "spec": spec})
        await stage.until(
            f"{groups}/{name}", lambda shown: shown.get("status", {}).get("phase") in ("Inqueue", "Running")
        )
