"""Events are forgotten after a while, as the real server does by a lease on each."""

from datetime import timedelta

from kai_apiserver.controllers.reconciling import Controller
from kai_apiserver.objects import parse_time
from kai_apiserver.rest.backend import Backend

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
