"""What a cycle has in hand while its actions run: the columns, the accounts, and what was decided so far."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from kaicore.engine.config import EngineConfig
from kaicore.engine.cycle_input import CycleInput
from kaicore.engine.decisions import (
    Cleared,
    ClearReason,
    CycleResult,
    Decision,
    DecisionUnit,
    Eviction,
    Healing,
    Nominated,
)
from kaicore.engine.doubts import Doubts
from kaicore.engine.eviction_cost import PodSizes
from kaicore.engine.job_failures import FailureAccounts
from kaicore.engine.numa_verdicts import configure_kubelets
from kaicore.engine.pending import Left, told
from kaicore.engine.placer import Placer, Spot
from kaicore.engine.pod_class import PodClass
from kaicore.engine.reasons import UNRESOLVABLE, Code
from kaicore.engine.trail import Tenancy, Trail
from kaicore.engine.turn import Turn
from kaicore.engine.workload import Member, Nomination, Step, Workload
from kaicore.events.payloads import Reason
from kaicore.groups.membership import told_key
from kaicore.model.pod import Amounts


class Session:
    """A cycle at work."""

    def __init__(self, given: CycleInput, config: EngineConfig) -> None:
        self.given = given
        self.config = config
        self.accounts = given.accounts
        self.budgets = given.budgets.copy()
        self.failures = FailureAccounts(given.failures_left, given.leaving)
        #: Classes that pods were found to be of, by key.
        self.classes: dict[str, PodClass] = {}
        self._class_of: dict[str, PodClass] = {}
        #: By class.
        self._sizes: dict[str, int] = {}
        self.turns: dict[str, Turn] = {}
        for key in given.pending:
            workload = given.workloads[key]
            turn = self._turn(workload)
            if turn is not None:
                self.turns[key] = turn
        columns = given.columns.copy()
        configure_kubelets(columns, config)
        for class_key in sorted(self.classes):
            columns.vector(self.classes[class_key].requests)
        self.trail = Trail(columns)
        self._doubts = None if given.matters is None else Doubts(given.matters, self.trail)
        self.placer = Placer(self.trail, self.class_of, given.left_alone, config, self._doubts)
        #: Uids of pods that this cycle decided to evict, with what is to be recorded.
        self.evicted: dict[str, Eviction] = {}
        #: Of how many of them by group and leaf.
        self._lost: dict[str, dict[str, int]] = {}
        self.healings: list[Healing] = []
        self.class_reasons: dict[str, tuple[Reason, ...]] = {}
        self.steps_left = config.search_steps
        self._units: list[DecisionUnit] = []
        self._future: Placer | None = None
        self._reserved: dict[str, list[Spot]] = {}
        #: Keys of groups for which this cycle has decided to keep room.
        self._fresh: set[str] = set()
        #: Groups for which others kept room where nobody is leaving.
        self._idle: list[Turn] = []
        self._due = 0

    def class_of(self, member: Member) -> PodClass:
        """Return the class as which a pod is decided on."""
        uid = member.pod.uid
        known = self._class_of.get(uid)
        if known is None:
            known = self._class_of[uid] = self.given.class_of(member)
            self.classes.setdefault(known.key, known)
        return known

    def key_of(self, member: Member) -> str:
        """Return the key of the class as which a pod is decided on."""
        return self.class_of(member).key

    def size_of(self, member: Member) -> int:
        """Return how much a running pod holds, as evicting it costs (`kaicore.engine.eviction_cost`)."""
        size = self._sizes.get(member.class_key)
        if size is None:
            size = self._sizes[member.class_key] = self._pod_sizes.of(member.requests)
        return size

    @cached_property
    def _pod_sizes(self) -> PodSizes:
        return PodSizes(self.trail.columns)

    def tenancy(self, member: Member) -> Tenancy:
        """Return a pod where it runs."""
        return Tenancy(
            member.pod.uid,
            self.given.columns.rows[member.node],
            member.requests,
            member.zone_charge,
            member.releasing,
            marks=self.given.marks_of(member.pod.uid),
        )

    # Room that is kept.

    def reserve(self) -> None:
        """Keep the room that pods are nominated for, higher priority first; give up what cannot be kept.

        Where another scheduler nominated one, or we did in an earlier life, room is kept while anybody is leaving
        there. It is kept in the cycle in which nobody is any more, too, so that the pod may start before others take
        it; but no longer (`forget_idle_room`).
        """
        for member in self.given.nominated:
            if member.nomination is not None and self._row(member.nomination) in self._leaving_rows:
                spot = self._foreign_room(member, member.nomination)
                if spot is not None:
                    self.trail.place(spot.tenancy)
                    self.future.trail.place(spot.tenancy)
        nominated = [turn for turn in self.turns.values() if turn.nominated]
        for turn in sorted(nominated, key=self.rank):
            spots: list[Spot] = []
            gave_up = lost = False
            idle = True
            for member in turn.left:
                nomination = member.nomination
                if nomination is None:
                    continue
                row = self._row(nomination)
                gave_up |= self.given.now - nomination.at >= self.config.nomination_us
                found = Spot(member, row, nomination.charge, nomination.placement, self.class_of(member).marks)
                room = self._foreign_room(member, nomination) if nomination.foreign else found
                lost |= room is None
                idle &= nomination.foreign and row not in self._leaving_rows
                spots.append(room or found)
            if gave_up:
                self._clear(turn, spots, ClearReason.GAVE_UP)
            elif lost or turn.step().missing or not self._keep_room(turn, spots):
                self._clear(turn, spots, ClearReason.NO_LONGER_FITS)
            elif idle:
                self._idle.append(turn)

    def forget_idle_room(self) -> None:
        """Keep no more room for pods that others nominated and that did not start, where nobody is leaving any more."""
        for turn in self._idle:
            spots = self._reserved.pop(turn.workload.group.key, None)
            if spots:
                self._clear(turn, spots, ClearReason.NOTHING_LEAVES)

    def _foreign_room(self, member: Member, nomination: Nomination) -> Spot | None:
        """Return what a pod would get on the node that its status names, once those who leave are gone."""
        row = self._row(nomination)
        if row < 0:
            return None
        savepoint = self.future.trail.savepoint()
        spot = self.future.place_on(member, row)
        self.future.trail.rollback(savepoint)
        return spot

    @cached_property
    def _leaving_rows(self) -> set[int]:
        """Rows on which somebody is leaving."""
        return {self.trail.columns.rows[member.node] for member in self.given.leaving}

    def _row(self, nomination: Nomination) -> int:
        return self.trail.columns.rows.get(nomination.node, -1)

    def off_accounts(self, turns: Iterable[Turn]) -> None:
        """Take the room that is kept for groups off their queues' accounts."""
        for turn in turns:
            spots = self._reserved.get(turn.workload.group.key, ())
            self.accounts.release(turn.workload.group, self.requests(spot.member for spot in spots))

    def lift(self, turns: Sequence[Turn], *, future: bool = False) -> list[tuple[Turn, list[Spot]]]:
        """Take the room that is kept for groups off the columns and the accounts, or off the future's columns.

        Returns:
            the room.
        """
        lifted = []
        if not future:
            self.off_accounts(turns)
        trail = self.future.trail if future else self.trail
        for turn in turns:
            spots = self._reserved.get(turn.workload.group.key)
            if spots:
                lifted.append((turn, spots))
                for spot in spots:
                    trail.evict(spot.tenancy)
        return lifted

    def settle(self, lifted: list[tuple[Turn, list[Spot]]], spots: Sequence[Spot]) -> tuple[Cleared, ...]:
        """Pods were placed, some where room was kept that is lifted from all columns now: keep the rest, or clear it.

        Args:
            lifted: the room, in the order in which it is to be kept.
            spots: where pods were placed; what had been kept for them is theirs.
        """
        placed = {spot.member.pod.uid for spot in spots}
        groups = {spot.member.group for spot in spots}
        cleared: list[Cleared] = []
        for turn, room in lifted:
            key = turn.workload.group.key
            del self._reserved[key]
            rest = [spot for spot in room if spot.member.pod.uid not in placed]
            if not rest:
                turn.nominated = False
            elif not self._keep_room(turn, rest):
                cleared += self._cleared(turn, rest, ClearReason.NO_LONGER_FITS if key in groups else ClearReason.TAKEN)
        return tuple(cleared)

    def reserved(self, *, below: int, behind: Turn | None = None) -> list[Turn]:
        """Return the groups whose room may be taken, higher priority first.

        Not of those for which this cycle has decided to keep it: of one pod, a cycle decides one thing once.

        Args:
            below: a priority; those of lower priority.
            behind: a group for which room is kept itself; also those that come after it.
        """
        turns = [self.turns[key] for key in self._reserved if key not in self._fresh]

        def may_be_taken(turn: Turn) -> bool:
            return turn.workload.group.priority < below or (behind is not None and self.rank(turn) > self.rank(behind))

        return sorted(filter(may_be_taken, turns), key=self.rank)

    def room_for(self, steps: Sequence[tuple[Turn, Step]]) -> tuple[list[Turn], list[Turn]]:
        """Return the groups of steps for which room is kept, and the others whose room they may take."""
        own = [turn for turn, _ in steps if turn.nominated]
        least = min(turn.workload.group.priority for turn, _ in steps)
        return own, [turn for turn in self.reserved(below=least, behind=own[0] if own else None) if turn not in own]

    def kept_besides(self, lifted: Iterable[Turn]) -> list[Spot]:
        """Return all room that is kept but for some groups."""
        without = {turn.workload.group.key for turn in lifted}
        return [spot for key, spots in self._reserved.items() if key not in without for spot in spots]

    def _keep_room(self, turn: Turn, spots: list[Spot]) -> bool:
        """Charge nominated pods, if all of it fits once those who leave are gone, and is allowed by then."""
        columns, group = self.trail.columns, turn.workload.group
        turn.nominated = False
        if any(spot.row < 0 or not columns.present[spot.row] for spot in spots):
            return False
        request = self.requests(spot.member for spot in spots)
        if self.accounts.refusal(group, request):
            return False
        ruled = any(self.placer.outlook(self.class_of(spot.member)).may_change for spot in spots)
        future = self.future if ruled else self._future
        savepoint = self.trail.savepoint(), future.trail.savepoint() if future is not None else 0
        kept: list[Spot] = []
        for found in spots:
            spot, known = found, self.class_of(found.member)
            if known.volumes.wanted:
                # What had been left for it may be another's by now.
                spot = replace(found, volumes=self.placer.outlook(known).volumes(found.row))
            self.trail.place(spot.tenancy)
            if not columns.lasts(spot.row):
                break
            if future is not None:
                if ruled and future.outlook(known).ruled_out(spot.row):
                    break
                future.trail.place(spot.tenancy)
            kept.append(spot)
        else:
            self._reserved[group.key] = kept
            self.accounts.charge(group, request)
            turn.nominated = True
            return True
        self.trail.rollback(savepoint[0])
        if future is not None:
            future.trail.rollback(savepoint[1])
        return False

    def _clear(self, turn: Turn, spots: list[Spot], reason: ClearReason) -> None:
        turn.nominated = False
        self.decide(DecisionUnit(cleared=tuple(self._cleared(turn, spots, reason))))

    def _cleared(self, turn: Turn, spots: list[Spot], reason: ClearReason) -> list[Cleared]:
        cleared = []
        for spot in spots:
            pod, nomination = spot.member.pod, spot.member.nomination
            node = self.trail.columns.names[spot.row] if nomination is None else nomination.node
            cleared.append(Cleared(pod.uid, pod.namespace, pod.name, node, reason))
        turn.nominated = False
        return cleared

    # Starting what fits.

    def requests(self, members: Iterable[Member], class_of: Callable[[Member], PodClass] | None = None) -> Amounts:
        """Return what pods ask for in all; of other classes than they are of, with `class_of`."""
        total: Amounts = {}
        for member in members:
            for resource, amount in (class_of or self.class_of)(member).requests.items():
                total[resource] = total.get(resource, 0) + amount
        return total

    def place_all(self, members: Sequence[Member], placer: Placer) -> tuple[list[Spot], Member | None]:
        """Place pods on the best nodes; returns the spots, and the first pod that found none."""
        spots: list[Spot] = []
        for member in in_order(members, placer.class_of):
            spot = None
            if member.nomination is not None:
                row = self.trail.columns.rows.get(member.nomination.node)
                spot = None if row is None else placer.place_on(member, row)
            spot = spot or placer.place(member)
            if spot is None:
                return spots, member
            spots.append(spot)
        return spots, None

    def started(
        self, steps: Sequence[tuple[Turn, Step]], spots: Sequence[Spot], lifted: list[tuple[Turn, list[Spot]]]
    ) -> None:
        """Decide that steps start on spots that are charged already.

        Args:
            steps: what starts.
            spots: where.
            lifted: room that had been kept for them and for others, lifted on all columns.
        """
        if self._future is not None:
            for spot in spots:
                self._future.trail.place(spot.tenancy)
        for turn, _ in steps:
            self.accounts.charge(turn.workload.group, self.requests_of_step(turn))
        cleared = self.settle(lifted, spots)
        by_group: dict[str, list[Spot]] = {}
        for spot in spots:
            by_group.setdefault(spot.member.group, []).append(spot)
        stands_on = steps[0][0].start
        for turn, step in steps:
            turn.take(step.members)
            if step.gang:
                turn.start = len(self._units)
        decided = tuple(self._placed(spot) for spot in spots)
        self.decide(DecisionUnit(placed=decided, cleared=cleared, stands_on=stands_on))
        for turn, _ in steps:
            turn.spots += by_group.get(turn.workload.group.key, [])

    def _placed(self, spot: Spot) -> Decision:
        pod = spot.member.pod
        return Decision(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            node=self.trail.columns.names[spot.row],
            pod_class=self.key_of(spot.member),
            placement=spot.placement,
            group=spot.member.group,
            volumes=spot.volumes,
        )

    # Making room.

    @property
    def has_future(self) -> bool:
        """Whether anybody has looked at the future."""
        return self._future is not None

    @property
    def future(self) -> Placer:
        """The nodes as they will be when all who leave are gone, with all that is decided and kept."""
        if self._future is None:
            trail = Trail(self.trail.columns.copy())
            for member in self.given.leaving:
                trail.evict(self.tenancy(member))
            for turn in self.turns.values():
                for member in turn.workload.active.values():
                    if member.pod.uid in self.evicted:
                        trail.evict(self.tenancy(member))
            self._future = Placer(trail, self.class_of, self.given.left_alone, self.config)
        return self._future

    def count_eviction(self, members: Sequence[Member], *, sign: int = 1) -> None:
        """Count pods as evicted in what budgets allow and Jobs bear, or with `sign=-1` as not."""
        self.budgets.take(members, sign=sign)
        self.failures.take(members, sign=sign)

    def nominated(
        self,
        steps: Sequence[tuple[Turn, Step]],
        spots: Sequence[Spot],
        evictions: Sequence[tuple[Member, Eviction]],
        lifted: list[tuple[Turn, list[Spot]]],
    ) -> None:
        """Decide that victims go and room is kept.

        Args:
            steps: what is to start.
            spots: where its pods go; charged to the future's columns already.
            evictions: who goes; taken off the future's columns already.
            lifted: room that had been kept for others, lifted on both columns.
        """
        for member, eviction in evictions:
            self.evicted[eviction.uid] = eviction
            self._lose(member)
            self.trail.let_go(self.tenancy(member))
        by_group: dict[str, list[Spot]] = {}
        for spot in spots:
            self.trail.place(spot.tenancy)
            by_group.setdefault(spot.member.group, []).append(spot)
        for turn, step in steps:
            group = turn.workload.group
            self.accounts.charge(group, self.requests(step.members))
            turn.nominated = turn.blocked = True
            turn.take(step.members)
            room = self._reserved.get(group.key, []) + by_group.get(group.key, [])
            self._reserved[group.key] = room
            self._fresh.add(group.key)
            turn.reasons = (
                Reason(
                    code=Code.WAITS_FOR_VICTIMS,
                    nodes=len({spot.row for spot in room}),
                    example=min((self.trail.columns.names[spot.row] for spot in room), default=""),
                    need=len(room),
                ),
            )
        cleared = self.settle(lifted, spots)
        nominated = []
        for spot in spots:
            pod = spot.member.pod
            nominated.append(
                Nominated(
                    uid=pod.uid,
                    namespace=pod.namespace,
                    name=pod.name,
                    node=self.trail.columns.names[spot.row],
                    pod_class=self.key_of(spot.member),
                    placement=spot.placement,
                    charge=spot.charge,
                    group=spot.member.group,
                )
            )
        self.decide(
            DecisionUnit(
                evicted=tuple(eviction for _, eviction in evictions), nominated=tuple(nominated), cleared=cleared
            )
        )

    def evict(self, members: Sequence[tuple[Member, Eviction]]) -> None:
        """Decide that pods go, for nobody's sake."""
        for member, eviction in members:
            self.evicted[eviction.uid] = eviction
            self._lose(member)
            self.trail.let_go(self.tenancy(member))
            if self._future is not None:
                self._future.trail.evict(self.tenancy(member))
        self.decide(DecisionUnit(evicted=tuple(eviction for _, eviction in members)))

    # Around.

    def decide(self, unit: DecisionUnit) -> None:
        """Add a unit to what is decided."""
        self._units.append(unit)

    def due(self, at: int) -> None:
        """Note that something is held back only until a time (microseconds since the epoch) that is yet to come."""
        self._due = min(self._due or at, at)

    def never_fits(self, class_key: str) -> bool:
        """Whether no pod's end could make a pod of a class fit, as its reasons say."""
        reasons = self.class_reasons.get(class_key, ())
        return bool(reasons) and all(reason.code in UNRESOLVABLE for reason in reasons)

    def is_growing(self, group: str) -> bool:
        """Whether a group is given something in this cycle, or room is kept for it: then nothing is taken from it."""
        turn = self.turns.get(group)
        return turn is not None and (bool(turn.spots) or turn.nominated)

    def is_satisfied(self, workload: Workload) -> bool:
        """Whether a group has its minimum by what this cycle has decided so far."""
        key = workload.group.key
        turn = self.turns.get(key)
        if turn is not None:
            return workload.satisfied(turn.counts)
        lost = self._lost.get(key, {})
        return workload.satisfied({leaf: count - lost.get(leaf, 0) for leaf, count in workload.counts.items()})

    def _lose(self, member: Member) -> None:
        """A pod is to go: its group has one less."""
        leaf = self.given.workloads[member.group].leaf(member)
        lost = self._lost.setdefault(member.group, {})
        lost[leaf] = lost.get(leaf, 0) + 1
        turn = self.turns.get(member.group)
        if turn is not None:
            turn.counts[leaf] = turn.counts.get(leaf, 0) - 1
            turn.forget_step()

    def steps_with(self, turn: Turn) -> tuple[list[tuple[Turn, Step]], tuple[Reason, ...]]:
        """Return what must start at once for a group to go on, or why it cannot."""
        group = turn.workload.group
        if turn.workload.unsupported:
            return [], (_unsupported(turn.workload),)
        step = turn.step()
        if step.missing:
            short = Reason(code=Code.GANG_INCOMPLETE, need=step.wanted, free=step.wanted - step.missing)
            return [], self._held_back(turn) or (short,)
        if not step.members:
            return [], self._held_back(turn)
        steps = [(turn, step)]
        seen = {group.key}
        needed = list(group.together) if step.gang else []
        for key in needed:
            if key in seen:
                continue
            seen.add(key)
            workload, other = self.given.workloads.get(key), self.turns.get(key)
            if workload is not None and self.is_satisfied(workload):
                continue
            their_step = None if other is None else other.step()
            if other is None or their_step is None or not their_step.members:
                return [], (Reason(code=Code.GANG_GROUP, detail=key),)
            steps.append((other, their_step))
            # What it takes to start those counts as well, where they do not all name each other.
            needed += other.workload.group.together
        return steps, ()

    def started_with(self, groups: Sequence[str]) -> list[str]:
        """Return groups, all that they start together with, and all that those do."""
        found = list(groups)
        for key in found:
            workload = self.given.workloads.get(key)
            if workload is not None:
                found += [other for other in workload.group.together if other not in found]
        return found

    def result(self) -> CycleResult:
        """Return what was decided, and what is left, with the reasons."""
        pods: dict[str, int] = {}
        left: list[Left] = []
        for key in sorted(self.turns):
            turn = self.turns[key]
            begun = {spot.member.pod.uid for spot in turn.spots}
            of_group: dict[str, int] = {}
            for uid, member in turn.workload.waiting.items():
                if uid not in begun and self._ours(member):
                    class_key = self.key_of(member)
                    of_group[class_key] = of_group.get(class_key, 0) + 1
            for class_key, count in of_group.items():
                pods[class_key] = pods.get(class_key, 0) + count
            if of_group:
                left.append(Left(turn.workload, tuple(of_group), sum(of_group.values()), turn.reasons))
        pending, groups = told(left, pods, self.class_reasons)
        if self._doubts is not None and self._doubts.due:
            self.due(self._doubts.due)
        return CycleResult(tuple(self._units), pending, groups, tuple(self.healings), self._due)

    def queue_turn(self, turn: Turn) -> tuple[tuple[Any, ...], str]:
        """Return the place of a group's queue among queues, by what the group asks for next.

        Room that an earlier cycle kept for it is on the queue's account already.
        """
        group = turn.workload.group
        queue = self.accounts.queue_of(group)
        charged = turn.nominated and group.key not in self._fresh
        return self.accounts.turn(queue, {} if charged else self.requests_of_step(turn)), queue

    def requests_of_step(self, turn: Turn) -> Amounts:
        """Return what a group asks for next; not to be changed."""
        if turn.request is None:
            turn.request = self.requests(turn.step().members)
        return turn.request

    def turn_order(self, turn: Turn) -> tuple[int, int, int, str, str, str]:
        """Return a group's place in its queue: priority, those that have not started first, age, name."""
        group = turn.workload.group
        started = bool(turn.counts) and turn.workload.satisfied(turn.counts)
        return -group.priority, int(started), group.created_at, group.namespace, group.name, group.key

    def rank(self, turn: Turn) -> tuple[int, int, str, str, str]:
        """Return a group's place among those for which room is kept: priority, age, name."""
        group = turn.workload.group
        return -group.priority, group.created_at, group.namespace, group.name, group.key

    def _ours(self, member: Member) -> bool:
        return member.pod.scheduler_name == self.config.scheduler_name

    def _turn(self, workload: Workload) -> Turn | None:
        resting = self.given.resting
        held_back = 0
        if all(not self._ours(member) for member in workload.waiting.values()):
            return None

        def ready(member: Member) -> bool:
            nonlocal held_back
            if not self._ours(member):
                return False
            known = self.class_of(member)
            free = not held_back_by(known) and member.pod.uid not in resting
            held_back += not free
            return free

        queues = {} if workload.unsupported else workload.ready(ready)
        return Turn(workload, queues, held_back)

    def _held_back(self, turn: Turn) -> tuple[Reason, ...]:
        """Say why pods of a group may not be placed at all; a side effect gives their classes the same reasons."""
        begun = {spot.member.pod.uid for spot in turn.spots}
        resting = 0
        reasons: dict[str, tuple[Reason, ...]] = {}
        for uid, member in turn.workload.waiting.items():
            known = self.class_of(member)
            if uid in begun or not self._ours(member):
                continue
            if held_back := held_back_by(known):
                reasons[known.key] = held_back
            resting += uid in self.given.resting
        self.class_reasons.update(reasons)
        found = tuple(reason for key in sorted(reasons) for reason in reasons[key])
        return found + ((Reason(code=Code.BIND_BACKOFF, need=resting),) if resting else ())


