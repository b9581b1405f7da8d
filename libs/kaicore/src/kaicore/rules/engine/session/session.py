"""The session of one cycle, shared by its actions: the groups, the nodes, the accounts, and the decisions so far.

No part of a session refers to it, and each is made of what was there before: a session ends when nobody has it any
more, and its nodes, which are large, with it. Only what is promised has the session, and is let go first.

Its placers work on all nodes, on some, or beside what other replicas are to decide first. Replicas share a shard's
nodes. One that takes nodes before it knows what their owners make of them decides in vain.
"""

from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, partial
from typing import Protocol

import msgspec
import numpy as np

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.class_filters import NO_CLAIM
from kaicore.rules.engine.constraints.node_matching import in_pool
from kaicore.rules.engine.constraints.zones.doubts import Doubts, TrustingDoubts
from kaicore.rules.engine.constraints.zones.numa_verdicts import configure_kubelets
from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.placer import Assignment, NodeTimeline, Placer, PlacingObserver
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.placement.room_for_work import RoomForWork
from kaicore.rules.engine.placement.share_fit import reservation_class
from kaicore.rules.engine.placement.statement import PodCharge, Statement
from kaicore.rules.engine.policies.cycle_policies import group_policies, node_policies
from kaicore.rules.engine.session.cycle_pods import CyclePods
from kaicore.rules.engine.session.cycle_record import CycleRecord, TopologyPlace
from kaicore.rules.engine.session.reservations import Reservations, Suspended
from kaicore.rules.engine.topology.set_requests import CycleTopologies
from kaicore.rules.engine.topology.step_placer import StepPlacer
from kaicore.rules.engine.victims.eviction_cost import FailureAccounts
from kaicore.rules.engine.work.gang_planner import GangPlanner, Steps, members_of, pending_groups
from kaicore.rules.engine.work.pending_group import PendingGroups
from kaicore.rules.engine.work.workload import Member, RunningGroups
from kaicore.rules.events.payloads import EvictionDecided
from kaicore.rules.events.reasons.making_room import WaitsForVictims, WouldDelay
from kaicore.rules.events.reasons.node import NoNodes
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.groups.labels import NO_RANK
from kaicore.rules.model.gpu_share import GPU
from kaicore.rules.model.quantity import PODS
from kaicore.rules.numa.columns import Flags

#: For so long after its creation a pod is left to wait for a replica that may be filling the nodes that it would get.
_PATIENCE_US = 2_000_000

#: A replica that has not decided about a pod so long after its creation is not waited for by pods that are older.
_STUCK_US = 60_000_000

#: Instead of a number of other replicas' claims: all, also of those that are stuck.
_ALL = -1


