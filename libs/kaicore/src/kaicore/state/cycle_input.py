"""What a cycle decides on, taken from the state: who waits, who is due, and which nodes are left alone."""

from kaicore.engine.config import EngineConfig
from kaicore.engine.cycle import CycleInput, StrayPod, WaitingPod
from kaicore.state.cluster_state import ClusterState
from kaicore.state.healing import why_not
from kaicore.state.pod_entry import PodEntry


def cycle_input(state: ClusterState, config: EngineConfig, *, now: int) -> CycleInput:
    """Return what a cycle at time `now` (microseconds since the epoch) decides on."""
    waiting = []
    rejecting = _rejecting(state)
    avoid: dict[str, set[int]] = {}
    for uid in state.waiting:
        entry = state.pods[uid]
        if entry.pod.scheduler_name != config.scheduler_name or now < retry_at(entry, config):
            continue
        pod, pod_class = entry.pod, state.class_of(entry)
        waiting.append(WaitingPod(pod.uid, pod.namespace, pod.name, pod.priority, pod.created_at, pod_class))
        if entry.healed_from:
            avoid.setdefault(pod_class.key, set()).add(state.columns.row(entry.healed_from))
        if entry.class_key in rejecting:
            rejecting[pod_class.key] = rejecting[entry.class_key]
    return CycleInput(
        state.columns,
        waiting,
        rejecting,
        avoid=avoid,
        stray=_stray(state, config, now=now),
    )


def _rejecting(state: ClusterState) -> dict[str, dict[int, str]]:
    rejecting: dict[str, dict[int, str]] = {}
    for node, by_class in state.rejections.items():
        changes = state.changes.get(node, 0)
        for key, rejection in by_class.items():
            if rejection.changes == changes:
                rejecting.setdefault(key, {})[state.columns.row(node)] = rejection.reason
    return rejecting


def idle(state: ClusterState) -> bool:
    """Tell whether there is no pod that a cycle could decide on, now or later."""
    return not state.waiting and all(why_not(state.pods[uid]) for uid in state.missed)


def next_retry(state: ClusterState, config: EngineConfig, *, now: int) -> int | None:
    """Return when the next pod that failed to be bound may be tried, or the next may be evicted; None if none may."""
    times: list[int] = [
        retry_at(entry, config)
        for entry in (state.pods[uid] for uid in state.waiting)
        if entry.bind_failures and entry.pod.scheduler_name == config.scheduler_name
    ]
    healings = (state.healing.due_at(state.pods[uid], config) for uid in state.missed)
    times += [time for time in healings if time is not None]
    return min((time for time in times if time > now), default=None)


def retry_at(entry: PodEntry, config: EngineConfig) -> int:
    """Return when a pod may be decided on again after failed binds, microseconds since the epoch; 0 without any."""
    if not entry.bind_failures:
        return 0
    wait = config.bind_backoff_us << min(entry.bind_failures - 1, 32)
    return entry.failed_at + min(wait, config.bind_backoff_max_us)


def is_unobserved(state: ClusterState, entry: PodEntry) -> bool:
    """Tell whether a pod runs on zones of its node and nobody has observed it there.

    If that lasts, the node's exporter is missing or late, for pods that hold nothing are observed too.
    """
    if entry.observed is not None or not entry.started_at or not entry.charged:
        return False
    asked = state.classes[entry.class_key].aligned.resources
    return state.columns.zones.binds(state.columns.row(entry.node), asked)


def _stray(state: ClusterState, config: EngineConfig, *, now: int) -> list[StrayPod]:
    due = state.healing.due((state.pods[uid] for uid in state.missed), config, now=now)
    return [
        StrayPod(
            uid=entry.pod.uid,
            namespace=entry.pod.namespace,
            name=entry.pod.name,
            node=entry.node,
            missed=entry.missed,
            owner="" if entry.pod.owner is None else entry.pod.owner.uid,
            pod_class=state.class_of(entry),
        )
        for entry in due
    ]
