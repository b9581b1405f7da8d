"""The division of a cluster between its queues: each one's fair share of every resource, exact to the unit.

Every resource is divided by itself, from the roots down: the share of a queue is divided between its children.

1. Each queue is given its quota, as far as it asks for it.
2. The rest goes to the queues that ask for more, those of higher priority first, in proportion to their weights,
   over and over while some queue needs less than the proportion gives.
3. Each queue is given whole units. The units that rounding left over go, one each, to the queues that rounding cut
   most, then to the older queue, then by uid and name.

Past use shifts the proportions: a queue that used more of the cluster than its weight is owed gets less, one that used
less gets more, `k` times the difference (`weight + k * (weight - use)`, both as parts of one, never below 0). An
operator's settings of fairness are `FairShareConfig`.

Source: KAI-Scheduler v0.17, `pkg/scheduler/plugins/proportion/resource_division/resource_division.go`. Decision 0080
lists the differences and their reasons.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from operator import attrgetter

import msgspec

from kaicore.errors import ConfigurationError
from kaicore.rules.queues.tree import UNLIMITED, QueueTree

HOUR_US = 3_600_000_000

#: How far back use is remembered, hours.
RETENTION_HOURS = 28 * 24


class FairShareConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of fairness between queues.

    Attributes:
        k_milli: how much past use counts in the division of what is beyond the quotas, in thousandths; 0 for not at
            all, 1000 as in KAI (`kValue: 1.0`).
        window_hours: how far back use counts, the hour that has begun not included.
        tumbling: windows follow one another, beginning at the epoch, instead of sliding.
        half_life_hours: after how long use counts half; 0 for always in full.
        reclaim_margin_milli: a queue may take another's beyond its own fair share only while its use over its fair
            share, times this in thousandths, is below the other's (KAI's `reclaimerUtilizationMultiplier`); at least
            1000.
        preempt_min_runtime_us: for queues where neither they nor their ancestors say; microseconds.
        report_every_us: how often queues that have changed are reported at most, microseconds; 0 for never.
    """

    k_milli: int = 1000
    window_hours: int = 7 * 24
    tumbling: bool = False
    half_life_hours: int = 0
    reclaim_margin_milli: int = 1000
    preempt_min_runtime_us: int = 0
    reclaim_min_runtime_us: int = 0
    report_every_us: int = 10_000_000

    def __post_init__(self) -> None:
        """Raises: ConfigurationError: a setting that cannot work."""
        for name, lowest, highest in (
            ("k_milli", 0, 10**6),
            ("window_hours", 1, RETENTION_HOURS),
            ("half_life_hours", 0, 10 * RETENTION_HOURS),
            ("reclaim_margin_milli", 1000, 10**6),
            ("preempt_min_runtime_us", 0, 2**53),
            ("reclaim_min_runtime_us", 0, 2**53),
            ("report_every_us", 0, 2**53),
        ):
            value = getattr(self, name)
            if not lowest <= value <= highest:
                raise ConfigurationError(f"fair share: {name}: must be {lowest} to {highest}: {value}")


#: The unit of a queue's past use of a resource: so many parts of the cluster's amount.
USAGE_SCALE = 10**9

#: By queue and resource.
Table = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Shares:
    """The amounts that queues are owed.

    Attributes:
        totals: by resource, what was divided.
        requested: by queue and resource, what its work holds and waits for.
        fair: by queue and resource, the share that the division gave.
        allocatable: the larger of quota and fair share, within the limit: what a queue may keep from others.
    """

    totals: tuple[int, ...]
    requested: Table
    fair: Table
    allocatable: Table


@dataclass(slots=True)
class _Claim:
    """A queue's part in the division of one resource between siblings."""

    queue: int
    need: int
    weight: int
    usage: int
    created_at: int
    uid: str
    name: str
    given: int = 0
    cut: int = 0