class CyclePlacers:
    """Makes the placers of one cycle, each once.

    Attributes:
        now: places pods on the nodes as they are, only where they fit whatever is not known yet.
    """

    def __init__(
        self,
        cycle_input: CycleInput,
        config: EngineConfig,
        columns: NodeColumns,
        *,
        pods: CyclePods,
        observer: PlacingObserver | None,
    ) -> None:
        """Args:
        columns: the cycle's own copy of the nodes.
        pods: looks up the cycle's pods; those that wait were looked up already.
        observer: looks on; None for nobody.
        """
        self._input, self._config, self._pods, self._observer = cycle_input, config, pods, observer
        self._room = _room_for_work(cycle_input, columns, pods)
        self._policies = node_policies(cycle_input, columns.present)
        self._left_by_claims: dict[int, Flags | None] = {}
        self._beside_by_claims: dict[int, Placer | None] = {}
        statement = Statement(columns)
        matters = cycle_input.matters
        self._doubts = None if matters is None else Doubts(matters, statement)
        self.now = self._placer(statement, self._doubts)

    @property
    def due(self) -> int:
        """The end of the first doubt for which a pod was refused a node, microseconds since the epoch; 0 for none."""
        return 0 if self._doubts is None else self._doubts.due

    def on(self, rows: Flags) -> Placer:
        """Return a placer on some of the nodes as they are now."""
        return self._placer(self.now.statement, self._doubts, rows=rows)

    def certain(self, statement: Statement) -> Placer:
        """Return a placer on another statement, where nothing is in doubt."""
        return self._placer(statement)

    def ahead(self) -> Placer:
        """Return a placer on another copy of the nodes as they are now, with all that is reserved."""
        return self.certain(Statement(self.now.statement.columns.copy(), like=self.now.statement))

    def for_steps(self, steps: Steps) -> Iterator[Placer]:
        """Yield the placers with which steps are tried now, one after the other until they find a place.

        1. Where no other replica is to decide first: about what became free there (`ExcludedNodes.left_to_others`), and
           about pods that came before these, or about any as long as these have not waited for long
           (`ExcludedNodes.wanted_by_others`).
        2. Everywhere; what it places is not to start where another replica is to decide first.
        3. Everywhere, with pods taken to get what they are accounted to hold, if a node was refused only for what pods
           of the same steps get (`TrustingDoubts`).
        """
        doubts = self._doubts
        if doubts is not None:
            doubts.begin_steps()
        beside_others = self._beside_others(self._claims_before(members_of(steps)))
        if beside_others is not None:
            yield beside_others
        yield self.now
        if doubts is None:
            return
        if doubts.were_of_companions(
            self._pods.class_of(member).aligned.without(frozenset(self._config.ignore_list))
            for member in members_of(steps)
        ):
            placer, trusting = self._trusting
            trusting.begin_steps()
            yield placer

    def defers(self, assignments: Sequence[Assignment]) -> bool:
        """Tell whether pods are not to start on their rows before another replica has decided about the room there."""
        left = self._left_to_others(self._claims_before(assignment.member for assignment in assignments))
        return left is not None and any(left[assignment.row] for assignment in assignments)

    def _claims_before(self, members: Iterable[Member]) -> int:
        """Return of how many of `_claims` some pods wait for the replicas: all that are as old as the oldest of them.

        Pods that were created a moment ago wait for all (`_ALL`). Who waited for others' younger pods, too, might wait
        for ever.
        """
        if self._input.excluded_nodes.wanted_by_others is None:
            return 0
        now, created = self._input.now, [member.pod.created_at for member in members]
        if all(0 <= now - at * 1_000_000 < _PATIENCE_US for at in created):
            return _ALL
        return bisect_right(self._claims, min(created))

    @cached_property
    def _claims(self) -> list[int]:
        """The times of `ExcludedNodes.wanted_by_others`, sorted, each once; without those of replicas that are stuck.

        There are no more than there are other replicas.
        """
        wanted, since = self._input.excluded_nodes.wanted_by_others, self._input.now - _STUCK_US
        times: list[int] = [] if wanted is None else np.unique(wanted).tolist()
        return [at for at in times if at < NO_CLAIM and at * 1_000_000 > since]

    def _left_to_others(self, claims: int) -> Flags | None:
        """Return the rows where other replicas are to decide first: about the first so many of `_claims`, too."""
        if claims not in self._left_by_claims:
            excluded = self._input.excluded_nodes
            left, wanted = excluded.left_to_others, excluded.wanted_by_others
            if wanted is not None and claims:
                first, last = (0, NO_CLAIM - 1) if claims == _ALL else (self._claims[0], self._claims[claims - 1])
                closed = (wanted >= first) & (wanted <= last)
                left = closed if left is None else left | closed
            self._left_by_claims[claims] = left if left is not None and left.any() else None
        return self._left_by_claims[claims]

    def _beside_others(self, claims: int) -> Placer | None:
        """Return a placer where no other replica is to decide first; None where no row is left to others."""
        if claims not in self._beside_by_claims:
            left = self._left_to_others(claims)
            self._beside_by_claims[claims] = None if left is None else self.on(~left)
        return self._beside_by_claims[claims]

    @cached_property
    def _trusting(self) -> tuple[Placer, Doubts]:
        matters = self._input.matters
        assert matters is not None, "asked where there are doubts"
        doubts = TrustingDoubts(matters, self.now.statement)
        return self._placer(self.now.statement, doubts), doubts

    def _placer(self, statement: Statement, doubts: Doubts | None = None, *, rows: Flags | None = None) -> Placer:
        return Placer(
            statement,
            self._pods.class_of,
            self._input.excluded_nodes,
            self._config,
            doubts,
            rows=rows,
            observer=self._observer,
            room=self._room,
            policies=self._policies,
            cycle=self._input.cycle,
        )


