"""The placer: puts pods on nodes, class by class, on one statement, and counts the pods that each node takes.

A count is of one class in the node's present state, without other new pods. The free amounts of a node as a whole are
divided. Where kubelets bind zones, pods are put on one node of each kind until it refuses one: the zones that the
kubelet leaves free are not known otherwise.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from itertools import islice, takewhile

import msgspec
import numpy as np

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.claims.supplies import GivenClaim, GivenVolume
from kaicore.rules.engine.constraints.class_filters import ExcludedNodes
from kaicore.rules.engine.constraints.node_filter import RoomFilter
from kaicore.rules.engine.constraints.pod_marks import kept_marks
from kaicore.rules.engine.constraints.zones.doubts import Doubts
from kaicore.rules.engine.placement.feasible_nodes import FeasibleNodes, FollowingPod
from kaicore.rules.engine.placement.gpu_supply import GivenPart
from kaicore.rules.engine.placement.lasting_reasons import SettledClasses, most_frequent_first
from kaicore.rules.engine.placement.node_columns import DeviceCounts, NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass, distinct, key_without_work
from kaicore.rules.engine.placement.room_for_work import RoomForWork
from kaicore.rules.engine.placement.row_states import Before
from kaicore.rules.engine.placement.statement import PodCharge, Statement
from kaicore.rules.engine.policies.class_policies import ClassPolicies, NodePolicies
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.events.envelope import derived_name
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.placement import Placement
from kaicore.rules.numa.arrivals import Arrival
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.numa.kubelet.verdict import PredictedPlacement
from kaicore.rules.numa.kubelet.zones import ZoneCharge

_NOTHING = ZoneCharge()
#: No node takes more pods. How much room a domain has beyond what is asked for matters to the strategies.
_MOST_PODS = 2**31
#: Of so many rows at most one may have changed for it to be worth while to count these alone.
_PART = 4


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """A pod's chosen node, and its charge there.

    Attributes:
        volumes: what it gets there for each volume that its class's demand wants.
        devices: what it gets there for each resource claim that its class's demand wants.
        gpus: the parts of GPUs that it gets there.
    """

    member: Member
    row: int
    charge: ZoneCharge
    placement: Placement | None
    pod_class: PodClass
    volumes: tuple[GivenVolume, ...] = ()
    devices: tuple[GivenClaim, ...] = ()
    gpus: tuple[GivenPart, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """The pod's marks on its node (`kaicore.rules.engine.constraints.pod_marks`)."""
        return self.pod_class.marks

    @property
    def pod_charge(self) -> PodCharge:
        """The pod there."""
        uid, requests = self.member.pod.uid, self.member.requests
        return PodCharge(
            uid,
            self.row,
            requests,
            self.charge,
            marks=self.marks,
            volumes=self.volumes,
            devices=self.devices,
            gpus=self.gpus,
        )

    @property
    def reserved_charge(self) -> PodCharge:
        """The pod there, if it comes later: what it opens is not for others now, and none may need it there."""
        charge = self.pod_charge
        hidden, marks = bool(self.gpus), kept_marks(charge.marks)
        return msgspec.structs.replace(charge, hidden=hidden, marks=marks) if hidden or marks else charge


def in_placement_order(
    members: Iterable[Member], class_of: Callable[[Member], PodClass]
) -> list[tuple[Member, PodClass]]:
    """Return pods and their classes in the order of placing: the largest first, of equal ones as they are given."""
    ordered = [(member, class_of(member)) for member in members]
    classes = {pod_class.key: pod_class for _, pod_class in ordered}
    if len(classes) > 1:
        sizes = {key: pod_class.size for key, pod_class in classes.items()}
        ordered.sort(key=lambda one: sizes[one[1].key], reverse=True)
    return ordered


def _is_like(one: tuple[Member, PodClass], pod_class: PodClass) -> bool:
    """Tell whether a pod is placed by nothing but a class."""
    return one[1] is pod_class and one[0].nomination is None


