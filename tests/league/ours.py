"""The product's own engine over a trace: tasks are pods in a log, cycles decide, and decisions are folded."""

from collections.abc import Iterator, Sequence
from typing import Any

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.model.pod import Container, ContainerKind, QosClass
from kaicore.rules.model.selector import Requirement

from tests.devices import DRIVER, add_slice, devices, exactly, from_template, gpu, slice_document
from tests.factory import GPU, Cluster, pod
from tests.league.openb import MILLI, Nodes, Task

_MODEL = "nvidia.com/gpu.product"
#: Tasks that arrive between two cycles.
_AT_ONCE = 32
_MIB = 2**20


def _cluster(nodes: Nodes, *, claims: bool) -> Cluster:
    """Return a cluster of these nodes: their GPUs are their kubelets', or in slices if pods have claims."""
    cluster = devices() if claims else Cluster()
    for number in range(len(nodes.cpu)):
        name, gpus = f"n{number:05}", int(nodes.gpus[number])
        held = {"cpu": int(nodes.cpu[number]), "memory": int(nodes.memory[number]) * _MIB, "pods": 1_000}
        if not claims:
            held[GPU] = gpus
        cluster.add_node(name, allocatable=held, capacity=held, labels={_MODEL: str(nodes.model[number])})
        if claims:
            add_slice(cluster, slice_document(name, *(gpu(f"gpu-{device}") for device in range(gpus))))
    return cluster


def allocated(
    nodes: Nodes, arriving: Sequence[Task], config: EngineConfig, *, claims: bool = False
) -> Iterator[tuple[int, int]]:
    """Yield after each cycle how much GPU has been asked for and how much is held, in thousandths.

    Tasks that do not fit when they come are dropped, as in the simulator of FGD's authors.

    Args:
        nodes: of the cluster.
        arriving: tasks of whole GPUs.
        config: the shard's settings.
        claims: pods ask for GPUs by resource claims (DRA), not of kubelets.
    """
    cluster = _cluster(nodes, claims=claims)
    asked = holding = 0
    for first in range(0, len(arriving), _AT_ONCE):
        demands = {}
        for number, task in enumerate(arriving[first : first + _AT_ONCE], first):
            if 0 < task.gpu_milli < MILLI:
                raise ValueError(f"task {number}: gpu_milli: parts of a GPU are not placed yet: {task.gpu_milli}")
            asked += task.demand
            requests = {"cpu": task.cpu, "memory": task.memory * _MIB, GPU: 0 if claims else task.gpus}
            asks = Container(
                "main", ContainerKind.APP, requests={name: held for name, held in requests.items() if held}
            )
            models = ((Requirement(_MODEL, "In", tuple(sorted(task.models))),),) if task.models else ()
            name = f"t{number:06}"
            more: dict[str, Any] = {"created_at": number, "qos": QosClass.BURSTABLE, "node_affinity": models}
            if claims and task.gpus:
                request = exactly("gpu", DRIVER, count=task.gpus)
                one = from_template(cluster, request, name=name, containers=(asks,), **more)
            else:
                one = cluster.add_pod(pod(name, asks, **more))
            demands[one.uid] = one, task.demand
        result = cluster.cycle(config)
        placed = {decision.uid for decision in result.placements}
        holding += sum(demand for uid, (_, demand) in demands.items() if uid in placed)
        for uid, (one, _) in demands.items():
            if uid not in placed:
                cluster.delete_pod(one)
        yield asked, holding
