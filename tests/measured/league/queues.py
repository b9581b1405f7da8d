"""Baselines over time: an order of starting (FIFO, skip, EASY, conservative) and a placement policy.

EASY and conservative backfilling are those of Mu'alem and Feitelson ("Utilization, Predictability, Workloads, and User
Runtime Estimates in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 2001): of what waits, the first has a reserved
start, or the first `_MOST_RESERVED`. Others start if they end before, or on other nodes.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from tests.measured.league.baselines import Cluster, Policy
from tests.measured.league.jobs import Job, Setting
from tests.measured.league.records import Record, Stint

#: Jobs with a reserved start, where backfilling is conservative; the engine's `most_promises`.
_MOST_RESERVED = 8
#: Returns for how long a job is thought to run when it starts, seconds.
Estimate = Callable[[Job], int]


class Order(Enum):
    """The number of jobs with a reserved start; none may pass the first where it is `FIFO`."""

    FIFO = -1
    SKIP = 0
    EASY = 1
    CONSERVATIVE = _MOST_RESERVED


class _Running(NamedTuple):
    ends: int
    thought: int
    job: Job
    places: list[tuple[int, list[int]]]


class _Reserved(NamedTuple):
    begin: int
    end: int
    rows: frozenset[int]


class Baseline:
    """One policy over all jobs."""

    def __init__(self, given: Setting, policy: Policy, order: Order, estimate: Estimate) -> None:
        """Args:
        given: nodes and jobs.
        policy: where a pod goes.
        order: of starting.
        estimate: how long jobs are thought to run.
        """
        self._given, self._policy, self._order, self._estimate = given, policy, order, estimate
        self._cluster = Cluster(given.nodes)
        self._running: list[_Running] = []

    def records(self) -> list[Record]:
        """Return what becomes of each job."""
        records = [Record(job) for job in self._given.jobs]
        waiting: list[Record] = []
        arriving = list(reversed(records))
        now = 0
        while now <= self._given.until:
            while arriving and arriving[-1].job.arrives <= now:
                waiting.append(arriving.pop())
            for one in [one for one in self._running if one.ends <= now]:
                self._running.remove(one)
                _free(self._cluster, one.job, one.places)
            for record in self._start(waiting, now):
                places = self._running[-1].places
                record.started, record.rows = now, tuple(row for row, _ in places)
                ends = self._running[-1].ends
                record.stints = [Stint(now, ends, row, record.job.each.gpus) for row in record.rows]
            waiting = [record for record in waiting if record.started is None]
            times = [one.ends for one in self._running] + [record.job.arrives for record in arriving[-1:]]
            if not times:
                break
            now = min(times)
        return records

    def _start(self, waiting: Sequence[Record], now: int) -> Iterator[Record]:
        reserved: list[_Reserved] = []
        blocked: list[Job] = []
        failed: set[tuple[object, ...]] = set()
        for record in waiting:
            job = record.job
            shape = job.pods, job.each
            if shape in failed and len(blocked) >= self._order.value:
                continue
            places = _places(self._cluster, job, self._policy)
            if places is not None and blocked:
                _free(self._cluster, job, places)
                while len(reserved) < min(len(blocked), self._order.value):
                    reserved.append(self._reserve(blocked[len(reserved)], now, reserved))
                places = _places(self._cluster, job, self._policy, _closed(reserved, now, now + self._estimate(job)))
            if places is None:
                if self._order is Order.FIFO:
                    return
                failed.add(shape)
                blocked.append(job)
                continue
            self._running.append(_Running(now + job.runs, now + self._estimate(job), job, places))
            yield record

    def _reserve(self, job: Job, now: int, before: Sequence[_Reserved]) -> _Reserved:
        """Return when and where a job starts at the earliest, after those that have a reserved start already."""
        cluster, runs = self._cluster.copy(), self._estimate(job)
        ends = sorted((max(one.thought, now + 1), number) for number, one in enumerate(self._running))
        for at, number in ends:
            one = self._running[number]
            _free(cluster, one.job, one.places)
            places = _places(cluster, job, self._policy, _closed(before, at, at + runs))
            if places is not None:
                return _Reserved(at, at + runs, frozenset(row for row, _ in places))
        last = max((one.end for one in before), default=now)
        return _Reserved(last, last + runs, frozenset())


def _closed(reserved: Collection[_Reserved], begin: int, end: int) -> list[int]:
    """Return rows that are not free for all of a time."""
    return [row for one in reserved if one.begin < end and begin < one.end for row in one.rows]


def _places(
    cluster: Cluster, job: Job, policy: Policy, closed: Sequence[int] = ()
) -> list[tuple[int, list[int]]] | None:
    """Put all pods of a job on nodes, or none; return where, and on which devices."""
    places: list[tuple[int, list[int]]] = []
    for _ in range(job.pods):
        able = cluster.able(job.each)
        if closed:
            able = able[~np.isin(able, closed)]
        if not len(able):
            _free(cluster, job, places)
            return None
        row, device = policy(cluster, job.each, able)
        places.append((row, cluster.place(job.each, row, device)))
    return places


def _free(cluster: Cluster, job: Job, places: Sequence[tuple[int, list[int]]]) -> None:
    for row, devices in places:
        cluster.free(job.each, row, devices)


def by_true_run(job: Job) -> int:
    """The run time of a job."""
    return job.runs


def by_limit(job: Job) -> int:
    return job.limit
