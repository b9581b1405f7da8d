"""Readiness of waiting pods: those that a cycle may place at all, and the reasons for which it may not place the
others.
"""

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.cycle_pods import CyclePods
from kaicore.rules.engine.moved import moved_at
from kaicore.rules.engine.pending_group import PendingGroup
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.workload import Member, Workload
from kaicore.rules.model.pod import GPU_SHARE
from kaicore.rules.reasons.base import CodedReason
from kaicore.rules.reasons.devices import ResourceClaimNotReady
from kaicore.rules.reasons.group import FlavorNotFound, Malformed, SchedulingGated, Unsupported
from kaicore.rules.reasons.pods_nearby import VolumeNotReady
from kaicore.rules.reasons.reason import Reason


def pending_groups(cycle_input: CycleInput, config: EngineConfig, pods: CyclePods) -> dict[str, PendingGroup]:
    """Return the groups that have waiting pods of our scheduler, by key, in the order of the input."""
    pending: dict[str, PendingGroup] = {}
    for key in cycle_input.pending:
        workload = cycle_input.workloads[key]
        if any(member.pod.scheduler_name == config.scheduler_name for member in workload.waiting.values()):
            pending[key] = pending_group(workload, cycle_input, config, pods)
    return pending


def pending_group(workload: Workload, cycle_input: CycleInput, config: EngineConfig, pods: CyclePods) -> PendingGroup:
    """Return a group with what of it may be placed."""
    held_back = 0
    # Most pods of a group are of one class.
    refused: dict[str, bool] = {}

    def may_be_placed(member: Member) -> bool:
        nonlocal held_back
        if member.pod.scheduler_name != config.scheduler_name:
            return False
        pod_class = pods.class_of(member)
        refusal = refused.get(pod_class.key)
        if refusal is None:
            refusal = refused[pod_class.key] = bool(class_refusal(pod_class, config))
        ready = not refusal and member.pod.uid not in cycle_input.in_backoff
        held_back += not ready
        return ready

    waiting = {} if is_misunderstood(workload, cycle_input) else workload.ready(may_be_placed)
    at = moved_at(cycle_input, workload) if config.consolidate_win_us else 0
    moved = at > 0 and cycle_input.now < at + config.consolidate_cooldown_us
    gained = _gained(workload, cycle_input, config)
    return PendingGroup(workload, waiting, held_back, gained=gained, moved=moved)


def _gained(workload: Workload, cycle_input: CycleInput, config: EngineConfig) -> int:
    """Return what a group has gained by waiting to start; what has started and grows gains nothing."""
    group = workload.group
    if not config.priority_aging or (workload.own_counts and workload.satisfied(workload.own_counts)):
        return 0
    waited = cycle_input.now - group.created_at * 1_000_000
    return config.priority_gained(cycle_input.accounts.queue_of(group), waited)


def is_misunderstood(workload: Workload, cycle_input: CycleInput) -> bool:
    """Tell whether a group asks for what its topology does not have, so that nothing of it starts."""
    return workload.constrained and isinstance(cycle_input.topology_of(workload.group), CodedReason)


def class_refusal(pod_class: PodClass, config: EngineConfig) -> tuple[Reason, ...]:
    """Return why pods of a class may not be placed anywhere; empty if they may."""
    if pod_class.gated:
        return (SchedulingGated(gates=", ".join(pod_class.gated)),)
    if pod_class.malformed:
        return (Malformed(problem=pod_class.malformed),)
    if pod_class.unsupported:
        return (Unsupported(features=", ".join(pod_class.unsupported)),)
    share = pod_class.gpu_share
    if share is not None and not config.gpu_sharing:
        return (Unsupported(features=f"{GPU_SHARE} ({'gpu-fraction' if share.milli else 'gpu-memory'})"),)
    if pod_class.flavors.unknown:
        detail = f"{pod_class.flavors.queue}: {', '.join(pod_class.flavors.unknown)}"
        return (FlavorNotFound(flavors=detail),)
    if pod_class.volumes.waits:
        return (VolumeNotReady(waits_for=", ".join(pod_class.volumes.waits)),)
    if pod_class.devices.waits:
        return (ResourceClaimNotReady(waits_for="; ".join(pod_class.devices.waits)),)
    return ()
