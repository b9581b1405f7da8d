"""A month of a fleet with maintenance windows, drains and bad nodes: ours against a script that cordons and deletes.

`python -m tests.measured.league month [--nodes 16] [--days 30] [--load 0.8] [--seeds 1 2 3]`.

Both arms are this engine with the same jobs, limits and checkpoints. Ours is given each window days before (a
reservation for nobody), each drain when it is asked for, and sets bad nodes aside by the log's own record. The script
knows of none of it: at a window's beginning it cordons the nodes and deletes their pods. A pod that fails is made
again. A bad node fails each pod that comes to it within a minute, until somebody mends it, in both arms at the same
time.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappush
from itertools import count
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.payloads import NodeObserved, ReservationObserved
from kaicore.rules.model.reservation import NodeReservation
from msgspec.structs import replace

from tests.measured.league.engine_run import EngineRun, LiveJob
from tests.measured.league.jobs import DAY_S, HOUR_S, Setting, gangs_alike

_SECOND_US = 1_000_000
_MINUTE_S = 60
#: How long before it begins a window is known, and a drain is asked for; the last part of it, in which work leaves.
_KNOWN_S, _ASKED_S, _LEAVES_S = 3 * DAY_S, 2 * HOUR_S, 15 * _MINUTE_S
#: How long nodes are away in a window, and after a drain; and how long a bad node is bad.
_WINDOW_S, _AWAY_S, _BAD_S = 4 * HOUR_S, 6 * HOUR_S, 12 * HOUR_S
#: Nodes of one window, and seconds after which a pod on a bad node fails.
_TOGETHER, _FAILS_S = 2, 30
#: Of what arrives later, not all has a chance to end.
_SETTLED = 0.9


class Outage(NamedTuple):
    """Nodes that must be empty for a while, or a node that fails its pods; seconds.

    Attributes:
        known: from when on; as it begins where nobody knows.
    """

    rows: tuple[int, ...]
    known: int
    begin: int
    end: int
    bad: bool = False


def outages(size: int, until: int, seed: int) -> list[Outage]:
    """Draw a month: one window for each node, drains of a third of the nodes, and a bad node for every four."""
    random = np.random.default_rng((seed, 35))

    def moment(length: int) -> int:
        return int(random.integers(_ASKED_S, until - length)) // _MINUTE_S * _MINUTE_S

    order, found = random.permutation(size).tolist(), list[Outage]()
    for first in range(0, size, _TOGETHER):
        begin = moment(_WINDOW_S)
        rows = tuple(order[first : first + _TOGETHER])
        found.append(Outage(rows, max(begin - _KNOWN_S, 0), begin, begin + _WINDOW_S))
    for row in random.integers(size, size=max(size // 3, 1)).tolist():
        begin = moment(_AWAY_S)
        found.append(Outage((row,), begin - _ASKED_S, begin, begin + _AWAY_S))
    for row in random.integers(size, size=max(size // 4, 1)).tolist():
        begin = moment(_BAD_S)
        found.append(Outage((row,), begin, begin, begin + _BAD_S, bad=True))
    return found


class MonthRun(EngineRun):
    """Jobs on nodes with outages."""

    def __init__(self, given: Setting, drawn: Sequence[Outage], *, ours: bool) -> None:
        """Args: ours: whether the engine knows what is planned and sets bad nodes aside; else a script acts."""
        config = EngineConfig()
        super().__init__(given, config if ours else replace(config, suspect_after=0), limits=True)
        self.lost_gpu_s = self.stopped = self.failed_pods = 0
        self._cordons = [0] * len(given.nodes.gpus)
        self._bad: set[int] = set()
        self._numbers = count()
        for number, one in enumerate(drawn):
            if one.bad:
                self._at(one.begin, partial(self._turn_bad, one.rows[0]))
                self._at(one.end, partial(self._mend, one.rows[0]))
            elif ours:
                self._at(one.known, partial(self._reserve, one, f"r{number:02}"))
                for at in (*range(_leaves(one), one.begin, 5 * _MINUTE_S), one.begin, one.end):
                    self._at(at, _look)
            else:
                self._at(one.begin, partial(self._empty, one))
                self._at(one.end, partial(self._cordon, one, -1))

    def _at(self, moment: int, action: Callable[[int], None]) -> None:
        heappush(self._happening, (moment, next(self._numbers), action))

    def _reserve(self, one: Outage, name: str, _: int) -> None:
        names = tuple(f"n{row:05}" for row in one.rows)
        start, by, end = ((self._epoch_s + at) * _SECOND_US for at in (_leaves(one), one.begin, one.end))
        made = NodeReservation(f"uid-{name}", name, "1", start, end, nodes=names, drain_by=by)
        self.cluster.record(f"reservation/{name}", ReservationObserved(made))

    def _cordon(self, one: Outage, change: int, _: int) -> None:
        for row in one.rows:
            self._cordons[row] += change
            self._see_node(row, unschedulable=self._cordons[row] > 0)

    def _see_node(self, row: int, *, unschedulable: bool) -> None:
        columns = self.cluster.state.columns
        node = columns.facts[columns.rows[f"n{row:05}"]]
        assert node is not None
        if node.unschedulable is not unschedulable:
            seen = replace(node, unschedulable=unschedulable)
            self.cluster.record(f"node/{node.name}", NodeObserved(seen))

    def _empty(self, one: Outage, now: int) -> None:
        self._cordon(one, 1, now)
        for live in list(self._live.values()):
            if any(row in one.rows for _, row in live.placed.values()):
                live.record.evicted += len(live.placed)
                self._all_again(live, now)

    def _turn_bad(self, row: int, _: int) -> None:
        self._bad.add(row)

    def _mend(self, row: int, _: int) -> None:
        """Whoever mends a node cordons it for that."""
        self._bad.discard(row)
        if not self._cordons[row]:
            self._see_node(row, unschedulable=True)
            self._see_node(row, unschedulable=False)

    def _begins(self, name: str, live: LiveJob, now: int) -> None:
        if any(row in self._bad for _, row in live.placed.values()):
            self._at(now + _FAILS_S, partial(self._fail, name, live.turn))
        else:
            super()._begins(name, live, now)

    def _fail(self, name: str, turn: int, now: int) -> None:
        live = self._live.get(name)
        if live is None or live.turn != turn:
            return
        for pod, (_, row) in live.placed.items():
            if row in self._bad:
                self.failed_pods += 1
                self.cluster.see(live.pods[pod], phase="Failed")
        self._all_again(live, now)

    def _all_again(self, live: LiveJob, now: int) -> None:
        for pod in list(live.placed):
            self._again(live, pod, now)

    def _again(self, live: LiveJob, name: str, now: int) -> None:
        if live.began is not None:
            since = now - live.began
            every = self._given.checkpoint_s
            self.lost_gpu_s += (since % every if every else since) * live.record.job.gpus
            self.stopped += 1
        super()._again(live, name, now)


def _leaves(one: Outage) -> int:
    """Return when work begins to leave."""
    return max(one.known, one.begin - (_LEAVES_S if one.begin - one.known > _ASKED_S else _ASKED_S), 0)


def _look(_: int) -> None:
    """A moment at which a cycle decides."""


@dataclass(frozen=True, slots=True)
class MonthFigures:
    """The outcome of a month.

    Attributes:
        lost_h: GPU-hours of work that was done again.
        stopped: how often a job was stopped before its end.
        evicted: pods that were evicted or deleted.
        failed: pods that failed on bad nodes.
        delay_h: mean time of a job from its arrival to its end, less its run; hours.
        p99_h: the same of the slowest in a hundred.
        unended: jobs that had not ended, of those that arrived early enough.
    """

    lost_h: float
    stopped: int
    evicted: int
    failed: int
    delay_h: float
    p99_h: float
    unended: int


def month(given: Setting, drawn: Sequence[Outage], *, ours: bool) -> MonthFigures:
    """Run a month."""
    run = MonthRun(given, drawn, ours=ours)
    records = run.records()
    early = [one for one in records if one.job.arrives <= given.until * _SETTLED]
    delays = sorted((one.ended or given.until) - one.job.arrives - one.job.runs for one in early)
    return MonthFigures(
        lost_h=run.lost_gpu_s / HOUR_S,
        stopped=run.stopped,
        evicted=sum(one.evicted for one in records),
        failed=run.failed_pods,
        delay_h=mean(delays) / HOUR_S,
        p99_h=delays[len(delays) * 99 // 100] / HOUR_S,
        unended=sum(one.ended is None for one in early),
    )


def generated(size: int, *, days: float, load: float, seed: int, median_s: int) -> tuple[Setting, list[Outage]]:
    """Return a month's jobs and outages; jobs write checkpoints each hour, and come again after five minutes."""
    given = gangs_alike(size, days=days, load=load, median_s=median_s, seed=seed)
    return given._replace(checkpoint_s=HOUR_S, away_s=5 * _MINUTE_S), outages(size, given.until, seed)


