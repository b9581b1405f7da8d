"""The store of objects: collections with history, one global resourceVersion, and a journal on disk."""

from kai_apiserver.store.collection import Collection, Watcher
from kai_apiserver.store.records import Event, EventType, Stored
from kai_apiserver.store.store import Store

__all__ = ["Collection", "Event", "EventType", "Store", "Stored", "Watcher"]