def _room_for_work(cycle_input: CycleInput, columns: NodeColumns, pods: CyclePods) -> Callable[[], RoomForWork | None]:
    """Return what returns the room for recent work as the cycle begins: a full cluster may never ask for it.

    None in a cycle without a waiting pod with devices.
    """
    mix, waiting = cycle_input.recent_work, pods.classes.values()
    if not mix or not any(one.size[0] or one.devices.wanted or one.gpu_share for one in waiting):
        return lambda: None
    for one in mix:
        columns.vector(one.pod_class.requests)
    columns.vector({GPU: 1} if any(one.pod_class.gpu_share for one in mix) else {})

    @cache
    def room() -> RoomForWork:
        unchanged = cycle_input.columns.copy()
        unchanged.present = columns.present
        # In the same order: the room is asked about the cycle's own columns.
        unchanged.vector(dict.fromkeys(columns.resources, 0))
        return RoomForWork(mix, unchanged)

    return room


#: Of pods without topology constraints; one for all of them, never changed.
_NO_DOMAINS: dict[str, str] = {}
_NO_PLACE: TopologyPlace = NO_RANK, _NO_DOMAINS


class PromisedStart(Protocol):
    """The starts that are reserved for groups of a shard; see `kaicore.rules.engine.session.promises`."""

    @property
    def reason(self) -> WouldDelay:
        """The reason for which other groups wait for this one."""

    @property
    def elsewhere(self) -> Placer:
        """Places pods now on the nodes that the group does not need."""

    def left_by(self, steps: Steps) -> "PromisedStart | None":
        """Return what is still promised once steps have started."""

    def binds(self, steps: Steps) -> bool:
        """Tell whether steps may start only where they do not delay the group."""

    def admits(self, steps: Steps, assignments: Sequence[Assignment], suspended: Suspended) -> bool:
        """Tell whether steps that start now leave the group the room and the right to start when it can."""


