"""The guide from Volcano followed where Volcano runs itself: `make beside ARGS="--only guide-volcano"`.

PodGroups are as Volcano's own controllers and scheduler write them, by its own definitions; its Jobs have pods when its
Job controller makes them.
"""

import asyncio
import os
from contextlib import ExitStack

import pytest

from tests.e2e import guide_steps as steps
from tests.e2e.cluster import Cluster, Json
from tests.e2e.live_stack import LiveStack, running
from tests.e2e.test_adopting import JOBS, decided, define, work_of
from tests.measured.beside.peers import VOLCANO_SCHEDULER, run_peer, run_volcanos_controllers, volcano_definitions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("KAI_TEST_GUIDE") != "volcano", reason="needs Volcano itself: make beside"),
]

_GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups"
_VOLCANO_JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/{namespace}/jobs"


FLEET = steps.FOUR_ALIGNED_NODES


def volcano_job(name: str, scheduler: str, *, workers: int, gpus: int = 2, seconds: float | None = None) -> Json:
    """A Job of Volcano's, a master and workers, as its admission webhook would leave it."""
    template = steps.job(name, scheduler, pods=1, gpus=gpus)["spec"]["template"]
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
            steps.new_work_fits(cluster, VOLCANO_SCHEDULER, new, pods=3)
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
    await define(cluster, volcano_definitions())
    await steps.created(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "volcano-system"}})


async def _groups(cluster: Cluster) -> dict[str, Json]:
    """PodGroups once nobody writes them any more, by the work that they are of."""
    groups = await steps.settled(cluster, _GROUPS.format(namespace=cluster.namespace))
    # Those that its controllers make are named after the Job, and have its uid at the end.
    owners = {name: one["metadata"].get("ownerReferences", [{"name": name}])[0]["name"] for name, one in groups.items()}
    return {owners[name]: one for name, one in groups.items()}


def _told(group: Json) -> tuple[str, int]:
    """Phase and running pods by a PodGroup's status."""
    status = group.get("status", {})
    return status.get("phase", ""), status.get("running", 0)


def _train(scheduler: str, namespace: str) -> Json:
    """The guide's Job without its PodGroup."""
    (work,) = [one for one in work_of("volcano", namespace, scheduler) if one["kind"] == "Job"]
    return work


async def _before(cluster: Cluster) -> None:
    """Volcano alone: the guide's work, a Job of Volcano's, and a plain Job."""
    await steps.created(cluster, *work_of("volcano", cluster.namespace))
    await steps.until_pods(cluster, steps.run(VOLCANO_SCHEDULER, 2))
    await steps.created(cluster, volcano_job("first", VOLCANO_SCHEDULER, workers=2))
    await steps.until_pods(cluster, steps.run(VOLCANO_SCHEDULER, 5))
    await steps.created(cluster, steps.job("plain", VOLCANO_SCHEDULER, pods=1, gpus=1))
    await steps.until_pods(cluster, steps.run(VOLCANO_SCHEDULER, 6))


async def _in_shadow(cluster: Cluster, shadow: LiveStack) -> None:
    """A Job more starts; of one that is too large there are no pods, which a shadow could decide on."""
    await steps.created(cluster, volcano_job("second", VOLCANO_SCHEDULER, workers=2))
    await steps.until_pods(cluster, steps.run(VOLCANO_SCHEDULER, 9))
    await steps.created(cluster, volcano_job("huge", VOLCANO_SCHEDULER, workers=8, gpus=4))
    await shadow.until(decided([VOLCANO_SCHEDULER]))
    steps.shadow_is_right(shadow, VOLCANO_SCHEDULER, pods=3)
    await shadow.check()
    await _huge_is_held_back(cluster)


async def _huge_is_held_back(cluster: Cluster) -> None:
    """The Job that Volcano's scheduler has not let in has no pods, and nothing of ours is in its PodGroup."""
    group = (await _groups(cluster))["huge"]
    assert _told(group) == ("Pending", 0)
    assert steps.written_by_us([group]) == []
    await steps.until_pods(cluster, lambda items: steps.names_of(items, "huge") == [])


async def _one_namespace(cluster: Cluster, live: LiveStack) -> None:
    """A Job of Volcano's and the guide's Job with the other name, while its scheduler runs and lets groups in."""
    await live.create(volcano_job("ours", "kai-ledger", workers=2))
    await live.until(steps.of_ours("ours", 3))
    await steps.gone(cluster, f"{JOBS}/volcano-train", "volcano-train")
    await live.create(_train("kai-ledger", cluster.namespace))
    state = await live.until(steps.of_ours("volcano-train", 2))
    groups = await _groups(cluster)
    assert (_told(groups["ours"]), _told(groups["volcano-train"])) == (("Running", 3), ("Running", 2))
    assert steps.written_by_us(groups[name] for name in ("first", "second", "huge")) == []
    steps.placements_are_right(live)
    assert state.counters.rejections == {}
    await live.check()


async def _all(cluster: Cluster, live: LiveStack) -> None:
    """Volcano's scheduler is stopped, its controllers go on; ours lets in what is ours."""
    await live.create(volcano_job("alone", "kai-ledger", workers=1, seconds=3))
    async with cluster.client() as client:
        await steps.until_items(client, _VOLCANO_JOBS.format(namespace=cluster.namespace), _alone_is_over)
    await _huge_is_held_back(cluster)
    steps.placements_are_right(live)
    state = await live.check()
    assert state.counters.rejections == {}


def _alone_is_over(jobs: list[Json]) -> bool:
    (status,) = [one.get("status", {}) for one in jobs if one["metadata"]["name"] == "alone"]
    return bool(status.get("state", {}).get("phase") == "Completed")


async def _back(cluster: Cluster) -> None:
    """New Jobs, and the guide's Job under the same PodGroup, are Volcano's again; what we placed goes on."""
    before = (await _groups(cluster))["volcano-train"]
    await steps.created(cluster, volcano_job("back", VOLCANO_SCHEDULER, workers=1))
    await steps.until_pods(cluster, steps.run(VOLCANO_SCHEDULER, 2, "back"))
    await steps.gone(cluster, f"{JOBS}/volcano-train", "volcano-train")
    await steps.created(cluster, _train(VOLCANO_SCHEDULER, cluster.namespace))
    await steps.until_pods(cluster, steps.run(VOLCANO_SCHEDULER, 2, "volcano-train"))
    after = (await _groups(cluster))["volcano-train"]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert _told(after) == ("Running", 2)
    await _huge_is_held_back(cluster)
    await steps.until_pods(cluster, steps.run("kai-ledger", 3))
