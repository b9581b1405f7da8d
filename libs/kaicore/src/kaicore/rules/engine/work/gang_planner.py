"""Planning of steps: the waiting pods that a cycle may place at all, and those of a group that must start at once.

A group may start only together with other groups. Pods that may not be placed have a reason.
"""

from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.cycle_input import CycleInput, moved_at
from kaicore.rules.engine.placement.pod_class import PodClass, distinct
from kaicore.rules.engine.session.cycle_pods import CyclePods
from kaicore.rules.engine.work.pending_group import AlikeLine, PendingGroup, PendingGroups
from kaicore.rules.engine.work.workload import LonePod, Member, Step, Workload
from kaicore.rules.events.reasons import group as group_reasons
from kaicore.rules.events.reasons.base import CodedReason
from kaicore.rules.events.reasons.node import ResourceClaimNotReady, VolumeNotReady
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import GPU_SHARE, Amounts


def pending_groups(
    cycle_input: CycleInput, config: EngineConfig, pods: CyclePods, *, in_lines: bool = False
) -> PendingGroups:
    """Return the groups that have waiting pods of our scheduler, by key, in the order of the input.

    Args:
        in_lines: whether groups that are alike may stand in lines: nothing looks at each of them.
    """
    pending, workloads, name = (
        PendingGroups(cycle_input.workloads, cycle_input.accounts),
        cycle_input.workloads,
        config.scheduler_name,
    )
    moved = bool(config.consolidate_win_us and cycle_input.moved_at)
    in_lines = in_lines and not moved and not config.priority_aging
    for resting in cycle_input.resting:
        pod_class = pods.class_of(next(iter(resting.lones.values())).member)
        pending.rest_all(resting, pod_class.key)
    # Of thousands of groups there is nothing else to be done in a cycle.
    class_of, now, in_backoff = cycle_input.class_of, cycle_input.now, cycle_input.in_backoff
    for key in cycle_input.pending:
        workload = workloads[key]
        if in_lines and (lone := workload.lone) is not None:
            member, pod = lone.member, lone.member.pod
            if pod.scheduler_name != name:
                continue
            evicts = now >= max(lone.created_us, workload.evicted_at) + workload.group.preemption_delay_us
            if evicts and member.nomination is None and pod.uid not in in_backoff:
                pod_class = class_of(member)
                line = pending.lines.get((pod_class.key, *lone.kind)) or _line_of(
                    pod_class, lone, config, pods, pending
                )
                if line is not None:
                    pending.rest(key, lone, line)
                    continue
        for member in workload.waiting.values():
            if member.pod.scheduler_name == name:
                pending.add(pending_group(workload, cycle_input, config, pods))
                break
    pending.sort()
    return pending


def _line_of(
    pod_class: PodClass, lone: LonePod, config: EngineConfig, pods: CyclePods, pending: PendingGroups
) -> AlikeLine | None:
    """Return a new line for groups like that of a pod that waits alone; None where its class may not be placed."""
    pods.class_of(lone.member)
    return None if _is_refused(pod_class, config, pods) else pending.begin(pod_class.key, lone)


def _is_refused(pod_class: PodClass, config: EngineConfig, pods: CyclePods) -> bool:
    refusal = pods.refused.get(pod_class.key)
    if refusal is None:
        refusal = pods.refused[pod_class.key] = bool(class_refusal(pod_class, config))
    return refusal


