"""The input of a cycle, taken from the state: the waiting pods, the due pods, and the excluded nodes.

A node's zones are uncertain where pods on it are not observed yet, or may end. A pod that has run for a while is
assumed to stay in the moment in which another one is decided on. Of those that run for seconds, some end in that
moment, and their kubelet frees their resources before the API reports it (decision 0112).

Groups with a topology constraint have requests that are resolved against the existing network topologies, and the nodes
that have failed for them, with the pods there.
"""

from collections.abc import Callable, Container, Mapping, Sequence, Set

from kaicore.backoff import backoff
from kaicore.rules.deciding.decided_classes import decided_classes
from kaicore.rules.deciding.reserved_nodes import drains, reserved, to_drain
from kaicore.rules.deciding.run_length import expected_us, limits_of
from kaicore.rules.deciding.share import Share
from kaicore.rules.deciding.suspects import SuspectRows, probes_last_at, suspects
from kaicore.rules.engine.config import Action, EngineConfig
from kaicore.rules.engine.constraints.class_filters import CORDONED, ExcludedNodes
from kaicore.rules.engine.constraints.node_matching import tolerates
from kaicore.rules.engine.constraints.zones.doubts import EndingPods
from kaicore.rules.engine.cycle_input import CycleInput, FailedNode, MisalignedPod
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.policies.guarded import GuardedPolicy
from kaicore.rules.engine.victims.eviction_cost import Budgets
from kaicore.rules.engine.work.gang_planner import class_refusal
from kaicore.rules.engine.work.workload import Member, RestingLine, keys_of, uids_of
from kaicore.rules.events.reasons.making_room import PromiseGivenUp, RoomPromised
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.groups.membership import display_key
from kaicore.rules.model.gpu_share import WHOLE
from kaicore.rules.model.group import Group
from kaicore.rules.model.node import Node
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.replicas import split_shard
from kaicore.rules.numa.arrivals import Arrival
from kaicore.rules.queues.cycle_queues import CycleQueues
from kaicore.rules.queues.tree import gpus_of
from kaicore.rules.state.charges.early_release import LAG_US
from kaicore.rules.state.indexes.repairs import why_not
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
from kaicore.rules.state.registries.queue_registry import QueueRegistry, ready_amounts
from kaicore.rules.state.views import ClusterView, CycleView, FleetView, PodsView, WorkView
from kaicore.rules.topology.placing.request import GroupTopology
from kaicore.rules.topology.resolve import Resolved, Resolver

#: Pods that have run for longer are not taken to end in the very moment of a decision, microseconds.
YOUNG_US = 60_000_000


class StateDoubts:
    """The open matters of a state at one moment (`kaicore.rules.engine.constraints.zones.doubts.OpenMatters`).

    To be asked only where there are exporters: without observations, no doubt would end.
    """

    def __init__(self, state: CycleView, *, now: int) -> None:
        """Args:
        state: not changed.
        now: microseconds since the epoch.
        """
        self._state = state
        self._now = now

    def arrivals(self, row: int) -> tuple[Arrival, ...]:
        """See `OpenMatters`."""
        state = self._state
        node = state.columns.names[row]
        pods = state.charges.on_node.get(node, ())
        if not any(self._is_open(state.pods[uid]) for uid in pods):
            return ()
        ended = state.early_releases.ended.get(node, ())
        return tuple(
            Arrival(
                state.classes[entry.class_key].aligned,
                entry.zone_charge,
                entry.pod.created_at,
                shaken=any(one.ended_at > entry.decided_at for one in ended),
                may_end=entry.stage is not Stage.PLACED,
            )
            for entry in state.charges.held_on(node)
            if self._is_open(entry)
        )

    def ending(self, row: int) -> EndingPods:
        """See `OpenMatters`."""
        zones = int(self._state.columns.zones.zone_count[row])
        amounts: dict[str, list[int]] = {}
        ends = []
        for entry in self._state.charges.held_on(self._state.columns.names[row]):
            if self._is_open(entry):
                ends.append(entry.started_at + LAG_US)
            elif entry.leaving or not entry.started_at or self._now < entry.started_at + YOUNG_US:
                for zone, resource, amount in entry.zone_charge.split:
                    amounts.setdefault(resource, [0] * zones)[zone] += amount
                ends.append(entry.started_at + YOUNG_US)
        until = min((at for at in ends if at > self._now), default=0)
        return EndingPods({resource: tuple(figures) for resource, figures in sorted(amounts.items())}, until)

    def _is_open(self, entry: PodEntry) -> bool:
        """Tell whether a pod was decided on, and what its kubelet gave it is not observed but may yet be.

        One that was not observed within some seconds of its start will hardly be: its prediction stands.
        """
        if entry.observed is not None or entry.predicted is None:
            return False
        return not entry.started_at or self._now < entry.started_at + LAG_US


