"""Accounts of queues while a cycle decides: charging and taking back cost time in proportion to the depth only.

Charging and taking back are each other's inverses, to the unit, in any order and nesting.

A queue may keep part of its quota from others (`QueueTree.kept`). That part counts towards its ancestors' limits even
while it uses less: `held` is that figure. Where no queue keeps anything, it equals `used`. This reproduces Kueue's
lending limits (`facts` and decision 0080).
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeVar

from kaicore.rules.events.reasons.queue import NonPreemptibleOverQuota, OverFairShare, OverLimit
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.queues.division import Shares, Table
from kaicore.rules.queues.tree import UNLIMITED, Demand, QueueTree

Amounts = tuple[int, ...]

_Bound = TypeVar("_Bound", NonPreemptibleOverQuota, OverFairShare)


@dataclass(frozen=True, slots=True)
class LeafUse:
    """The holdings of a leaf's running work, and the part that cannot be preempted, by resource."""

    used: Amounts
    non_preemptible: Amounts


@dataclass(slots=True)
class QueueAccounts:
    """The accounts of all queues, by the tree's numbers.

    Attributes:
        used: what they and those below them hold.
        non_preemptible: the part of it that cannot be preempted.
        past: what they and those below them used in the past, in `USAGE_SCALE`; None where nobody asks.
    """

    tree: QueueTree
    shares: Shares
    past: Table | None = None
    used: list[list[int]] = field(init=False)
    non_preemptible: list[list[int]] = field(init=False)
    _own: list[list[int]] = field(init=False)
    _firm_bounds: Table = field(init=False)

    def __post_init__(self) -> None:
        size, width = len(self.tree), len(self.tree.resources)
        self.used = [[0] * width for _ in range(size)]
        self.non_preemptible = [[0] * width for _ in range(size)]
        self._firm_bounds = self.tree.quotas
        default = self.tree.implied_default
        if default >= 0:
            left = list(self.shares.totals)
            for quotas in (self.tree.quotas[root] for root in self.tree.roots):
                # An unlimited quota promises no amount.
                left = [
                    max(0, over - (0 if quota == UNLIMITED else quota))
                    for over, quota in zip(left, quotas, strict=True)
                ]
            self._firm_bounds = [left if number == default else row for number, row in enumerate(self.tree.quotas)]
        # Direct charges and what the children hold, what is kept not counted.
        self._own = [[0] * width for _ in range(size)]
        for number in range(size - 1, -1, -1):
            parent = self.tree.parents[number]
            if parent >= 0:
                for place, kept in enumerate(self.tree.kept[number]):
                    self._own[parent][place] += max(self._own[number][place], kept)

    @classmethod
    def of(
        cls, tree: QueueTree, shares: Shares, uses: Mapping[int, LeafUse], past: Table | None = None
    ) -> "QueueAccounts":
        """Return accounts with what is used already, by number, and with what was in the past."""
        accounts = cls(tree, shares, past)
        for number, use in uses.items():
            accounts._add(number, use.used, use.non_preemptible)
        return accounts

    def charge(self, number: int, demand: Demand, *, preemptible: bool) -> None:
        """Charge work to a queue and its ancestors."""
        self._add(number, demand.amounts, () if preemptible else demand.amounts)

    def take_back(self, number: int, demand: Demand, *, preemptible: bool) -> None:
        """Undo a charge, or take off work that ends or is evicted."""
        back = tuple(-amount for amount in demand.amounts)
        self._add(number, back, () if preemptible else back)

    def refusals(self, number: int, demand: Demand, *, preemptible: bool) -> tuple[Reason, ...]:
        """Return why work may not start in a queue now; empty when it may.

        Nothing that work asks for may exceed the limit of the queue or of an ancestor; of what cannot be preempted,
        nothing may exceed a quota; in the default queue that is no object, nothing may exceed what the quotas of others
        leave. What it does not ask for does not matter, even where it is exceeded.
        """
        uncovered = self.tree.uncovered(number, demand)
        if uncovered is not None:
            return (uncovered,)
        refused = self._over_limits(number, demand)
        if not preemptible:
            refused += self._over(
                NonPreemptibleOverQuota,
                self.tree.paths[number],
                demand,
                used=self.non_preemptible,
                bounds=self._firm_bounds,
                but=self.tree.summed_by(number),
            )
        return tuple(refused)

    def over_fair_share(self, number: int, demand: Demand) -> tuple[Reason, ...]:
        """Return by how much a queue would be over its own fair share with some work; empty when it would not."""
        path = self.tree.paths[number][:1]
        return tuple(self._over(OverFairShare, path, demand, used=self.used, bounds=self.shares.fair))

    def exceeds(self, number: int, bounds: Table, places: Iterable[int]) -> bool:
        """True if a queue uses more than a bound of any of the resources."""
        used, row = self.used[number], bounds[number]
        return any(used[place] > row[place] for place in places)

    def _add(self, number: int, amounts: Amounts, non_preemptible: Amounts) -> None:
        path = self.tree.paths[number]
        for place, amount in enumerate(amounts):
            if not amount:
                continue
            held = amount
            for above in path:
                self.used[above][place] += amount
                own, kept = self._own[above][place], self.tree.kept[above][place]
                self._own[above][place] = own + held
                held = max(own + held, kept) - max(own, kept)
        for place, amount in enumerate(non_preemptible):
            if amount:
                for above in path:
                    self.non_preemptible[above][place] += amount

    def _over_limits(self, number: int, demand: Demand) -> list[Reason]:
        refused: list[Reason] = []
        summed = self.tree.summed_by(number)
        for place, amount in enumerate(demand.amounts):
            held = 0 if place in summed else amount
            for above in self.tree.paths[number]:
                if held <= 0:
                    break
                own, kept = self._own[above][place], self.tree.kept[above][place]
                limit = self.tree.limits[above][place]
                if own + held > limit:
                    refused.append(
                        OverLimit(
                            resource=self.tree.resources[place],
                            requested=held,
                            left=limit - own,
                            limit=limit if held > limit else None,
                            queue=self.tree.queues[above].name,
                            unit=self.tree.units[place],
                        )
                    )
                held = max(own + held, kept) - max(own, kept)
        return refused

    def _over(
        self,
        kind: type[_Bound],
        path: Iterable[int],
        demand: Demand,
        *,
        used: Table,
        bounds: Table,
        but: AbstractSet[int] = frozenset(),
    ) -> list[_Bound]:
        return [
            kind(
                resource=self.tree.resources[place],
                requested=amount,
                left=bounds[above][place] - used[above][place],
                queue=self.tree.queues[above].name,
                unit=self.tree.units[place],
            )
            for place, amount in enumerate(demand.amounts)
            if amount > 0 and place not in but
            for above in path
            if used[above][place] + amount > bounds[above][place]
        ]
