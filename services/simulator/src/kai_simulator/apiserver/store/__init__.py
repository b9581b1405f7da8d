"""Where objects live: collections with history, one global resourceVersion, and a journal that outlives the process."""

from kai_simulator.apiserver.store.collection import Collection
from kai_simulator.apiserver.store.records import Event, EventType, Stored
from kai_simulator.apiserver.store.store import Store
from kai_simulator.apiserver.store.watching import Watcher

__all__ = ["Collection", "Event", "EventType", "Store", "Stored", "Watcher"]
