"""The guide from Volcano followed where Volcano runs itself: `make beside ARGS="--only guide-volcano"`.

PodGroups are as Volcano's own controllers and scheduler write them, by its own definitions; its Jobs have pods when its
Job controller makes them.
"""

import asyncio
import os
from contextlib import ExitStack

import msgspec
import pytest
from kai_cli.load import Loader

from tests.beside.peers import VOLCANO_SCHEDULER, run_peer, run_volcanos_controllers, volcano_definitions
from tests.e2e.cluster import Cluster, Json
from tests.e2e.guide_steps import (
    FOUR_ALIGNED_NODES,
    created,
    job,
    of_ours,
    placements_are_right,
    read_what_is_there,
    run,
    shadow_is_right,
    until_items,
    until_pods,
)
from tests.e2e.live_stack import LiveStack, running
from tests.e2e.test_adopting import decided, object_at, until_served, work_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("KAI_TEST_GUIDE") != "volcano", reason="needs Volcano itself: make beside"),
]

_GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups"
_JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/{namespace}/jobs"


@pytest.fixture
def cluster_profile() -> str:
    return FOUR_ALIGNED_NODES


def volcano_job(name: str, scheduler: str, *, workers: int, gpus: int = 2, seconds: float | None = None) -> Json:
    """A Job of Volcano's, a master and workers, as its admission webhook would leave it."""
    template = job(name, scheduler, pods=1, gpus=gpus)["spec"]["template"]
    del template["spec"]["schedulerName"]
    if seconds is not None:
        template["metadata"] = {"annotations": {"simulator.kai.scheduler/run-seconds": str(seconds)}}
    tasks = (("master", 1), ("worker", workers))
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": scheduler,
            "queue": "default",
            "minAvailable": workers + 1,
            "maxRetry": 3,
            "policies": [{"event": "PodEvicted", "action": "RestartJob"}],
            "tasks": [
                {"name": task, "replicas": count, "minAvailable": count, "maxRetry": 3, "template": template}
                for task, count in tasks
            ],
        },
    }


def test_the_guide_of_volcano_is_followed_beside_volcano_itself(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(_define(cluster))
    root = cluster.root / "kai"
    with ExitStack() as controllers:
        run_volcanos_controllers(controllers, cluster.root, cluster.tls_kubeconfig)
        with ExitStack() as volcano:
            run_peer(volcano, cluster.root, cluster.tls_kubeconfig, VOLCANO_SCHEDULER)
            asyncio.run(_before(cluster))
            new = volcano_job("new", VOLCANO_SCHEDULER, workers=2)
            print("SIM", read_what_is_there(cluster, VOLCANO_SCHEDULER, [new]))
            with running(LiveStack(root, cluster, shadow=VOLCANO_SCHEDULER, observed=True)) as shadow:
                asyncio.run(_in_shadow(cluster, shadow))
            with running(LiveStack(root, cluster)) as live:
                asyncio.run(_one_namespace(cluster, live))
        monkeypatch.setenv("KAI_EMPTY_GROUPS", "true")
        with running(LiveStack(root, cluster)) as live:
            asyncio.run(_all(cluster, live))
        with ExitStack() as volcano:
            run_peer(volcano, cluster.root, cluster.tls_kubeconfig, VOLCANO_SCHEDULER)
            asyncio.run(_back(cluster))


async def _define(cluster: Cluster) -> None:
    definitions = volcano_definitions()
    async with cluster.client() as client:
        assert (await Loader(client).create(definitions)).refused == []
        for definition in definitions:
            await until_served(client, definition)
    await created(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "volcano-system"}})


async def _groups(cluster: Cluster) -> list[Json]:
    async with cluster.client() as client:
        return (await object_at(client, _GROUPS.format(namespace=cluster.namespace)))["items"]


async def _show(cluster: Cluster, at: str) -> None:
    print(at)
    for one in await _groups(cluster):
        m = one["metadata"]
        print("  PG", m["name"], m["resourceVersion"], one["spec"].get("minMember"), one.get("status"), [f["manager"] for f in m["managedFields"]])
    async with cluster.client() as client:
        for one in (await object_at(client, _JOBS.format(namespace=cluster.namespace)))["items"]:
            print("  JOB", one["metadata"]["name"], one.get("status"))


async def _before(cluster: Cluster) -> None:
    """Volcano alone: the guide's work, a Job of Volcano's, and a plain Job."""
    await created(cluster, *work_of("volcano", cluster.namespace))
    await until_pods(cluster, run(VOLCANO_SCHEDULER, 2))
    await created(cluster, volcano_job("first", VOLCANO_SCHEDULER, workers=2))
    await until_pods(cluster, run(VOLCANO_SCHEDULER, 5))
    await created(cluster, job("plain", VOLCANO_SCHEDULER, pods=1, gpus=1))
    await until_pods(cluster, run(VOLCANO_SCHEDULER, 6))
    await _show(cluster, "BEFORE")


async def _in_shadow(cluster: Cluster, shadow: LiveStack) -> None:
    await created(cluster, volcano_job("second", VOLCANO_SCHEDULER, workers=2))
    await created(cluster, volcano_job("huge", VOLCANO_SCHEDULER, workers=8, gpus=4))
    await until_pods(cluster, run(VOLCANO_SCHEDULER, 9))
    await shadow.until(decided([VOLCANO_SCHEDULER]))
    await asyncio.sleep(3)
    await _show(cluster, "SHADOW")
    report = shadow_is_right(shadow, VOLCANO_SCHEDULER, pods=3)
    print(report)
    await shadow.check()


async def _one_namespace(cluster: Cluster, live: LiveStack) -> None:
    """The same Jobs of Volcano's with the other name, while its scheduler runs."""
    await live.create(volcano_job("ours", "kai-ledger", workers=2))
    try:
        async with asyncio.timeout(30):
            state = await live.until(of_ours("ours", 3))
    except TimeoutError:
        await _show(cluster, "OURS HANGS")
        raise
    await _show(cluster, "OURS")
    await asyncio.sleep(10)
    await _show(cluster, "OURS LATER")
    placements_are_right(live)
    assert state.counters.rejections == {}
    await live.check()


async def _all(cluster: Cluster, live: LiveStack) -> None:
    """Volcano's scheduler is stopped, its controllers go on."""
    await live.create(volcano_job("alone", "kai-ledger", workers=1, seconds=3))
    async with cluster.client() as client:
        path = _JOBS.format(namespace=cluster.namespace)

        def over(items: list[Json]) -> bool:
            (state,) = [one.get("status", {}).get("state", {}) for one in items if one["metadata"]["name"] == "alone"]
            return state.get("phase") == "Completed"

        try:
            await until_items(client, path, over)
        finally:
            await _show(cluster, "ALL")
    placements_are_right(live)
    state = await live.check()
    assert state.counters.rejections == {}


async def _back(cluster: Cluster) -> None:
    await created(cluster, volcano_job("back", VOLCANO_SCHEDULER, workers=1))
    await until_pods(cluster, run(VOLCANO_SCHEDULER, 2, "back"))
    await asyncio.sleep(3)
    await _show(cluster, "BACK")
