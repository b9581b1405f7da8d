"""The product's own engine over a trace: tasks are pods in a log, cycles decide, and decisions are folded."""

from collections.abc import Iterator, Sequence

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.model.pod import Container, ContainerKind, QosClass
from kaicore.rules.model.selector import Requirement

from tests.factory import GPU, Cluster, pod
from tests.league.openb import MILLI, Nodes, Task

_MODEL = "nvidia.com/gpu.product"
#: Tasks that arrive between two cycles.
_AT_ONCE = 32
_MIB = 2**20


def allocated(nodes: Nodes, arriving: Sequence[Task], config: EngineConfig) -> Iterator[tuple[int, int]]:
    """Yield after each cycle how much GPU has been asked for and how much is held, in thousandths.

    Tasks that do not fit when they come are dropped, as in the simulator of FGD's authors.
    """
    cluster = Cluster()
    for number in range(len(nodes.cpu)):
        held = {"cpu": int(nodes.cpu[number]), "memory": int(nodes.memory[number]) * _MIB, GPU: int(nodes.gpus[number])}
        held["pods"] = 1_000
        labels = {_MODEL: str(nodes.model[number])}
        cluster.add_node(f"n{number:05}", allocatable=held, capacity=held, labels=labels)
    asked = holding = 0
    for first in range(0, len(arriving), _AT_ONCE):
        demands = {}
        for number, task in enumerate(arriving[first : first + _AT_ONCE], first):
            if 0 < task.gpu_milli < MILLI:
                raise ValueError(f"task {number}: gpu_milli: parts of a GPU are not placed yet: {task.gpu_milli}")
            asked += task.demand
            requests = {"cpu": task.cpu, "memory": task.memory * _MIB, GPU: task.gpus}
            asks = Container(
                "main", ContainerKind.APP, requests={name: held for name, held in requests.items() if held}
            )
            models = ((Requirement(_MODEL, "In", tuple(sorted(task.models))),),) if task.models else ()
            one = pod(f"t{number:06}", asks, created_at=number, qos=QosClass.BURSTABLE, node_affinity=models)
            demands[cluster.add_pod(one).uid] = one, task.demand
        result = cluster.cycle(config)
        placed = {decision.uid for decision in result.placements}
        holding += sum(demand for uid, (_, demand) in demands.items() if uid in placed)
        for uid, (one, _) in demands.items():
            if uid not in placed:
                cluster.delete_pod(one)
        yield asked, holding