def failed_nodes(state: ClusterView, config: EngineConfig, *, now: int) -> Mapping[str, FailedNode]:
    """Return the nodes that have failed, by name; none where the shard does not replace any."""
    if not config.replace_failed_nodes:
        return {}
    tainted: set[str] = set()
    for entry in state.workload_index.leaving.values():
        node = state.columns.facts[state.columns.row(entry.node)]
        if node is not None and entry.pod.deletion_at is not None and _keeps_off(node, entry.pod):
            tainted.add(entry.node)
    nodes = int(state.columns.present.sum())
    return state.node_readiness.failed(config, now=now, nodes=nodes, tainted=tainted)


def on_failed_nodes(state: ClusterView, failed: Mapping[str, FailedNode], config: EngineConfig) -> list[PodEntry]:
    """Return our scheduler's pods on failed nodes that are in groups with a topology constraint, by uid."""
    workloads = state.workload_index.workloads
    uids = sorted(uid for name in failed for uid in state.charges.on_node.get(name, ()))
    entries = [state.pods[uid] for uid in uids]
    return [
        entry
        for entry in entries
        if entry.pod.scheduler_name == config.scheduler_name
        and entry.group in workloads
        and workloads[entry.group].constrained
    ]


def _keeps_off(node: Node, pod: Pod) -> bool:
    """Tell whether a pod would not be placed on a node for its taints, or because it is cordoned."""
    taints = [*node.taints, *([CORDONED] if node.unschedulable else [])]
    return any(not tolerates(pod.tolerations, taint) for taint in taints)


class GroupTopologies:
    """Looks up groups' constraints, each group once."""

    def __init__(self, resolver: Resolver, queues: QueueRegistry, nodes: Sequence[str]) -> None:
        """Args:
        resolver: of the topologies as they are; not to change meanwhile.
        queues: likewise.
        """
        self._resolver = resolver
        self._queues = queues
        self._nodes = nodes
        self._by_group: dict[str, GroupTopology | Reason | None] = {}

    def __call__(self, group: Group) -> GroupTopology | Reason | None:
        """See `kaicore.rules.engine.cycle_input.CycleInput.topology_of`."""
        if group.key not in self._by_group:
            self._by_group[group.key] = self._look_up(group)
        return self._by_group[group.key]

    def _look_up(self, group: Group) -> GroupTopology | Reason | None:
        resolved = self._resolver(
            group.sets,
            group=display_key(group.key),
            of_flavors=self._queues.flavor_topologies(group.queue, group.namespace),
        )
        if not isinstance(resolved, Resolved):
            return resolved
        tree = self._resolver.topologies.columns(resolved.topology, self._nodes)
        name = resolved.topology.name or f"{resolved.topology.kind.partition('.')[0]}s"
        return GroupTopology(name, group.sets, tree, resolved.constraints, resolved.together)


