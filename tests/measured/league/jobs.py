"""Jobs over time: public traces compressed to a load, and synthetic gangs on a real network.

Shares of a GPU are left out, since the engine does not place them. A seed draws the jobs of a trace. They keep the
order in which they came, and their run times, which are cut at a quarter of the whole time. They arrive at random times
(of OpenB most came near the end), so that they ask for `load` times the GPU-hours that there are.
"""

import csv
import functools
import gzip
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np

from tests.given.shared_data import shared_path
from tests.measured.league.openb import MILLI, Nodes, Task, nodes

HOUR_S, DAY_S = 3_600, 86_400
#: GPUs of a node where the trace has none, and what is beside each of them.
PER_NODE = 8
_CPU_MILLI, _MEMORY_MIB = 12_000, 98_304
#: Arrivals and ends are at whole minutes, those of traces at every fifth: several of them are looked at together.
_MINUTE_S, _STEP_S = 60, 300
#: Of the run times of gangs: the median, and the spread of their logarithm.
_MEDIAN_S, _SPREAD = HOUR_S, 1.0
#: A job declares up to so many times its run time as its limit.
_MOST_LIMIT = 3


class Job(NamedTuple):
    """Pods that start together.

    Attributes:
        arrives: seconds from the beginning.
        pods: how many.
        each: what each of them asks for.
        runs: for how long, seconds.
        limit: after how many seconds it would be ended; never sooner than it ends.
    """

    number: int
    arrives: int
    pods: int
    each: Task
    runs: int
    limit: int

    @property
    def gpus(self) -> int:
        return self.pods * self.each.gpus


class Setting(NamedTuple):
    """Nodes and what comes to them.

    Attributes:
        nodes: by row.
        domains: by row, the access switch; none where no network is known.
        jobs: in order of arrival.
        until: seconds, when the run ends.
        checkpoint_s: a running job writes checkpoints so many seconds apart, from which it goes on; 0 for never.
        away_s: the successor of an evicted pod comes after so many seconds.
    """

    nodes: Nodes
    domains: tuple[str, ...]
    jobs: tuple[Job, ...]
    until: int
    checkpoint_s: int = 0
    away_s: int = 0


def setting(name: str, *, size: int, days: float, load: float, seed: int) -> Setting:
    """Return an input by name.

    Args:
        name: one of `INPUTS`.
        size: how many nodes.
        days: how long it lasts.
        load: GPU-hours that arrive, for each that there is.
        seed: draws the jobs.
    """
    random = np.random.default_rng(seed)
    until = int(days * DAY_S)
    if name == "gangs":
        domains = _switches()[:size]
        there = _alike(len(domains))
        return Setting(there, domains, tuple(_gangs(there, until, load, random)), until)
    there = _openb_nodes(size) if name == "openb" else _alike(size)
    return Setting(there, (), tuple(_drawn(_TRACES[name](), there, until, load, random)), until)


def _alike(size: int) -> Nodes:
    cpu, memory = PER_NODE * _CPU_MILLI + 32_000, PER_NODE * _MEMORY_MIB + 32_768
    return Nodes(np.full(size, cpu), np.full(size, memory), np.full(size, PER_NODE), np.full(size, "any"))


