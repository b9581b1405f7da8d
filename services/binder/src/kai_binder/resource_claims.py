"""Resource claims of a pod: allocated and reserved before the pod is bound, and released where it is not.

As kube-scheduler does it: a finalizer keeps the claim while it has devices. Then its status names them and the pod
that may use them. Every write names the version that was read. So nothing that is there is overwritten, and a write
without an answer is found done.

Steps that make the claims of a decision ready, one after the other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec
from kaicore.errors import ApiStatus
from kaicore.kube.api.client import KubeClient
from kaicore.kube.normalize.device import normalize_resource_claim
from kaicore.kube.wire.devices import RESOURCE_CLAIMS, VERSIONS
from kaicore.rules.model.device import AllocatedDevice, Allocation, ResourceClaim
from kaicore.rules.model.quantity import thousandths_text
from kaicore.rules.model.selector import Requirement

from kai_binder.projection import PodBinding


class Next(StrEnum):
    """The next step for a claim."""

    SELECT = "select"
    WAIT = "wait"
    DONE = "done"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class Refused(Exception):
    """A claim cannot get ready, and its pod is given back."""

    reason: str
    message: str
    code: int = 0


FINALIZER = "resource.kubernetes.io/delete-protection"

_NOT_FOUND = 404
_MOST_CONSUMERS = 256

Document = dict[str, Any]


class ServedClaims:
    """The cluster's resource claims, in the version in which it serves them."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._version = ""

    async def claim(self, namespace: str, name: str) -> tuple[str, bytes]:
        """Return a claim and its path.

        Raises:
            ClusterError: it is not there, or the API server does not answer.
        """
        for version in (self._version,) if self._version else VERSIONS:
            path = f"/apis/resource.k8s.io/{version}/namespaces/{namespace}/resourceclaims/{name}"
            try:
                data = await self._client.get(path)
            except ApiStatus as error:
                if error.code != _NOT_FOUND or version == VERSIONS[-1] or self._version:
                    raise
                continue
            self._version = version
            return path, data
        raise AssertionError(VERSIONS)

    async def collection(self, namespace: str, *, of_class: str) -> str:
        """Return the path of a namespace's claims.

        Args:
            namespace: the namespace.
            of_class: a device class that is there; where no claim was read, it tells which version is served.

        Raises:
            ClusterError: the class is not there, or the API server does not answer.
        """
        for version in () if self._version else VERSIONS:
            try:
                await self._client.get(f"/apis/resource.k8s.io/{version}/deviceclasses/{of_class}")
            except ApiStatus as error:
                if error.code != _NOT_FOUND or version == VERSIONS[-1]:
                    raise
                continue
            self._version = version
            break
        return f"/apis/resource.k8s.io/{self._version}/namespaces/{namespace}/resourceclaims"

    async def device_class(self, name: str) -> Document:
        """Return a device class; one without any configuration where it is gone.

        Raises:
            ClusterError: the API server does not answer.
        """
        try:
            data = await self._client.get(f"/apis/resource.k8s.io/{self._version}/deviceclasses/{name}")
        except ApiStatus as error:
            if error.code == _NOT_FOUND:
                return {}
            raise
        return dict(msgspec.json.decode(data))

    async def patch(self, path: str, document: Document) -> None:
        """Change a claim."""
        await self._client.patch(path, document)


class ClaimAllocation:
    """A claim of one decision."""

    def __init__(self, claims: ServedClaims, binding: PodBinding, name: str) -> None:
        decision = binding.decision
        self._claims = claims
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
        version = {"uid": claim.uid, "resourceVersion": claim.resource_version}
        if FINALIZER not in (document["metadata"].get("finalizers") or ()):
            finalizers = [*(document["metadata"].get("finalizers") or ()), FINALIZER]
            await self._claims.patch(path, {"metadata": {**version, "finalizers": finalizers}})
            return Next.SELECT
        consumers = list((document.get("status") or {}).get("reservedFor") or ())
        status: Document = {"reservedFor": [*consumers, {"resource": "pods", "name": self._pod, "uid": self._uid}]}
        if claim.allocation is None and self._decided is not None:
            classes = {name: await self._claims.device_class(name) for name in sorted(_class_names(document))}
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            allocation = allocation_document(self._decided, document, classes)
            status["allocation"] = {**allocation, "allocationTimestamp": now}
        await self._claims.patch(f"{path}/status", {"metadata": version, "status": status})
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
        version = {"uid": claim.uid, "resourceVersion": claim.resource_version}
        await self._claims.patch(f"{path}/status", {"metadata": version, "status": status})

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
        statuses = list(_statuses(document))
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
    """Return `status.allocation` of a claim.

    Args:
        allocation: what was decided.
        claim: as the API server has it.
        classes: its device classes, by name.
    """
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


def _statuses(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from (document.get("status") or {}).get("devices") or ()


def read_claim(data: bytes) -> tuple[ResourceClaim, Document]:
    """Return a claim as it is decided on, and as the API server has it."""
    return normalize_resource_claim(RESOURCE_CLAIMS.at(VERSIONS[0]).decode(data)), msgspec.json.decode(data)
