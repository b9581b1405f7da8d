"""Nodes set aside, end to end: reserved ones, drained ones, and a black hole, which a probe brings back once mended.

`make beside --only plans` tries them on a real API server.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from kai_cli.running.load import Loader
from kaicore.ledger.log.port import Filter
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import NodeSuspected, PodObserved
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.yaml_text import load_yaml

from tests.e2e.cluster import DEPLOY, Cluster, cluster_for_module, real_nodes
from tests.e2e.live_stack import LiveStack, finished, ours, pod_manifest, running_on
from tests.e2e.test_adopting import until_served
from tests.given.cluster.fleets import fleet, nodes

pytestmark = [pytest.mark.slow, pytest.mark.skipif(real_nodes(), reason="real nodes are not ours to break")]


cluster = cluster_for_module(fleet(nodes(3, 1, gpus=1)))


@pytest.fixture(scope="module")
def stack(cluster: Cluster) -> Iterator[LiveStack]:
    asyncio.run(define(cluster))
    with running_on(cluster, "suspect_probe_us: 4000000\nrecheck_us: 500000\n") as live:
        yield live


async def define(cluster: Cluster) -> None:
    definition = load_yaml((DEPLOY / "crds/reservations.yaml").read_text())
    async with cluster.client() as client:
        assert (await Loader(client).create([definition])).refused == []
        await until_served(client, definition)


def pods(works: str, of_each: int) -> list[dict[str, Any]]:
    return [
        pod_manifest(f"{work}-{number}", seconds=0.2, cpu="1", memory="1Gi", gpu="1")
        for number in range(of_each)
        for work in works
    ]


async def set_broken(cluster: Cluster, stack: LiveStack, *, broken: bool) -> None:
    async with (
        aiohttp.ClientSession(raise_for_status=True, headers=await stack.admin_headers()) as session,
        session.post(cluster.fleet_url("nodes/gpu-0/pods"), json={"fail": broken}),
    ):
        pass


async def test_node_that_kills_pods_takes_three_and_comes_back_by_a_probe(cluster: Cluster, stack: LiveStack) -> None:
    await set_broken(cluster, stack, broken=True)
    await stack.create(*pods("abcd", 6))
    state = await stack.until(lambda state: len(ours(state)) == 24 and not held(state))
    (suspect,) = state.node_trials.suspects.values()
    assert suspect.suspected.node == "gpu-0"
    failed = [entry for entry in ours(state) if entry.pod.phase == "Failed"]
    assert {entry.node for entry in failed} == {"gpu-0"}
    assert len(failed) == 3 + suspect.probes
    (row,) = [row for row in stack.ask("get", "nodes")["items"] if row["name"] == "gpu-0"]
    assert row["status"] == "Ready,Suspect"
    assert row["suspect"][0].startswith("for devices since ")

    await set_broken(cluster, stack, broken=False)
    for node in ("gpu-1", "gpu-2"):
        pod = pod_manifest(f"on-{node}", cpu="1", memory="1Gi", gpu="1")
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        await stack.create(pod)
    await stack.until(lambda state: sum(entry.pod.phase == "Running" for entry in ours(state, "on")) == 2)
    await stack.create(*pods("e", 1))
    # The probe clears it by itself: nothing waits for it.
    await stack.until(
        lambda state: (
            not state.node_trials.suspects and any(entry.pod.phase == "Succeeded" for entry in ours(state, "e"))
        )
    )
    assert "cleared for devices: its probe lasted" in stack.ask("audit", "node", "gpu-0")["suspicions"][-1]
    await stack.create(*pods("f", 1))
    state = await stack.until(lambda state: any(entry.pod.phase == "Succeeded" for entry in ours(state, "f")))
    assert [entry.node for entry in ours(state, "f")] == ["gpu-0"]
    async with stack.log() as log:
        events = await log.read("e2e", where=Filter(types=("NodeSuspected", "NodeCleared")))
        found = decode_payload(events[0])
        assert isinstance(found, NodeSuspected)
        for position in found.failures:
            (event,) = await log.read("e2e", after=position - 1, limit=1)
            shown = decode_payload(event)
            assert isinstance(shown, PodObserved)
            assert (shown.pod.phase, shown.pod.node_name) == ("Failed", "gpu-0")
    # It may have been suspect for the works that came first alone, before it was for all.
    assert [event.type for event in events][:: len(events) - 1] == ["NodeSuspected", "NodeCleared"]
    async with stack.client() as client:
        for node in ("gpu-1", "gpu-2"):
            await client.delete(f"/api/v1/namespaces/{stack.namespace}/pods/on-{node}")


def plain(name: str, node: str = "", **more: Any) -> dict[str, Any]:
    """A pod without devices, which runs on a node alone if one is named."""
    pod = pod_manifest(name, cpu="1", memory="1Gi", **more)
    if node:
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return pod


async def deleted(stack: LiveStack, name: str) -> None:
    async with stack.client() as client:
        await client.delete(f"/apis/kai.scheduler/v1alpha1/reservations/{name}")


async def test_reserved_node_takes_only_what_ends_before_the_window_and_all_once_the_reservation_goes(
    cluster: Cluster, stack: LiveStack
) -> None:
    await stack.create(plain("there", "gpu-1"))
    await running_pods(stack, "there")
    window = ("--maintenance", "--nodes", "gpu-1", "--start", "+30m", "--end", "+1h")
    plan = stack.ask("reserve", "window", *window, "--make", "--kubeconfig", str(cluster.kubeconfig))
    assert [row["name"] for row in plan["displaces"]] == ["there"]
    await stack.until(lambda state: "window" in state.reservations)
    refused = stack.ask("reserve", "again", *window, code=1)
    assert refused["refusal"] == "node gpu-1 is reserved by window then"

    short = plain("short", "gpu-1", seconds=0.2)
    short["spec"]["activeDeadlineSeconds"] = 60
    await stack.create(plain("endless", "gpu-1"), short)
    await stack.until(finished(1, "short"))
    why = stack.ask("why", f"{stack.namespace}/endless")
    assert "reserved by window" in str(why), why["verdict"]
    await deleted(stack, "window")
    await running_pods(stack, "endless")


async def test_drain_moves_what_can_go_on_elsewhere_then_all_and_undone_leaves_the_node_to_work(
    cluster: Cluster, stack: LiveStack
) -> None:
    labels = {"app": "mover"}
    pod = plain("mover")
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["gpu-0", "gpu-2"]}]}]
    spec = {
        **{key: value for key, value in pod["spec"].items() if key != "restartPolicy"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}},
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    await stack.create({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "mover"}, "spec": spec})
    (mover,) = await running_pods(stack, "mover")
    drained, other = mover.node, {"gpu-0": "gpu-2", "gpu-2": "gpu-0"}[mover.node]
    await stack.create(plain("stays", drained))
    await running_pods(stack, "stays")

    make = ("--make", "--kubeconfig", str(cluster.kubeconfig))
    plan = stack.ask("drain", drained, "--by", "+1h", "--name", "slow", *make)
    assert {row["group"].rpartition("/")[2][:5]: row["goesOn"] for row in plan["groups"]} == {
        "mover": f"at once: {other}",
        "stays": f"ends at {plan['manifest']['spec']['drainBy'].removesuffix('Z')}.000Z: no controller makes it anew",
    }
    await stack.until(lambda state: any(on(entry, other, "Running") for entry in ours(state, "mover")))
    # It can be nowhere else, so it has until the drain's time; and may stay, once the drain is taken back.
    await running_pods(stack, "stays")
    await stack.create(plain("back", drained))
    await deleted(stack, "slow")
    await running_pods(stack, "back")

    stack.ask("drain", drained, "--by", "+0s", "--name", "fast", *make)
    await stack.until(
        lambda state: "fast" in state.reservations and not any(entry.node == drained for entry in held(state))
    )
    assert [row["inTheWay"] for row in stack.ask("reservations")["reservations"]] == [[]]
    await deleted(stack, "fast")
    await stack.create(plain("after", drained))
    await running_pods(stack, "after")
    async with stack.log() as log:
        decided = await log.read("e2e", where=Filter(types=("EvictionDecided",)))
    reasons = [(event.subject.rpartition("/")[2][:5], decode_payload(event).reason) for event in decided]  # type: ignore[attr-defined]
    assert sorted(reasons) == [("back", "Drained"), ("mover", "Drained"), ("stays", "Drained")]
    await stack.check()


def on(entry: PodEntry, node: str, phase: str) -> bool:
    return entry.node == node and entry.pod.phase == phase


def held(state: ClusterState) -> list[PodEntry]:
    return [entry for entry in ours(state) if not entry.pod.finished]


async def running_pods(stack: LiveStack, prefix: str) -> list[PodEntry]:
    state = await stack.until(lambda state: any(entry.pod.phase == "Running" for entry in ours(state, prefix)))
    return ours(state, prefix)