def cycle_input(  # long: one line for each field of the input
    state: CycleView,
    config: EngineConfig,
    *,
    now: int,
    cycle: str = "",
    share: Share | None = None,
    policies: Sequence[GuardedPolicy] = (),
    in_lines: bool = False,
) -> CycleInput:
    """Return what a cycle decides on.

    Args:
        state: not changed, and not to be changed while the input is used.
        now: the cycle's clock, microseconds since the epoch.
        cycle: the cycle's id; empty where nothing is recorded.
        share: of the groups that the cycle is for; None for all of them.
        policies: the operator's; none for explanations, which have no code of policies.
        in_lines: whether groups may rest, for nobody looks at each of them.
    """
    share = share or Share(state, "", config)
    found = suspects(state, config, now=now, cycle=cycle)
    rows = SuspectRows(state, found)
    resting = _resting(state, config, share, now=now) if in_lines and not found.standing else []
    waiting, in_backoff, excluded = _waiting(
        state, config, share, rows, now=now, apart=state.waiting - uids_of(resting)
    )
    workloads = state.workload_index
    decided_as = decided_classes(state, config, now=now)

    homes = [*state.homes_to_keep(now=now, patience_us=config.nomination_us)]
    class_of = _class_of(state, decided_as, {home.pod.pod.uid: home.pod for home in homes})

    failed = failed_nodes(state, config, now=now)
    return CycleInput(
        columns=rows.columns(),
        class_of=class_of,
        policies=policies,
        marks_of=state.constraints.marks_of,
        budgets=_budgets(state),
        workloads=workloads.workloads,
        running=workloads.running,
        needed_by=workloads.needed_by,
        pending=sorted(share.pending() - keys_of(resting)),
        waiting=waiting + sum(len(line.uids) for line in resting),
        resting=resting,
        now=now,
        cycle=cycle,
        rejected_before=state.rejections.count,
        unbound_claims=state.constraints.unbound_claims,
        given_devices=state.constraints.devices.given,
        leaving=[workloads.leaving[uid] for uid in sorted(workloads.leaving)],
        nominated=[
            entry
            for entry in (state.pods[uid] for uid in sorted(state.nominated))
            if entry.pod.scheduler_name != config.scheduler_name
        ],
        reserved=_reserved_by_others(state, config, share),
        homes=[(home.pod, home.node) for home in homes],
        below=sorted(filter(share.has, workloads.below)),
        failures_left=state.failures_left,
        moved_at=state.moved_at,
        moved_pods=state.moved_pods,
        in_backoff=in_backoff,
        accounts=CycleQueues(state.queue_accounts(config, now=now), config.fair_share),
        excluded_nodes=excluded,
        misaligned=[one for one in _misaligned(state, config, now=now) if share.has(one.member.group)],
        matters=StateDoubts(state, now=now) if state.counters.reported else None,
        failed_nodes=failed,
        on_failed_nodes=[one for one in on_failed_nodes(state, failed, config) if share.has(one.group)],
        topology_of=GroupTopologies(state.topology_resolver, state.queue_registry, state.columns.names),
        provisioning={key: one for key, one in state.provisioning.standing.items() if share.has(key)},
        recent_work=state.recent_work.mix(days=config.recent_work_days, now_us=now, shares=config.gpu_sharing),
        limit_us=limits_of(state),
        expected_us=lambda member, age: expected_us(state, config, member, age_us=age),
        promised=_promised(state, share),
        to_drain=[pair for pair in to_drain(state, config, now=now) if share.has(pair[0].group)],
        is_own=share.has,
        policy_inputs=state.policy_inputs.values(),
        gpu_seconds_before=state.gpu_use.seconds_of,
        namespace_use=lambda: _namespace_use(state, config, now=now),
        probed=rows.starts,
        node_news=found.news,
    )


def _class_of(
    state: CycleView, decided_as: Callable[[PodEntry], PodClass], moved: Mapping[str, PodEntry]
) -> Callable[[Member], PodClass]:
    """Return what returns the class as which a pod is decided on, looked up once.

    Args:
        moved: room is kept for them, by uid.
    """
    by_uid: dict[str, PodClass] = {}
    #: By their own class, that of pods without claims, where nothing else tells them apart.
    common: dict[str, PodClass] = {}
    apart = moved or state.constraints.selected or state.queue_registry.flavors or decided_as != state.class_of
    serves = state.constraints.devices.extended.serves

    def class_of(member: Member) -> PodClass:
        pod = member.pod
        claims = pod.claims or pod.resource_claims
        found = common.get(member.class_key)
        if found is not None and not claims:
            return found
        found = by_uid.get(pod.uid)
        if found is None:
            found = by_uid[pod.uid] = decided_as(state.pods.get(pod.uid) or moved[pod.uid])
            if not (apart or claims or serves(found.requests)):
                common[member.class_key] = found
        return found

    return class_of


