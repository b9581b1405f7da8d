"""Disruption budgets: how many pods of a kind may go, and the verdict on one more.

Keep the status of disruption budgets: how many of their pods are healthy, and how many may go.
"""

import math
from dataclasses import dataclass
from datetime import timedelta

from kai_apiserver.controllers.reconciling import Controller
from kai_apiserver.errors import StatusError, too_many_requests
from kai_apiserver.objects import Object, holds, parse_time, replace_condition
from kai_apiserver.rest.backend import Backend
from kai_apiserver.rest.selectors import LabelSelector, selector_of
from kai_apiserver.store import Event, EventType, Stored

BUDGETS = "poddisruptionbudgets.policy"
_REFUSED = "Cannot evict pod as it would violate the pod's disruption budget."
#: A pod that was to be disrupted and still stands after this time is counted as healthy again.
_DISRUPTION_TIMEOUT = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Tally:
    """The figures of a budget's pods.

    Attributes:
        expected: pods that the budget counts.
        healthy: of those, the ready ones that are not being disrupted.
        desired: how many have to stay healthy.
    """

    expected: int
    healthy: int
    desired: int

    @property
    def allowed(self) -> int:
        """The number of pods that may go now."""
        return max(0, self.healthy - self.desired) if self.expected else 0


def is_healthy(pod: Object) -> bool:
    """True if a pod counts as available."""
    return holds(pod, "Ready")


def tally(budget: Object, pods: list[Object], *, disrupted: Object) -> Tally:
    """Count a budget's pods; `disrupted` are names of pods that are on their way out."""
    spec = budget["spec"]
    counted = [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
    expected = len(counted)
    healthy = sum(
        is_healthy(pod)
        for pod in counted
        if not pod["metadata"].get("deletionTimestamp") and pod["metadata"]["name"] not in disrupted
    )
    if "maxUnavailable" in spec:
        desired = max(0, expected - _scaled(spec["maxUnavailable"], expected))
    else:
        desired = _scaled(spec.get("minAvailable", 1), expected)
    return Tally(expected, healthy, desired)


def _scaled(amount: int | str, total: int) -> int:
    """A count, or a percentage of `total` rounded up."""
    if isinstance(amount, str):
        return math.ceil(int(amount.rstrip("%")) * total / 100)
    return amount


def pods_of(backend: Backend, budget: Object) -> list[Object]:
    """The pods that a budget selects."""
    selector = selector_of(budget["spec"].get("selector"))
    if selector is None:
        return []
    prefix = f"{budget['metadata']['namespace']}/"
    return [
        stored.decode() for stored in backend.store.collection("pods").scan(prefix) if selector.matches(stored.labels)
    ]


def still_disrupted(backend: Backend, budget: Object, *, pods: list[Object]) -> dict[str, str]:
    """Of the pods that evictions took from the budget, those that are neither gone, terminating nor long overdue."""
    standing = {pod["metadata"]["name"] for pod in pods if not pod["metadata"].get("deletionTimestamp")}
    now = backend.now()
    return {
        name: since
        for name, since in (budget["status"].get("disruptedPods") or {}).items()
        if name in standing and parse_time(since) + _DISRUPTION_TIMEOUT > now
    }


def disruption_verdict(backend: Backend, stored: Stored, *, pod: Object, dry_run: bool) -> None:
    """Take one disruption from the pod's budget.

    Raises StatusError: 429, there is none left; 500, the pod has several budgets.
    """
    collection = backend.store.collection(BUDGETS)
    matching = []
    for candidate in collection.scan(f"{stored.namespace}/"):
        budget = candidate.decode()
        selector = selector_of(budget["spec"].get("selector"))
        if selector is not None and selector.matches(stored.labels):
            matching.append((candidate, budget))
    if not matching:
        return
    if len(matching) > 1:
        raise StatusError(
            500, "", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
    budget_stored, budget = matching[0]
    status = budget["status"]
    if not is_healthy(pod):
        policy = budget["spec"].get("unhealthyPodEvictionPolicy", "IfHealthyBudget")
        enough = status["currentHealthy"] >= status["desiredHealthy"] > 0
        if policy == "AlwaysAllow" or enough:
            return
    name = budget_stored.name
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _refused(f"The disruption budget {name} is still being processed by the server.", retry_after_s=10)
    if status["disruptionsAllowed"] < 1:
        raise _refused(
            f"The disruption budget {name} needs {status['desiredHealthy']} healthy pods and has "
            f"{status['currentHealthy']} currently"
        )
    if dry_run:
        return
    status["disruptionsAllowed"] -= 1
    status["disruptedPods"] = {**(status.get("disruptedPods") or {}), stored.name: backend.timestamp()}
    backend.store.update(collection, budget, budget_stored)


def _refused(why: str, *, retry_after_s: int | None = None) -> StatusError:
    return too_many_requests(
        _REFUSED,
        retry_after_s=retry_after_s,
        details={"causes": [{"reason": "DisruptionBudget", "message": why}]},
    )


_RECOUNT_DISRUPTED_S = 130.0


class DisruptionController(Controller[str]):
    """Counts the pods of every budget whenever one of them changes."""

    name = "disruption-controller"

    def begin(self) -> None:
        """Look at every budget."""
        self._selectors: dict[str, LabelSelector | None] = {}
        for stored in self.backend.store.collection(BUDGETS):
            self._seen(stored)
        self.backend.store.follow(BUDGETS, self._budget_changed)
        self.backend.store.follow("pods", self._pod_changed)

    def _seen(self, stored: Stored) -> None:
        self._selectors[stored.key] = selector_of(stored.decode()["spec"].get("selector"))
        self.queue(stored.key)

    def _budget_changed(self, event: Event) -> None:
        if event.type is EventType.DELETED:
            self._selectors.pop(event.stored.key, None)
        else:
            self._seen(event.stored)

    def _pod_changed(self, event: Event) -> None:
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
