"""Placement policies that others publish, one task at a time over columns of nodes: random, best fit, FGD.

Source: hkust-adsl/kubernetes-scheduler-simulator (`pkg/simulator/plugin`), and "Beware of Fragmentation: Scheduling
GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC 2023).
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from tests.measured.league.openb import MILLI, Nodes, Task

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
#: Typical tasks are the most frequent ones that make up so much of the list (the simulator's default).
_TYPICAL = 0.95


class Cluster:
    """Nodes with what of them is free. A device that is not there has less than nothing free.

    Attributes:
        cpu: free millicores by node.
        memory: free MiB by node.
        gpu: free thousandths by node and device; shape (nodes, devices).
        stamps: a number by node that no other content of the node ever has, in any copy.
    """

    _changes = count(1)

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.stamps = np.full(len(nodes.cpu), next(self._changes))
        self.cpu, self.memory = nodes.cpu.copy(), nodes.memory.copy()
        self.gpu: Ints = np.where(np.arange(nodes.gpus.max()) < nodes.gpus[:, None], MILLI, 0)
        self.held = 0

    def able(self, task: Task) -> Ints:
        """Return the nodes that can take a task."""
        fits = (self.cpu >= task.cpu) & (self.memory >= task.memory)
        if task.gpus:
            fits &= (self.gpu >= task.gpu_milli).sum(axis=1) >= task.gpus
        if task.models:
            fits &= np.isin(self.nodes.model, task.models)
        return np.flatnonzero(fits)

    def place(self, task: Task, node: int, device: int | None = None) -> list[int]:
        """Put a task on a node: on a device, or on those with the least room that fit; return its devices."""
        self.cpu[node] -= task.cpu
        self.memory[node] -= task.memory
        self.stamps[node] = next(self._changes)
        if not task.gpus:
            return []
        free = self.gpu[node]
        chosen = [device] if device is not None else _tightest(free, task)
        free[chosen] -= task.gpu_milli
        self.held += task.demand
        return chosen

    def free(self, task: Task, node: int, devices: list[int]) -> None:
        """Take a task off a node and its devices."""
        self.cpu[node] += task.cpu
        self.memory[node] += task.memory
        self.stamps[node] = next(self._changes)
        self.gpu[node, devices] += task.gpu_milli
        self.held -= task.demand

    def copy(self) -> "Cluster":
        """Return a cluster with the same tasks."""
        other = Cluster(self.nodes)
        other.cpu, other.memory, other.gpu, other.held = self.cpu.copy(), self.memory.copy(), self.gpu.copy(), self.held
        other.stamps = self.stamps.copy()
        return other


Policy = Callable[[Cluster, Task, Ints], tuple[int, int | None]]


@dataclass(slots=True)
class Left:
    """The end of a run.

    Attributes:
        failed: tasks that are on no node.
        cluster: what is free.
    """

    failed: int = 0
    cluster: Cluster | None = None


def allocated(
    nodes: Nodes, arriving: Iterable[Task], policy: Policy, left: Left | None = None
) -> Iterator[tuple[int, int]]:
    """Yield after each task how much GPU has been asked for and how much is held, in thousandths.

    Tasks that do not fit when they come are dropped, as in the simulator.

    Args:
        left: filled at the end.
    """
    cluster, asked, failed = Cluster(nodes), 0, 0
    for task in arriving:
        asked += task.demand
        able = cluster.able(task)
        failed += not len(able)
        if len(able):
            cluster.place(task, *policy(cluster, task, able))
        yield asked, cluster.held
    if left is not None:
        left.failed, left.cluster = failed, cluster


def _tightest(free: Ints, task: Task) -> list[int]:
    fitting = np.flatnonzero(free >= task.gpu_milli)
    order: list[int] = fitting[np.argsort(free[fitting], kind="stable")][: task.gpus].tolist()
    return order


def at_random(seed: int) -> Policy:
    """Any node that can take the task."""
    chance = random.Random(seed)
    return lambda _, __, able: (int(chance.choice(able.tolist())), None)


def best_fit(cluster: Cluster, task: Task, able: Ints) -> tuple[int, int | None]:
    """The node with the least left of all resources, each as a part of the most that a node has."""
    nodes = cluster.nodes
    left = (cluster.cpu[able] - task.cpu) / nodes.cpu.max()
    left += (cluster.gpu[able].sum(axis=1) - task.demand) / (nodes.gpus.max() * MILLI)
    return int(able[left.argmin()]), None


def packing(cluster: Cluster, task: Task, able: Ints) -> tuple[int, int | None]:
    """The node with the fewest GPUs of which nothing is in use; of equal ones the one with the least GPU left."""
    free = cluster.gpu[able]
    idle = (free == MILLI).sum(axis=1) - (task.gpus if task.gpu_milli == MILLI else 0)
    return int(able[np.lexsort((able, free.sum(axis=1) - task.demand, idle))[0]]), None


def least_allocated(cluster: Cluster, task: Task, able: Ints) -> tuple[int, int | None]:
    """kube-scheduler's default scores: LeastAllocated and BalancedAllocation, of CPU and memory, alike weighed."""
    used, balanced = _used(cluster, task, able)
    return int(able[((1 - used).mean(axis=1) + balanced).argmax()]), None


