"""The input of a cycle, taken from the state: the waiting pods, the due pods, and the excluded nodes."""

from collections.abc import Container

from kaicore.backoff import backoff
from kaicore.rules.engine.config import Action, EngineConfig
from kaicore.rules.engine.cycle_input import CycleInput, MisalignedPod
from kaicore.rules.engine.placement.placer import ExcludedNodes
from kaicore.rules.engine.victims.budgets import Budgets
from kaicore.rules.queues.cycle_queues import CycleQueues
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.doubts import StateDoubts
from kaicore.rules.state.failed_nodes import failed_nodes, on_failed_nodes
from kaicore.rules.state.group_topologies import GroupTopologies
from kaicore.rules.state.pod_entry import PodEntry
from kaicore.rules.state.repairs import why_not
from kaicore.rules.state.share import Share


def cycle_input(
    state: ClusterState, config: EngineConfig, *, now: int, cycle: str = "", share: Share | None = None
) -> CycleInput:
    """Return what a cycle decides on.

    Args:
        state: not changed, and not to be changed while the input is used.
        config: the shard's settings.
        now: the cycle's clock, microseconds since the epoch.
        cycle: the cycle's id; empty where nothing is recorded.
        share: of the groups, whose cycle it is; None for all of them.
    """
    share = share or Share(state, "", config)
    waiting, in_backoff, excluded = _waiting(state, config, share, now=now)
    workloads = state.workload_index
    failed = failed_nodes(state, config, now=now)
    return CycleInput(
        columns=state.columns,
        class_of=lambda member: state.class_of(state.pods[member.pod.uid]),
        marks_of=state.constraints.marks_of,
        budgets=_budgets(state),
        workloads=workloads.workloads,
        running=workloads.running,
        needed_by=workloads.needed_by,
        pending=sorted(share.pending()),
        waiting=waiting,
        now=now,
        cycle=cycle,
        rejected_before=state.rejected_before,
        unbound_claims=state.constraints.unbound_claims,
        given_devices=state.constraints.devices.given,
        leaving=[workloads.leaving[uid] for uid in sorted(workloads.leaving)],
        nominated=[
            entry
            for entry in (state.pods[uid] for uid in sorted(state.nominated))
            if entry.pod.scheduler_name != config.scheduler_name
        ],
        reserved=_reserved_by_others(state, config, share),
        below=sorted(filter(share.has, workloads.below)),
        failures_left=state.failures_left,
        moved_at=state.moved_at,
        in_backoff=in_backoff,
        accounts=CycleQueues(state.queue_accounts(config, now=now), config.fair_share),
        excluded_nodes=excluded,
        misaligned=[one for one in _misaligned(state, config, now=now) if share.has(one.member.group)],
        matters=StateDoubts(state, now=now) if state.counters.reported else None,
        failed_nodes=failed,
        on_failed_nodes=[one for one in on_failed_nodes(state, failed, config) if share.has(one.group)],
        topology_of=GroupTopologies(state.topology_resolver, state.queue_registry, state.columns.names),
        provisioning={key: one for key, one in state.provisioning.standing.items() if share.has(key)},
    )


def _waiting(
    state: ClusterState, config: EngineConfig, share: Share, *, now: int
) -> tuple[int, frozenset[str], ExcludedNodes]:
    """Return how many pods may be placed, the uids of those that are not to be now, and who avoids what."""
    in_backoff = set()
    rejecting = _rejecting(state)
    stopped = {event.stream.removeprefix("pod/") for event in state.quarantined.values()}
    avoid: dict[str, set[int]] = {}
    waiting = 0
    for uid in state.waiting:
        entry = state.pods[uid]
        if entry.pod.scheduler_name != config.scheduler_name or not share.has(entry.group):
            continue
        if (entry.bind_failures and now < retry_at(entry, config)) or uid in stopped:
            in_backoff.add(uid)
            continue
        waiting += 1
        if entry.replaces_on:
            avoid.setdefault(state.class_of(entry).key, set()).add(state.columns.row(entry.replaces_on))
        if entry.class_key in rejecting:
            rejecting[state.class_of(entry).key] = rejecting[entry.class_key]
    excluded = ExcludedNodes(rejecting, avoid, share.turns(), share.left_to_others(), share.wanted_by_others())
    return waiting, frozenset(in_backoff), excluded


def _reserved_by_others(state: ClusterState, config: EngineConfig, share: Share) -> list[PodEntry]:
    """Return the waiting pods of other replicas' groups for which room is kept, by uid."""
    if share.alone:
        return []
    nominated = (state.pods[uid] for uid in sorted(state.nominated))
    return [
        entry for entry in nominated if entry.pod.scheduler_name == config.scheduler_name and not share.has(entry.group)
    ]


def _rejecting(state: ClusterState) -> dict[str, dict[int, str]]:
    return {
        class_key: {state.columns.row(node): reason for node, reason in by_node.items()}
        for class_key, by_node in state.rejections.standing().items()
    }