def _namespace_use(state: CycleView, config: EngineConfig, *, now: int) -> Mapping[str, int]:
    """Return the past use of each namespace, in millionths of the GPUs of the shard's ready nodes."""
    return state.gpu_use.of_namespaces(
        config.fair_share,
        gpus=gpus_of(ready_amounts(state.columns, config)) * WHOLE,
        since_us=state.queue_registry.since,
        recorded_us=state.recorded_at,
        now_us=now,
    )


def _promised(state: WorkView, share: Share) -> dict[str, RoomPromised | PromiseGivenUp]:
    """Return what was recorded last of room that is promised to groups of a shard, or was, by any of its replicas."""
    promised: dict[str, RoomPromised | PromiseGivenUp] = {}
    for key, by_shard in sorted(state.reasons.promised.items()):
        for name, reason in sorted(by_shard.items()):
            if not share.shard or split_shard(name)[0] == share.shard:
                promised[key] = reason
    return promised


def _waiting(
    state: CycleView, config: EngineConfig, share: Share, rows: SuspectRows, *, now: int, apart: Set[str]
) -> tuple[int, frozenset[str], ExcludedNodes]:
    """Return how many pods may be placed, the uids of those that are not to be now, and who avoids what.

    Args:
        apart: uids of the waiting pods that do not rest.
    """
    in_backoff = set()
    rejecting = _rejecting(state)
    stopped = {event.stream.removeprefix("pod/") for event in state.quarantined.values()}
    avoid: dict[str, set[int]] = {}
    decided_as = decided_classes(state, config, now=now)
    waiting, whole = 0, share.whole
    for uid in apart:
        entry = state.pods[uid]
        if entry.pod.scheduler_name != config.scheduler_name or not (whole or share.has(entry.group)):
            continue
        if (entry.bind_failures and now < retry_at(entry, config)) or uid in stopped:
            in_backoff.add(uid)
            continue
        waiting += 1
        if avoided := (*entry.failed_on, *filter(None, (entry.replaces_on,))):
            avoid.setdefault(decided_as(entry).key, set()).update(map(state.columns.row, avoided))
        if entry.class_key in rejecting:
            rejecting[decided_as(entry).key] = rejecting[entry.class_key]
        if rows.found.standing:
            rows.waits(entry, decided_as(entry))
    by_others = share.turns(), share.left_to_others(), share.wanted_by_others()
    excluded = ExcludedNodes(rejecting, avoid, *by_others, reserved(state, now=now), rows.by_key)
    return waiting, frozenset(in_backoff), excluded


def _resting(state: CycleView, config: EngineConfig, share: Share, *, now: int) -> list[RestingLine]:
    """Return the lines of groups that rest; none where something may treat pods of one class differently."""
    index, classes = state.workload_index, state.classes
    lines = state.resting.lines(index.workloads, index.pending, state.pods)
    by_pod = config.policies or config.priority_aging or (config.consolidate_win_us and state.moved_at)
    if by_pod or not share.whole or state.quarantined or state.reservations or state.queue_registry.flavors:
        return []
    selected, extended = state.constraints.selected.keys(), state.constraints.devices.extended
    resting = [
        line
        for line in lines
        if line.scheduler_name == config.scheduler_name
        and now >= line.evicts_us
        and selected.isdisjoint(line.uids)
        and not extended.serves(classes[line.class_key].requests)
        and not class_refusal(classes[line.class_key], config)
    ]
    return sorted(resting, key=lambda line: line.in_order()[1][0])


def _reserved_by_others(state: PodsView, config: EngineConfig, share: Share) -> list[PodEntry]:
    """Return the waiting pods of other replicas' groups for which room is kept, by uid."""
    if share.alone:
        return []
    nominated = (state.pods[uid] for uid in sorted(state.nominated))
    return [
        entry for entry in nominated if entry.pod.scheduler_name == config.scheduler_name and not share.has(entry.group)
    ]


def _rejecting(state: FleetView) -> dict[str, dict[int, str]]:
    return {
        class_key: {state.columns.row(node): reason for node, reason in by_node.items()}
        for class_key, by_node in state.rejections.standing().items()
    }


