"""Baselines of the gang league: FIFO, skip and EASY on plain counts of GPUs, without the engine."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

#: GPUs of a node.
PER_NODE = 8

Free = npt.NDArray[np.int64]


class Gang(NamedTuple):
    """Pods that start together; all of 8 GPUs, or one of fewer.

    Attributes:
        arrives: seconds from the beginning.
        gpus: of all of its pods.
        runs: for how long, seconds.
        limit: after how many seconds it would be ended; never sooner than it ends.
    """

    number: int
    arrives: int
    gpus: int
    runs: int
    limit: int

    @property
    def pods(self) -> int:
        """The number of its pods."""
        return -(-self.gpus // PER_NODE)


#: Returns for how long a gang is thought to run when it starts, seconds.
Estimate = Callable[[Gang], int]
#: When a gang started, by its number.
Starts = Iterator[tuple[int, int]]


class _Running(NamedTuple):
    ends: int
    thought: int
    number: int
    gang: Gang
    nodes: tuple[int, ...]


def fitting(free: Free, gang: Gang) -> list[int] | None:
    """Return nodes for a gang: whole ones, or for one pod the fullest that takes it."""
    each = min(gang.gpus, PER_NODE)
    rows = np.flatnonzero(free >= each)
    if len(rows) < gang.pods:
        return None
    ordered = rows[np.argsort(free[rows], kind="stable")]
    return [int(row) for row in ordered[: gang.pods]]


class Baseline:
    """One policy over all gangs."""

    def __init__(self, nodes: int, *, skips: bool, easy: Estimate | None = None) -> None:
        """Args:
        nodes: how many.
        skips: whether gangs may pass one that came before and does not fit.
        easy: how long gangs are thought to run; None where those that pass may delay the first.
        """
        self._free: Free = np.full(nodes, PER_NODE, np.int64)
        self._skips, self._easy = skips, easy
        self._running: list[_Running] = []

    def starts(self, gangs: Sequence[Gang], *, until: int) -> Starts:
        """Yield when each gang starts that does."""
        waiting: list[Gang] = []
        arriving = list(reversed(gangs))
        now = 0
        while now <= until:
            while arriving and arriving[-1].arrives <= now:
                waiting.append(arriving.pop())
            for one in [one for one in self._running if one.ends <= now]:
                self._running.remove(one)
                self._free[list(one.nodes)] += min(one.gang.gpus, PER_NODE)
            started = list(self._start(waiting, now))
            waiting = [gang for gang in waiting if gang.number not in started]
            yield from ((number, now) for number in started)
            times = [one.ends for one in self._running] + [gang.arrives for gang in arriving[-1:]]
            if not times:
                return
            now = min(times)

    def _start(self, waiting: Sequence[Gang], now: int) -> Iterator[int]:
        shadow: tuple[int, frozenset[int]] | None = None
        blocked = False
        for gang in waiting:
            rows = fitting(self._free, gang)
            if blocked and shadow is not None and self._easy is not None:
                starts_at, kept = shadow
                if now + self._easy(gang) > starts_at:
                    left = self._free.copy()
                    left[list(kept)] = 0
                    rows = fitting(left, gang)
            if rows is None:
                if not self._skips:
                    return
                if not blocked and self._easy is not None:
                    shadow = self._reserve(gang, now)
                blocked = True
                continue
            self._free[rows] -= min(gang.gpus, PER_NODE)
            thought = now + (self._easy or _true)(gang)
            self._running.append(_Running(now + gang.runs, thought, gang.number, gang, tuple(rows)))
            yield gang.number

    def _reserve(self, gang: Gang, now: int) -> tuple[int, frozenset[int]] | None:
        """Return when a gang starts at the earliest, and on which nodes."""
        free = self._free.copy()
        for one in sorted(self._running, key=lambda one: (max(one.thought, now), one.number)):
            free[list(one.nodes)] += min(one.gang.gpus, PER_NODE)
            rows = fitting(free, gang)
            if rows is not None:
                return max(one.thought, now), frozenset(rows)
        return None


def _true(gang: Gang) -> int:
    return gang.runs


def _limit(gang: Gang) -> int:
    return gang.limit


#: Of each baseline, whether gangs may pass the first, and how long they are then thought to run.
BASELINES: dict[str, tuple[bool, Estimate | None]] = {
    "fifo": (False, None),
    "skip": (True, None),
    "easy-true": (True, _true),
    "easy-limits": (True, _limit),
}


def baseline(nodes: int, name: str) -> Baseline:
    """Return a baseline for one run."""
    skips, easy = BASELINES[name]
    return Baseline(nodes, skips=skips, easy=easy)
