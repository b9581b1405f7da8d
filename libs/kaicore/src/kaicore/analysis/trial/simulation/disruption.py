"""The disruption controller of a simulated cluster: it keeps the status of PodDisruptionBudgets up to date.

Source: `pkg/controller/disruption` of Kubernetes 1.36. Here every pod that a controller created counts towards its
scale. A pod on a node is healthy unless its `Ready` condition says otherwise.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from kaicore.errors import InvalidObject
from kaicore.kube.wire.objects import BudgetObject, BudgetStatus
from kaicore.rules.objects.mappings import Object
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
from kaicore.rules.state.views import FleetView


class DisruptionController:
    """The budgets of a simulated world.

    What a budget's status says in the input stands until something changes; a budget without one is counted at once.
    """

    def __init__(self, budgets: Iterable[BudgetObject], object_of: Callable[[str], Object | None]) -> None:
        """Args:
        budgets: as the input has them; their fields are valid.
        object_of: returns a pod as its JSON says it, by its uid.
        """
        self._budgets = {f"{one.metadata.namespace}/{one.metadata.name}": one for one in budgets}
        self._object_of = object_of
        self._version = 0

    def new(self, state: FleetView) -> list[BudgetObject]:
        """Return the budgets without allowed disruptions in the input, with counted ones."""
        unknown = {key for key, one in self._budgets.items() if one.status.disruptions_allowed is None}
        return self._recounted(state, unknown) if unknown else []

    def changed(self, state: FleetView) -> list[BudgetObject]:
        """Pods have changed: return all budgets, counted again."""
        return self._recounted(state, set(self._budgets)) if self._budgets else []

    def _recounted(self, state: FleetView, keys: set[str]) -> list[BudgetObject]:
        self._version += 1
        expected, healthy = dict.fromkeys(keys, 0), dict.fromkeys(keys, 0)
        for entry in state.pods.values():
            if entry.stage is Stage.FINISHED:
                continue
            for key in keys.intersection(state.constraints.budgets_of(entry.pod)):
                expected[key] += 1
                healthy[key] += self._is_healthy(entry)
        return [self._count(key, expected[key], healthy[key]) for key in sorted(keys)]

    def _count(self, key: str, expected: int, healthy: int) -> BudgetObject:
        budget = self._budgets[key]
        spec = budget.spec
        if spec.max_unavailable is not None:
            desired = max(expected - _scaled(spec.max_unavailable, expected), 0)
        else:
            desired = _scaled(1 if spec.min_available is None else spec.min_available, expected)
        allowed = max(healthy - desired, 0) if expected else 0
        meta = msgspec.structs.replace(budget.metadata, resource_version=f"counted-{self._version}")
        return msgspec.structs.replace(budget, metadata=meta, status=BudgetStatus(disruptions_allowed=allowed))

    def _is_healthy(self, entry: PodEntry) -> bool:
        if entry.stage is not Stage.BOUND or entry.pod.deletion_at is not None:
            return False
        pod = self._object_of(entry.pod.uid)
        conditions: list[Any] = [] if pod is None else (pod.get("status") or {}).get("conditions") or []
        return not any(one.get("type") == "Ready" and one.get("status") != "True" for one in conditions)


def check_budget(wire: BudgetObject) -> None:
    """Refuse a budget that an API server would not take.

    Raises:
        InvalidObject: its limit is neither a count nor a percentage, or it has two.
    """
    subject = f"PodDisruptionBudget {wire.metadata.namespace}/{wire.metadata.name}"
    spec = wire.spec
    if spec.min_available is not None and spec.max_unavailable is not None:
        raise InvalidObject(subject, "spec.maxUnavailable", spec.max_unavailable, "goes not with minAvailable")
    for name, limit in (("minAvailable", spec.min_available), ("maxUnavailable", spec.max_unavailable)):
        number = limit.removesuffix("%") if isinstance(limit, str) and limit.endswith("%") else limit
        if isinstance(number, str) and not (number.isascii() and number.isdigit()):
            raise InvalidObject(subject, f"spec.{name}", limit, "must be a count or a percentage such as 50%")
        if isinstance(number, int) and number < 0:
            raise InvalidObject(subject, f"spec.{name}", limit, "must not be negative")


def _scaled(amount: int | str, total: int) -> int:
    """Return a count, or a percentage of a total, rounded up."""
    return amount if isinstance(amount, int) else -(-int(amount.removesuffix("%")) * total // 100)
