"""The product's own engine over a trace: tasks are pods in a log, cycles decide, and decisions are folded."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.events import payloads
from kaicore.rules.model.gpu_share import GpuShare
from kaicore.rules.model.pod import Container, ContainerKind, Owner, Pod, QosClass
from kaicore.rules.model.selector import Requirement
from kaicore.rules.state.pods.pod_entry import Stage

from tests.given.cluster.devices import DRIVER, add_slice, devices, exactly, from_template, gpu, slice_document
from tests.given.cluster.factory import GPU, Cluster, pod
from tests.measured.league.baselines import Cluster as Baseline
from tests.measured.league.baselines import Left
from tests.measured.league.openb import MILLI, Nodes, Task

_MODEL = "nvidia.com/gpu.product"
#: Tasks that arrive between two cycles, unless it is said.
AT_ONCE = 32
#: By number of a task that is on a node: the node's row, and the GPUs that it shares, by name.
Places = dict[int, tuple[int, Sequence[str]]]
_MIB = 2**20
_SECOND_US = 1_000_000
#: Mean time between two tasks: OpenB's 8,152 came in 149 days.
_BETWEEN_S = 1_580
#: Running pods write checkpoints once so much of the GPUs is held, in per cent: before that little waits.
_CHECKPOINTS_FROM = 85
#: Cycles after each arrival in which tasks may still get room by moves.
_MOST_ROUNDS = 8


@dataclass(slots=True)
class Moves:
    """Moves of running pods that an arm makes, and a count of them.

    Attributes:
        checkpoint_s: running pods write checkpoints so many seconds apart; 0 for never.
        pods: how many were moved.
        lost_gpu_s: the work that they lost, in GPU-seconds, as the log has it.
        homeless: how many of the moved are not back on a node.
        placed: how many pods were placed in all, moved ones once.
    """

    checkpoint_s: int = 3_600
    pods: int = 0
    lost_gpu_s: int = 0
    homeless: int = 0
    placed: int = 0


def container_of(task: Task, *, claims: bool = False) -> Container:
    """Return a container that asks for what a task does; its GPUs aside if the pod has claims for them."""
    requests = {"cpu": task.cpu, "memory": task.memory * _MIB, GPU: 0 if claims or task.shares else task.gpus}
    return Container("main", ContainerKind.APP, requests={name: held for name, held in requests.items() if held})


def share_of(task: Task) -> GpuShare | None:
    """Return the share of GPUs that a task asks for; None for whole ones."""
    return GpuShare(milli=task.gpu_milli, devices=task.gpus) if task.shares else None


def models_of(task: Task) -> tuple[tuple[Requirement, ...], ...]:
    """Return the node affinity of a task that names GPU models."""
    return ((Requirement(_MODEL, "In", tuple(sorted(task.models))),),) if task.models else ()


def add_nodes(
    cluster: Cluster, nodes: Nodes, *, claims: bool = False, labels: Sequence[Mapping[str, str]] = ()
) -> None:
    """Add nodes, called `n` and the row: their GPUs are their kubelets', or in slices if pods have claims."""
    for number in range(len(nodes.cpu)):
        name, gpus = f"n{number:05}", int(nodes.gpus[number])
        held = {"cpu": int(nodes.cpu[number]), "memory": int(nodes.memory[number]) * _MIB, "pods": 1_000}
        if not claims:
            held[GPU] = gpus
        more = labels[number] if labels else {}
        cluster.add_node(name, allocatable=held, capacity=held, labels={_MODEL: str(nodes.model[number]), **more})
        if claims:
            add_slice(cluster, slice_document(name, *(gpu(f"gpu-{device}") for device in range(gpus))))


