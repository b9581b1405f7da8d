"""Devices by resource claims, end to end: on a simulated API server, or on that of `KAI_TEST_KUBECONFIG`.

A real one needs the resourceclaim-controller of kube-controller-manager. The nodes are the fleet's.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kai_apiserver.resources import demonstration
from kaicore.errors import ApiStatus
from kaicore.kube.api.client import KubeClient
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.yaml_text import load_yaml_all

from tests.e2e.cluster import PATIENCE_S, Cluster, cluster_for_module, real_nodes
from tests.e2e.live_stack import LiveStack, ours, pod_manifest, running_on
from tests.given.cluster.fleets import fleet, nodes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(real_nodes(), reason="no driver publishes made-up devices of real nodes"),
]

Json = dict[str, Any]
RESOURCE = "/apis/resource.k8s.io/v1"
NUMA = "resource.kubernetes.io/numaNode"


cluster = cluster_for_module(fleet(nodes(2, 2, name="dra", policy="single-numa-node")))


@pytest.fixture(scope="module")
def stack(cluster: Cluster) -> Iterator[LiveStack]:
    """One for all tests, each of which has a driver of its own and takes away what it made."""
    if cluster.simulated:
        asyncio.run(serve_pod_groups(cluster))
    with running_on(cluster) as live:
        yield live
        asyncio.run(live.check())


async def serve_pod_groups(cluster: Cluster) -> None:
    """Have the simulated API server serve Kubernetes' own PodGroups."""
    definitions = Path(demonstration.__file__).parent / "native.yaml"
    async with cluster.client() as client:
        for definition in load_yaml_all(definitions.read_text()):
            await client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)


@asynccontextmanager
async def two_gpus_each(stack: LiveStack, **device: Any) -> AsyncIterator[str]:
    """A GPU on each zone of each node, by a driver of the test's own; yields the name of its class.

    What the test made in its namespace is gone afterwards. `device` is what each GPU says besides.
    """
    driver = f"gpus-{secrets.token_hex(4)}.{stack.namespace}.example.com"
    spec = {
        "selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}],
        "extendedResourceName": f"{driver}/gpu",
    }
    async with stack.client() as client:
        await client.post(f"{RESOURCE}/deviceclasses", {"metadata": {"name": driver}, "spec": spec})
        nodes = [one["metadata"]["name"] for one in await items(client, "/api/v1/nodes")]
        names = [name for name in nodes if name.startswith("dra-")]
        for name in names:
            devices = [{"name": f"gpu-{zone}", "attributes": {NUMA: {"int": zone}}, **device} for zone in range(2)]
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            document = {
                "metadata": {"name": f"{name}-{driver}"},
                "spec": {"driver": driver, "nodeName": name, "pool": pool, "devices": devices},
            }
            await client.post(f"{RESOURCE}/resourceslices", document)
        try:
            yield driver
        finally:
            await clear(stack, client)
            for path in (f"deviceclasses/{driver}", *(f"resourceslices/{name}-{driver}" for name in names)):
                await client.delete(f"{RESOURCE}/{path}", {})


async def clear(stack: LiveStack, client: KubeClient) -> None:
    """Delete pods, claims and their templates, and wait until they are gone."""
    of_namespace = f"{RESOURCE}/namespaces/{stack.namespace}"
    for path in (
        f"/api/v1/namespaces/{stack.namespace}/pods",
        f"{of_namespace}/resourceclaims",
        f"{of_namespace}/resourceclaimtemplates",
    ):
        for one in await items(client, path):
            with suppress(ApiStatus):
                await client.delete(f"{path}/{one['metadata']['name']}", {})
        await until(client, path, lambda left: not left)


async def items(client: KubeClient, path: str) -> list[Json]:
    return list(msgspec.json.decode(await client.get(path))["items"])