def pending_group(workload: Workload, cycle_input: CycleInput, config: EngineConfig, pods: CyclePods) -> PendingGroup:
    """Return a group with what of it may be placed."""
    name, in_backoff = config.scheduler_name, cycle_input.in_backoff
    waiting, held_back = dict[str, list[Member]](), 0
    if not is_misunderstood(workload, cycle_input):
        ready = own = [member for member in workload.waiting.values() if member.pod.scheduler_name == name]
        classes = pods.classes_of(own)
        if any(_is_refused(pod_class, config, pods) for pod_class in distinct(classes)):
            placeable = zip(own, classes, strict=True)
            ready = [member for member, pod_class in placeable if not _is_refused(pod_class, config, pods)]
        if in_backoff:
            ready = [member for member in ready if member.pod.uid not in in_backoff]
        waiting, held_back = workload.in_order(ready), len(own) - len(ready)
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
        return (group_reasons.SchedulingGated(gates=", ".join(pod_class.gated)),)
    if pod_class.malformed:
        return (group_reasons.Malformed(problem=pod_class.malformed),)
    if pod_class.unsupported:
        return (group_reasons.Unsupported(features=", ".join(pod_class.unsupported)),)
    share = pod_class.gpu_share
    if share is not None and not config.gpu_sharing:
        return (group_reasons.Unsupported(features=f"{GPU_SHARE} ({'gpu-memory' if share.mib else 'gpu-fraction'})"),)
    if pod_class.flavors.unknown:
        detail = f"{pod_class.flavors.queue}: {', '.join(pod_class.flavors.unknown)}"
        return (group_reasons.FlavorNotFound(flavors=detail),)
    if pod_class.volumes.waits:
        return (VolumeNotReady(waits_for=", ".join(pod_class.volumes.waits)),)
    if pod_class.devices.waits:
        return (ResourceClaimNotReady(waits_for="; ".join(pod_class.devices.waits)),)
    return ()


def _incomplete(step: Step) -> tuple[Reason, ...]:
    """Return why a step without pods has none; empty where nothing of it is lacking."""
    lacking = step.missing or step.lacking
    return (group_reasons.GangIncomplete(min_pods=step.wanted, ready_pods=step.wanted - lacking),) if lacking else ()


#: Steps that start together or not at all, each with its group.
Steps = Sequence[tuple[PendingGroup, Step]]


def members_of(steps: Steps) -> list[Member]:
    """Return the pods of steps."""
    return [member for _, step in steps for member in step.members]