class PlacingObserver:
    """Looks on while groups are taken up and pods are put on rows, and changes nothing."""

    def begins(self, action: str) -> None:
        """Take notice that an action begins."""

    def takes_up(self, group: str) -> None:
        """Take notice that the action takes up a group, by its key."""

    def placing(self, member: Member, row: int, feasible: FeasibleNodes) -> None:
        """Take notice that a pod is about to be charged to a row, for certain or on trial.

        Args:
            feasible: what is known of its class on the rows as they are before it is charged.
        """


class Placer:
    """Evaluates each class once, and afterwards only the rows that have changed since."""

    def __init__(
        self,
        statement: Statement,
        class_of: Callable[[Member], PodClass],
        excluded_nodes: ExcludedNodes,
        config: EngineConfig,
        doubts: Doubts | None = None,
        *,
        rows: Flags | None = None,
        observer: PlacingObserver | None = None,
        room: Callable[[], RoomForWork | None] = lambda: None,
        policies: NodePolicies | None = None,
        cycle: str = "",
    ) -> None:
        """Args:
        class_of: returns the class as which a pod is placed.
        excluded_nodes: rows that certain classes do not get, or get last.
        doubts: about the rows; None where pods do not come to them now.
        rows: that pods are put on; None for all.
        observer: looks on; None for nobody.
        room: returns that for recent work; None where it does not matter.
        policies: the operator's that place pods; None without any.
        """
        self.statement = statement
        self._policies = policies
        self._cycle = cycle
        self._room = room
        self._rows = rows
        self._observer = observer
        self._doubts = doubts
        self.class_of = class_of
        self._excluded_nodes = excluded_nodes
        self._config = config
        self._feasible_nodes: dict[str, FeasibleNodes] = {}
        #: By the key without what policies know of the pods, those of the first such class; and those of the first
        #: about which policies say the same.
        self._alike: dict[str, FeasibleNodes] = {}
        self._same: dict[tuple[str, object], FeasibleNodes] = {}
        #: By class key, the nodes as they are without the operator's policies, where one of these asks for findings.
        self._unruled: dict[str, FeasibleNodes] = {}
        #: See `_short`, by the class's key, and how many charges there were then.
        self._shorts: dict[str, tuple[int, RoomFilter | None]] = {}
        #: By class, and by time of creation where that matters: how many changes of rows are taken into account, and
        #: the counts.
        self._kept_counts: dict[tuple[str, int], tuple[int, Ints]] = {}

    def feasible_nodes(self, pod_class: PodClass) -> FeasibleNodes:
        """Return which rows can take pods of a class as they are now."""
        class_key = pod_class.key
        feasible = self._feasible_nodes.get(class_key)
        touched = self.statement.touched
        if feasible is None:
            feasible = self._feasible_nodes[class_key] = self._evaluated(pod_class, charges=len(touched))
        feasible.catch_up(touched)
        return feasible

    def _evaluated(self, pod_class: PodClass, *, charges: int) -> FeasibleNodes:
        """Return the rows of a class that was not looked at yet: those of another one that nothing tells apart."""
        columns, excluded = self.statement.columns, self._excluded_nodes
        rejecting, avoid = excluded.rejecting.get(pod_class.key), excluded.avoid.get(pod_class.key)
        policies = None
        if self._policies is not None:
            policies = self._policies.of_class(pod_class, columns, partial(self._find, pod_class))
        suspects = excluded.suspects_for(pod_class)
        own = rejecting or suspects or pod_class.kept_off
        alike = None if pod_class.work is None or own else key_without_work(pod_class.key)
        like = None if alike is None else self._alike.get(alike)
        # What is not known of rows tells classes apart, and so do the rows that they avoid.
        same = None if alike is None or avoid or policies is None else (alike, policies.alike)
        if same is not None and same in self._same:
            return self._same[same]
        feasible = None
        if like is not None and not avoid:
            like.catch_up(self.statement.touched)
            feasible = like.with_policies(policies)
        feasible = feasible or self._looked_at(pod_class, policies, charges=charges, like=like)
        if alike is not None:
            self._alike.setdefault(alike, feasible)
        if same is not None and not feasible.doubted:
            self._same[same] = feasible
        return feasible

    def _looked_at(
        self, pod_class: PodClass, policies: ClassPolicies | None, *, charges: int, like: FeasibleNodes | None = None
    ) -> FeasibleNodes:
        return FeasibleNodes(
            pod_class,
            self.statement.columns,
            self._config,
            states=self.statement.states,
            excluded=self._excluded_nodes,
            among=self._rows,
            doubts=self._doubts,
            room=self._room,
            counts=self._counts,
            policies=policies,
            charges=charges,
            like=like,
        )

    def _find(self, pod_class: PodClass, finding: str, rows: Ints) -> Ints:
        """Return a finding about rows as they are charged now, for the operator's policies."""
        touched, nodes = self.statement.touched, self._unruled.get(pod_class.key)
        if nodes is None:
            nodes = self._unruled[pod_class.key] = self._looked_at(pod_class, None, charges=len(touched))
        nodes.catch_up(touched)
        return nodes.found(finding, rows)

    @cached_property
    def _settled(self) -> SettledClasses | None:
        """The settled classes; None where more than the nodes counts, there are many of them, or someone looks on."""
        if self._policies is not None or self._rows is not None or self._observer is not None:
            return None
        return SettledClasses.of(self.statement.columns, self._config)

    def _short(self, pod_class: PodClass) -> RoomFilter | None:
        """Return what rows are short of, if that is settled and true of all that may take a pod of a class."""
        if self._settled is None:
            return None
        charges, known = len(self.statement.touched), self._shorts.get(pod_class.key)
        if known is None or known[0] != charges:
            lasting, room = self._settled.by_key.get(pod_class.key), None
            if lasting is not None and not self._is_kept_off(pod_class):
                room = RoomFilter(self.statement.columns, pod_class.requests)
                room = room if room.failing(lasting.eligible).all() else None
            known = self._shorts[pod_class.key] = charges, room
        return known[1]

    def _is_kept_off(self, pod_class: PodClass) -> bool:
        """Tell whether a class is kept off rows for what happened there."""
        excluded = self._excluded_nodes
        return bool(excluded.rejecting.get(pod_class.key) or excluded.suspects_for(pod_class))

    def reasons(self, pod_class: PodClass) -> tuple[Reason, ...]:
        """Return why rows cannot take a pod of a class as they are now, counted over nodes, most frequent first."""
        short = self._short(pod_class)
        if short is not None and self._settled is not None:
            lasting = self._settled.by_key[pod_class.key]
            return most_frequent_first([*lasting.reasons, *short.reasons(lasting.left)])
        feasible = self.feasible_nodes(pod_class)
        if self._settled is not None and not self._is_kept_off(pod_class):
            self._settled.settle(pod_class, feasible.filters, np.flatnonzero(self.statement.columns.present))
        return feasible.reasons()

    def may_fit_later(self, pod_class: PodClass) -> bool:
        """Tell whether a charge may make another row fit a class."""
        return self._short(pod_class) is None and self.feasible_nodes(pod_class).non_monotonic

    @cached_property
    def _counts(self) -> DeviceCounts | None:
        """Devices of claims; None where no node has any."""
        return DeviceCounts(self.statement.columns) or None

    def place_all(self, members: Iterable[Member]) -> tuple[list[Assignment], Member | None]:
        """Put pods on the best rows, those that are nominated for a row on that if it can take them.

        Returns:
            where the pods go, and the first pod that found no row; None if all found one. The pods before it stay
            charged.
        """
        members, assignments = list(members), list[Assignment]()
        classes = distinct([*map(self.class_of, members)])
        if len(classes) == 1 and all(member.nomination is None for member in members):
            assignments = self._place_alike(members, classes[0])
            return assignments, members[len(assignments)] if len(assignments) < len(members) else None
        ordered = in_placement_order(members, self.class_of)
        while len(assignments) < len(ordered):
            member, pod_class = ordered[len(assignments)]
            alike = [member]
            if member.nomination is None:
                following = islice(ordered, len(assignments) + 1, None)
                alike += [one for one, _ in takewhile(lambda one: _is_like(one, pod_class), following)]  # noqa: B023
                placed = self._place_alike(alike, pod_class)
            else:
                row = self.statement.columns.rows.get(member.nomination.node)
                assignment = None if row is None else self.place_on(member, row)
                placed = [one for one in (assignment or self._place(member, pod_class),) if one is not None]
            assignments += placed
            if len(placed) < len(alike):
                return assignments, alike[len(placed)]
        return assignments, None

    def _place_alike(self, members: Sequence[Member], pod_class: PodClass) -> list[Assignment]:
        """Put pods of one class on the best rows, as if one by one, until one finds no row."""
        if self._short(pod_class) is not None:
            return []
        feasible = self.feasible_nodes(pod_class)
        foresees = self._observer is None and feasible.foresees
        states, touched = self.statement.states, self.statement.touched
        placed, ages = list[Assignment](), [member.pod.created_at for member in members]
        while len(placed) < len(members):
            member = members[len(placed)]
            row = feasible.best(created_at=ages[len(placed)])
            if row is None:
                break
            if not foresees:
                placed.append(self._put(member, row, feasible, pod_class))
                feasible.catch_up(touched)
                continue
            following = feasible.follow(row, ages[len(placed) :])
            if following:
                placed += self._put_in_a_row(members[len(placed) :], row, following, pod_class)
            else:
                before, predicted = states.known(row), feasible.predict(row)
                placed.append(self._put(member, row, feasible, pod_class))
                feasible.learn(before, states.known(row), predicted, placed[-1].charge)
            feasible.look_again(row, touched)
        return placed

    def _put_in_a_row(
        self, members: Sequence[Member], row: int, following: Sequence[FollowingPod], pod_class: PodClass
    ) -> list[Assignment]:
        """Put the first of some pods on one row, where it is known what comes of each."""
        placed = [
            Assignment(member, row, one.charge, one.placement, pod_class)
            for member, one in zip(members, following, strict=False)
        ]
        doubted = self._doubts is not None

        def charge_of(index: int) -> tuple[PodCharge, Before]:
            one, charge = following[index], placed[index].pod_charge
            if not doubted or one.placement is None:
                return charge, one.before
            arrival = Arrival(pod_class.aligned, one.charge, placed[index].member.pod.created_at)
            return msgspec.structs.replace(charge, arrival=arrival), one.before

        self.statement.place_in_a_row(
            row, len(placed), charge_of, after=following[-1].after, marks=bool(pod_class.marks)
        )
        return placed

    def place(self, member: Member, *, besides: int | None = None) -> Assignment | None:
        """Put a pod on the best row, besides one that is not wanted; None when there is none."""
        return self._place(member, self.class_of(member), besides)

    def _place(self, member: Member, pod_class: PodClass, besides: int | None = None) -> Assignment | None:
        if self._short(pod_class) is not None:
            return None
        feasible = self.feasible_nodes(pod_class)
        row = feasible.best(created_at=member.pod.created_at, besides=besides)
        return None if row is None else self._put(member, row, feasible, pod_class)

    def place_on(self, member: Member, row: int) -> Assignment | None:
        """Put a pod on a row; None when it cannot take it now."""
        pod_class = self.class_of(member)
        feasible = self.feasible_nodes(pod_class)
        takes = feasible.takes(row, created_at=member.pod.created_at)
        return self._put(member, row, feasible, pod_class) if takes else None

    def counts(self, pod_class: PodClass, *, most: int, created_at: int = 0, among: Ints | None = None) -> Ints:
        """Return how many pods of a class each row takes as it is now, if it gets no others; shape (rows,).

        Every filter counts. Rules about other pods and volumes count as if no other row got pods of the class, and
        `topologySpreadConstraints` not at all, since pods elsewhere make room: there a row may take fewer, never more.

        Args:
            most: more are not counted; the fewer, the faster.
            created_at: when the pods were created, seconds since the epoch; matters to what is not known for certain.
            among: rows that are counted, the others are 0; None for all.
        """
        feasible, statement = self.feasible_nodes(pod_class), self.statement
        counts = feasible.counts(most, among)
        for alike in self._alike_by_zones(feasible, np.flatnonzero(counts)):
            row = int(alike[0])
            taken, wanted, savepoint = 0, int(counts[alike].max()), statement.savepoint()
            while taken < wanted and feasible.zones_take(row, created_at=created_at):
                gpus = self._parts(feasible, row, f"?{statement.savepoint()}", created_at)
                predicted = feasible.predict(row)
                charge, arrival = self._coming(pod_class, predicted, created_at)
                statement.place(PodCharge("", row, pod_class.requests, charge, arrival=arrival, gpus=gpus))
                taken += 1
            statement.rollback(savepoint)
            counts[alike] = np.minimum(counts[alike], taken)
            if not taken:
                for other in alike.tolist():
                    # So that it is remembered which rows are uncertain.
                    feasible.takes(other, created_at=created_at)
        return counts

    def _alike_by_zones(self, feasible: FeasibleNodes, rows: Ints) -> list[Ints]:
        """Return those of some rows where it depends on zones how many pods they take, by what they have in common."""
        rows, groups = feasible.by_zones(rows), dict[tuple[int, object], list[int]]()
        for row, state in zip(rows.tolist(), self.statement.states.states(rows).tolist(), strict=True):
            groups.setdefault((state, feasible.filters.numa.doubts_about(row)), []).append(row)
        return [np.array(group, np.int64) for group in groups.values()]

    def kept_counts(self, sample: Member) -> Ints:
        """Return how many pods of a class each row takes as it is now, whatever the others get; not to be changed.

        They are kept between calls: only changed rows are counted again.
        """
        pod_class, touched = self.class_of(sample), self.statement.touched
        feasible = self.feasible_nodes(pod_class)
        # Gangs differ in it, so that each would count anew.
        created_at = sample.pod.created_at if feasible.doubted else 0
        key = pod_class.key, created_at
        kept = self._kept_counts.get(key)
        changed = None if kept is None else np.array(sorted(set(touched[kept[0] :])), np.int64)
        # Rules about other pods look beyond the row.
        if kept is None or changed is None or feasible.non_monotonic or len(changed) * _PART > len(kept[1]):
            counts = self.counts(pod_class, most=_MOST_PODS, created_at=created_at)
        elif not len(changed):
            return kept[1]
        else:
            counts = kept[1].copy()
            fresh = self.counts(pod_class, most=_MOST_PODS, created_at=created_at, among=changed)
            counts[changed] = fresh[changed]
        self._kept_counts[key] = len(touched), counts
        return counts

    def _put(self, member: Member, row: int, feasible: FeasibleNodes, pod_class: PodClass) -> Assignment:
        if self._observer is not None:
            self._observer.placing(member, row, feasible)
        # Its reservation pods come to the kubelet before the pod.
        gpus = self._parts(feasible, row, member.pod.uid, member.pod.created_at)
        predicted = feasible.predict(row)
        charge, arrival = self._coming(pod_class, predicted, member.pod.created_at)
        volumes, devices = feasible.volumes(row), feasible.devices(row)
        pod_charge = PodCharge(
            member.pod.uid,
            row,
            pod_class.requests,
            charge,
            marks=pod_class.marks,
            volumes=volumes,
            devices=devices,
            arrival=arrival,
            gpus=gpus,
        )
        placement = None if predicted is None else predicted.placement
        charge = self.statement.place(pod_charge).charge
        return Assignment(member, row, charge, placement, pod_class, volumes, devices, gpus)

    def _coming(
        self, pod_class: PodClass, predicted: PredictedPlacement | None, created_at: int
    ) -> tuple[ZoneCharge, Arrival | None]:
        """Return what a pod is charged with on zones, and what is in doubt of that."""
        if predicted is None:
            return _NOTHING, None
        charge = predicted.charge
        return charge, None if self._doubts is None else Arrival(pod_class.aligned, charge, created_at)

    def _parts(self, feasible: FeasibleNodes, row: int, uid: str, created_at: int) -> tuple[GivenPart, ...]:
        """Return the parts of GPUs that a pod gets on a row, and open what it takes for that.

        Names of GPU groups follow from the cycle, the node and the pod, however often a cycle tries.
        """
        if feasible.share is None:
            return ()
        node, at = self.statement.columns.names[row], created_at if self._doubts is not None else None
        return feasible.share.give(
            row,
            self.statement,
            lambda number: derived_name("gpu-group", self._cycle, node, uid, str(number)),
            created_at=at,
        )


