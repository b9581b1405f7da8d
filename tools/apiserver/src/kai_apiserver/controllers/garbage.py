"""Garbage collection: what has lost all its owners goes; foreground and orphan deletion wait for this.

Events are forgotten after a while, as the real server does by a lease on each.

A namespace that is being deleted: first its contents, then itself.
"""

from datetime import timedelta
from itertools import islice

from kai_apiserver.controllers.reconciling import Controller
from kai_apiserver.objects import Object, parse_time
from kai_apiserver.rest.backend import Backend, Target
from kai_apiserver.rest.deletion import FOREGROUND, ORPHAN
from kai_apiserver.rest.writing import NAMESPACES
from kai_apiserver.store import Collection, Event, EventType, Stored
from kai_apiserver.store.store import Place

_AT_ONCE = 200
_NAMESPACE_TERMINATING = "Terminating"


class NamespaceController(Controller[str]):
    """Empties namespaces that are being deleted."""

    name = "namespace-controller"

    def begin(self) -> None:
        """Look at every namespace."""
        for stored in self.backend.store.collection(NAMESPACES):
            self._seen(stored)
        self.backend.store.subscribe(self._changed)

    def _seen(self, stored: Stored) -> None:
        if stored.fields[0] == _NAMESPACE_TERMINATING:
            self.queue(stored.name)

    def _changed(self, collection: Collection, event: Event) -> None:
        if collection.resource.storage == NAMESPACES:
            self._seen(event.stored)
        elif event.type is EventType.DELETED and event.stored.namespace:
            namespace = self.backend.store.collection(NAMESPACES).get(event.stored.namespace)
            if namespace is not None:
                self._seen(namespace)

    def reconcile(self, key: str) -> float | None:
        """Delete some of a namespace's contents; let it go if there are none left."""
        stored = self.backend.store.collection(NAMESPACES).get(key)
        if stored is None or stored.fields[0] != _NAMESPACE_TERMINATING:
            return None
        left = False
        prefix = f"{key}/"
        for collection in self.backend.store.collections:
            if not collection.resource.namespaced or not collection.count(prefix):
                continue
            left = True
            waiting = (item for item in collection.scan(prefix) if b'"deletionTimestamp"' not in item.body)
            batch = list(islice(waiting, _AT_ONCE))
            for item in batch:
                self.delete(item, collection.resource)
            if len(batch) == _AT_ONCE:
                self.queue(key)
        if left:
            return None  # every deletion that goes through leads back here
        namespace = stored.decode()
        namespace["spec"] = {}
        self.commit(stored, self.backend.registry.find("", "v1", plural=NAMESPACES), namespace)
        return None


EVENTS = "events"
_SWEEP_S = 60.0


class EventExpiry(Controller[str]):
    """Deletes events when their time to live is over; its only key is the collection."""

    name = "event-expiry"

    def __init__(self, backend: Backend, *, ttl_s: float) -> None:
        super().__init__(backend)
        self._ttl = timedelta(seconds=ttl_s)

    def begin(self) -> None:
        """Sweep now and then."""
        self.queue(EVENTS)

    def reconcile(self, key: str) -> float | None:
        """Delete what is too old."""
        collection = self.backend.store.collection(key)
        limit = self.backend.now() - self._ttl
        for stored in list(collection):
            if parse_time(_last_seen(stored.decode())) < limit:
                self.backend.store.delete(collection, stored)
        return min(_SWEEP_S, self._ttl.total_seconds())


def _last_seen(event: dict[str, object]) -> str:
    metadata = event["metadata"]
    assert isinstance(metadata, dict)
    return str(event.get("lastTimestamp") or event.get("eventTime") or metadata["creationTimestamp"])


_TERMINATING = b'"deletionTimestamp"'
_WAITS_FOR_US = (f'"{FOREGROUND}"'.encode(), f'"{ORPHAN}"'.encode())