class GangPlanner:
    """Plans the steps of one cycle, by what the cycle has decided so far."""

    def __init__(
        self,
        cycle_input: CycleInput,
        config: EngineConfig,
        *,
        pods: CyclePods,
        pending_groups: Mapping[str, PendingGroup],
        class_reasons: MutableMapping[str, tuple[Reason, ...]],
    ) -> None:
        """Args:
        pending_groups: groups with waiting pods, by key.
        class_reasons: why pods wait, by class; reasons of classes that may not be placed at all are added.
        """
        self._input = cycle_input
        self._config = config
        self._scheduler_name = config.scheduler_name
        self._pods = pods
        self._pending_groups = pending_groups
        self._class_reasons = class_reasons
        #: How many pods this cycle decided to evict, by group and leaf.
        self._evicted: dict[str, dict[str, int]] = {}
        #: By group, the step that they were worked out for, and how many pods it has by class, and its requests.
        self._class_counts: dict[str, tuple[Step, Counter[str]]] = {}
        self._requests: dict[str, tuple[Step, Amounts]] = {}

    def joint_steps(self, pending_group: PendingGroup) -> tuple[list[tuple[PendingGroup, Step]], tuple[Reason, ...]]:
        """Return what must start at once for a group to go on, or why it cannot."""
        if pending_group.workload.constrained:
            asked = self._input.topology_of(pending_group.group)
            if isinstance(asked, CodedReason):
                return [], (asked,)
        if pending_group.held is not None:
            return [], (pending_group.held,)
        step = pending_group.step()
        if not step.members:
            return [], self._held_back(pending_group) or _incomplete(step)
        steps = [(pending_group, step)]
        seen = {pending_group.key}
        needed = list(pending_group.group.together) if step.gang else []
        for key in needed:
            if key in seen:
                continue
            seen.add(key)
            workload, other = self._input.workloads.get(key), self._pending_groups.get(key)
            if workload is not None and self.is_satisfied(workload):
                continue
            their_step = None if other is None else other.step()
            if other is None or their_step is None or not their_step.members:
                return [], (group_reasons.GangGroupWaits(other_group=key),)
            steps.append((other, their_step))
            # What that group starts together with must start as well: the groups need not all name each other.
            needed += other.group.together
        return steps, ()

    def started_with(self, groups: Sequence[str]) -> list[str]:
        """Return the keys of groups, of all groups that they start together with, and so on."""
        keys = list(groups)
        for key in keys:
            workload = self._input.workloads.get(key)
            if workload is not None:
                keys += [other for other in workload.group.together if other not in keys]
        return keys

    def companions(self, workload: Workload) -> list[Workload]:
        """Return the groups with pods that start together with a group, itself included."""
        workloads = self._input.workloads
        return [workloads[key] for key in self.started_with([workload.group.key]) if key in workloads]

    def lacking_with(self, pending_group: PendingGroup) -> list[str]:
        """Return the keys of the other groups without their minimum that a group can only start at once with."""
        if not pending_group.step().gang:
            return []
        workloads = self._input.workloads
        others = [key for key in self.started_with([pending_group.key]) if key != pending_group.key]
        return [key for key in others if key not in workloads or not self.is_satisfied(workloads[key])]

    def is_growing(self, group: str) -> bool:
        """Tell whether this cycle starts pods of a group or room is reserved for it: then nothing is taken from it."""
        pending_group = self._pending_groups.get(group)
        return pending_group is not None and (bool(pending_group.assignments) or pending_group.nominated)

    def is_satisfied(self, workload: Workload) -> bool:
        """Tell whether a group has its minimum by what this cycle has decided so far."""
        key = workload.group.key
        pending_group = self._pending_groups.get(key)
        if pending_group is not None:
            return workload.satisfied(pending_group.counts)
        evicted = self._evicted.get(key, {})
        return workload.satisfied({leaf: count - evicted.get(leaf, 0) for leaf, count in workload.counts.items()})

    def lose(self, member: Member) -> None:
        """Count a pod as evicted: its group has one less."""
        leaf = self._input.workloads[member.group].leaf(member)
        evicted = self._evicted.setdefault(member.group, {})
        evicted[leaf] = evicted.get(leaf, 0) + 1
        pending_group = self._pending_groups.get(member.group)
        if pending_group is not None:
            pending_group.lose(member)

    def request_of(self, pending_group: PendingGroup) -> Amounts:
        """Return what the next step of a group requests; not to be changed."""
        step, known = pending_group.step(), self._requests.get(pending_group.key)
        if known is None or known[0] is not step:
            known = step, self._pods.requests_of_classes(self._class_counts_of(pending_group))
            self._requests[pending_group.key] = known
        return known[1]

    def class_counts_of(self, steps: Steps) -> Counter[str]:
        """Return how many pods of each class next steps of groups have; not to be changed."""
        counts = self._class_counts_of(steps[0][0])
        for pending_group, _ in steps[1:]:
            counts = counts + self._class_counts_of(pending_group)
        return counts

    def _class_counts_of(self, pending_group: PendingGroup) -> Counter[str]:
        step, known = pending_group.step(), self._class_counts.get(pending_group.key)
        if known is None or known[0] is not step:
            known = self._class_counts[pending_group.key] = step, self._pods.class_counts(step.members)
        return known[1]

    def requests_of(self, steps: Steps) -> list[tuple[Group, Amounts]]:
        """Return what steps request of the queues, by group."""
        return [(pending_group.group, self.request_of(pending_group)) for pending_group, _ in steps]

    def _held_back(self, pending_group: PendingGroup) -> tuple[Reason, ...]:
        """Return why pods of a group may not be placed at all; a side effect gives their classes the same reasons."""
        placed = pending_group.placed_uids
        in_backoff = 0
        reasons: dict[str, tuple[Reason, ...]] = {}
        for uid, member in pending_group.workload.waiting.items():
            pod_class = self._pods.class_of(member)
            if uid in placed or member.pod.scheduler_name != self._scheduler_name:
                continue
            if refusal := class_refusal(pod_class, self._config):
                reasons[pod_class.key] = refusal
            in_backoff += uid in self._input.in_backoff
        self._class_reasons.update(reasons)
        recorded = tuple(reason for key in sorted(reasons) for reason in reasons[key])
        return recorded + ((group_reasons.WaitsAfterFailedBinds(pods=in_backoff),) if in_backoff else ())
