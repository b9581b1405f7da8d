"""Deletes pods that use devices with a taint `NoExecute` which their claims do not tolerate.

As kube-controller-manager does (`pkg/controller/devicetainteviction`): only pods with a node, only claims that are
reserved for them, and only tolerations whose effect is `NoExecute`; one with `tolerationSeconds` puts it off. Statuses
of DeviceTaintRules are not written.
"""

from collections.abc import Iterator
from datetime import datetime

from kai_apiserver.controllers.reconciling import Controller
from kai_apiserver.objects import Object, replace_condition
from kai_apiserver.rest.backend import CONTROLLER, Operation
from kai_apiserver.rest.deletion import DeleteOptions, delete
from kai_apiserver.store import Collection, Event, Stored

PODS, CLAIMS = "pods", "resourceclaims.resource.k8s.io"
SLICES, RULES = "resourceslices.resource.k8s.io", "devicetaintrules.resource.k8s.io"
_NO_EXECUTE = "NoExecute"


class DeviceTaintEviction(Controller[str]):
    """Looks at claims, by key."""

    name = "device-taint-eviction-controller"

    def begin(self) -> None:
        """Look at every claim."""
        self._queue_all()
        self.backend.store.subscribe(self._claim_changed, CLAIMS)
        for kind in (SLICES, RULES):
            self.backend.store.subscribe(self._taints_changed, kind)
        self.backend.store.subscribe(self._pod_changed, PODS)

    def _queue_all(self) -> None:
        for stored in self.backend.store.collection(CLAIMS):
            self.queue(stored.key)

    def _taints_changed(self, collection: Collection, event: Event) -> None:
        del collection, event
        self._queue_all()

    def _claim_changed(self, collection: Collection, event: Event) -> None:
        del collection
        self.queue(event.stored.key)

    def _pod_changed(self, collection: Collection, event: Event) -> None:
        del collection
        if b"laimName" in event.stored.body and (event.previous is None or b'"nodeName"' not in event.previous.body):
            for name in claim_names(event.stored.decode()):
                self.queue(f"{event.stored.namespace}/{name}")

    def reconcile(self, key: str) -> float | None:
        """Delete the pods that use one claim, if it is time."""
        claim = self.backend.find(CLAIMS, key)
        status = (claim or {}).get("status") or {}
        waits = [
            wait
            for device in ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
            for taint in self._taints(device)
            if (wait := self._wait_s(taint, device)) is not None
        ]
        if not waits:
            return None
        if min(waits) > 0:
            return min(waits)
        for consumer in status.get("reservedFor") or ():
            stored = self.backend.store.collection(PODS).get(f"{key.partition('/')[0]}/{consumer.get('name', '')}")
            if stored is not None and stored.uid == consumer.get("uid"):
                self._evict(stored)
        return None

    def _evict(self, stored: Stored) -> None:
        pod = stored.decode()
        if not pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            return
        collection = self.backend.store.collection(PODS)
        message = "Device Taint manager: deleting due to NoExecute taint"
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByDeviceTaintManager"}
        conditions = pod.setdefault("status", {}).setdefault("conditions", [])
        if replace_condition(conditions, {**condition, "message": message}, self.backend.timestamp()):
            stored = self.backend.store.update(collection, pod, stored)
        options = DeleteOptions(uid=stored.uid)
        delete(
            self.backend, stored, resource=collection.resource, options=options, operation=Operation(user=CONTROLLER)
        )

    def _taints(self, device: Object) -> Iterator[Object]:
        """Yield the evicting taints of a device, by its slice and by rules."""
        for stored in self.backend.all_of(SLICES):
            spec = stored.decode()["spec"]
            if spec["driver"] != device["driver"] or spec["pool"]["name"] != device["pool"]:
                continue
            for one in spec.get("devices") or ():
                if one["name"] == device["device"]:
                    yield from (taint for taint in one.get("taints") or () if taint["effect"] == _NO_EXECUTE)
        for stored in self.backend.all_of(RULES):
            spec = stored.decode()["spec"]
            selector = spec.get("deviceSelector")
            if selector is None or spec["taint"]["effect"] != _NO_EXECUTE:
                continue
            if all(selector.get(part, device[part]) == device[part] for part in ("driver", "pool", "device")):
                yield spec["taint"]

    def _wait_s(self, taint: Object, device: Object) -> float | None:
        """Return for how long a taint of a device is still tolerated; None for ever."""
        tolerating = [one for one in device.get("tolerations") or () if _tolerates(one, taint)]
        if not tolerating:
            return 0.0
        if any(one.get("tolerationSeconds") is None for one in tolerating):
            return None
        added = taint.get("timeAdded")
        since = 0.0 if added is None else (self.backend.now() - datetime.fromisoformat(added)).total_seconds()
        return max(float(min(one["tolerationSeconds"] for one in tolerating)) - since, 0.0)


def claim_names(pod: Object) -> Iterator[str]:
    """Yield the names of a pod's claims that are made."""
    for reference in pod["spec"].get("resourceClaims") or ():
        if reference.get("resourceClaimName"):
            yield reference["resourceClaimName"]
    status = pod.get("status") or {}
    for made in (*(status.get("resourceClaimStatuses") or ()), status.get("extendedResourceClaimStatus") or {}):
        if made.get("resourceClaimName"):
            yield made["resourceClaimName"]


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") != _NO_EXECUTE or toleration.get("key", taint["key"]) != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
