"""The fleet takes a pod with resource claims up when these are allocated and reserved for it, as a kubelet does."""

import asyncio

import msgspec
from kai_fleet.fleet import PreparedClaims
from kai_fleet.node.pod_conversion import PodObject

from tests.given.servers.kube import PODS, Json, simulated

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SPEC: Json = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}}


async def test_pod_is_held_back_until_its_claim_is_allocated_and_reserved_for_it() -> None:
    async with simulated() as api:
        created = await api.pod("a", node="n1", resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}])
        handed: asyncio.Queue[PodObject] = asyncio.Queue()
        claims = PreparedClaims(api.client, hand_over=handed.put_nowait, retry_s=0.01)
        pod = msgspec.json.decode(await api.client.get(f"{PODS}/a"), type=PodObject)
        assert claims.holds(pod)
        await api.post(CLAIMS, {"metadata": {"name": "c"}, "spec": SPEC})
        await api.merge(f"{CLAIMS}/c/status", {"status": {"allocation": {"devices": {"results": []}}}})
        assert await claims.problem(pod) == "claim c is not reserved for the pod"
        assert handed.empty()
        consumer = {"resource": "pods", "name": "a", "uid": created["metadata"]["uid"]}
        await api.merge(f"{CLAIMS}/c/status", {"status": {"reservedFor": [consumer]}})
        async with asyncio.timeout(60):
            assert (await handed.get()).metadata.uid == pod.metadata.uid
        assert not claims.holds(pod)
