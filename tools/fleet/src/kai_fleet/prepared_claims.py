"""Devices of claims: a pod is not taken up before each of its resource claims is allocated and reserved for it.

As the kubelet's DRA manager (`pkg/kubelet/cm/dra`): a claim that is not there, not allocated or not reserved for the
pod cannot be prepared; the pod stays as it is, and it is tried again. A kubelet has given such a pod its CPUs by then;
here it is not taken up at all, which only matters where its claims are late.
"""

import asyncio
from collections.abc import Callable, Iterator

from kaicore.errors import ApiStatus, ClusterError
from kaicore.kube.client import KubeClient
from kaicore.kube.device_objects import RESOURCE_CLAIMS, ResourceClaimObject
from kaicore.runtime.service import get_logger

from kai_fleet.wire import PodObject

#: Seconds between two tries; the kubelet's back-off begins with as much.
RETRY_S = 1.0


class PreparedClaims:
    """Holds pods with claims back until these can be prepared."""

    def __init__(self, client: KubeClient, *, hand_over: Callable[[PodObject], None], retry_s: float = RETRY_S) -> None:
        """Args:
        client: to read claims with.
        hand_over: is given each pod whose claims are ready.
        retry_s: seconds between two tries.
        """
        self._client = client
        self._hand_over = hand_over
        self._retry_s = retry_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._latest: dict[str, PodObject] = {}
        self._ready: set[str] = set()

    def holds(self, pod: PodObject) -> bool:
        """Tell whether a pod has to wait for its claims; it is handed over as it is then."""
        uid = pod.metadata.uid
        uses = pod.spec.resource_claims or pod.status.extended_resource_claim_status is not None
        if not uses or uid in self._ready or pod.status.phase != "Pending":
            return False
        if pod.metadata.deletion_timestamp is not None:
            self.forget(uid)
            return False
        self._latest[uid] = pod
        if uid not in self._tasks:
            self._tasks[uid] = asyncio.create_task(self._wait(uid), name=f"claims of {pod}")
        return True

    def forget(self, uid: str) -> None:
        """A pod is gone."""
        self._ready.discard(uid)
        self._latest.pop(uid, None)
        task = self._tasks.pop(uid, None)
        if task is not None:
            task.cancel()

    async def _wait(self, uid: str) -> None:
        said = ""
        while problem := await self.problem(self._latest[uid]):
            if problem != said:
                get_logger().warning("FailedPrepareDynamicResources", pod=str(self._latest[uid]), why=problem)
                said = problem
            await asyncio.sleep(self._retry_s)
        self._ready.add(uid)
        del self._tasks[uid]
        self._hand_over(self._latest.pop(uid))

    async def problem(self, pod: PodObject) -> str:
        """Return why a pod's claims cannot be prepared; empty when they can."""
        for name, claim_name in _claims(pod):
            if not claim_name:
                return f"claim {name} is not made yet"
            path = f"/apis/resource.k8s.io/v1/namespaces/{pod.metadata.namespace}/resourceclaims/{claim_name}"
            try:
                claim: ResourceClaimObject = RESOURCE_CLAIMS.at("v1").decode(await self._client.get(path))
            except ApiStatus as error:
                return f"claim {claim_name}: {error.message}"
            except ClusterError as error:
                return f"claim {claim_name}: {error}"
            if claim.status.allocation is None:
                return f"claim {claim_name} is not allocated"
            if all(consumer.uid != pod.metadata.uid for consumer in claim.status.reserved_for or ()):
                return f"claim {claim_name} is not reserved for the pod"
        return ""


def _claims(pod: PodObject) -> Iterator[tuple[str, str]]:
    """Yield by which names a pod calls its claims, and their names; empty for those that are not made."""
    made = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses or ()}
    for reference in pod.spec.resource_claims or ():
        if reference.resource_claim_name:
            yield reference.name, reference.resource_claim_name
        elif reference.name not in made or made[reference.name]:
            yield reference.name, made.get(reference.name) or ""
    extended = pod.status.extended_resource_claim_status
    if extended is not None:
        yield "for extended resources", extended.resource_claim_name or ""