class _Trace:
    """One run: pods that came, and what they hold."""

    def __init__(self, cluster: Cluster, config: EngineConfig, moves: Moves | None, places: Places) -> None:
        self.cluster = cluster
        self.holding = 0
        self._places = places
        self._config = config
        self._moves = moves
        #: Pods that wait, with what they ask for in thousandths of a GPU; and those of them that were moved, by uid.
        self._waiting: dict[str, tuple[Pod, int]] = {}
        self._moved: set[str] = set()
        self._running: dict[str, tuple[Pod, int]] = {}

    def come(self, number: int, task: Task, *, claims: bool) -> None:
        """A task arrives as a pod."""
        cluster = self.cluster
        asks, name = container_of(task, claims=claims), f"t{number:06}"
        more: dict[str, Any] = {"created_at": number, "qos": QosClass.BURSTABLE, "node_affinity": models_of(task)}
        if self._moves is not None:
            more["owner"] = Owner("Job", name, f"uid-job-{name}")
        if task.shares:
            more["gpu_share"] = share_of(task)
        if claims and task.gpus:
            request = exactly("gpu", DRIVER, count=task.gpus)
            one = from_template(cluster, request, name=name, containers=(asks,), **more)
        else:
            one = cluster.add_pod(pod(name, asks, **more))
        self._waiting[one.uid] = one, task.demand

    def decide(self) -> None:
        """Run cycles until nothing more starts or moves, and drop the tasks that still wait."""
        for _ in range(_MOST_ROUNDS if self._moves is not None else 1):
            result = self._cycle()
            if not result.evictions and not result.nominations:
                break
        for uid in self._waiting.keys() - self._moved:
            self.cluster.delete_pod(self._waiting.pop(uid)[0])
        if self._moves is not None:
            self._moves.homeless = len(self._moved)

    def _cycle(self) -> CycleResult:
        result = self.cluster.cycle(self._config)
        for decision in result.placements:
            one, demand = self._running[decision.uid] = self._waiting.pop(decision.uid)
            self.holding += demand
            self._places.setdefault(
                int(one.name[1:7]), (int(decision.node[1:]), [part.group for part in decision.gpus])
            )
            if self._moves is not None:
                self._moves.placed += one.uid not in self._moved
            self._moved.discard(one.uid)
        for eviction in result.evictions:
            self._move(eviction.uid, eviction.lost_gpu_seconds)
        return result

    def _move(self, uid: str, lost_gpu_s: int) -> None:
        assert self._moves is not None, "nothing is evicted where nothing is moved"
        one, demand = self._running.pop(uid)
        self.holding -= demand
        unused = self.cluster.state.shared_gpus.left_by((uid,))
        self.cluster.delete_pod(one)
        for group in unused:
            # As the binder does after the last pod: only then is the GPU a whole one again.
            node, name = group.opened.node, group.opened.group
            self.cluster.record(f"node/{node}", payloads.GpuClosed(node, name, "Unused"))
        again = msgspec.structs.replace(
            one, uid=f"{uid}+", name=f"{one.name}+", created_at=self.cluster.now // _SECOND_US, checkpoint_at=0
        )
        self.cluster.add_pod(again)
        self._waiting[again.uid] = again, demand
        self._moved.add(again.uid)
        self._moves.pods += 1
        self._moves.lost_gpu_s += lost_gpu_s

    def fill(self, left: Left, nodes: Nodes, arriving: Sequence[Task]) -> None:
        """Say what is left: running tasks are put on nodes anew, those that share GPUs first, as they do."""
        left.failed, left.cluster = len(arriving) - len(self._running), Baseline(nodes)
        devices: dict[str, int] = {}
        opened: Counter[int] = Counter()
        running = [
            (arriving[int(one.name[1:7])], self.cluster.state.pods[uid]) for uid, (one, _) in self._running.items()
        ]
        for task, entry in sorted(running, key=lambda one: not one[0].shares):
            row = int(entry.node[1:])
            for part in entry.gpus:
                if part.group not in devices:
                    devices[part.group], opened[row] = opened[row], opened[row] + 1
            left.cluster.place(task, row, devices[entry.gpus[0].group] if entry.gpus else None)

    def pass_time(self, seconds: int) -> None:
        """Time passes; running pods write checkpoints."""
        self.cluster.now += seconds * _SECOND_US
        every = 0 if self._moves is None else self._moves.checkpoint_s
        now = self.cluster.now // _SECOND_US
        for uid, (one, demand) in self._running.items() if every else ():
            if not demand:
                # It loses no GPU time.
                continue
            entry = self.cluster.state.pods[uid]
            assert entry.stage is Stage.PLACED
            at = now - (now - entry.placed_at // _SECOND_US) % every
            self._running[uid] = self.cluster.add_pod(msgspec.structs.replace(one, checkpoint_at=at)), demand


def allocated(
    nodes: Nodes,
    arriving: Sequence[Task],
    config: EngineConfig,
    *,
    claims: bool = False,
    moves: Moves | None = None,
    at_once: int = AT_ONCE,
    largest_first: bool = False,
    places: Places | None = None,
    left: Left | None = None,
) -> Iterator[tuple[int, int]]:
    """Yield after each cycle how much GPU has been asked for and how much is held, in thousandths.

    Tasks that do not fit when they come are dropped, as in the simulator of FGD's authors; with moves, those for which
    no moves are made.

    Args:
        nodes: of the cluster.
        arriving: tasks; those with a share of a GPU need `gpu_sharing`.
        config: the shard's settings.
        claims: pods ask for GPUs by resource claims (DRA), not of kubelets; then no task may have a share.
        moves: counts the moved pods; None where nothing moves, and time stands still.
        at_once: tasks that arrive between two cycles.
        largest_first: of these, those of the most GPUs, then of the most CPU, are the oldest.
        places: filled with where tasks went first.
        left: filled at the end.
    """
    cluster = devices() if claims else Cluster()
    add_nodes(cluster, nodes, claims=claims)
    trace = _Trace(cluster, config, moves, {} if places is None else places)
    asked, total = 0, int(nodes.gpus.sum()) * MILLI
    for first in range(0, len(arriving), at_once):
        batch = list(arriving[first : first + at_once])
        if largest_first:
            batch.sort(key=lambda task: (-task.gpus, -task.cpu))
        for number, task in enumerate(batch, first):
            if task.shares and (claims or not config.gpu_sharing):
                raise ValueError(
                    f"task {number}: gpu_milli: only placed by kubelets, with gpu_sharing: {task.gpu_milli}"
                )
            asked += task.demand
            trace.come(number, task, claims=claims)
        # Moves that pay are rare before the cluster is nearly full, and checkpoints of all pods take long.
        if moves is not None and trace.holding * 100 >= total * _CHECKPOINTS_FROM:
            trace.pass_time(at_once * _BETWEEN_S)
        elif moves is not None:
            trace.cluster.now += at_once * _BETWEEN_S * _SECOND_US
        trace.decide()
        yield asked, trace.holding
    if left is not None:
        trace.fill(left, nodes, arriving)
