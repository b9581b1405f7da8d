"""Two phases, end to end: a gang asks for nodes, waits for them, and starts there; what failed is asked for again."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from kaicore.ledger.log.port import Filter
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import ProvisioningRequested
from kaicore.rules.state.cluster_state import ClusterState

from tests.e2e.cluster import PATIENCE_S, foreign_kubeconfig
from tests.e2e.live_stack import LiveStack, bound, ours, pod_manifest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(foreign_kubeconfig() is not None, reason="the simulated autoscaler is for simulated clusters"),
]

#: One node, and two in reserve.
FLEET = """
autoscaler: {delay: 300ms}
groups:
  - name: cpu
    count: 1
    reserve: 2
    zones: 1
    perZone: {cpus: 8, memory: 32Gi}
    nrt: {publisher: none}
    timing: {terminationSeconds: 100ms}
"""

REQUESTS = "/apis/autoscaling.x-k8s.io/v1/namespaces/{namespace}/provisioningrequests"

SETTINGS = """
provisioning:
  class_name: best-effort-atomic-scale-up.autoscaling.x-k8s.io
  backoff_us: 1000000
"""


def gang(name: str, count: int) -> dict[str, Any]:
    """A Job with pods that start together, each on a node of its own."""
    pod = pod_manifest(name, cpu="6", memory="1Gi")
    template = {"metadata": {"labels": {"app": name}}, "spec": pod["spec"]}
    annotations = {"kai.scheduler/batch-min-member": str(count)}
    spec = {"template": template, "parallelism": count, "completions": count}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": annotations},
        "spec": spec,
    }


def stands(holds: Callable[[Any], object]) -> Callable[[ClusterState], bool]:
    return lambda state: any(holds(request) for request in state.provisioning.standing.values())


def nothing_stands(state: ClusterState) -> bool:
    return not state.provisioning.standing and state.counters.bound > 0


async def listing(stack: LiveStack, path: str) -> Any:
    async with stack.client() as client:
        return msgspec.json.decode(await client.get(path.format(namespace=stack.namespace)))


async def items(stack: LiveStack, path: str) -> list[Any]:
    return list((await listing(stack, path))["items"])


async def first_added(stack: LiveStack, path: str, version: str) -> Any:
    """The first object of a kind after a resource version, though it may be gone by now."""
    async with stack.client() as client, asyncio.timeout(PATIENCE_S):
        watch = client.watch(
            path.format(namespace=stack.namespace), resource_version=version, timeout_s=int(PATIENCE_S)
        )
        async with watch as chunks:
            async for lines in chunks:
                for event in map(msgspec.json.decode, lines):
                    if event["type"] == "ADDED":
                        return event["object"]
    raise AssertionError(f"no object of {path} came")


async def events(stack: LiveStack, *types: str, after: int = 0) -> list[Any]:
    async with stack.log() as log:
        return [decode_payload(event) for event in await log.read("e2e", after=after, where=Filter(types=types))]


async def recorded(
    stack: LiveStack, kind: str, *, after: int = 0, holds: Callable[[Any], bool] = lambda _: True
) -> int:
    """Wait until an event of a kind is in the log of which something holds; the log's position then."""
    async with asyncio.timeout(PATIENCE_S):
        while not any(map(holds, await events(stack, kind, after=after))):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    async with stack.log() as log:
        return (await log.head("e2e")).position


async def all_gone(stack: LiveStack, path: str) -> None:
    """Wait until no object is left of a kind."""
    async with asyncio.timeout(PATIENCE_S):
        while await items(stack, path):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_a_gang_gets_its_nodes_after_a_larger_one_for_which_there_are_too_few(stack: LiveStack) -> None:
    before = await _one_that_is_too_large_asks_again_and_again(stack)
    await _one_that_fits_gets_its_nodes_and_starts_on_them(stack, before)
    await stack.check()


async def _one_that_fits_gets_its_nodes_and_starts_on_them(stack: LiveStack, before: int) -> None:
    version = (await listing(stack, REQUESTS))["metadata"]["resourceVersion"]
    await stack.create(gang("train", 3))
    request = await first_added(stack, REQUESTS, version)
    assert request["metadata"]["ownerReferences"][0]["kind"] == "Job"
    assert [one["count"] for one in request["spec"]["podSets"]] == [3]

    state = await stack.until(bound(3, "train"))
    assert {entry.node for entry in ours(state, "train")} == {"cpu-0", "cpu-1", "cpu-2"}
    await stack.until(nothing_stands)
    await recorded(stack, "ProvisioningRequestRemoved", after=before)
    await all_gone(stack, REQUESTS)
    await all_gone(stack, "/api/v1/namespaces/{namespace}/podtemplates")
    kinds = ("ProvisioningRequested", "ProvisioningRequestCreated", "ProvisioningWithdrawn")
    assert [type(one).__name__ for one in await events(stack, *kinds, after=before)] == list(kinds)
    pods = await items(stack, "/api/v1/namespaces/{namespace}/pods")
    consumed = {pod["metadata"]["annotations"]["autoscaling.x-k8s.io/consume-provisioning-request"] for pod in pods}
    assert consumed == {request["metadata"]["name"]}


async def _one_that_is_too_large_asks_again_and_again(stack: LiveStack) -> int:
    await stack.create(gang("large", 5))
    state = await stack.until(stands(lambda request: request.attempt >= 2 and request.ended == "Failed"))
    (standing,) = state.provisioning.standing.values()
    assert standing.message.startswith("no node is left in reserve for pod 4 of 5")
    requests = await events(stack, "ProvisioningRequested")
    assert [one.attempt for one in requests[:2] if isinstance(one, ProvisioningRequested)] == [1, 2]
    (first, *_) = ours(state, "large")
    reasons = stack.ask("why", first.pod.subject)["reasons"]
    assert any(one["code"] in ("ProvisioningRetried", "WaitsForProvisioning") for one in reasons)
    assert len(await items(stack, "/api/v1/nodes")) == 1, "nodes come whole or not at all"
    async with stack.client() as client:
        jobs = f"/apis/batch/v1/namespaces/{stack.namespace}/jobs"
        await client.delete(f"{jobs}/large", {"propagationPolicy": "Background"})
    await recorded(stack, "PodDeleted")
    before = await recorded(stack, "ProvisioningWithdrawn", holds=lambda one: one.reason == "Gone")
    await stack.until(lambda state: not state.provisioning.standing)
    await all_gone(stack, REQUESTS)
    return before
