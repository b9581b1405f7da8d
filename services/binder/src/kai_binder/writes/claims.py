"""Claims of a pod that wait for it: made ready one after the other, before it is bound.

For a volume made beforehand, the binder writes the claim into the volume (`spec.claimRef`); the volume controller does
the rest. For a claim that is to be provisioned, it writes the node into the annotation
`volume.kubernetes.io/selected-node`. A provisioner that cannot provision there removes the annotation; then the pod is
given back and may go elsewhere. A pod that was bound before its volume is there could not.

Resource claims are allocated and reserved before the pod is bound, and released where it is not. As kube-scheduler does
it: a finalizer keeps the claim while it has devices. Then its status names them and the pod that may use them. Every
write names the version that was read. So nothing that is there is overwritten, and a write without an answer is found
done.

A pod's extended resources that devices stand for have a claim of their own, which is made and taken away here. As
kube-scheduler does it, the claim is marked, and the pod's status says which containers use which of its requests. Its
name is the decision's, so that a request that was not answered is found done.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec
from kaicore.backoff import backoff
from kaicore.errors import ApiStatus, ClusterUnavailable, InvalidObject
from kaicore.kube.api.client import KubeClient
from kaicore.kube.normalize.device import normalize_resource_claim
from kaicore.kube.normalize.storage import SELECTED_NODE_ANNOTATION, normalize_claim, normalize_volume
from kaicore.kube.wire.resources import CLAIMS, DEVICE_VERSIONS, PODS, RESOURCE_CLAIMS, VOLUMES
from kaicore.rules.events.payloads import BindFailed
from kaicore.rules.model.device import AllocatedDevice, Allocation, ExtendedClaim, ResourceClaim
from kaicore.rules.model.quantity import thousandths_text
from kaicore.rules.model.selector import Requirement
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim
from kaicore.rules.objects.wire import kubernetes_time

from kai_binder.projection.open_work import PodBinding
from kai_binder.writes.attempt import NotYet, Refused, given_back, pod_path


class Next(StrEnum):
    """The next step for a claim."""

    SELECT = "select"
    WAIT = "wait"
    DONE = "done"
    GIVE_UP = "give up"


FINALIZER = "resource.kubernetes.io/delete-protection"

_MOST_CONSUMERS = 256

Document = dict[str, Any]


class ServedClaims:
    """The cluster's resource claims, in the version in which it serves them."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        #: Of all paths in the version that is served; empty before that is known.
        self._root = ""

    async def claim(self, namespace: str, name: str) -> tuple[str, bytes]:
        """Return a claim and its path. Raises ClusterError: it is not there, or the API server does not answer."""
        data = await self._get(f"namespaces/{namespace}/resourceclaims/{name}")
        return f"{self._root}/namespaces/{namespace}/resourceclaims/{name}", data

    async def collection(self, namespace: str, *, of_class: str) -> str:
        """Return the path of a namespace's claims.

        Args:
            of_class: a device class that is there; where no claim was read, it tells which version is served.

        Raises:
            ClusterError: the class is not there, or the API server does not answer.
        """
        if not self._root:
            await self._get(f"deviceclasses/{of_class}")
        return f"{self._root}/namespaces/{namespace}/resourceclaims"

    async def _get(self, path: str) -> bytes:
        """Get what is at a path in the served version: the first in which anything was found."""
        roots = [f"/apis/resource.k8s.io/{version}" for version in DEVICE_VERSIONS]
        *others, last = [self._root] if self._root else roots
        for root in others:
            if (data := await self._client.find(f"{root}/{path}")) is not None:
                self._root = root
                return data
        data = await self._client.get(f"{last}/{path}")
        self._root = last
        return data

    async def device_class(self, name: str) -> Document:
        """Return a device class; one without any configuration where it is gone.

        Raises:
            ClusterError: the API server does not answer.
        """
        data = await self._client.find(f"{self._root}/deviceclasses/{name}")
        return {} if data is None else dict(msgspec.json.decode(data))


