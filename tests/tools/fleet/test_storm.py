"""Many pods, faults of every kind, kubelets that come and go: in the end API, kubelets and topologies agree."""

import asyncio
import os
import random

import pytest
from kai_apiserver.server import ApiServer
from kai_fleet.fleet import Fleet
from kai_fleet.kubelet.kubelet import available
from kai_fleet.node.nrt import pods_fingerprint
from kaicore.errors import ApiStatus

from tests.tools.fleet.cluster import NRT, PATIENCE_S, PODS, Cluster, Json, fingerprint, free
from tests.tools.fleet.conftest import JoinFleet
from tests.tools.fleet.objects import small_fleet

NODES = 4

FAULTS: list[Json] = [
    {"match": {"userAgent": "kai-fleet"}, "fault": {"kind": kind, "probability": 0.05, "seed": seed}}
    for seed, kind in enumerate(("conflict", "too-many-requests", "internal-error", "reset", "lost-answer"))
] + [
    {"match": {"userAgent": "kai-fleet", "verb": "watch"}, "fault": {"kind": kind, "probability": 0.02, "seed": seed}}
    for seed, kind in enumerate(("drop-watch", "gone", "duplicate-event"))
]


async def storm(cluster: Cluster, fleet: Fleet, chance: random.Random, steps: int) -> None:
    alive: list[str] = []
    for step in range(steps):
        match chance.choice(["create"] * 6 + ["delete"] * 3 + ["force"] * 2 + ["kubelet"]):
            case "create":
                amounts = {"cpu": str(chance.randint(1, 6)), "memory": f"{chance.randint(1, 20)}Gi"}
                if chance.random() < 0.5:
                    amounts["nvidia.com/gpu"] = str(chance.randint(1, 5))
                seconds = str(round(chance.random() / 5, 3)) if chance.random() < 0.4 else "600"
                annotations = {"simulator.kai.scheduler/run-seconds": seconds}
                name, node = f"p{step}-{chance.randrange(10**9)}", f"node-{chance.randrange(NODES)}"
                await cluster.create_pod(name, node=node, amounts=amounts, metadata={"annotations": annotations})
                alive.append(name)
            case "kubelet":
                name = f"node-{chance.randrange(NODES)}"
                if fleet.nodes[name].down:
                    fleet.start_kubelet(name)
                else:
                    fleet.stop_kubelet(name)
            case kind if alive:
                name = alive.pop(chance.randrange(len(alive)))
                try:
                    await cluster.delete_pod(name, grace=0 if kind == "force" else None)
                except ApiStatus as error:
                    assert error.code == 404  # noqa: PT017
        if chance.random() < 0.2:
            await asyncio.sleep(0)
    for down in [node for node in fleet.nodes.values() if node.down]:
        fleet.start_kubelet(down.spec.name)


@pytest.mark.parametrize("seed", range(1, 7 if "KAI_TEST_LONG" in os.environ else 3))
async def test_kubelets_api_and_topologies_agree_after_a_storm(
    cluster: Cluster, join: JoinFleet, server: ApiServer, seed: int
) -> None:
    chance = random.Random(seed)
    async with join(small_fleet(NODES, period="200ms")) as fleet:
        server.faults.add(FAULTS)
        await storm(cluster, fleet, chance, steps=150)
    # The fleet is stopped in the middle of everything, and comes back.
    server.faults.clear()
    async with join(small_fleet(NODES, period="200ms")) as fleet:
        server.faults.add(FAULTS)
        await storm(cluster, fleet, chance, steps=100)
        server.faults.clear()
        await agreement(cluster, fleet)


def settled(fleet: Fleet) -> bool:
    """Nothing is under way, and no pod is about to end."""
    soon = fleet.timers.clock() + 60
    return not any(
        tracked.next_at < soon for node in fleet.nodes.values() for tracked in node.agent.pods.values()
    ) and not any(fleet.writer.is_busy(uid) for node in fleet.nodes.values() for uid in node.agent.pods)


async def agreement(cluster: Cluster, fleet: Fleet) -> None:
    pods: dict[str, Json] = {}

    async def told_apart() -> bool:
        """The API has no pod that is still waited for."""
        pods.clear()
        pods.update({pod["metadata"]["uid"]: pod for pod in await cluster.list(PODS)})
        running = {uid for uid, pod in pods.items() if pod["status"]["phase"] == "Running"}
        return (
            settled(fleet)
            and running == {uid for node in fleet.nodes.values() for uid in node.agent.kubelet.pods}
            and not any(pod["status"]["phase"] == "Pending" for pod in pods.values())
            and not any("deletionTimestamp" in pod["metadata"] for pod in pods.values())
        )

    async with asyncio.timeout(PATIENCE_S):
        while not await told_apart():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    for uid, pod in pods.items():
        if pod["status"]["phase"] == "Running":
            assert uid in fleet.nodes[pod["spec"]["nodeName"]].agent.kubelet.pods
    for name, node in fleet.nodes.items():
        kubelet = node.agent.kubelet
        kubelet.sweep()
        held = kubelet.managers.holders()
        assert held <= set(kubelet.pods)
        printed = pods_fingerprint((pod.namespace, pod.name) for pod in kubelet.pods.values() if pod.uid in held)
        cpus = [amount // 1000 for amount in available(kubelet)["cpu"]]
        topology = await cluster.until(
            NRT,
            name,
            lambda topology: fingerprint(topology) == printed and free(topology, "cpu") == cpus,  # noqa: B023
        )
        assert topology
