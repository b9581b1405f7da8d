"""Claims of a pod that wait for it: allocated, bound to the volumes chosen for them or provisioned, before it is bound.

For a volume made beforehand, the binder writes the claim into the volume (`spec.claimRef`); the volume controller does
the rest. For a claim that is to be provisioned, it writes the node into the annotation
`volume.kubernetes.io/selected-node`. A provisioner that cannot provision there removes the annotation; then the pod is
given back and may go elsewhere. A pod that was bound before its volume is there could not.

The claim for a pod's extended resources that devices stand for: made, named in the pod's status, and taken away.

As kube-scheduler does it: the claim is the pod's own, and marked; the pod's status says which containers use which of
its requests. Its name is the decision's, so that a request that was not answered is found done.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from kaicore.backoff import backoff
from kaicore.errors import ApiStatus, ClusterUnavailable, InvalidObject
from kaicore.kube.api.client import KubeClient
from kaicore.kube.normalize.storage import SELECTED_NODE_ANNOTATION, normalize_claim, normalize_volume
from kaicore.kube.wire.resources import CLAIMS, PODS, VOLUMES
from kaicore.rules.events.payloads import BindFailed
from kaicore.rules.model.device import ExtendedClaim, ResourceClaim
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim

from kai_binder.attempt import pod_path
from kai_binder.projection import PodBinding
from kai_binder.resource_claims import FINALIZER, ClaimAllocation, Next, Refused, ServedClaims, read_claim

#: On a claim that was made for extended resources.
EXTENDED_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"

_NOT_FOUND, _EXISTS = 404, 409


class ExtendedAllocation(ClaimAllocation):
    """A claim of one decision that is made for it."""

    def __init__(self, client: KubeClient, claims: ServedClaims, binding: PodBinding, extended: ExtendedClaim) -> None:
        super().__init__(claims, binding, extended.name)
        self._client = client
        self._extended = extended
        self._selected_before = False

    async def look(self) -> Next:
        """See how far it is, and write what is to be written next; see `ClaimAllocation.look`."""
        try:
            following = await super().look()
        except ApiStatus as error:
            if error.code != _NOT_FOUND:
                raise
            await self._make()
            return Next.SELECT
        if following in (Next.DONE, Next.WAIT) and not self._selected_before:
            await self._tell()
            self._selected_before = True
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


#: Seconds between two looks at a claim: at first, and at most; doubled each time.
FIRST_LOOK_S, LAST_LOOK_S = 0.05, 2.0

#: Says that no user chose the volume: a controller that undoes the binding takes `claimRef` off as well.
_BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
_CLAIM_NOT_FOUND, _CONFLICT = 404, 409


def what_next(claim: PersistentVolumeClaim, *, node: str, selected: bool) -> Next:
    """Tell what to do about a claim that is to be provisioned for a node.

    Args:
        claim: as it is now.
        node: for which node.
        selected: whether we have selected it before.
    """
    if claim.bound:
        return Next.DONE
    if claim.selected_node == node:
        return Next.WAIT
    return Next.GIVE_UP if claim.selected_node or selected else Next.SELECT


def what_next_with(volume: PersistentVolume, claim: PersistentVolumeClaim) -> Next:
    """Tell what to do about a claim that is to be bound to a volume made beforehand.

    Args:
        volume: as it is now.
        claim: as it is now.
    """
    if claim.volume and claim.volume != volume.name:
        return Next.GIVE_UP
    if claim.bound:
        return Next.DONE
    if volume.is_kept_for(claim):
        return Next.WAIT if volume.claim_uid else Next.SELECT
    taken = volume.claimed or volume.deleting or claim.deleting or claim.selected_node
    return Next.GIVE_UP if taken else Next.SELECT


class Claims:
    """Prepares the claims of decisions."""

    def __init__(self, client: KubeClient, *, patience_s: float, is_open: Callable[[PodBinding], bool]) -> None:
        """Args:
        client: to write with.
        patience_s: how long it may take until all of a decision's claims are bound.
        is_open: whether there is still anything to do about a decision.
        """
        self._client = client
        self._patience_s = patience_s
        self._is_open = is_open
        self._resource_claims = ServedClaims(client)
        self._left: asyncio.Queue[PodBinding] = asyncio.Queue()

    async def prepare(self, binding: PodBinding) -> BindFailed | None:
        """Have a decision's claims bound; None when they are, or when nothing is left to do about it."""
        try:
            async with asyncio.timeout(self._patience_s):
                for name, volume in binding.decision.volumes.items():
                    await self._repeat(binding, name, _ClaimBinding(self._client, binding, name, volume).look)
                for name in binding.decision.claims:
                    await self._repeat(binding, name, _Provisioning(self._client, binding, name).look)
                for name in (*binding.decision.devices, *binding.decision.reserved_claims):
                    await self._repeat(binding, name, self._step(binding, name).look)
        except TimeoutError:
            reason = "ResourceClaimsNotReady" if uses_devices(binding) else "VolumeNotBound"
            what = "claims were not ready" if uses_devices(binding) else "volumes were not bound"
            refused = Refused(reason, f"{what} within {self._patience_s:g} s")
        except Refused as refusal:
            refused = refusal
        else:
            return None
        return BindFailed(
            uid=binding.decision.uid,
            namespace=binding.decision.namespace,
            name=binding.decision.name,
            node=binding.decision.node,
            code=refused.code,
            reason=refused.reason,
            message=refused.message,
            attempts=0,
        )

    async def release(self, binding: PodBinding) -> None:
        """Have a pod that is not bound use its resource claims no more; what it alone used has no devices again.

        What cannot be sent to the API server is left to kube-controller-manager, which knows that the pod has no node;
        but a claim for extended resources, which goes with its pod alone there, is left to `clear`.
        """
        try:
            async with asyncio.timeout(self._patience_s):
                for name in (*binding.decision.devices, *binding.decision.reserved_claims):
                    await self._let_go(binding, name)
        except TimeoutError:
            if binding.decision.extended_claim is not None:
                self._left.put_nowait(binding)

    async def clear(self) -> None:
        """Have claims for extended resources gone that `release` could not tell of, for as long as that takes.

        The name of such a claim is its decision's, so no later decision of the pod uses it.
        """
        while True:
            binding = await self._left.get()
            extended = binding.decision.extended_claim
            if extended is not None:
                await self._let_go(binding, extended.name, only_unbound=True)

    def _step(self, binding: PodBinding, name: str) -> ClaimAllocation:
        """Return what is to be done about a resource claim of a decision."""
        extended = binding.decision.extended_claim
        if extended is not None and extended.name == name:
            return ExtendedAllocation(self._client, self._resource_claims, binding, extended)
        return ClaimAllocation(self._resource_claims, binding, name)

    async def _let_go(self, binding: PodBinding, name: str, *, only_unbound: bool = False) -> None:
        looks = 0
        while True:
            looks += 1
            try:
                if only_unbound and await self._came_after_all(binding):
                    return
                await self._step(binding, name).release()
            except (ApiStatus, InvalidObject) as error:
                if not isinstance(error, ApiStatus) or error.code != _CONFLICT:
                    return
            except ClusterUnavailable:
                pass
            else:
                return
            await asyncio.sleep(backoff(looks, first=FIRST_LOOK_S, most=LAST_LOOK_S))

    async def _came_after_all(self, binding: PodBinding) -> bool:
        """Tell whether a pod that was given back is on its decision's node: another request was carried out late."""
        decision = binding.decision
        try:
            pod = PODS.decode(await self._client.get(pod_path(decision.namespace, decision.name)))
        except ApiStatus as error:
            if error.code != _CLAIM_NOT_FOUND:
                raise
            return False
        return pod.metadata.uid == decision.uid and pod.spec.node_name == decision.node

    async def _repeat(self, binding: PodBinding, name: str, look: Callable[[], Awaitable[Next]]) -> None:
        """Look at a claim, and write what is to be written, until it is bound."""
        looks = 0
        while self._is_open(binding):
            looks += 1
            try:
                match await look():
                    case Next.DONE:
                        return
                    case Next.SELECT:
                        continue
                    case _:
                        pass
            except InvalidObject as error:
                raise Refused("InvalidClaim", str(error)) from error
            except ApiStatus as error:
                if error.code != _CONFLICT:
                    raise Refused(error.reason or "Unknown", f"claim {name}: {error.message}", error.code) from error
            except ClusterUnavailable:
                # As good as not looked: once more, until patience ends.
                pass
            await asyncio.sleep(backoff(looks, first=FIRST_LOOK_S, most=LAST_LOOK_S))


