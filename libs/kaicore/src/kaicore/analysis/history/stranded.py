"""GPUs that are idle and of no use to any of the pods that wait.

A GPU is *stranded* while it is idle on a node that takes pods, pods that ask for GPUs wait, and none of them fits on
that node: their CPUs, memory, zones, or required domain are not to be had there. Where nothing waits that asks for
GPUs, no GPU is stranded: it is only idle. What a queue may have does not matter: a pod that waits for its quota could
use the GPU all the same.
"""

import msgspec
import numpy as np

from kaicore.rules.engine.config import EngineConfig, Evaluator
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.session import Session
from kaicore.rules.engine.topology.group_topology import GroupTopology
from kaicore.rules.engine.workload import Workload
from kaicore.rules.numa.zone_arrays import Flags
from kaicore.rules.queues.resources import GPU, counted, gpus_per_unit
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.cycle_input import cycle_input
from kaicore.rules.topology.placing.request import NO_LEVEL


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
    left = idle > 0
    seen: set[tuple[str, str]] = set()
    for entry in wanting:
        pod_class = session.pods.class_of(entry)
        workload = state.workload_index.workloads.get(entry.group)
        topology = None if workload is None else session.topologies.of(workload)
        # Pods without a constraint are alike, whatever group they are of.
        key = pod_class.key, "" if topology is None else entry.group
        if key in seen or not left.any():
            continue
        seen.add(key)
        able = left if topology is None or workload is None else left & _roomy(session, workload, topology, pod_class)
        feasible = session.nodes.now.feasible_nodes(pod_class)
        for row in np.flatnonzero(able).tolist():
            left[row] = not feasible.takes(row, created_at=entry.pod.created_at)
    return int(idle[left].sum())


def _roomy(session: Session, workload: Workload, topology: GroupTopology, pod_class: PodClass) -> Flags:
    """Return the rows in domains of the required level that could take what of a group is to start at once.

    As if all of its pods were of this class, so that a domain is rather taken for large enough than not.
    """
    level, rows = topology.required_level, len(session.nodes.columns.present)
    if level == NO_LEVEL:
        return np.ones(rows, np.bool_)
    needed = max(workload.group.sets[0].min_pods - len(workload.active), 1)
    room = session.nodes.now.counts(pod_class, most=needed)
    domains = topology.tree.of_rows[level]
    # In no domain, as a row beyond the last node, there is no room.
    large = np.append(topology.tree.sums(room[: len(domains)])[level] >= needed, False)
    roomy: Flags = np.zeros(rows, np.bool_)
    roomy[: len(domains)] = large[domains]
    return roomy
