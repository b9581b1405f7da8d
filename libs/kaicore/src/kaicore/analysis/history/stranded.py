"""GPUs that are idle and of no use to any of the pods that wait.

A GPU is *stranded* while it is idle on a node that takes pods, pods that ask for GPUs wait, and none of them fits on
that node: their CPUs, memory, zones, or required domain are not to be had there. Where nothing waits that asks for
GPUs, no GPU is stranded: it is only idle. What a queue may have does not matter: a pod that waits for its quota could
use the GPU all the same.
"""

import msgspec
import numpy as np

from kaicore.rules.engine.config import EngineConfig, Evaluator
from kaicore.rules.engine.session import Session
from kaicore.rules.queues.resources import GPU, counted, gpus_per_unit
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.cycle_input import cycle_input


def stranded_gpus(state: ClusterState, config: EngineConfig, *, now: int) -> int:
    """Return how many GPUs are stranded.

    Args:
        state: not changed.
        config: whose pods wait; zones are looked at as kubelets do, also where the configuration does not.
        now: microseconds since the epoch.
    """
    entries = [state.pods[uid] for uid in sorted(state.waiting)]
    wanting = [entry for entry in entries if counted(entry.requests).get(GPU, 0) and not entry.pod.scheduling_gates]
    if not wanting:
        return 0
    aware = msgspec.structs.replace(config, numa=True, evaluator=Evaluator.KUBELET)
    session = Session(cycle_input(state, aware, now=now), aware)
    columns = session.nodes.columns
    weights = np.zeros(columns.used.shape[1], np.int64)
    for resource, column in columns.resources.items():
        weights[column] = gpus_per_unit(resource)
    size = len(columns.present)
    serving = columns.present & columns.ready & ~columns.unschedulable
    idle = np.maximum((columns.allocatable[:size] - columns.used[:size]) @ weights, 0) * serving
    left = set(np.flatnonzero(idle).tolist())
    seen = set()
    for entry in wanting:
        pod_class = session.pods.class_of(entry)
        if pod_class.key in seen or not left:
            continue
        seen.add(pod_class.key)
        feasible = session.nodes.now.feasible_nodes(pod_class)
        left = {row for row in left if not feasible.takes(row, created_at=entry.pod.created_at)}
    return int(idle[sorted(left)].sum()) if left else 0
