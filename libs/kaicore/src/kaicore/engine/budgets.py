"""PodDisruptionBudgets, as far as they bear on whom a cycle may evict."""

from collections.abc import Iterable, Mapping

from kaicore.engine.workload import Member


class Budgets:
    """How many more pods may be evicted, by budget.

    A pod under several budgets is never chosen: the API refuses to evict it.
    """

    def __init__(
        self, allowed: Mapping[str, int] | None = None, by_pod: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """Args:
        allowed: `status.disruptionsAllowed` by budget, as `<namespace>/<name>`, less the evictions still under way.
        by_pod: the budgets of each pod that has any, by its uid.
        """
        self._allowed = dict(allowed or {})
        self._by_pod = by_pod or {}

    def copy(self) -> "Budgets":
        """Return budgets of one's own."""
        return Budgets(self._allowed, self._by_pod)

    def take(self, members: Iterable[Member], *, sign: int = 1) -> None:
        """Count pods as evicted, or with `sign=-1` as not."""
        for member in members:
            for budget in self._by_pod.get(member.pod.uid, ()):
                self._allowed[budget] = self._allowed.get(budget, 0) - sign

    def refuse(self, members: Iterable[Member]) -> bool:
        """Tell whether any budget would be exceeded by evicting all of the pods."""
        if not self._by_pod:
            return False
        asked: dict[str, int] = {}
        for member in members:
            budgets = self._by_pod.get(member.pod.uid, ())
            if len(budgets) > 1:
                return True
            for budget in budgets:
                asked[budget] = asked.get(budget, 0) + 1
        return any(self._allowed.get(budget, 0) < count for budget, count in asked.items())
