"""The claim for a pod's extended resources that devices stand for: made, named in the pod's status, and taken away.

As kube-scheduler does it: the claim is the pod's own, and marked; the pod's status says which containers use which of
its requests. Its name is the decision's, so that a request that was not answered is found done.
"""

from typing import Any

from kaicore.errors import ApiStatus
from kaicore.kube.client import KubeClient
from kaicore.rules.model.device import ExtendedClaim, ResourceClaim

from kai_binder.claim_steps import Next, Refused
from kai_binder.projection import PodBinding
from kai_binder.resource_claims import FINALIZER, ClaimAllocation, ServedClaims, read_claim

#: On a claim that was made for extended resources.
EXTENDED_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"

_NOT_FOUND, _EXISTS = 404, 409


class ExtendedAllocation(ClaimAllocation):
    """A claim of one decision that is made for it."""

    def __init__(self, client: KubeClient, claims: ServedClaims, binding: PodBinding, extended: ExtendedClaim) -> None:
        super().__init__(claims, binding, extended.name)
        self._client = client
        self._extended = extended
        self._told = False

    async def look(self) -> Next:
        """See how far it is, and write what is to be written next; see `ClaimAllocation.look`."""
        try:
            following = await super().look()
        except ApiStatus as error:
            if error.code != _NOT_FOUND:
                raise
            await self._make()
            return Next.SELECT
        if following in (Next.DONE, Next.WAIT) and not self._told:
            await self._tell()
            self._told = True
        return following

    async def release(self) -> None:
        """Have the claim gone; no other pod uses it."""
        try:
            path, raw = await self._claims.claim(self._namespace, self._name)
        except ApiStatus as error:
            if error.code == _NOT_FOUND:
                return
            raise
        claim, document = read_claim(raw)
        if claim.owner != self._uid:
            return
        others = [one for one in document["metadata"].get("finalizers") or () if one != FINALIZER]
        version = {"uid": claim.uid, "resourceVersion": claim.resource_version}
        await self._claims.patch(path, {"metadata": {**version, "finalizers": others}})
        await self._client.delete(path, {"preconditions": {"uid": claim.uid}})

    def _check(self, claim: ResourceClaim) -> None:
        if claim.owner != self._uid:
            raise Refused("ResourceClaimExists", f"claim {self._name} is there already and was not made for the pod")
        super()._check(claim)

    async def _make(self) -> None:
        requests = [
            {
                "name": request.name,
                "exactly": {
                    "deviceClassName": request.device_class,
                    "allocationMode": "ExactCount",
                    "count": request.count,
                },
            }
            for request in self._extended.requests
        ]
        path = await self._claims.collection(self._namespace, of_class=self._extended.requests[0].device_class)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": self._pod, "uid": self._uid, "controller": True}
        document = {
            "apiVersion": path.removeprefix("/apis/").partition("/namespaces/")[0],
            "kind": "ResourceClaim",
            "metadata": {
                "name": self._name,
                "namespace": self._namespace,
                "annotations": {EXTENDED_ANNOTATION: "true"},
                "ownerReferences": [owner],
            },
            "spec": {"devices": {"requests": requests}},
        }
        try:
            await self._client.post(path, document)
        except ApiStatus as error:
            if error.code != _EXISTS:
                raise

    async def _tell(self) -> None:
        mappings: list[dict[str, Any]] = [
            {"containerName": one.container, "resourceName": one.resource, "requestName": one.request}
            for one in self._extended.mappings
        ]
        status = {"extendedResourceClaimStatus": {"resourceClaimName": self._name, "requestMappings": mappings}}
        path = f"/api/v1/namespaces/{self._namespace}/pods/{self._pod}/status"
        await self._client.patch(path, {"metadata": {"uid": self._uid}, "status": status})