def _budgets(state: ClusterState) -> Budgets:
    """How many pods may be evicted of those under disruption budgets."""
    budgets = state.constraints.budgets
    # An eviction names the pod as disrupted and takes one off what is allowed: that is counted once.
    allowed = {key: budget.disruptions_allowed for key, budget in budgets.items()}
    by_pod: dict[str, tuple[str, ...]] = {}
    if budgets:
        for uid, entry in state.pods.items():
            if entry.charged:
                keys = tuple(sorted(state.constraints.budgets_of(entry.pod)))
                if keys:
                    by_pod[uid] = keys
    # Evictions that were decided and that the API server has not granted yet.
    for uid, entry in state.workload_index.leaving.items():
        if entry.evicting and entry.pod.deletion_at is None:
            for key in by_pod.get(uid, ()):
                allowed[key] -= entry.pod.name not in budgets[key].disrupted
    return Budgets(allowed, by_pod)


def idle(state: ClusterState, share: Share | None = None) -> bool:
    """Tell whether there is no pod that a cycle could decide on, now or later, and no request for nodes.

    Args:
        state: as the cycle would find it.
        share: of the groups, whose cycle it would be; None for all of them.
    """
    if share is not None and not share.whole:
        return not (
            share.pending()
            or any(map(share.has, state.workload_index.below))
            or any(map(share.has, state.provisioning.standing))
            or state.node_readiness.may_have_failed(state.charges.on_node)
            or any(not why_not(state.pods[uid]) and share.has(state.pods[uid].group) for uid in state.misaligned)
        )
    return (
        not state.waiting
        and not state.workload_index.below
        and not state.node_readiness.may_have_failed(state.charges.on_node)
        and not state.provisioning.standing
        and all(why_not(state.pods[uid]) for uid in state.misaligned)
    )


def next_due(
    state: ClusterState, config: EngineConfig, *, now: int, due: int = 0, given_up: Container[str] = ()
) -> int | None:
    """Return when something that only waits for time has waited long enough; None if nothing does.

    That is when a pod that failed to be bound may be tried again, or a pod on wrong zones evicted; when a gang has been
    below its minimum for too long; when room has been kept for long enough; and when a preemption delay or a minimum
    runtime ends.

    Args:
        state: after the last cycle.
        config: the shard's settings.
        now: microseconds since the epoch; what is due by then is not waited for.
        due: see `CycleResult.due` of the last cycle.
        given_up: uids of pods for whose room nothing is waited for.
    """
    times: list[int] = [
        retry_at(entry, config)
        for entry in (state.pods[uid] for uid in state.waiting)
        if entry.bind_failures and entry.pod.scheduler_name == config.scheduler_name
    ]
    times += state.node_readiness.due(config)
    repairs = (state.repairs.due_at(state.pods[uid], config) for uid in state.misaligned)
    times += [time for time in repairs if time is not None]
    for key in state.workload_index.below if Action.STALE_GANG in config.actions else ():
        workload = state.workload_index.workloads[key]
        grace = workload.group.staleness_grace_us
        grace = config.staleness_grace_us if grace is None else grace
        times += [workload.below_since + grace] if grace >= 0 else []
    for uid in state.nominated:
        nomination = state.pods[uid].nomination
        if nomination is not None and uid not in given_up:
            times.append(nomination.at + config.nomination_us)
    return min((time for time in (*times, due) if time > now), default=None)


def next_retry(state: ClusterState, config: EngineConfig, *, now: int, due: int = 0) -> int | None:
    """Return when there may be something to decide although nothing happens until then; None if never.

    That is what `next_due` tells; and now and then while any pod waits, for time itself changes what is due to which
    queue.
    """
    due_at = next_due(state, config, now=now, due=due)
    if not state.waiting:
        return due_at
    recheck = now + config.recheck_us
    return recheck if due_at is None else min(due_at, recheck)


def retry_at(entry: PodEntry, config: EngineConfig) -> int:
    """Return when a pod may be decided on again after failed binds, microseconds since the epoch; 0 without any."""
    if not entry.bind_failures:
        return 0
    wait = backoff(entry.bind_failures, first=config.bind_backoff_us, most=config.bind_backoff_max_us)
    return entry.failed_at + wait


def is_unobserved(state: ClusterState, entry: PodEntry) -> bool:
    """Tell whether a pod runs on zones of its node and no exporter has observed it there.

    If that lasts, the node's exporter is missing or late, for pods that hold nothing are observed too.
    """
    if entry.observed is not None or not entry.started_at or not entry.charged:
        return False
    row, zones = state.columns.row(entry.node), state.columns.zones
    return zones.binds(row, state.classes[entry.class_key].aligned.on(zones.kubelet_of(row)).resources)


def _misaligned(state: ClusterState, config: EngineConfig, *, now: int) -> list[MisalignedPod]:
    due = state.repairs.due((state.pods[uid] for uid in state.misaligned), config, now=now)
    return [MisalignedPod(entry, entry.misaligned) for entry in due]