def _budgets(state: ClusterView) -> Budgets:
    """The number of pods under disruption budgets that may be evicted."""
    budgets = state.constraints.budgets
    # An eviction names the pod as disrupted and takes one off what is allowed: that is counted once.
    allowed = {key: budget.disruptions_allowed for key, budget in budgets.items()}
    by_pod: dict[str, tuple[str, ...]] = {}
    if budgets:
        for uid, entry in state.pods.items():
            # The eviction API asks no budget about a pod that does not run yet (kubernetes, `canIgnorePDB`, 1.34).
            if entry.charged and entry.pod.phase != "Pending":
                keys = tuple(sorted(state.constraints.budgets_of(entry.pod)))
                if len(keys) == 1 and entry.pod.unready and budgets[keys[0]].frees_unready:
                    continue
                if keys:
                    by_pod[uid] = keys
    # Evictions that were decided and that the API server has not granted yet.
    for uid, entry in state.workload_index.leaving.items():
        if entry.evicting and entry.pod.deletion_at is None:
            for key in by_pod.get(uid, ()):
                allowed[key] -= entry.pod.name not in budgets[key].disrupted
    return Budgets(allowed, by_pod)


def idle(state: CycleView, share: Share | None = None) -> bool:
    """Tell whether there is no pod that a cycle could decide on, now or later, and no request for nodes.

    Args:
        state: as the cycle would find it.
        share: of the groups that the cycle would be for; None for all of them.
    """
    share = share or Share(state, "")
    return not (
        (state.waiting if share.whole else share.pending())
        or any(map(share.has, state.workload_index.below))
        or any(map(share.has, state.provisioning.standing))
        or drains(state)
        or probes_last_at(state)
        or state.node_readiness.may_have_failed(state.charges.on_node)
        or any(not why_not(state.pods[uid]) and share.has(state.pods[uid].group) for uid in state.misaligned)
    )


def next_due(
    state: CycleView, config: EngineConfig, *, now: int, due: int = 0, given_up: Container[str] = ()
) -> int | None:
    """Return when something that only waits for time has waited long enough; None if nothing does.

    That is when a pod that failed to be bound may be tried again, or a pod on wrong zones evicted; when a gang has been
    below its minimum for too long; when room was kept for long enough; when a preemption delay or a minimum runtime
    ends; when a reservation of nodes does, and while nodes are drained; when a probe has lasted.

    Args:
        now: microseconds since the epoch; what is due by then is not waited for.
        due: see `CycleResult.due` of the last cycle.
        given_up: uids of pods that no longer have room kept.
    """
    times: list[int] = [
        retry_at(entry, config)
        for entry in (state.pods[uid] for uid in state.waiting)
        if entry.bind_failures and entry.pod.scheduler_name == config.scheduler_name
    ]
    times += state.node_readiness.due(config)
    probes = probes_last_at(state) if config.suspect_after else []
    times += [at if at > now else now + config.recheck_us for at in probes]
    times += [time for one in state.reservations.values() if one.drain_by for time in (one.start, one.drain_by)]
    times += [now + config.recheck_us] if to_drain(state, config, now=now) else []
    times += [window.end for one in state.reservations.values() if (window := one.window(now)) and state.waiting]
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
    homes = state.homes_to_keep(now=now, patience_us=config.nomination_us)
    times += [home.kept_until(config.nomination_us) for home in homes]
    return min((time for time in (*times, due) if time > now), default=None)


def next_retry(state: CycleView, config: EngineConfig, *, now: int, due: int = 0) -> int | None:
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


def is_unobserved(state: FleetView, entry: PodEntry) -> bool:
    """Tell whether a pod runs on zones of its node and no exporter has observed it there.

    If that lasts, the node's exporter is missing or late, for pods that hold nothing are observed too.
    """
    if entry.observed is not None or not entry.started_at or not entry.charged:
        return False
    row, zones = state.columns.row(entry.node), state.columns.zones
    return zones.binds(row, state.classes[entry.class_key].aligned.on(zones.kubelet_of(row)).resources)


def _misaligned(state: CycleView, config: EngineConfig, *, now: int) -> list[MisalignedPod]:
    due = state.repairs.due((state.pods[uid] for uid in state.misaligned), config, now=now)
    return [MisalignedPod(entry, entry.misaligned) for entry in due]