def request(device_class: str) -> Json:
    return {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": device_class}}]}}


def with_claim(pod: Json, **reference: str) -> Json:
    pod["spec"]["resourceClaims"] = [{"name": "gpu", **reference}]
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    return pod


def pods_of(stack: LiveStack, state: ClusterState, *prefixes: str) -> list[PodEntry]:
    """The test's own pods: the log and a real cluster may still have those of earlier tests."""
    return [
        entry for entry in ours(state) if entry.pod.namespace == stack.namespace and entry.pod.name.startswith(prefixes)
    ]


def are(stack: LiveStack, phase: str, count: int, *prefixes: str) -> Callable[[ClusterState], bool]:
    return lambda state: sum(entry.pod.phase == phase for entry in pods_of(stack, state, *prefixes)) == count


async def test_claims_get_devices_on_the_zones_of_their_pods_cpus_and_let_them_go(stack: LiveStack) -> None:
    async with two_gpus_each(stack) as driver, stack.client() as client:
        of_namespace = f"{RESOURCE}/namespaces/{stack.namespace}"
        template = {"metadata": {"name": "one"}, "spec": {"spec": request(driver)}}
        await client.post(f"{of_namespace}/resourceclaimtemplates", template)
        pods = [pod_manifest(f"own-{number}", cpu="4", memory="4Gi") for number in range(5)]
        await stack.create(*(with_claim(pod, resourceClaimTemplateName="one") for pod in pods))
        state = await stack.until(are(stack, "Running", 4, "own"))
        claims = {one["metadata"]["name"]: one for one in await items(client, f"{of_namespace}/resourceclaims")}
        given = set()
        by_phase = {entry.pod.name: entry.pod.phase for entry in pods_of(stack, state, "own")}
        (waiting,) = (name for name, phase in by_phase.items() if phase != "Running")
        for entry in pods_of(stack, state, "own"):
            if entry.pod.name == waiting:
                continue
            (use,) = entry.pod.resource_claims
            status = claims[use.claim]["status"]
            (result,) = status["allocation"]["devices"]["results"]
            assert [one["uid"] for one in status["reservedFor"]] == [entry.pod.uid]
            assert result["pool"] == entry.node
            assert entry.predicted is not None
            zones = {one.zone for container in entry.predicted.containers for one in container.zones}
            assert zones == {result["device"].replace("gpu", "node")}
            given.add((result["pool"], result["device"]))
        assert len(given) == 4
        assert driver in str(stack.ask("why", f"{stack.namespace}/{waiting}")["reasons"])
        for pod in pods:
            if pod["metadata"]["name"] != waiting:
                await client.delete(f"/api/v1/namespaces/{stack.namespace}/pods/{pod['metadata']['name']}", {})
        await stack.until(are(stack, "Running", 1, "own"))
        await until(client, f"{of_namespace}/resourceclaims", lambda left: len(left) == 1)


async def test_claims_share_devices_up_to_their_capacity_and_give_their_part_back(stack: LiveStack) -> None:
    shared: Json = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    async with two_gpus_each(stack, **shared) as driver, stack.client() as client:
        of_namespace = f"{RESOURCE}/namespaces/{stack.namespace}"
        part = request(driver)
        part["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"memory": "30Gi"}}
        template = {"metadata": {"name": "part"}, "spec": {"spec": part}}
        await client.post(f"{of_namespace}/resourceclaimtemplates", template)
        pods = [pod_manifest(f"part-{number}", cpu="1", memory="1Gi") for number in range(9)]
        await stack.create(*(with_claim(pod, resourceClaimTemplateName="part") for pod in pods))
        state = await stack.until(are(stack, "Running", 8, "part"))
        allocated = [
            one["status"]["allocation"]["devices"]["results"]
            for one in await items(client, f"{of_namespace}/resourceclaims")
            if one.get("status", {}).get("allocation")
        ]
        results = [result for (result,) in allocated]
        assert {result["consumedCapacity"]["memory"] for result in results} == {"30Gi"}
        assert len({result["shareID"] for result in results}) == 8
        devices = [(result["pool"], result["device"]) for result in results]
        assert sorted(devices.count(device) for device in set(devices)) == [2, 2, 2, 2]
        phases = {entry.pod.name: entry.pod.phase for entry in pods_of(stack, state, "part")}
        (waiting,) = (name for name, phase in phases.items() if phase != "Running")
        assert driver in str(stack.ask("why", f"{stack.namespace}/{waiting}")["reasons"])
        ended = next(name for name in phases if name != waiting)
        await client.delete(f"/api/v1/namespaces/{stack.namespace}/pods/{ended}", {})
        await stack.until(lambda now: any(one.pod.phase == "Running" for one in pods_of(stack, now, waiting)))


async def test_pods_share_a_claim_and_others_get_devices_by_extended_resources(stack: LiveStack) -> None:
    async with two_gpus_each(stack) as driver, stack.client() as client:
        claims = f"{RESOURCE}/namespaces/{stack.namespace}/resourceclaims"
        await client.post(claims, {"metadata": {"name": "shared"}, "spec": request(driver)})
        sharing = [pod_manifest(f"sharing-{number}", seconds=1, cpu="1", memory="1Gi") for number in range(2)]
        extended = pod_manifest("extended", seconds=1, cpu="1", memory="1Gi", **{f"{driver}/gpu": "2"})
        await stack.create(*(with_claim(pod, resourceClaimName="shared") for pod in sharing), extended)
        state = await stack.until(are(stack, "Succeeded", 3, "sharing", "extended"))
        assert len({entry.pod.node_name for entry in pods_of(stack, state, "sharing")}) == 1
        pod = msgspec.json.decode(await client.get(f"/api/v1/namespaces/{stack.namespace}/pods/extended"))
        made = pod["status"]["extendedResourceClaimStatus"]
        assert [one["resourceName"] for one in made["requestMappings"]] == [f"{driver}/gpu"]
        await client.delete(f"/api/v1/namespaces/{stack.namespace}/pods/extended", {})
        await until(client, claims, lambda left: len(left) == 1 and not left[0].get("status", {}).get("allocation"))


async def test_pods_of_a_pod_group_share_the_claim_of_its_template(cluster: Cluster, stack: LiveStack) -> None:
    async with two_gpus_each(stack) as driver, stack.client() as client:
        groups = await pod_groups(cluster, stack, client)
        of_namespace = f"{RESOURCE}/namespaces/{stack.namespace}"
        template = {"metadata": {"name": "one"}, "spec": {"spec": request(driver)}}
        await client.post(f"{of_namespace}/resourceclaimtemplates", template)
        use = {"name": "gpu", "resourceClaimTemplateName": "one"}
        spec = {"schedulingPolicy": {"gang": {"minCount": 3}}, "resourceClaims": [use]}
        made = msgspec.json.decode(await client.post(groups, {"metadata": {"name": "train"}, "spec": spec}))
        if "resourceClaims" not in made["spec"]:
            pytest.skip("DRAWorkloadResourceClaims is off")
        pods = [
            with_claim(pod_manifest(f"train-{number}", seconds=2, cpu="1", memory="1Gi"), **use) for number in range(3)
        ]
        for pod in pods:
            pod["spec"]["schedulingGroup"] = {"podGroupName": "train"}
        await stack.create(*pods)
        state = await stack.until(are(stack, "Running", 3, "train"))
        claims = await items(client, f"{of_namespace}/resourceclaims")
        (owner,) = claims[0]["metadata"]["ownerReferences"]
        assert (len(claims), owner["kind"], owner["name"]) == (1, "PodGroup", "train")
        assert {one["uid"] for one in claims[0]["status"]["reservedFor"]} >= {
            entry.pod.uid for entry in pods_of(stack, state, "train")
        }
        assert {entry.pod.node_name for entry in pods_of(stack, state, "train")} == {
            claims[0]["status"]["allocation"]["devices"]["results"][0]["pool"]
        }
        await stack.until(are(stack, "Succeeded", 3, "train"))
        for pod in pods:
            await client.delete(f"/api/v1/namespaces/{stack.namespace}/pods/{pod['metadata']['name']}", {})
        await client.delete(f"{groups}/train", {})
        await until(client, f"{of_namespace}/resourceclaims", lambda left: not left)


async def pod_groups(cluster: Cluster, stack: LiveStack, client: KubeClient) -> str:
    """Return the path of the namespace's PodGroups; skip where a real API server serves none."""
    version = "v1alpha2" if cluster.simulated else "v1beta1"
    path = f"/apis/scheduling.k8s.io/{version}/namespaces/{stack.namespace}/podgroups"
    try:
        await client.get(path)
    except ApiStatus:
        pytest.skip("GenericWorkload is off")
    return path


async def until(client: KubeClient, path: str, holds: Callable[[list[Json]], object]) -> None:
    """Look at the objects of a collection until something holds of them."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds(await items(client, path)):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