class GarbageCollector(Controller[Place]):
    """Deletes dependents without their owners, and settles foreground and orphan deletion."""

    name = "garbage-collector"

    def begin(self) -> None:
        """Look at everything that has an owner."""
        for collection in self.backend.store.collections:
            for stored in collection:
                if stored.owners or self._waits(stored):
                    self.queue((collection.resource.storage, stored.key))
        self.backend.store.subscribe(self._changed)

    @staticmethod
    def _waits(stored: Stored) -> bool:
        return _TERMINATING in stored.body and any(finalizer in stored.body for finalizer in _WAITS_FOR_US)

    def _changed(self, collection: Collection, event: Event) -> None:
        storage, stored, previous = collection.resource.storage, event.stored, event.previous
        if event.type is EventType.DELETED:
            for place in self.backend.store.dependents(stored.uid):
                self.queue(place)
            self._notify_owners(stored)
            return
        if stored.owners and (previous is None or previous.owners != stored.owners):
            self.queue((storage, stored.key))
        if event.type is EventType.MODIFIED and self._waits(stored):
            self.queue((storage, stored.key))

    def _notify_owners(self, stored: Stored) -> None:
        """An owner in foreground deletion may wait for this dependent."""
        if not stored.owners:
            return
        for reference in stored.decode()["metadata"]["ownerReferences"]:
            place = self._owner_place(reference, stored.namespace)
            if place is not None:
                self.queue(place)

    def _owner_place(self, reference: Object, namespace: str) -> Place | None:
        resource = self.backend.registry.of_kind(reference["apiVersion"], reference["kind"])
        if resource is None:
            return None
        return resource.storage, Target(resource, namespace, reference["name"]).key

    def reconcile(self, key: Place) -> float | None:
        """Settle one object: its owners, and if it is being deleted, its dependents."""
        stored = self.backend.store.find(*key)
        if stored is None:
            return None
        obj = stored.decode()
        metadata = obj["metadata"]
        if metadata.get("deletionTimestamp"):
            finalizers = metadata.get("finalizers") or ()
            if ORPHAN in finalizers:
                self._orphan(key, stored)
            elif FOREGROUND in finalizers:
                self._delete_dependents(key, stored)
            return None
        references = metadata.get("ownerReferences") or []
        solid = [reference for reference in references if self._exists(reference, stored.namespace)]
        if references and not solid:
            resource = self.backend.registry.of_storage(key[0])
            self.delete(stored, resource)
        elif len(solid) < len(references):
            metadata["ownerReferences"] = solid
            self._write(key, stored, obj)
        return None

    def _exists(self, reference: Object, namespace: str) -> bool:
        """True if an owner is there; one of an unknown kind is taken to be."""
        place = self._owner_place(reference, namespace)
        if place is None:
            return True
        owner = self.backend.store.find(*place)
        return owner is not None and owner.uid == reference["uid"]

    def _write(self, place: Place, stored: Stored, obj: Object) -> None:
        self.commit(stored, self.backend.registry.of_storage(place[0]), obj)

    def _orphan(self, place: Place, stored: Stored) -> None:
        """Cut the dependents loose, then let the object go."""
        for dependent_place in list(self.backend.store.dependents(stored.uid)):
            dependent = self.backend.store.find(*dependent_place)
            if dependent is None:
                continue
            obj = dependent.decode()
            references = obj["metadata"].get("ownerReferences") or []
            obj["metadata"]["ownerReferences"] = [item for item in references if item["uid"] != stored.uid]
            if not obj["metadata"]["ownerReferences"]:
                del obj["metadata"]["ownerReferences"]
            self._write(dependent_place, dependent, obj)
        self._release(place, stored, ORPHAN)

    def _delete_dependents(self, place: Place, stored: Stored) -> None:
        """Delete the dependents, and let the object go when the last of them has gone."""
        for dependent_place in list(self.backend.store.dependents(stored.uid)):
            dependent = self.backend.store.find(*dependent_place)
            if dependent is not None and _TERMINATING not in dependent.body:
                resource = self.backend.registry.of_storage(dependent_place[0])
                self.delete(dependent, resource, "Foreground" if self._owns(dependent) else "Background")
        if not self._owns(stored):
            self._release(place, stored, FOREGROUND)

    def _owns(self, stored: Stored) -> bool:
        return bool(self.backend.store.dependents(stored.uid))

    def _release(self, place: Place, stored: Stored, finalizer: str) -> None:
        obj = stored.decode()
        obj["metadata"]["finalizers"] = [item for item in obj["metadata"].get("finalizers") or () if item != finalizer]
        self._write(place, stored, obj)
