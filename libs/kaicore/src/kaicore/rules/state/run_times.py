"""Run times of pods: the lengths of the last runs, by their common properties.

They are folded from the log, so that a cycle may decide on them and a replay decides the same. Unlike the histories of
forecasts (`kaicore.rules.forecast.runs`) they are few, for they are part of each state.
"""

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from kaicore.rules.state.run_keys import LEAST_RUNS, RunKeys

#: So many of the last runs are kept of each kind, and so many kinds: those of which a run ended last.
_MOST_RUNS, _MOST_KINDS = 64, 512
#: Pods of one owner that end within so long of each other are one run, microseconds.
_TOGETHER_US = 60_000_000


class RunsOfKind(msgspec.Struct):
    """The last runs of a kind.

    Attributes:
        kind: by basis and key.
        lengths_us: microseconds, the oldest run first.
        owner: of the last run.
        ended_at: when the last run ended, microseconds since the epoch.
    """

    kind: str
    lengths_us: list[int]
    owner: str
    ended_at: int


class RunTimes:
    """The lengths of runs by kind; no more than 512 kinds."""

    def __init__(self, kept: Iterable[RunsOfKind] = ()) -> None:
        """Args: kept: what a snapshot has."""
        #: The kind of which a run ended last comes last.
        self._kinds = {one.kind: one for one in kept}

    def ended(self, keys: RunKeys, owner: str, *, ran_us: int, at_us: int) -> None:
        """Take in that a pod came to its own end.

        Args:
            keys: what its run has in common with others.
            owner: uid of its owner.
            ran_us: how long it ran, microseconds.
            at_us: when it ended, microseconds since the epoch.
        """
        for basis, key in keys.items():
            kind = f"{basis}/{key}"
            one = self._kinds.pop(kind, None) or RunsOfKind(kind, [], "", 0)
            self._kinds[kind] = one
            if one.owner == owner and at_us - one.ended_at <= _TOGETHER_US:
                continue
            one.owner, one.ended_at = owner, at_us
            one.lengths_us = [*one.lengths_us, ran_us][-_MOST_RUNS:]
        while len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]

    def remaining_us(self, keys: RunKeys, *, age_us: int, per_cent: int) -> int:
        """Return how much longer a pod runs, by the closest runs of which enough got older than it is.

        Args:
            keys: what its run has in common with others.
            age_us: how long it has run, microseconds.
            per_cent: of the runs that got so old, so many had ended by then.

        Returns:
            microseconds, at least 1; -1 where too few runs got so old.
        """
        for basis, least in LEAST_RUNS.items():
            one = self._kinds.get(f"{basis}/{keys[basis]}")
            if one is None:
                continue
            lengths = sorted(one.lengths_us)
            older = lengths[bisect_right(lengths, age_us) :]
            if len(older) >= least:
                return max(older[-(-len(older) * per_cent // 100) - 1] - age_us, 1)
        return -1

    def record(self) -> list[RunsOfKind]:
        """Return all, for snapshots."""
        return list(self._kinds.values())