def uses_devices(binding: PodBinding) -> bool:
    """Tell whether a decision's pod uses resource claims."""
    return bool(binding.decision.devices or binding.decision.reserved_claims)


class _Provisioning:
    """A claim that is to be provisioned for a node."""

    def __init__(self, client: KubeClient, binding: PodBinding, name: str) -> None:
        self._client, self._node, self._name = client, binding.decision.node, name
        self._path = _claim_path(binding, name)
        self._selected = False

    async def look(self) -> Next:
        """See how far it is, and do what is to be done next."""
        claim = normalize_claim(CLAIMS.decode(await self._client.get(self._path)))
        following = what_next(claim, node=self._node, selected=self._selected)
        if following is Next.GIVE_UP:
            raise Refused("VolumeNotProvisioned", f"claim {self._name} is not provisioned for {self._node}")
        if following is Next.SELECT:
            await self._client.patch(self._path, _selection(claim, self._node))
        self._selected |= following is not Next.DONE
        return following


class _ClaimBinding:
    """A claim that is to be bound to a volume made beforehand."""

    def __init__(self, client: KubeClient, binding: PodBinding, name: str, volume: str) -> None:
        self._client, self._name, self._volume = client, name, volume
        self._claim_path = _claim_path(binding, name)
        self._volume_path = f"/api/v1/persistentvolumes/{volume}"

    async def look(self) -> Next:
        """See how far it is, and do what is to be done next."""
        volume = normalize_volume(VOLUMES.decode(await self._client.get(self._volume_path)))
        claim = normalize_claim(CLAIMS.decode(await self._client.get(self._claim_path)))
        following = what_next_with(volume, claim)
        if following is Next.GIVE_UP:
            raise Refused("VolumeNotBound", f"claim {self._name} cannot be bound to volume {self._volume} any more")
        if following is Next.SELECT:
            await self._client.patch(self._volume_path, _reference(volume, claim))
        return following


def _claim_path(binding: PodBinding, name: str) -> str:
    return f"/api/v1/namespaces/{binding.decision.namespace}/persistentvolumeclaims/{name}"


def _selection(claim: PersistentVolumeClaim, node: str) -> dict[str, Any]:
    """Return the patch that names a node, of this version of the claim only: no other choice is overwritten."""
    return {
        "metadata": {
            "uid": claim.uid,
            "resourceVersion": claim.resource_version,
            "annotations": {SELECTED_NODE_ANNOTATION: node},
        }
    }


def _reference(volume: PersistentVolume, claim: PersistentVolumeClaim) -> dict[str, Any]:
    """Return the patch that writes a claim into a volume, of this version only, as kube-scheduler does."""
    metadata: dict[str, Any] = {"uid": volume.uid, "resourceVersion": volume.resource_version}
    if not volume.claimed:
        metadata["annotations"] = {_BOUND_BY_CONTROLLER: "yes"}
    reference = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": claim.uid,
        "resourceVersion": claim.resource_version,
    }
    return {"metadata": metadata, "spec": {"claimRef": reference}}
