"""Definitions come, change and go; so do the resources they make."""

import asyncio

from kai_apiserver.objects import Object
from kai_apiserver.resources.crd import DEFINITIONS, establish, reservations, resources_of
from kai_apiserver.resources.registry import Registry
from kai_apiserver.rest.backend import Backend, Operation, Target
from kai_apiserver.rest.deletion import DeleteOptions, delete
from kai_apiserver.rest.writing import commit
from kai_apiserver.store import Collection, Event, EventType, Store, Stored

CLEANUP = "customresourcecleanup.apiextensions.k8s.io"


def serve(registry: Registry, store: Store, *, definition: Object) -> None:
    """Serve the resources of a definition, instead of what it served before; watches of a version that goes end."""
    group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
    registry.remove_group_resource(group, plural)
    for place, resource in enumerate(resources_of(definition)):
        registry.add(resource)
        collection = store.add_collection(resource)
        if place == 0 and collection.resource is not resource:
            collection.retype(resource)
        for watcher in list(collection.watchers):
            watcher.wake()


class DefinitionLifecycle:
    """Follows the definitions of a backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        backend.after_write[DEFINITIONS] = self._written
        backend.store.subscribe(self._changed)

    def _written(self, stored: Stored, operation: Operation) -> None:
        definition = stored.decode()
        if definition["metadata"].get("deletionTimestamp"):
            return
        backend = self._backend
        serve(backend.registry, backend.store, definition=definition)
        operation.warnings += reservations(definition)
        establish(definition, backend.now())
        backend.store.update(backend.store.collection(DEFINITIONS), definition, stored)

    def delete(self, stored: Stored, *, options: DeleteOptions, operation: Operation) -> tuple[Stored, bool]:
        """Delete a definition: first its objects, then itself, when the last of them is gone."""
        backend = self._backend
        resource = backend.registry.find("apiextensions.k8s.io", "v1", plural="customresourcedefinitions")
        collection = backend.collection(resource)
        definition = stored.decode()
        if not options.dry_run and CLEANUP not in (definition["metadata"].get("finalizers") or ()):
            definition["metadata"].setdefault("finalizers", []).append(CLEANUP)
            stored = backend.store.update(collection, definition, stored)
        marked, gone = delete(backend, stored, resource=resource, options=options, operation=operation)
        if not options.dry_run:
            self._clean(definition, operation)
        return marked, gone

    def _clean(self, definition: Object, operation: Operation) -> None:
        options = DeleteOptions(propagation="Background")
        for served in resources_of(definition)[:1]:
            for stored in list(self._backend.collection(served)):
                delete(self._backend, stored, resource=served, options=options, operation=operation)
        self._finish(definition["metadata"]["name"])

    def _finish(self, name: str) -> None:
        """Let a definition go that is being deleted and has no objects left."""
        backend = self._backend
        collection = backend.store.collection(DEFINITIONS)
        stored = collection.get(name)
        if stored is None:
            return
        definition = stored.decode()
        metadata = definition["metadata"]
        if not metadata.get("deletionTimestamp") or CLEANUP not in (metadata.get("finalizers") or ()):
            return
        storage = f"{definition['spec']['names']['plural']}.{definition['spec']['group']}"
        objects = backend.store.find_collection(storage)
        if objects is not None and len(objects):
            return
        backend.registry.remove_group_resource(definition["spec"]["group"], definition["spec"]["names"]["plural"])
        metadata["finalizers"] = [item for item in metadata["finalizers"] if item != CLEANUP]
        resource = backend.registry.find("apiextensions.k8s.io", "v1", plural="customresourcedefinitions")
        commit(backend, Target(resource, name=name), stored=stored, new=definition, operation=Operation())

    def _changed(self, collection: Collection, event: Event) -> None:
        storage = collection.resource.storage
        if event.type is not EventType.DELETED:
            return
        if storage == DEFINITIONS:
            self._backend.store.drop_collection(event.stored.name)
        elif collection.resource.custom is not None and not len(collection):
            asyncio.get_running_loop().call_soon(self._finish, storage)
