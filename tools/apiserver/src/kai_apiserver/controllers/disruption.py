"""Keep the status of disruption budgets: how many of their pods are healthy, and how many may go."""

from kai_apiserver.controllers.reconciling import Controller
from kai_apiserver.disruption import BUDGETS, pods_of, still_disrupted, tally
from kai_apiserver.objects import Object, replace_condition
from kai_apiserver.selectors import LabelSelector, selector_of
from kai_apiserver.store import Collection, Event, EventType, Stored

_RECOUNT_DISRUPTED_S = 130.0


class DisruptionController(Controller[str]):
    """Counts the pods of every budget whenever one of them changes."""

    name = "disruption-controller"

    def begin(self) -> None:
        """Look at every budget."""
        self._selectors: dict[str, LabelSelector | None] = {}
        for stored in self.backend.store.collection(BUDGETS):
            self._seen(stored)
        self.backend.store.subscribe(self._budget_changed, BUDGETS)
        self.backend.store.subscribe(self._pod_changed, "pods")

    def _seen(self, stored: Stored) -> None:
        self._selectors[stored.key] = selector_of(stored.decode()["spec"].get("selector"))
        self.queue(stored.key)

    def _budget_changed(self, collection: Collection, event: Event) -> None:
        del collection
        if event.type is EventType.DELETED:
            self._selectors.pop(event.stored.key, None)
        else:
            self._seen(event.stored)

    def _pod_changed(self, collection: Collection, event: Event) -> None:
        del collection
        if not self._selectors:
            return
        prefix = f"{event.stored.namespace}/"
        for key, selector in self._selectors.items():
            if selector is None or not key.startswith(prefix):
                continue
            if selector.matches(event.stored.labels) or (
                event.previous is not None and selector.matches(event.previous.labels)
            ):
                self.queue(key)

    def reconcile(self, key: str) -> float | None:
        """Count one budget's pods."""
        collection = self.backend.store.collection(BUDGETS)
        stored = collection.get(key)
        if stored is None:
            return None
        budget = stored.decode()
        pods = pods_of(self.backend, budget)
        disrupted = still_disrupted(self.backend, budget, pods=pods)
        count = tally(budget, pods, disrupted=disrupted)
        status: Object = {
            "observedGeneration": budget["metadata"].get("generation", 0),
            "disruptionsAllowed": count.allowed,
            "currentHealthy": count.healthy,
            "desiredHealthy": count.desired,
            "expectedPods": count.expected,
            "conditions": list(budget["status"].get("conditions") or ()),
        }
        if disrupted:
            status["disruptedPods"] = disrupted
        condition = {
            "type": "DisruptionAllowed",
            "status": "True" if count.allowed else "False",
            "observedGeneration": status["observedGeneration"],
            "reason": "SufficientPods" if count.allowed else "InsufficientPods",
            "message": "",
        }
        replace_condition(status["conditions"], condition, self.backend.timestamp())
        budget["status"] = status
        self.backend.write_status(collection.resource, budget, stored)
        return _RECOUNT_DISRUPTED_S if disrupted else None