class ClaimAllocation:
    """A claim of one decision."""

    def __init__(self, client: KubeClient, claims: ServedClaims, binding: PodBinding, name: str) -> None:
        decision = binding.decision
        self._client, self._claims = client, claims
        self._namespace, self._name, self._pod, self._uid = decision.namespace, name, decision.name, decision.uid
        self._decided = decision.devices.get(name)

    async def look(self) -> Next:
        """See how far it is, and write what is to be written next.

        Raises:
            Refused: it cannot be allocated as decided any more.
        """
        path, raw = await self._claims.claim(self._namespace, self._name)
        claim, document = read_claim(raw)
        self._check(claim)
        if claim.allocation is not None and self._uid in claim.reserved_for:
            return self._readiness(claim, document)
        if len(claim.reserved_for) >= _MOST_CONSUMERS:
            raise Refused("ResourceClaimInUse", f"claim {self._name} is reserved for {_MOST_CONSUMERS} pods already")
        version = _version(claim)
        if FINALIZER not in (document["metadata"].get("finalizers") or ()):
            finalizers = [*(document["metadata"].get("finalizers") or ()), FINALIZER]
            await self._client.patch(path, {"metadata": {**version, "finalizers": finalizers}})
            return Next.SELECT
        consumers = list((document.get("status") or {}).get("reservedFor") or ())
        status: Document = {"reservedFor": [*consumers, {"resource": "pods", "name": self._pod, "uid": self._uid}]}
        if claim.allocation is None and self._decided is not None:
            classes = {name: await self._claims.device_class(name) for name in sorted(_class_names(document))}
            allocation = allocation_document(self._decided, document, classes)
            status["allocation"] = {**allocation, "allocationTimestamp": kubernetes_time(time.time_ns() // 1000)}
        await self._client.patch(f"{path}/status", {"metadata": version, "status": status})
        return Next.SELECT

    async def release(self) -> None:
        """Have the pod use the claim no more; it has no devices any more if no other pod uses it."""
        path, raw = await self._claims.claim(self._namespace, self._name)
        claim, document = read_claim(raw)
        if self._uid not in claim.reserved_for:
            return
        others = [one for one in document["status"]["reservedFor"] if one.get("uid") != self._uid]
        status: Document = {"reservedFor": others or None}
        if not others and self._decided is not None:
            status["allocation"] = None
        await self._client.patch(f"{path}/status", {"metadata": _version(claim), "status": status})

    def _check(self, claim: ResourceClaim) -> None:
        if claim.deleting:
            raise Refused("ResourceClaimDeleted", f"claim {self._name} is being deleted")
        if claim.allocation is None:
            if self._decided is None:
                raise Refused("ResourceClaimNotAllocated", f"claim {self._name} has no devices any more")
        elif self._decided is not None and _devices(claim.allocation) != _devices(self._decided):
            raise Refused("ResourceClaimAllocated", f"claim {self._name} was given other devices by another scheduler")

    def _readiness(self, claim: ResourceClaim, document: Document) -> Next:
        """Tell whether its devices are ready for the pod to be bound (`bindingConditions`)."""
        waits = False
        statuses = (document.get("status") or {}).get("devices") or ()
        for device in claim.allocation.devices if claim.allocation is not None else ():
            true = {
                condition.get("type")
                for status in statuses
                if (status.get("driver"), status.get("pool"), status.get("device")) == device.id
                for condition in status.get("conditions") or ()
                if condition.get("status") == "True"
            }
            failed = sorted(true & set(device.failures))
            if failed:
                raise Refused("DeviceBindingFailed", f"claim {self._name}: device {device.device}: {failed[0]}")
            waits |= not true.issuperset(device.conditions)
        return Next.WAIT if waits else Next.DONE


def allocation_document(
    allocation: Allocation, claim: Mapping[str, Any], classes: Mapping[str, Mapping[str, Any]]
) -> Document:
    """Return `status.allocation` of a claim."""
    requests = dict(_requests(claim))
    uid = claim["metadata"]["uid"]
    results = [_result(device, requests, uid, number) for number, device in enumerate(allocation.devices)]
    document: Document = {"devices": {"results": results}}
    config = list(_config(allocation, claim, classes, requests))
    if config:
        document["devices"]["config"] = config
    if allocation.terms is not None:
        document["nodeSelector"] = {"nodeSelectorTerms": [_term(term) for term in allocation.terms]}
    return document


def _result(device: AllocatedDevice, requests: Mapping[str, Mapping[str, Any]], uid: str, number: int) -> Document:
    result: Document = {
        "request": device.request,
        "driver": device.driver,
        "pool": device.pool,
        "device": device.device,
    }
    if device.admin:
        result["adminAccess"] = True
    tolerations = requests.get(device.request, {}).get("tolerations")
    if tolerations:
        result["tolerations"] = tolerations
    if device.consumed is not None:
        # The same for every attempt to write it, and another one for every share.
        result["shareID"] = str(uuid5(NAMESPACE_OID, "/".join((uid, *device.id, str(number)))))
        result["consumedCapacity"] = {name: thousandths_text(one) for name, one in device.consumed.items()}
    if device.conditions:
        result["bindingConditions"] = list(device.conditions)
        result["bindingFailureConditions"] = list(device.failures)
    return result


def _config(
    allocation: Allocation,
    claim: Mapping[str, Any],
    classes: Mapping[str, Mapping[str, Any]],
    requests: Mapping[str, Mapping[str, Any]],
) -> Iterator[Document]:
    """Yield the configuration for drivers: of the classes, then of the claim."""
    served = list(dict.fromkeys(device.request for device in allocation.devices))
    by_class: dict[str, list[str]] = {}
    for name in served:
        by_class.setdefault(requests.get(name, {}).get("deviceClassName", ""), []).append(name)
    for class_name, names in by_class.items():
        for config in (classes.get(class_name, {}).get("spec") or {}).get("config") or ():
            about = {} if len(names) == len(served) else {"requests": names}
            yield {"source": "FromClass", **about, **config}
    known = {*served, *(name.partition("/")[0] for name in served)}
    for config in (claim["spec"].get("devices") or {}).get("config") or ():
        if not config.get("requests") or known.intersection(config["requests"]):
            yield {"source": "FromClaim", **config}


def _requests(claim: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the requests of a claim by name, `request/alternative` where there are several."""
    for request in (claim["spec"].get("devices") or {}).get("requests") or ():
        if request.get("firstAvailable"):
            for one in request["firstAvailable"]:
                yield f"{request['name']}/{one['name']}", one
        else:
            yield request["name"], request.get("exactly") or request


def _class_names(claim: Mapping[str, Any]) -> set[str]:
    return {request["deviceClassName"] for _, request in _requests(claim) if request.get("deviceClassName")}


def _term(term: tuple[Requirement, ...]) -> Document:
    document: Document = {}
    for requirement in term:
        kind = "matchFields" if requirement.field else "matchExpressions"
        expression: Document = {"key": requirement.key, "operator": requirement.operator}
        if requirement.values:
            expression["values"] = list(requirement.values)
        document.setdefault(kind, []).append(expression)
    return document


def _devices(allocation: Allocation) -> list[tuple[str, ...]]:
    return [(device.request, *device.id) for device in allocation.devices]


def _version(one: ResourceClaim | PersistentVolumeClaim | PersistentVolume) -> Document:
    """Return the metadata of a write that holds for the version that was read, so that no other write is undone."""
    return {"uid": one.uid, "resourceVersion": one.resource_version}


def read_claim(data: bytes) -> tuple[ResourceClaim, Document]:
    """Return a claim as it is decided on, and as the API server has it."""
    return normalize_resource_claim(RESOURCE_CLAIMS.at(DEVICE_VERSIONS[0]).decode(data)), msgspec.json.decode(data)


#: On a claim that was made for extended resources.
EXTENDED_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"

_NOT_FOUND, _EXISTS = 404, 409


class ExtendedAllocation(ClaimAllocation):
    """A claim of one decision that is made for it."""

    def __init__(self, client: KubeClient, claims: ServedClaims, binding: PodBinding, extended: ExtendedClaim) -> None:
        super().__init__(client, claims, binding, extended.name)
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
        await self._client.patch(path, {"metadata": {**_version(claim), "finalizers": others}})
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
_CONFLICT = 409


def what_next(claim: PersistentVolumeClaim, *, node: str, selected: bool) -> Next:
    """Tell what to do about a claim that is to be provisioned for a node.

    Args:
        selected: whether we have selected it before.
    """
    if claim.bound:
        return Next.DONE
    if claim.selected_node == node:
        return Next.WAIT
    return Next.GIVE_UP if claim.selected_node or selected else Next.SELECT


def what_next_with(volume: PersistentVolume, claim: PersistentVolumeClaim) -> Next:
    """Tell what to do about a claim that is to be bound to a volume made beforehand."""
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
        patience_s: how long it may take until all of a decision's claims are bound.
        is_open: whether there is still anything to do about a decision.
        """
        self._client = client
        self._patience_s = patience_s
        self._is_open = is_open
        self._resource_claims = ServedClaims(client)
        self._left: asyncio.Queue[PodBinding] = asyncio.Queue()

    async def prepare(self, binding: PodBinding, *, within_s: float | None = None) -> BindFailed | None:
        """Have a decision's claims bound; None when they are, or when nothing is left to do about it.

        Raises NotYet: they are not `within_s`; called again, it goes on.
        """
        try:
            async with asyncio.timeout(self._patience_s if within_s is None else within_s):
                for name, volume in binding.decision.volumes.items():
                    await self._repeat(binding, name, _ClaimBinding(self._client, binding, name, volume).look)
                for name in binding.decision.claims:
                    await self._repeat(binding, name, _Provisioning(self._client, binding, name).look)
                for name in (*binding.decision.devices, *binding.decision.reserved_claims):
                    await self._repeat(binding, name, self._step(binding, name).look)
        except TimeoutError:
            if within_s is not None:
                raise NotYet from None
            reason = "ResourceClaimsNotReady" if uses_devices(binding) else "VolumeNotBound"
            what = "claims were not ready" if uses_devices(binding) else "volumes were not bound"
            refused = Refused(reason, f"{what} within {self._patience_s:g} s")
        except Refused as refusal:
            refused = refusal
        else:
            return None
        return given_back(binding.decision, refused)

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
        return ClaimAllocation(self._client, self._resource_claims, binding, name)

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
        data = await self._client.find(pod_path(decision.namespace, decision.name))
        if data is None:
            return False
        pod = PODS.decode(data)
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
    return {"metadata": {**_version(claim), "annotations": {SELECTED_NODE_ANNOTATION: node}}}


def _reference(volume: PersistentVolume, claim: PersistentVolumeClaim) -> dict[str, Any]:
    """Return the patch that writes a claim into a volume, of this version only, as kube-scheduler does."""
    metadata = _version(volume)
    if not volume.claimed:
        metadata["annotations"] = {_BOUND_BY_CONTROLLER: "yes"}
    reference = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.namespace,
        "name": claim.name,
        **_version(claim),
    }
    return {"metadata": metadata, "spec": {"claimRef": reference}}
