"""GPU nodes and task lists of OpenB as FGD's authors publish them (`../shared/data/traces`)."""

import csv
import gzip
import random
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import numpy.typing as npt

from tests.given.shared_data import shared_path

#: FGD's lists of tasks.
LISTS = ("default", "multigpu50", "gpushare100", "gpuspec33")
#: Thousandths of a GPU, or of a CPU.
MILLI = 1000


@dataclass(frozen=True)
class Task:
    """A task: CPU in millicores, memory in MiB, and how much of each of how many GPUs, in thousandths."""

    cpu: int
    memory: int
    gpus: int
    gpu_milli: int
    models: tuple[str, ...] = ()

    @property
    def demand(self) -> int:
        """All GPU that it asks for, in thousandths."""
        return self.gpus * self.gpu_milli

    @property
    def shares(self) -> bool:
        """True if it asks for parts of GPUs."""
        return 0 < self.gpu_milli < MILLI


@dataclass(frozen=True)
class Nodes:
    """Nodes as columns; shape (nodes,) each.

    Attributes:
        cpu: millicores.
        memory: MiB.
        gpus: how many.
        model: of the GPUs.
    """

    cpu: npt.NDArray[np.int64]
    memory: npt.NDArray[np.int64]
    gpus: npt.NDArray[np.int64]
    model: npt.NDArray[np.str_]

    def every(self, step: int) -> "Nodes":
        """Return one node in so many."""
        return self._at(np.arange(0, len(self.cpu), step))

    def shuffled(self, seed: int) -> "Nodes":
        """Return the nodes in a random order, as FGD's authors have them: ties fall to the first."""
        return self._at(np.random.default_rng(seed).permutation(len(self.cpu)))

    def _at(self, rows: npt.NDArray[np.int64]) -> "Nodes":
        return Nodes(self.cpu[rows], self.memory[rows], self.gpus[rows], self.model[rows])


def _rows(name: str) -> list[dict[str, str]]:
    with gzip.open(folder() / f"{name}.csv.gz", "rt") as file:
        return list(csv.DictReader(file))


def folder() -> Path:
    """Return where FGD's lists lie."""
    return shared_path("data/traces/fgd")


def nodes() -> Nodes:
    """Return the nodes with GPUs, in the order of their names."""
    rows = sorted(_rows("openb_node_list_gpu_node"), key=lambda row: row["sn"])
    cpu, memory, gpus = ([int(row[key]) for row in rows] for key in ("cpu_milli", "memory_mib", "gpu"))
    return Nodes(np.array(cpu), np.array(memory), np.array(gpus), np.array([row["model"] for row in rows]))


def tasks(name: str, *, whole: bool = False) -> list[Task]:
    """Return the tasks of a list, such as `default`; if `whole`, those that share no GPU."""
    read = [
        Task(
            int(row["cpu_milli"]),
            int(row["memory_mib"]),
            int(row["num_gpu"]),
            int(row["gpu_milli"]) if int(row["num_gpu"]) else 0,
            tuple(filter(None, row.get("gpu_spec", "").split("|"))),
        )
        for row in _rows(f"openb_pod_list_{name}")
    ]
    return [task for task in read if not (whole and task.shares)]


def arrivals(listed: list[Task], *, total: int, percent: int, seed: int) -> list[Task]:
    """Return tasks in a random order, more of them drawn from the list, until they ask for `percent` of all GPUs."""
    chance, arriving, demand = random.Random(seed), list(listed), 0
    chance.shuffle(arriving)
    for count, task in enumerate(arriving):
        demand += task.demand
        if demand >= total * MILLI * percent // 100:
            return arriving[: count + 1]
    while demand < total * MILLI * percent // 100:
        arriving.append(chance.choice(listed))
        demand += arriving[-1].demand
    return arriving


def published(name: str, policy: str = "06-FGD") -> dict[int, float]:
    """Return what FGD's authors publish: per cent of GPUs allocated, by per cent that arrived, mean of their seeds."""
    rows = [
        row
        for row in _rows("published-allocation")
        if (row["workload"], row["sc_policy"]) == (f"openb_pod_list_{name}", policy)
    ]
    return {mark: mean(float(row[str(mark)]) for row in rows) for mark in range(131)}
