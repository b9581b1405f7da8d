"""Bind volumes to the claims that their `spec.claimRef` names, and say of every volume how it stands.

Nothing chooses a volume for a claim here and nothing provisions any: schedulers, users and tests write `claimRef`.
"""

from kai_apiserver.controllers.reconciling import Controller
from kai_apiserver.objects import Object
from kai_apiserver.store import Collection, Event, EventType, Stored

VOLUMES, CLAIMS = "persistentvolumes", "persistentvolumeclaims"
_BOUND = "pv.kubernetes.io/bind-completed"
_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"


class VolumeController(Controller[str]):
    """Reconciles volumes, by name."""

    name = "persistentvolume-controller"

    def begin(self) -> None:
        """Look at every volume."""
        #: By claim, `namespace/name`, the volumes that name it.
        self._kept: dict[str, set[str]] = {}
        self._claim_of: dict[str, str] = {}
        for stored in self.backend.store.collection(VOLUMES):
            self._seen(stored)
        self.backend.store.subscribe(self._volume_changed, VOLUMES)
        self.backend.store.subscribe(self._claim_changed, CLAIMS)

    def _seen(self, stored: Stored) -> None:
        reference = stored.decode()["spec"].get("claimRef")
        self._forget(stored.name)
        if reference:
            key = _key(reference)
            self._claim_of[stored.name] = key
            self._kept.setdefault(key, set()).add(stored.name)
        self.queue(stored.name)

    def _forget(self, name: str) -> None:
        key = self._claim_of.pop(name, None)
        if key is not None:
            self._kept[key].discard(name)

    def _volume_changed(self, collection: Collection, event: Event) -> None:
        del collection
        if event.type is EventType.DELETED:
            self._forget(event.stored.name)
        else:
            self._seen(event.stored)

    def _claim_changed(self, collection: Collection, event: Event) -> None:
        del collection
        for name in sorted(self._kept.get(event.stored.key, ())):
            self.queue(name)

    def reconcile(self, key: str) -> float | None:
        """Bind one volume, or say that it is free, or left behind."""
        collection = self.backend.store.collection(VOLUMES)
        stored = collection.get(key)
        if stored is None:
            return None
        volume = stored.decode()
        reference = volume["spec"].get("claimRef")
        phase = "Available"
        if reference:
            claims = self.backend.store.collection(CLAIMS)
            stored_claim = claims.get(_key(reference))
            claim = None if stored_claim is None else stored_claim.decode()
            if stored_claim is not None and claim is not None and _may_be_bound(volume, claim):
                reference["uid"] = claim["metadata"]["uid"]
                phase = "Bound"
                _bind(claim, volume)
                self.backend.store.update(claims, claim, stored_claim)
            elif volume["status"].get("phase") in ("Bound", "Released"):
                phase = "Released"
        volume["status"]["phase"] = phase
        self.backend.store.update(collection, volume, stored)
        return None


def _key(reference: Object) -> str:
    return f"{reference.get('namespace', '')}/{reference.get('name', '')}"


def _may_be_bound(volume: Object, claim: Object) -> bool:
    same = volume["spec"]["claimRef"].get("uid", "") in ("", claim["metadata"]["uid"])
    return same and claim["spec"].get("volumeName", "") in ("", volume["metadata"]["name"])


def _bind(claim: Object, volume: Object) -> None:
    spec, metadata = volume["spec"], claim["metadata"]
    annotations = {**(metadata.get("annotations") or {}), _BOUND: "yes"}
    if not claim["spec"].get("volumeName"):
        annotations[_BY_CONTROLLER] = "yes"
    metadata["annotations"] = annotations
    claim["spec"]["volumeName"] = volume["metadata"]["name"]
    claim["status"] = {
        **claim.get("status", {}),
        "phase": "Bound",
        "accessModes": spec.get("accessModes") or [],
        "capacity": spec.get("capacity") or {},
    }