def most_by_amounts(room: Ints, need: Ints) -> Ints:
    """Return how many pods each row takes by whole nodes' amounts; shape (rows,).

    Args:
        room: by row and resource.
        need: of one pod, by resource.
    """
    requested = np.flatnonzero(need)
    most: Ints = np.maximum((room[:, requested] // need[requested]).min(axis=1), 0)
    return most


class NodeTimeline:
    """The nodes at two times: now, and after all terminating pods are gone.

    Allocation places pods on the nodes at the first time. Victims are sought, and room is reserved, on the nodes at the
    second. Source: KAI-Scheduler v0.17.0, pkg/scheduler/framework/statement.go (`Allocate` and `Pipeline`).

    Attributes:
        now: places pods on the nodes as they are, with all that the cycle has decided and reserved.
    """

    def __init__(
        self,
        now: Placer,
        *,
        placer: Callable[[Statement], Placer],
        leaving: Callable[[], Iterable[PodCharge]],
    ) -> None:
        """Args:
        now: places pods on the nodes as they are now.
        placer: returns a placer on another statement.
        leaving: returns the pods that leave, evictions that the cycle has decided included. It is called when the
            future is first asked for.
        """
        self.now = now
        self._placer = placer
        self._leaving = leaving
        self._future: Placer | None = None
        #: See `idle_in_future`, and how many changes there were when it was summed up.
        self._idle: Ints | None = None
        self._idle_at = -1
        #: See `takes_in_future`, by the class's key, and how many changes there were then.
        self._takes: dict[str, int] = {}
        self._takes_at = -1
        #: See `failed_in_future`, with how many changes there were then.
        self._failed: dict[object, int] = {}

    @property
    def statement(self) -> Statement:
        """The statement on the nodes as they are now."""
        return self.now.statement

    @property
    def columns(self) -> NodeColumns:
        """The nodes as they are now."""
        return self.now.statement.columns

    @property
    def has_future(self) -> bool:
        """True if the future was asked for, so that every later charge has to be made there too."""
        return self._future is not None

    @property
    def future(self) -> Placer:
        """Places pods on the nodes as they will be when all pods that leave are gone."""
        if self._future is None:
            statement = Statement(self.columns.copy(), like=self.statement)
            for pod_charge in self._leaving():
                statement.evict(pod_charge)
            for group in statement.columns.gpus.unused():
                statement.close(group)
            self._future = self._placer(statement)
        return self._future

    def idle_in_future(self) -> Ints:
        """Return by resource what all ready nodes will have free, all together."""
        statement = self.future.statement
        columns, moment = statement.columns, len(statement.touched)
        if self._idle is None or self._idle_at != moment or len(self._idle) != columns.used.shape[1]:
            ready = columns.present & columns.ready
            self._idle = np.maximum(columns.allocatable - columns.used, 0)[ready].sum(axis=0)
            self._idle_at = moment
        return self._idle

    def takes_in_future(self, pod_class: PodClass) -> int:
        """Return how many pods of a class all nodes will take, by whole nodes' amounts alone."""
        statement = self.future.statement
        columns, moment = statement.columns, len(statement.touched)
        if self._takes_at != moment:
            self._takes, self._takes_at = {}, moment
        if pod_class.key not in self._takes:
            need = columns.vector(pod_class.requests)
            self._takes[pod_class.key] = int(most_by_amounts(columns.allocatable - columns.used, need).sum())
        return self._takes[pod_class.key]

    def note_failed_in_future(self, attempt: object) -> None:
        """Take notice that what is to start at once finds no place on the nodes as they will be, nothing evicted."""
        self._failed[attempt] = len(self.future.statement.touched)

    def failed_in_future(self, attempt: object) -> bool:
        """Tell whether that was noted, of nodes as they will be still."""
        return self._failed.get(attempt) == len(self.future.statement.touched)

    def row(self, node: str) -> int:
        """Return a node's row; -1 if there is no such node."""
        return self.columns.rows.get(node, -1)
