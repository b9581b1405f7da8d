"""PodDisruptionBudgets: the number of further pods under each that a cycle may evict."""

from collections.abc import Iterable, Mapping

from kaicore.rules.engine.workload import Member


class Budgets:
    """How many more pods may be evicted, by budget.

    A pod under several budgets is never chosen: the API refuses to evict it.
    """

    def __init__(
        self, allowed: Mapping[str, int] | None = None, by_pod: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """Args:
        allowed: `status.disruptionsAllowed` by budget, as `<namespace>/<name>`, less the evictions not granted yet.
        by_pod: the budgets of each pod that has any, by its uid.
        """
        self._allowed = dict(allowed or {})
        self._by_pod = by_pod or {}

    def copy(self) -> "Budgets":
        """Return budgets that a cycle can change."""
        return Budgets(self._allowed, self._by_pod)

    def take(self, members: Iterable[Member], *, sign: int = 1) -> None:
        """Count pods as evicted, or with `sign=-1` as not."""
        for member in members:
            for budget in self._by_pod.get(member.pod.uid, ()):
                self._allowed[budget] = self._allowed.get(budget, 0) - sign

    def refuse(self, members: Iterable[Member]) -> bool:
        """Tell whether any budget would be exceeded by evicting all of the pods."""
        return bool(self._by_pod) and bool(self.refusing(members))

    def refusing(self, members: Iterable[Member]) -> set[tuple[str, ...]]:
        """Return the budgets that do not let all of the pods be evicted; several together if a pod is under several."""
        evicted: dict[tuple[str, ...], int] = {}
        for member in members:
            budgets = self._by_pod.get(member.pod.uid, ())
            if budgets:
                evicted[budgets] = evicted.get(budgets, 0) + 1
        return {budgets for budgets, count in evicted.items() if len(budgets) > 1 or self.allowed(budgets[0]) < count}

    def allowed(self, budget: str) -> int:
        """Return how many more pods a budget lets be evicted."""
        return max(self._allowed.get(budget, 0), 0)

    def under(self, budgets: tuple[str, ...], members: Iterable[Member]) -> int:
        """Count the pods that are under just these budgets."""
        return sum(self._by_pod.get(member.pod.uid) == budgets for member in members)