def most_allocated(cluster: Cluster, task: Task, able: Ints) -> tuple[int, int | None]:
    """kube-scheduler's MostAllocated of CPU, memory and GPUs, with BalancedAllocation of CPU and memory."""
    used, balanced = _used(cluster, task, able)
    gpus = np.maximum(cluster.nodes.gpus[able] * MILLI, 1)
    of_gpus = 1 - (cluster.gpu[able].sum(axis=1) - task.demand) / gpus
    return int(able[((used.sum(axis=1) + of_gpus) / 3 + balanced).argmax()]), None


def _used(cluster: Cluster, task: Task, able: Ints) -> tuple[Floats, Floats]:
    """Return the parts of CPU and memory in use with the task, shape (nodes, 2), and how balanced they are."""
    nodes = cluster.nodes
    left = np.stack([cluster.cpu[able] - task.cpu, cluster.memory[able] - task.memory], 1)
    used: Floats = 1 - left / np.stack([nodes.cpu[able], nodes.memory[able]], 1)
    return used, 1 - used.std(axis=1)


class Fgd:
    """Fragmentation gradient descent: a task goes where the GPU that typical tasks cannot use grows least."""

    def __init__(self, listed: Sequence[Task]) -> None:
        """Args:
        listed: the tasks from which the typical ones are taken.
        """
        counts = Counter((task.cpu, task.gpu_milli, task.gpus, task.models) for task in listed)
        typical, seen = [], 0
        for often, shape in sorted(((often, shape) for shape, often in counts.items()), reverse=True):
            typical.append((shape, often))
            seen += often
            if seen >= _TYPICAL * len(listed):
                break
        self._weights: Floats = np.array([often for _, often in typical]) / seen
        self._cpu, milli, self._gpus = (
            np.array([shape[column] for shape, _ in typical], np.int64) for column in range(3)
        )
        #: How much of a GPU typical tasks ask for, each once, and which of these a task does.
        self._millis, self._of_milli = np.unique(milli, return_inverse=True)
        self._models = [shape[3] for shape, _ in typical]
        #: By GPU model, the typical tasks that may have it.
        self._allowed: dict[str, npt.NDArray[np.bool_]] = {}
        #: By task: of each node the stamp at which it was scored, its score, and the device to take.
        self._known: dict[Task, tuple[Ints, Ints, Ints]] = {}

    def __call__(self, cluster: Cluster, task: Task, able: Ints) -> tuple[int, int | None]:
        """Choose a node, and for a part of a GPU a device: the first of the best score, as in the simulator."""
        if task not in self._known:
            none = np.zeros(len(cluster.cpu), np.int64)
            self._known[task] = none, none.copy(), none.copy()
        stamps, scores, devices = self._known[task]
        stale = able[stamps[able] != cluster.stamps[able]]
        if len(stale):
            stamps[stale] = cluster.stamps[stale]
            growth = self._growth(cluster, task, stale)
            # Scores are whole numbers up to 100.
            by_device = (100 / (1 + np.exp(growth / MILLI))).astype(np.int64)
            scores[stale], devices[stale] = by_device.max(axis=1), by_device.argmax(axis=1)
        node = int(able[scores[able].argmax()])
        return node, int(devices[node]) if task.shares else None

    def stranded(self, cluster: Cluster) -> float:
        """Return the free GPUs that a typical task cannot use, in the mean over these; FGD's own measure."""
        return float(self._fragmented(cluster.cpu, cluster.gpu.clip(0), cluster.nodes.model).sum()) / MILLI

    def _growth(self, cluster: Cluster, task: Task, rows: Ints) -> Floats:
        """Return how much less can be used after the task, by row, and by device if it shares one."""
        cpu, gpu, models = cluster.cpu[rows], cluster.gpu[rows], cluster.nodes.model[rows]
        before = self._fragmented(cpu, gpu, models)
        if task.shares:
            growth = np.full(gpu.shape, np.inf)
            row, device = np.nonzero(gpu >= task.gpu_milli)
            after = gpu[row]
            after[np.arange(len(row)), device] -= task.gpu_milli
            growth[row, device] = self._fragmented(cpu[row] - task.cpu, after, models[row]) - before[row]
            return growth
        after = gpu.copy()
        if task.gpus:
            order = np.argsort(np.where(gpu >= task.gpu_milli, gpu, np.iinfo(np.int64).max), axis=1, kind="stable")
            chosen = order[:, : task.gpus]
            np.put_along_axis(after, chosen, np.take_along_axis(after, chosen, 1) - task.gpu_milli, 1)
        return (self._fragmented(cpu - task.cpu, after, models) - before)[:, None]

    def _fragmented(self, cpu: Ints, gpu: Ints, models: npt.NDArray[np.str_]) -> Floats:
        """Return by node the GPU, in thousandths, that a typical task cannot use, in the mean over these."""
        for model in {*models.tolist()} - self._allowed.keys():
            self._allowed[model] = np.array([not wanted or model in wanted for wanted in self._models])
        allowed = np.stack([self._allowed[model] for model in models.tolist()])
        usable = gpu[:, :, None] >= np.maximum(self._millis, 1)
        able = (cpu[:, None] >= self._cpu) & allowed & (self._gpus > 0)
        able &= usable.sum(axis=1)[:, self._of_milli] >= self._gpus
        small = np.where(usable, 0, gpu[:, :, None]).sum(axis=1)[:, self._of_milli]
        of_each: Floats = np.where(able, small, gpu.sum(axis=1)[:, None]) @ self._weights
        return of_each