class Session:
    """A cycle at work.

    Attributes:
        cycle_input: what the cycle decides on.
        budgets: how many pods PodDisruptionBudgets still let be evicted.
        failures: how many failures Jobs still bear.
        pending_groups: groups with waiting pods, by key.
        placers: on the nodes as they are now, some or all of them.
        nodes: the nodes now and in the future.
        gangs: plans what starts at once.
        reservations: the room that is reserved for nominated pods.
        topologies: what groups ask of network topologies.
        step_placer: places what starts at once.
        record: what was decided so far.
        class_reasons: why no node is for a class, by its key, once a pod of it found none.
        observer: looks on; None for nobody.
        steps_left: how many more sets of victims the searches may try (`count_tried`).
        promise: the start that is promised to a group, which others must not delay; None where there is none.
        policies: the operator's that decide about groups; None without any.
    """

    def __init__(
        self, cycle_input: CycleInput, config: EngineConfig, *, observer: PlacingObserver | None = None
    ) -> None:
        self.observer = observer
        self.cycle_input = cycle_input
        self.config = config
        self.accounts = cycle_input.accounts
        self.budgets = cycle_input.budgets.copy()
        self.failures = FailureAccounts(cycle_input.failures_left, cycle_input.leaving)
        self.steps_left = config.search_steps
        self.class_reasons: dict[str, tuple[Reason, ...]] = {}
        self.promise: PromisedStart | None = None
        self.pods = CyclePods(cycle_input)
        self.policies = group_policies(cycle_input)
        # A policy, and an observer, look at each group.
        in_lines = observer is None and self.policies is None
        self.pending_groups = pending_groups(cycle_input, config, self.pods, in_lines=in_lines)
        if self.policies is not None:
            self.policies.settle(self.pending_groups)
        columns = _nodes_of(cycle_input, config, self.pods)
        namespace = config.gpu_reservation_namespace
        self.record = CycleRecord(cycle_input, pods=self.pods, nodes=columns.names, gpu_namespace=namespace)
        self.gangs = GangPlanner(
            cycle_input,
            config,
            pods=self.pods,
            pending_groups=self.pending_groups,
            class_reasons=self.class_reasons,
        )
        #: Written by the reservations only.
        reserved: dict[str, list[Assignment]] = {}
        self.topologies = CycleTopologies(
            cycle_input, pending_groups=self.pending_groups, reserved=reserved, evicted=self.record.evicted
        )
        self.step_placer = StepPlacer(
            topologies=self.topologies,
            gangs=self.gangs,
            pending_groups=self.pending_groups,
            class_key=self.pods.key_of,
            strategy=config.topology_strategy,
        )
        self.placers = CyclePlacers(cycle_input, config, columns, pods=self.pods, observer=observer)
        leaving = partial(_leaving, cycle_input, self.pods, self.pending_groups, self.record.evicted)
        self.nodes = NodeTimeline(self.placers.now, placer=self.placers.certain, leaving=leaving)
        self.reservations = Reservations(
            cycle_input,
            config,
            pods=self.pods,
            nodes=self.nodes,
            pending_groups=self.pending_groups,
            record=self.record,
            reserved=reserved,
            step_placer=self.step_placer,
            gangs=self.gangs,
        )

    def start(self, steps: Steps, assignments: Sequence[Assignment], suspended: Suspended) -> None:
        """Decide that steps start.

        Args:
            assignments: where its pods go; charged to the nodes as they are now.
            suspended: reservations of these groups and of others, suspended on the nodes of both times.
        """
        if self.nodes.has_future:
            for assignment in assignments:
                self.nodes.future.statement.place(assignment.pod_charge)
        for pending_group, _ in steps:
            self.accounts.charge(pending_group.group, self.gangs.request_of(pending_group))
        cleared = self.reservations.reconcile(suspended, assignments)
        depends_on = steps[0][0].started_by
        for pending_group, step in steps:
            pending_group.take(step.members)
            if step.gang:
                pending_group.started_by = self.record.batches
        places = [_NO_PLACE] * len(assignments)
        if any(pending_group.workload.constrained for pending_group, _ in steps):
            places = [*self._places(assignments)]
        self.record.place(assignments, cleared, places, depends_on=depends_on)
        by_group: Mapping[str, Sequence[Assignment]] = {steps[0][0].key: assignments}
        if len(steps) > 1:
            by_group = _by_group(assignments)
        for pending_group, _ in steps:
            pending_group.assignments += by_group.get(pending_group.key, ())
        self._close_probed(assignments)

    def nominate(
        self,
        steps: Steps,
        assignments: Sequence[Assignment],
        evictions: Sequence[tuple[Member, EvictionDecided]],
        suspended: Suspended,
        *,
        successors: Iterable[Assignment] = (),
    ) -> None:
        """Decide that victims are evicted and that their room is reserved.

        Args:
            assignments: where its pods go; charged to the future's nodes.
            evictions: the victims; taken off the future's nodes.
            suspended: reservations of other groups, suspended on the nodes of both times.
            successors: where those of moved pods are to go, on the future's nodes already: nothing else starts there.
                They leave no marks: nothing says that they come, so no pod may count on being near them.
        """
        for member, eviction in evictions:
            self._release(member, eviction)
        for assignment in assignments:
            self.nodes.statement.place(assignment.reserved_charge)
        for successor in successors:
            self.nodes.statement.place(msgspec.structs.replace(successor.reserved_charge, marks=()))
        by_group = _by_group(assignments)
        for pending_group, step in steps:
            self.accounts.charge(pending_group.group, self.pods.requests_of(step.members))
            pending_group.nominated = pending_group.blocked = True
            pending_group.take(step.members)
            reserved = self.reservations.add(pending_group, by_group.get(pending_group.key, []))
            pending_group.reasons = (self._waits_for_victims(reserved),)
        cleared = self.reservations.reconcile(suspended, assignments)
        self.record.nominate(assignments, [eviction for _, eviction in evictions], cleared)
        self._close_probed(assignments)

    def _close_probed(self, assignments: Sequence[Assignment]) -> None:
        """Leave no room for further pods where one start was let in as the probe of a suspect node, and has come."""
        probed = self.cycle_input.probed
        if not probed:
            return
        pods = self.nodes.columns.resources[PODS]
        for row in dict.fromkeys(one.row for one in assignments if one.pod_class.kind in probed.get(one.row, ())):
            for placer in (self.nodes.now, *([self.nodes.future] if self.nodes.has_future else [])):
                columns = placer.statement.columns
                left = int(columns.allocatable[row, pods] - columns.used[row, pods])
                if left > 0:
                    placer.statement.place(PodCharge("", row, {PODS: left}))

    def evict(self, evictions: Sequence[tuple[Member, EvictionDecided]]) -> None:
        """Decide that pods are evicted although no other pod gets their room."""
        for member, eviction in evictions:
            self._release(member, eviction)
            if self.nodes.has_future:
                self.nodes.future.statement.evict(self.pods.charge_of(member))
        self.record.add([eviction for _, eviction in evictions])

    def count_eviction(self, members: Sequence[Member], *, sign: int = 1) -> None:
        """Count pods as evicted in what budgets allow and Jobs bear, or with `sign=-1` as not evicted."""
        self.budgets.take(members, sign=sign)
        self.failures.take(members, sign=sign)

    def savepoint(self) -> tuple[int, int]:
        """Return where `undo` takes the nodes as they are now, and the accounts, back to."""
        return self.nodes.statement.savepoint(), self.accounts.savepoint()

    def undo(self, savepoint: tuple[int, int]) -> None:
        """Take back what was charged since a savepoint."""
        self.nodes.statement.rollback(savepoint[0])
        self.accounts.undo(savepoint[1])

    @contextmanager
    def half_of_the_steps(self) -> Iterator[None]:
        """Let a search try half of the sets of victims that are left, so that none uses up what others need."""
        others = self.steps_left // 2
        self.steps_left -= others
        yield
        self.steps_left += others

    def count_tried(self) -> None:
        """Count one more set of victims as tried."""
        self.steps_left -= 1

    def never_fits(self, class_key: str) -> bool:
        """Tell from a class's reasons whether its pods fit nowhere, whatever pods end."""
        reasons = self.class_reasons.get(class_key, ())
        return bool(reasons) and all(reason.lasting for reason in reasons)

    def reasons_of_nodes(self, pod_class: PodClass) -> tuple[Reason, ...]:
        """Return why nodes are not for pods of a class, as they are now."""
        reasons = self.nodes.now.reasons(pod_class)
        if self.config.node_pool is None:
            return reasons
        return tuple(NoNodes(node_pool=self.config.node_pool) if one == NoNodes() else one for one in reasons)

    def result(self) -> CycleResult:
        """Return what was decided, and what is left, with the reasons."""
        if self.placers.due:
            self.record.wait_until(self.placers.due)
        for one in self.pending_groups.made:
            if one.held is not None and one.held.until_us:
                self.record.wait_until(one.held.until_us)
        return self.record.result(self.pending_groups, self.class_reasons, scheduler_name=self.config.scheduler_name)

    @cached_property
    def running_groups(self) -> RunningGroups:
        """The groups that run and may be preempted, as the cycle found them."""
        return RunningGroups(self.cycle_input.running, scheduler_name=self.config.scheduler_name)

    def _places(self, assignments: Sequence[Assignment]) -> Iterator[TopologyPlace]:
        """Yield the rank of each pod that is placed, and the domains of its node; nothing without a constraint."""
        for assignment in assignments:
            member = assignment.member
            workload = self.cycle_input.workloads[member.group]
            topology = self.topologies.of(workload) if workload.constrained else None
            if topology is None:
                yield _NO_PLACE
            else:
                yield self.step_placer.ranks.get(member.pod.uid, NO_RANK), topology.domains_of(assignment.row)

    def _release(self, member: Member, eviction: EvictionDecided) -> None:
        """Count a pod as leaving: it holds its node until it is gone."""
        self.record.count_evicted(eviction)
        self.gangs.lose(member)
        self.nodes.statement.let_go(self.pods.charge_of(member))

    def _waits_for_victims(self, reserved: Sequence[Assignment]) -> Reason:
        names = self.nodes.columns.names
        return WaitsForVictims(
            nodes=len({assignment.row for assignment in reserved}),
            example=min((names[assignment.row] for assignment in reserved), default=""),
            pods=len(reserved),
        )


