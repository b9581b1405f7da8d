"""A cycle's record of the pods that it leaves waiting: the keys under which their reasons are found.

Reasons are recorded once for a class and once for a group. The class of a pod in a decision, and its group, follow from
the whole state. The binder writes these reasons on pods. It does not have the state, and need not.
"""

from collections.abc import Collection

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.payloads import PodsLeftWaiting, WaitingPod
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pod_entry import PodEntry
from kaicore.rules.state.share import Share

#: Most pods per event: such an event stays well below the largest message of a bus, 1 MiB.
_PODS_PER_EVENT = 1000


def waiting_reports(
    state: ClusterState, config: EngineConfig, *, shard: str, share: Share, placed: Collection[str]
) -> list[PodsLeftWaiting]:
    """Return what a cycle records of the pods that it leaves waiting.

    Args:
        state: the cycle's input.
        config: the shard's settings.
        shard: whose cycle it is.
        share: of the groups, those that the cycle was about.
        placed: uids of the pods that the cycle places.
    """
    left_waiting = []
    for uid in state.waiting:
        entry = state.pods[uid]
        if uid not in placed and entry.pod.scheduler_name == config.scheduler_name and share.has(entry.group):
            waiting = _waiting_pod(state, entry)
            if waiting is not None:
                left_waiting.append(waiting)
    left_waiting.sort(key=lambda pod: pod.uid)
    return [
        PodsLeftWaiting(shard=shard, pods=tuple(left_waiting[first : first + _PODS_PER_EVENT]))
        for first in range(0, len(left_waiting), _PODS_PER_EVENT)
    ]


def _waiting_pod(state: ClusterState, entry: PodEntry) -> WaitingPod | None:
    """Return what is to be recorded of a pod; None where that was recorded before."""
    key, alone, queue, priority = state.class_of(entry).key, False, "", 0
    workload = state.workload_index.workloads.get(entry.group)
    if workload is not None and not workload.is_gang:
        alone, queue, priority = True, workload.group.queue, workload.group.priority
    before = entry.reported
    if (
        before is not None
        and before.pod_class == key
        and before.group == entry.group
        and (before.alone, before.queue, before.priority) == (alone, queue, priority)
        and before.problem == entry.group_problem
    ):
        return None
    return WaitingPod(
        uid=entry.pod.uid,
        namespace=entry.pod.namespace,
        name=entry.pod.name,
        pod_class=key,
        group=entry.group,
        alone=alone,
        queue=queue,
        priority=priority,
        problem=entry.group_problem,
    )