_COLUMNS = ("lost_h", "stopped", "evicted", "failed", "delay_h", "p99_h", "unended")


def _rows(found: dict[str, list[MonthFigures]]) -> Iterator[str]:
    yield f"{'arm':8}" + "".join(f"{name:>18}" for name in _COLUMNS)
    for arm, figures in found.items():
        columns = [[float(getattr(one, name)) for one in figures] for name in _COLUMNS]
        spreads = [stdev(values) if len(values) > 1 else 0.0 for values in columns]
        cells = (f"{mean(values):.2f} ±{spread:.2f}" for values, spread in zip(columns, spreads, strict=True))
        yield f"{arm:8}" + "".join(f"{cell:>18}" for cell in cells)


def main(arguments: Sequence[str]) -> None:
    """Print the figures of both arms: means and spreads over seeds, each a month."""
    parser = argparse.ArgumentParser(prog="tests.measured.league month", description=__doc__)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--days", type=float, default=30)
    parser.add_argument("--load", type=float, default=0.8, help="GPU-hours that arrive, for each that there is")
    parser.add_argument("--median", type=float, default=4, help="hours that half of the jobs run at most")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    given = parser.parse_args(arguments)
    began = time.process_time()
    found: dict[str, list[MonthFigures]] = {"ours": [], "script": []}
    for seed in given.seeds:
        median_s = int(given.median * HOUR_S)
        jobs, drawn = generated(given.nodes, days=given.days, load=given.load, seed=seed, median_s=median_s)
        for arm, figures in found.items():
            figures.append(month(jobs, drawn, ours=arm == "ours"))
        print(
            f"seed {seed}: {len(jobs.jobs)} jobs, {len(drawn)} outages, {time.process_time() - began:.0f} s", flush=True
        )
    print(*_rows(found), sep="\n")