def _nodes_of(cycle_input: CycleInput, config: EngineConfig, pods: CyclePods) -> NodeColumns:
    """Return the cycle's own copy of the nodes, with a column for every resource that a waiting pod asks for."""
    columns = cycle_input.columns.copy()
    if config.node_pool is not None:
        columns.present = columns.present & in_pool(columns, config)
    configure_kubelets(columns, config)
    for class_key in sorted(pods.classes):
        columns.vector(pods.classes[class_key].requests)
        if pods.classes[class_key].gpu_share is not None:
            columns.vector(reservation_class().requests)
    return columns


def _leaving(
    cycle_input: CycleInput, pods: CyclePods, groups: PendingGroups, evicted: Container[str]
) -> Iterator[PodCharge]:
    """Yield the pods that leave: those that did before the cycle, and those of pending groups that it evicts."""
    for member in cycle_input.leaving:
        yield pods.charge_of(member)
    for pending_group in groups.made:
        for member in pending_group.workload.active.values():
            if member.pod.uid in evicted:
                yield pods.charge_of(member)


def _by_group(assignments: Sequence[Assignment]) -> dict[str, list[Assignment]]:
    by_group: dict[str, list[Assignment]] = {}
    for assignment in assignments:
        by_group.setdefault(assignment.member.group, []).append(assignment)
    return by_group
