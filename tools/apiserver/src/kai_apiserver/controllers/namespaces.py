"""A namespace that is being deleted: first its contents, then itself."""

from itertools import islice

from kai_apiserver.controllers.reconciling import Controller
from kai_apiserver.rest.backend import CONTROLLER, Operation, Target
from kai_apiserver.rest.deletion import DeleteOptions, delete
from kai_apiserver.rest.writing import NAMESPACES, commit
from kai_apiserver.store import Collection, Event, EventType, Stored

_AT_ONCE = 200
_TERMINATING = "Terminating"


class NamespaceController(Controller[str]):
    """Empties namespaces that are being deleted."""

    name = "namespace-controller"

    def begin(self) -> None:
        """Look at every namespace."""
        for stored in self.backend.store.collection(NAMESPACES):
            self._seen(stored)
        self.backend.store.subscribe(self._changed)

    def _seen(self, stored: Stored) -> None:
        if stored.fields[0] == _TERMINATING:
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
        if stored is None or stored.fields[0] != _TERMINATING:
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
                options = DeleteOptions(propagation="Background")
                resource = collection.resource
                delete(self.backend, item, resource=resource, options=options, operation=Operation(user=CONTROLLER))
            if len(batch) == _AT_ONCE:
                self.queue(key)
        if left:
            return None  # every deletion that goes through leads back here
        namespace = stored.decode()
        namespace["spec"] = {}
        resource = self.backend.registry.find("", "v1", plural=NAMESPACES)
        target = Target(resource, name=key)
        commit(self.backend, target, stored=stored, new=namespace, operation=Operation(user=CONTROLLER))
        return None