def divide(
    tree: QueueTree, *, totals: Sequence[int], requested: Table, usage: Table | None = None, k_milli: int = 1000
) -> Shares:
    """Divide a cluster.

    Args:
        totals: by resource, for all of them.
        requested: by queue and resource, what its own work (not that of the queues below it) holds and waits for.
        usage: by queue and resource, what it and those below it used in the past, in `USAGE_SCALE`; None for nothing.
        k_milli: how much that counts, in thousandths.
    """
    size, width = len(tree), len(tree.resources)
    wanted = [[0] * width for _ in range(size)]
    asked = [list(row) for row in requested]
    fair = [[0] * width for _ in range(size)]
    for number in range(size - 1, -1, -1):
        row, limits, kept, parent = wanted[number], tree.limits[number], tree.kept[number], tree.parents[number]
        for place in range(width):
            # What a queue keeps from others is spent, whether it asks for it or not.
            row[place] = min(max(row[place] + requested[number][place], kept[place]), limits[place])
            if parent >= 0:
                wanted[parent][place] += row[place]
                asked[parent][place] += asked[number][place]
    for place in range(width):
        for parent in (-1, *(number for number in range(size) if tree.children[number])):
            siblings, total = (
                (tree.roots, totals[place]) if parent < 0 else (tree.children[parent], fair[parent][place])
            )
            _divide_between(tree, siblings, total, place=place, wanted=wanted, fair=fair, usage=usage, k=k_milli)
    allocatable = [
        [
            min(max(total if quota == UNLIMITED else quota, share), limit)
            for quota, share, limit, total in zip(
                tree.quotas[number], fair[number], tree.limits[number], totals, strict=True
            )
        ]
        for number in range(size)
    ]
    return Shares(tuple(totals), asked, fair, allocatable)


def _divide_between(
    tree: QueueTree,
    siblings: Sequence[int],
    total: int,
    *,
    place: int,
    wanted: Table,
    fair: list[list[int]],
    usage: Table | None,
    k: int,
) -> None:
    left = total
    by_priority: dict[int, list[_Claim]] = {}
    for number in siblings:
        want = wanted[number][place]
        # An unlimited quota is one of everything there is.
        quota = tree.quotas[number][place]
        share = fair[number][place] = min(total if quota == UNLIMITED else quota, want)
        left -= share
        queue, weight = tree.queues[number], tree.weights[number][place]
        if want > share and weight:
            used = 0 if usage is None else usage[number][place]
            claim = _Claim(number, want - share, weight, used, queue.created_at, queue.uid, queue.name)
            by_priority.setdefault(queue.priority, []).append(claim)
    for priority in sorted(by_priority, reverse=True):
        if left <= 0:
            break
        claims = by_priority[priority]
        left = _divide_by_weight(claims, left, k)
        for claim in claims:
            fair[claim.queue][place] += claim.given


def _divide_by_weight(claims: Sequence[_Claim], amount: int, k: int) -> int:
    """Divide an amount between claims; return what no claim needs.

    The rounds are exact, as fractions over one common `whole`; rounding comes once, at the end.
    """
    whole, left, asking = 1, amount, claims
    while asking and left:
        parts = _proportions(asking, k)
        factor = sum(parts)
        for claim in claims:
            claim.given *= factor
        whole, round_amount, left = whole * factor, left, left * factor
        for claim, part in zip(asking, parts, strict=True):
            given = min(claim.need * whole - claim.given, round_amount * part)
            claim.given += given
            left -= given
        asking = [claim for claim in asking if claim.given < claim.need * whole]
    units = 0
    for claim in claims:
        claim.given, claim.cut = divmod(claim.given, whole)
        units += claim.given
    over = amount - units - left // whole
    by_age = sorted(claims, key=attrgetter("created_at", "uid", "name"))
    for claim in sorted(by_age, key=lambda claim: -claim.cut)[:over]:
        claim.given += 1
    return left // whole


def _proportions(claims: Sequence[_Claim], k: int) -> list[int]:
    """Return the parts of each claim, as numbers over their own sum."""
    common = gcd(*(claim.weight for claim in claims))
    weights = [claim.weight // common for claim in claims]
    if not k or not any(claim.usage for claim in claims):
        return weights
    whole = sum(claim.weight for claim in claims)
    parts = [max(0, (1000 + k) * claim.weight * USAGE_SCALE - k * claim.usage * whole) for claim in claims]
    common = gcd(*parts)
    # Where all have used more than they are owed, none of them is owed less than the others.
    return [part // common for part in parts] if common else weights
