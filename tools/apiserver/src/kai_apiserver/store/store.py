"""The store: all collections under one resourceVersion, and the only way to change them.

A change is one synchronous step: the number is taken, the journal written, the collection changed, watchers and
controllers notified. There is no `await` in between, so on one event loop every change is atomic and in order.
"""

import asyncio
from collections.abc import Callable, KeysView

from kaicore.runtime.service import get_logger

from kai_apiserver.objects import Object, decode_json
from kai_apiserver.resources.registry import Registry, ResourceType
from kai_apiserver.store.collection import Collection
from kai_apiserver.store.records import Event, EventType, Journal, Stored

Listener = Callable[[Collection, Event], None]
#: Collection and key of an object.
Place = tuple[str, str]

#: Journal bytes after which a snapshot is taken, and the least multiple of the live objects' size.
SNAPSHOT_AFTER_BYTES = 256 * 1024 * 1024


class Store:
    """Every object of the cluster (`rv`: the last resourceVersion given out)."""

    def __init__(self, registry: Registry, journal: Journal | None = None, *, history: int = 50_000) -> None:
        """`history` is how many events each collection remembers."""
        self.rv = 0
        self._registry = registry
        self._journal = journal
        self._history = history
        self._collections: dict[str, Collection] = {}
        self._listeners: list[Listener] = []
        self._followers: dict[str, list[Callable[[Event], None]]] = {}
        self._owned: dict[str, dict[Place, None]] = {}  # by uid of an owner
        self._changed: asyncio.Event | None = None
        self._snapshot: asyncio.Task[None] | None = None
        for resource in registry:
            if resource.stored and resource.from_storage is None:
                self.add_collection(resource)

    def add_collection(self, resource: ResourceType) -> Collection:
        """The collection of a resource, made if it is not there."""
        collection = self._collections.get(resource.storage)
        if collection is None:
            collection = Collection(resource, history=self._history, rv=self.rv)
            self._collections[resource.storage] = collection
        return collection

    def drop_collection(self, storage: str) -> None:
        """Forget an (empty) collection, and end its watches: its resource is no more."""
        dropped = self._collections.pop(storage, None)
        for watcher in list(dropped.watchers) if dropped is not None else ():
            watcher.overflowed = True
            watcher.wake()

    def collection(self, storage: str) -> Collection:
        """The collection of that name, which must exist."""
        return self._collections[storage]

    def find_collection(self, storage: str) -> Collection | None:
        """The collection of that name, if there is one: those of custom resources come and go."""
        return self._collections.get(storage)

    def find(self, storage: str, key: str) -> Stored | None:
        """An object of a collection that may not be there."""
        collection = self._collections.get(storage)
        return collection.get(key) if collection is not None else None

    @property
    def collections(self) -> list[Collection]:
        """All collections."""
        return list(self._collections.values())

    def subscribe(self, listener: Listener) -> None:
        """Have `listener` called with every event, after the followers of its collection."""
        self._listeners.append(listener)

    def follow(self, storage: str, follower: Callable[[Event], None]) -> None:
        """Have `follower` called with every event of one collection."""
        self._followers.setdefault(storage, []).append(follower)

    def dependents(self, uid: str) -> KeysView[Place]:
        """The places of what names an owner of this uid, in the order in which it came to do so."""
        return self._owned.get(uid, {}).keys()

    def owned(self, uid: str, storage: str) -> list[Stored]:
        """Objects of one collection that name an owner of this uid."""
        collection = self._collections[storage]
        found = (collection.get(key) for kind, key in self._owned.get(uid, ()) if kind == storage)
        return [stored for stored in found if stored is not None]

    def _own(self, place: Place, before: Stored | None, after: Stored | None) -> None:
        """Follow whom an object names as its owners."""
        old, new = before.owners if before is not None else (), after.owners if after is not None else ()
        if old == new:
            return
        for owner in old:
            owned = self._owned.get(owner, {})
            owned.pop(place, None)
            if not owned:
                self._owned.pop(owner, None)
        for owner in new:
            self._owned.setdefault(owner, {})[place] = None

    def load(self, on_definition: Callable[[Stored], None]) -> None:
        """Read the journal; `on_definition` gets every definition of a custom resource, before its objects."""
        if self._journal is None:
            return

        def apply(storage: str, key: str, rv: int, body: bytes | None) -> None:
            collection = self._collections.get(storage)
            if collection is None:
                return  # the rest of a custom resource without its definition
            stored = Stored(collection.resource, decode_json(body)) if body is not None else None
            self._own((storage, key), collection.get(key), stored)
            collection.load(stored, key, rv)
            if stored is not None and storage == "customresourcedefinitions.apiextensions.k8s.io":
                on_definition(stored)

        self.rv = self._journal.load(apply)
        for collection in self._collections.values():
            collection.floor = self.rv
            collection.rv = collection.rv or self.rv

    def create(self, collection: Collection, obj: Object) -> Stored:
        """Commit a new object; its key must be free."""
        return self._put(collection, obj, None)

    def update(
        self, collection: Collection, obj: Object, previous: Stored, *, sign: Callable[[Object], None] | None = None
    ) -> Stored:
        """Commit a new version of `previous`, signed by its writer; if nothing is different, nothing happens."""
        obj["metadata"]["resourceVersion"] = str(previous.rv)
        unchanged = Stored(collection.resource, obj)
        if unchanged.body == previous.body or (
            len(unchanged.body) == len(previous.body) and unchanged.decode() == previous.decode()
        ):
            return previous
        if sign is not None:
            sign(obj)
        return self._put(collection, obj, previous)

    def _put(self, collection: Collection, obj: Object, previous: Stored | None) -> Stored:
        obj["metadata"]["resourceVersion"] = str(self.rv + 1)
        stored = Stored(collection.resource, obj)
        kind = EventType.ADDED if previous is None else EventType.MODIFIED
        self._commit(collection, Event(kind, stored.rv, stored, previous))
        return stored

    def delete(self, collection: Collection, previous: Stored, obj: Object | None = None) -> Stored:
        """Commit a deletion; return the last state (`obj` if given, else `previous`) at the deletion's version."""
        last = obj if obj is not None else previous.decode()
        last["metadata"]["resourceVersion"] = str(self.rv + 1)
        stored = Stored(collection.resource, last)
        self._commit(collection, Event(EventType.DELETED, stored.rv, stored, previous))
        return stored

    def _commit(self, collection: Collection, event: Event) -> None:
        stored = event.stored
        if self._journal is not None:
            body = None if event.type is EventType.DELETED else stored.body
            self._journal.append(event.rv, collection.resource.storage, stored.key, body)
        self.rv = event.rv
        collection.apply(event)
        storage = collection.resource.storage
        self._own((storage, stored.key), event.previous, None if event.type is EventType.DELETED else stored)
        for follower in self._followers.get(storage, ()):
            follower(event)
        for listener in self._listeners:
            listener(collection, event)
        if self._changed is not None:
            self._changed.set()
            self._changed = None
        if self._journal is not None and self._journal.written > SNAPSHOT_AFTER_BYTES:
            self.start_snapshot()

    async def reached(self, rv: int, seconds: float) -> bool:
        """Wait until `rv` was given out; return whether it was before `seconds` were over."""
        try:
            async with asyncio.timeout(seconds):
                while self.rv < rv:
                    self._changed = self._changed or asyncio.Event()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def start_snapshot(self) -> None:
        """Begin a snapshot in the background, unless one is being written."""
        if self._journal is None or (self._snapshot is not None and not self._snapshot.done()):
            return
        rv, journal = self.rv, self._journal
        definitions_first = sorted(self._collections.items(), key=lambda item: "definitions" not in item[0])
        objects = [
            (storage, stored.key, stored.rv, stored.body)
            for storage, collection in definitions_first
            for stored in collection
        ]
        journal.rotate(rv)
        self._snapshot = asyncio.ensure_future(asyncio.to_thread(journal.write_snapshot, rv, objects))
        self._snapshot.add_done_callback(_report)

    async def close(self) -> None:
        """Finish what is being written and release the directory."""
        if self._snapshot is not None:
            await asyncio.wait({self._snapshot})
        if self._journal is not None:
            self._journal.close()


def _report(snapshot: asyncio.Task[None]) -> None:
    """A failed snapshot costs disk space and time at the next start, but no data: the journals are still there."""
    if not snapshot.cancelled() and snapshot.exception() is not None:
        get_logger().error("snapshot failed", exc_info=snapshot.exception())