def in_order(members: Iterable[Member], class_of: Callable[[Member], PodClass]) -> list[Member]:
    """Return pods in the order in which they are placed: the largest first, of equals as they are given."""
    return sorted(members, key=lambda member: class_of(member).size, reverse=True)


def _unsupported(workload: Workload) -> Reason:
    detail = f"required topology ({', '.join(workload.unsupported)})"
    return Reason(code=Code.UNSUPPORTED, group=told_key(workload.group.key), detail=detail)


def held_back_by(pod_class: PodClass) -> tuple[Reason, ...]:
    """Return why pods of a class may not be placed anywhere; empty if they may."""
    if pod_class.gated:
        return (Reason(code=Code.SCHEDULING_GATED, detail=", ".join(pod_class.gated)),)
    if pod_class.malformed:
        return (Reason(code=Code.MALFORMED, detail=pod_class.malformed),)
    if pod_class.unsupported:
        return (Reason(code=Code.UNSUPPORTED, detail=", ".join(pod_class.unsupported)),)
    if pod_class.flavors.unknown:
        detail = f"{pod_class.flavors.queue}: {', '.join(pod_class.flavors.unknown)}"
        return (Reason(code=Code.FLAVOR_UNKNOWN, detail=detail),)
    if pod_class.volumes.waits:
        return (Reason(code=Code.VOLUME_NOT_READY, detail=", ".join(pod_class.volumes.waits)),)
    return ()
