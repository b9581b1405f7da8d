"""A black hole, end to end: a node that kills pods is suspect after three, and a probe brings it back once mended."""

from typing import Any

import aiohttp
import pytest
from kaicore.ledger.log.port import Filter
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import NodeSuspected, PodObserved

from tests.e2e.cluster import Cluster, real_nodes
from tests.e2e.live_stack import LiveStack, ours, pod_manifest

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster_profile() -> str:
    return """
groups:
  - name: gpu
    count: 3
    zones: 1
    perZone: {cpus: 8, memory: 32Gi, devices: {nvidia.com/gpu: 1}}
    kubelet: {topologyManagerPolicy: best-effort, kubeReserved: {cpu: "1", memory: 1Gi}}
    nrt: {publisher: rte, delay: 200ms, jitter: 100ms, period: 60s}
    timing: {terminationSeconds: 100ms}
"""


@pytest.fixture
def scheduler_config() -> str:
    return "suspect_probe_us: 4000000\nrecheck_us: 500000\n"


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


@pytest.mark.skipif(real_nodes(), reason="real nodes are not ours to break")
async def test_node_that_kills_pods_takes_three_and_comes_back_by_a_probe(cluster: Cluster, stack: LiveStack) -> None:
    await set_broken(cluster, stack, broken=True)
    await stack.create(*pods("abcd", 6))
    state = await stack.until(lambda state: all(entry.pod.finished for entry in ours(state)) and len(ours(state)) == 24)
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
    await stack.until(lambda state: any(entry.pod.phase == "Succeeded" for entry in ours(state, "e")))
    await stack.create(*pods("f", 1))
    state = await stack.until(lambda state: any(entry.pod.phase == "Succeeded" for entry in ours(state, "f")))
    assert [entry.node for entry in ours(state, "f")] == ["gpu-0"]
    assert not state.node_trials.suspects
    async with stack.log() as log:
        events = await log.read("e2e", where=Filter(types=("NodeSuspected", "NodeCleared")))
        found = decode_payload(events[0])
        assert isinstance(found, NodeSuspected)
        for position in found.failures:
            (event,) = await log.read("e2e", after=position - 1, limit=1)
            shown = decode_payload(event)
            assert isinstance(shown, PodObserved)
            assert (shown.pod.phase, shown.pod.node_name) == ("Failed", "gpu-0")
    assert [event.type for event in events] == ["NodeSuspected", "NodeCleared"]
    await stack.check()
