"""Reservation pods of a fleet: the real program says on its pod which GPU the node's kubelet gave it."""

import json

import pytest
from kaicore.kube.normalize.gpu_shares import ReservationSettings, reservation_pod
from kaicore.rules.events.payloads import GpuOpened
from kaicore.rules.objects.gpu_sharing import GPU, GPU_INDEX_ANNOTATION, RESERVATION_NAMESPACE

from tests.tools.fleet.cluster import Cluster, Json
from tests.tools.fleet.conftest import JoinFleet

RESERVATIONS = f"/api/v1/namespaces/{RESERVATION_NAMESPACE}/pods"


@pytest.fixture
async def reservations(cluster: Cluster) -> Cluster:
    await cluster.client.post("/api/v1/namespaces", {"metadata": {"name": RESERVATION_NAMESPACE}})
    return cluster


async def reserve(cluster: Cluster, name: str) -> None:
    opened = GpuOpened("node-0", name, RESERVATION_NAMESPACE, name, "default/1")
    await cluster.client.post(RESERVATIONS, reservation_pod(ReservationSettings("kai-ledger"), opened))


def gpu_of(pod: Json | None) -> str:
    return ((pod or {"metadata": {}})["metadata"].get("annotations") or {}).get(GPU_INDEX_ANNOTATION) or ""


async def test_each_reservation_pod_names_a_gpu_of_its_own_and_gives_it_back(
    reservations: Cluster, join: JoinFleet
) -> None:
    async with join() as fleet:
        devices = fleet.nodes["node-0"].agent.kubelet.managers.devices
        named = {}
        for name in ("one", "two"):
            await reserve(reservations, name)
            named[name] = gpu_of(await reservations.until(RESERVATIONS, name, gpu_of))
        held = {
            gpu
            for held in devices.assigned.values()
            for one in held.values()
            for gpu in devices.pools[GPU].ids(one[GPU])
        }
        assert (len(held), set(named.values())) == (2, held)
        await reservations.client.delete(f"{RESERVATIONS}/one", {})
        await reservations.until(RESERVATIONS, "one", lambda pod: pod is None)
        assert devices.pools[GPU].ids(devices.in_use[GPU]) == [named["two"]]


async def test_program_that_was_stopped_before_it_had_written_writes_when_the_fleet_is_there_again(
    reservations: Cluster, join: JoinFleet
) -> None:
    async with join():
        await reserve(reservations, "one")
        before = await reservations.until(RESERVATIONS, "one", gpu_of)
    patch = {"metadata": {"annotations": {GPU_INDEX_ANNOTATION: None}}}
    await reservations.client.patch(f"{RESERVATIONS}/one", patch)
    async with join():
        assert gpu_of(await reservations.until(RESERVATIONS, "one", gpu_of)) == gpu_of(before)


async def test_pod_that_says_another_gpu_keeps_it(reservations: Cluster, join: JoinFleet) -> None:
    async with join():
        await reserve(reservations, "one")
        await reservations.until(RESERVATIONS, "one", gpu_of)
    await reservations.client.patch(f"{RESERVATIONS}/one", {"metadata": {"annotations": {GPU_INDEX_ANNOTATION: "x"}}})
    async with join():
        # The second pod is taken up after the first.
        await reserve(reservations, "two")
        await reservations.until(RESERVATIONS, "two", gpu_of)
        assert gpu_of(json.loads(await reservations.client.get(f"{RESERVATIONS}/one"))) == "x"