def _openb_nodes(size: int) -> Nodes:
    every = nodes()
    return every.every(max(len(every.cpu) // size, 1))


def _switches() -> tuple[str, ...]:
    """Return the access switches of Lingjun's hosts, those of one pod switch after the other."""
    with shared_path("data/traces/lingjun/topo.csv").open() as file:
        return tuple(sorted("/".join((row["DSW"], row["PSW"], row["ASW"])) for row in csv.DictReader(file)))


def gangs_alike(size: int, *, days: float, load: float, median_s: int, seed: int) -> Setting:
    """Return gangs on nodes without a network; other arguments as for `setting`, and the median of run times."""
    there, until, random = _alike(size), int(days * DAY_S), np.random.default_rng(seed)
    return Setting(there, (), tuple(_gangs(there, until, load, random, median_s=median_s)), until)


def _gangs(
    there: Nodes, until: int, load: float, random: np.random.Generator, *, median_s: int = _MEDIAN_S
) -> Iterator[Job]:
    """Yield gangs of 1 GPU up to a quarter of the cluster; most are small, and run times are lognormal."""
    total = int(there.gpus.sum())
    sizes = [2**power for power in range((total // 4).bit_length()) if 2**power <= total // 4]
    # Half as many of each further size from one node on; the smaller ones are alike.
    weights = np.array([1.0 if size < PER_NODE else 2.0 ** -(size.bit_length() - 4) for size in sizes])
    asked, drawn = 0.0, []
    while asked < load * total * until:
        size = int(random.choice(sizes, p=weights / weights.sum()))
        runs = max(int(random.lognormal(np.log(median_s), _SPREAD)) // _MINUTE_S, 1) * _MINUTE_S
        drawn.append((*_pods(Task(1_000, 1_024, size, MILLI)), runs, _limit(runs, random)))
        asked += size * runs
    arrivals = sorted(int(at) // _MINUTE_S * _MINUTE_S for at in random.uniform(0, until, len(drawn)))
    return (Job(number, at, *drawn[number]) for number, at in enumerate(arrivals))


def _limit(runs: int, random: np.random.Generator) -> int:
    return int(runs * random.uniform(1, _MOST_LIMIT)) // _MINUTE_S * _MINUTE_S


def _pods(task: Task) -> tuple[int, Task]:
    """Return how many pods a job becomes, and each: of whole nodes if it asks for more than one."""
    count = max(-(-task.gpus // PER_NODE), 1)
    return count, Task(task.cpu // count, task.memory // count, -(-task.gpus // count), task.gpu_milli, task.models)


#: Jobs of a trace in their order: when one came, what it asks for in all, and seconds that it ran.
_Row = tuple[float, Task, int]


def _drawn(rows: Sequence[_Row], there: Nodes, until: int, load: float, random: np.random.Generator) -> Iterator[Job]:
    """Yield jobs that are drawn until they are enough."""
    total = int(there.gpus.sum())
    chosen: list[tuple[float, int, int]] = []
    asked = 0
    while asked < load * total * until:
        index = int(random.integers(len(rows)))
        came, task, ran = rows[index]
        if task.gpus <= total // 4:
            runs = -(-min(max(ran, 1), until // 4) // _STEP_S) * _STEP_S
            chosen.append((came, index, runs))
            asked += task.gpus * runs
    chosen.sort()
    times = np.sort(random.integers(until // _STEP_S, size=len(chosen))) * _STEP_S
    for number, (at, (_, index, runs)) in enumerate(zip(times.tolist(), chosen, strict=True)):
        yield Job(number, at, *_pods(rows[index][1]), runs, _limit(runs, random))


def _beside(gpus: int) -> Task:
    return Task(gpus * _CPU_MILLI, gpus * _MEMORY_MIB, gpus, MILLI if gpus else 0)


@functools.cache
def _openb() -> list[_Row]:
    with shared_path("data/openb/openb_pod_list_default.csv").open() as file:
        return [
            (
                float(row["creation_time"]),
                Task(
                    int(row["cpu_milli"]),
                    int(row["memory_mib"]),
                    int(row["num_gpu"]),
                    int(row["gpu_milli"]) if int(row["num_gpu"]) else 0,
                    tuple(filter(None, row["gpu_spec"].split("|"))),
                ),
                int(row["deletion_time"]) - int(row["scheduled_time"] or row["creation_time"]),
            )
            for row in csv.DictReader(file)
            if row["num_gpu"] != "1" or int(row["gpu_milli"]) == MILLI
        ]


@functools.cache
def _philly() -> list[_Row]:
    with gzip.open(shared_path("data/traces/philly/philly.csv.gz"), "rt") as file:
        return [
            (
                datetime.fromisoformat(row["timestamp"]).timestamp(),
                _beside(int(row["num_gpus"])),
                int(float(row["duration"])),
            )
            for row in csv.DictReader(file)
        ]


@functools.cache
def _dlrm() -> list[_Row]:
    """Return the instances with a GPU of which beginning and end are known; the others have nodes of their own."""
    with gzip.open(shared_path("data/traces/dlrm-2025/instances.csv.gz"), "rt") as file:
        return [
            (
                float(row["creation_time"]),
                Task(
                    int(1000 * float(row["cpu_request"])),
                    int(1024 * float(row["memory_request"])),
                    int(row["gpu_request"]),
                    MILLI,
                ),
                int(float(row["deletion_time"]) - float(row["scheduled_time"] or row["creation_time"])),
            )
            for row in csv.DictReader(file)
            if row["creation_time"] and row["deletion_time"] and int(row["gpu_request"])
        ]


_TRACES = {"openb": _openb, "philly": _philly, "dlrm": _dlrm}
#: Names of inputs.
INPUTS = (*_TRACES, "gangs")
