"""A pod that missed its zone on a kubelet is placed anew, end to end; `test_set_aside.py` drains nodes."""

from typing import Any

import aiohttp
import pytest
from kaicore.ledger.log.port import Filter
from kaicore.rules.state.cluster_state import ClusterState

from tests.e2e.cluster import TWO_GPU_NODES, Cluster, real_nodes
from tests.e2e.live_stack import LiveStack, ours, pod_manifest

pytestmark = pytest.mark.slow

GPU = "nvidia.com/gpu"

SETTINGS = """
repair_after_us: 100000
"""
FLEET = TWO_GPU_NODES


def job(name: str) -> dict[str, Any]:
    """A Job of one pod that asks for two GPUs on one zone, and to be repaired."""
    pod = pod_manifest(name, cpu="2", memory="2Gi", gpu="2")
    pod["metadata"]["annotations"] = {
        "kai.scheduler/numa-policy": "single-numa-node",
        "kai.scheduler/numa-resources": GPU,
        "kai.scheduler/numa-repair": "true",
    }
    template = {"metadata": {"annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]}
    spec = {"template": template, "backoffLimit": 10}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


async def break_behind_the_publishers_back(cluster: Cluster, stack: LiveStack, node: str) -> None:
    """A GPU of each zone fails, and what the scheduler knows of the node's zones does not tell."""
    async with aiohttp.ClientSession(raise_for_status=True, headers=await stack.admin_headers()) as session:
        async with session.post(cluster.fleet_url(f"nodes/{node}/publisher"), json={"lagSeconds": 3600}):
            pass
        for device in ("gpu-00", "gpu-02"):
            body = {"resource": GPU, "id": device, "healthy": False}
            async with session.post(cluster.fleet_url(f"nodes/{node}/devices"), json=body):
                pass


@pytest.mark.skipif(real_nodes(), reason="the devices of real nodes are not ours to break")
async def test_a_pod_that_missed_its_zone_is_placed_anew_once(cluster: Cluster, stack: LiveStack) -> None:
    await break_behind_the_publishers_back(cluster, stack, "gpu-0")
    await stack.create(job("train"))

    def repaired(state: ClusterState) -> bool:
        return any(
            entry.node == "gpu-1" and entry.observed is not None and not entry.misaligned
            for entry in ours(state, "train")
        )

    state = await stack.until(repaired)
    tally = state.counters
    assert (tally.missed, tally.evictions_decided, tally.evictions) == (1, {"Repaired": 1}, 1)
    (successor,) = [entry for entry in ours(state, "train") if entry.node == "gpu-1"]
    assert successor.replaces_on == "gpu-0"
    async with stack.log() as log:
        (asked,) = await log.read("e2e", where=Filter(types=("RepairRequested",)))
    story = [line["text"] for line in stack.ask("why", asked.subject)["story"]]
    assert any(f"own NUMA policy was missed: {GPU} on node-0+node-1" in text for text in story)
    assert "evicted from gpu-0" in story
    assert stack.ask("why", successor.pod.subject)["notes"] == [
        "replaces a pod that was evicted from gpu-0, and will not be repaired itself"
    ]
    await stack.check()
