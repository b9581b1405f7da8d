"""The guide from Koordinator followed where Koordinator runs itself: `make beside ARGS="--only guide-koordinator"`.

Its scheduler runs with the configuration of its manifests; PodGroups are as it writes them, by its own definitions.
"""

import asyncio
import os
from contextlib import ExitStack

import pytest

from tests.e2e import guide_steps as steps
from tests.e2e.cluster import Cluster, Json
from tests.e2e.live_stack import LiveStack, running
from tests.e2e.test_adopting import JOBS, decided, define, work_of
from tests.measured.beside.peers import KOORDINATOR_SCHEDULER, koordinator_definitions, run_peer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("KAI_TEST_GUIDE") != "koordinator", reason="needs Koordinator itself: make beside"
    ),
]

_GROUPS = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/{namespace}/podgroups"
_GANG = "gang.scheduling.koordinator.sh"


FLEET = steps.FOUR_ALIGNED_NODES


def gang(name: str, least: int) -> Json:
    return {"annotations": {f"{_GANG}/name": name, f"{_GANG}/min-available": str(least)}}


def pod_group(name: str, least: int) -> Json:
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": least, "scheduleTimeoutSeconds": 300},
    }


def in_group(name: str) -> Json:
    return {"labels": {"pod-group.scheduling.sigs.k8s.io": name}}


def test_the_guide_of_koordinator_is_followed_beside_koordinator_itself(cluster: Cluster) -> None:
    asyncio.run(_define(cluster))
    root = cluster.root / "kai"
    with ExitStack() as koordinator:
        run_peer(koordinator, cluster.root, cluster.tls_kubeconfig, KOORDINATOR_SCHEDULER)
        asyncio.run(_before(cluster))
        new = steps.job("new", KOORDINATOR_SCHEDULER, pods=2, gpus=2, metadata=gang("new", 2))
        steps.new_work_fits(cluster, KOORDINATOR_SCHEDULER, new, pods=2)
        with running(LiveStack(root, cluster, shadow=KOORDINATOR_SCHEDULER, observed=True)) as shadow:
            asyncio.run(_in_shadow(cluster, shadow))
        with running(LiveStack(root, cluster)) as live:
            asyncio.run(_one_namespace(cluster, live))
    with running(LiveStack(root, cluster)) as live:
        asyncio.run(_all(cluster, live))
    with ExitStack() as koordinator:
        run_peer(koordinator, cluster.root, cluster.tls_kubeconfig, KOORDINATOR_SCHEDULER)
        asyncio.run(_back(cluster))


async def _define(cluster: Cluster) -> None:
    await define(cluster, koordinator_definitions())
    await steps.created(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "koordinator-system"}})


async def _before(cluster: Cluster) -> None:
    """Koordinator alone: the guide's gang by annotations, and one by a PodGroup."""
    await steps.created(cluster, *work_of("koordinator", cluster.namespace))
    await steps.until_pods(cluster, steps.run(KOORDINATOR_SCHEDULER, 2))
    work = steps.job("first", KOORDINATOR_SCHEDULER, pods=2, gpus=2, metadata=in_group("first"))
    await steps.created(cluster, pod_group("first", 2), work)
    await steps.until_pods(cluster, steps.run(KOORDINATOR_SCHEDULER, 4))


async def _in_shadow(cluster: Cluster, shadow: LiveStack) -> None:
    """A gang more starts; one that is too large waits, and the shadow tells why."""
    await steps.created(cluster, steps.job("second", KOORDINATOR_SCHEDULER, pods=2, gpus=2, metadata=gang("second", 2)))
    await steps.until_pods(cluster, steps.run(KOORDINATOR_SCHEDULER, 6))
    await steps.created(cluster, steps.job("huge", KOORDINATOR_SCHEDULER, pods=7, gpus=4, metadata=gang("huge", 7)))
    await shadow.until(decided([KOORDINATOR_SCHEDULER]))
    name, *_ = steps.names_of(await steps.until_pods(cluster, lambda items: len(items) == 13), "huge")
    assert "nvidia.com/gpu: 4 needed" in await steps.shown(shadow, name, "InsufficientResource")
    steps.shadow_is_right(shadow, KOORDINATOR_SCHEDULER, pods=2)
    await shadow.check()
    groups = await steps.settled(cluster, _GROUPS.format(namespace=cluster.namespace))
    assert steps.written_by_us(groups.values()) == []


async def _one_namespace(cluster: Cluster, live: LiveStack) -> None:
    """Gangs of ours beside Koordinator's; it writes the statuses of all PodGroups, and so do we of ours."""
    await live.create(
        steps.job("ours", "kai-ledger", pods=2, gpus=3, metadata=gang("ours", 2)),
        pod_group("grouped", 2),
        steps.job("grouped", "kai-ledger", pods=2, gpus=1, metadata=in_group("grouped")),
    )
    await live.until(steps.of_ours("ours", 2))
    state = await live.until(steps.of_ours("grouped", 2))
    groups = await steps.settled(cluster, _GROUPS.format(namespace=cluster.namespace))
    phases = {name: (one["status"]["phase"], one["status"]["running"]) for name, one in groups.items()}
    assert phases == {"first": ("Running", 2), "grouped": ("Running", 2)}
    assert steps.written_by_us(groups.values()) == ["grouped"]
    steps.placements_are_right(live)
    assert state.counters.rejections == {}
    await live.check()


async def _all(cluster: Cluster, live: LiveStack) -> None:
    """Koordinator is stopped; the work that waited for it is made anew with the other name, under the same gang."""
    await steps.gone(cluster, f"{JOBS}/huge", "huge")
    await live.create(steps.job("huge", "kai-ledger", pods=3, gpus=1, metadata=gang("huge", 3)))
    state = await live.until(steps.of_ours("huge", 3))
    steps.placements_are_right(live)
    assert state.counters.rejections == {}
    await live.check()


async def _back(cluster: Cluster) -> None:
    """New gangs are Koordinator's again, and what we placed goes on."""
    await steps.created(cluster, steps.job("back", KOORDINATOR_SCHEDULER, pods=2, gpus=1, metadata=gang("back", 2)))
    await steps.until_pods(cluster, steps.run(KOORDINATOR_SCHEDULER, 2, "back"))
    await steps.until_pods(cluster, steps.run("kai-ledger", 7))
