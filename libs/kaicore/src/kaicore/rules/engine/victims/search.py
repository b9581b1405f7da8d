"""Whom to evict so that all of a group fits: the search, on the nodes as they will be.

Everything is tried on the future's columns (see `Session.future`): victims are taken off, the preemptor is placed with
its zones, and victims that are not needed after all are put back where they were. So what comes out is known to fit.

1. Place pod by pod. Where one fits no node, evict where that costs least; what a node needs is worked out once for
   nodes that are alike, and only for those whose cheapest conceivable cost is below the best that is known. While a
   limit of the preemptor's queue, or of one above it, is in the way, only those go who make room below it too.
2. Evict whoever lifts the limits most cheaply, if any is still in the way. Where that comes to nothing, because
   those who make room below a limit are not where room is needed, do this first.
3. Put back whom it turned out not to take, the dearest first.

What somebody's eviction costs, and who goes with whom, is in `kaicore.rules.engine.victims.candidates`.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kaicore.rules.engine.accounts import QueueAccounts
from kaicore.rules.engine.pending_group import PendingGroup
from kaicore.rules.engine.placement.placer import Assignment, Placer
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.session import Session, in_order
from kaicore.rules.engine.victims.candidates import Candidates, Unit, name_of
from kaicore.rules.engine.victims.eviction_cost import POD
from kaicore.rules.engine.workload import Member, Step
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts
from kaicore.rules.numa.columns import Flags
from kaicore.rules.queues.cycle_queues import Asked
from kaicore.rules.queues.refusals import QueueRefusal
from kaicore.rules.reasons.reason import Reason

#: Most pods of a node for which the search looks at every pair.
_PAIRS = 12


@dataclass(frozen=True, slots=True)
class Found:
    """A way to make room.

    Attributes:
        spots: where the preemptor's pods go.
        units: who goes, in the order in which they were chosen.
    """

    spots: tuple[Assignment, ...]
    units: tuple[Unit, ...]


def asked_of(session: Session, steps: Sequence[tuple[PendingGroup, Step]]) -> list[tuple[Group, Amounts]]:
    """Return what steps ask of the queues."""
    return [(turn.workload.group, session.requests_of_step(turn)) for turn, _ in steps]


def charge_all(queues: QueueAccounts, asked: Asked) -> bool:
    """Charge groups with so much as far as their queues admit it; tells whether they admit all."""
    for group, request in asked:
        if queues.refusal(group, request):
            return False
        queues.charge(group, request)
    return True


class Search:
    """One group's search."""

    def __init__(
        self,
        session: Session,
        candidates: Candidates,
        steps: Sequence[tuple[PendingGroup, Step]],
        *,
        admits: Callable[[Unit], bool],
        kept: Sequence[Assignment],
        most_groups: int | None = None,
    ) -> None:
        """Args:
        session: the cycle.
        candidates: who may be evicted.
        steps: what is to start.
        admits: whether pods may go together, budgets aside, as things stand with what is to start charged.
        kept: room that stays kept for others, charged already.
        most_groups: of how many groups pods are taken until it gives up; those included that can stay in the end.
        """
        self._session = session
        self._candidates = candidates
        self._admits = admits
        self._kept = kept
        self._most_groups = most_groups
        self._groups: set[str] = set()
        #: Of how many groups pods were taken when it gave up because of that; 0 if it did not.
        self.too_many = 0
        self._asked = asked_of(session, steps)
        self._own = session.started_with([turn.workload.group.key for turn, _ in steps])
        #: The limits that what is to start would exceed, as things stand.
        self._bounds: tuple[Reason, ...] = ()
        self._members = in_order((member for _, step in steps for member in step.members), session.class_of)
        self._units: list[Unit] = []
        order = session.trail.columns.name_order()
        self._order: list[int] = order.tolist()
        self._by_order = {self._order[row]: row for row in range(len(session.trail.columns.names))}
        #: By class, rows where evicting may help, each with what it costs at least and its place by name.
        self._rows: dict[str, list[tuple[int, int]]] = {}
        #: PodDisruptionBudgets that kept anybody from being evicted; several together for pods under several.
        self.budgets: set[tuple[str, ...]] = set()
        self._known: dict[object, tuple[int, tuple[int, ...]] | None] = {}

    def run(self) -> Found | None:
        """Find a way.

        Returns:
            what it takes, which is on the future's columns, the accounts and the budgets then; None, and nothing is
            changed, if there is none.
        """
        session = self._session
        placer = session.future
        self._candidates.begin(self._own)
        if not self._conceivable(placer):
            return None
        accounts = session.accounts.savepoint()
        savepoint = placer.trail.savepoint()
        for group, request in self._asked:
            session.accounts.charge(group, request)
        charged = session.accounts.savepoint()
        bounds = self._exceeded()
        if all(reason.code == QueueRefusal.OVER_LIMIT for reason in bounds):
            for limits_first in (False, True) if bounds else (False,):
                self._bounds = bounds
                found = self._run(placer, limits_first=limits_first)
                if found is not None:
                    return found
                session.accounts.undo(charged)
                placer.trail.rollback(savepoint)
                self._put_back(self._units)
                self._units, self._groups, self._rows = [], set(), {}
                self._candidates.begin(self._own)
        session.accounts.undo(accounts)
        return None

    def give_up(self, found: Found) -> None:
        """What was found will not do after all; the columns and the accounts are the caller's to undo."""
        self._put_back(found.units)

    def _put_back(self, units: Sequence[Unit]) -> None:
        for unit in units:
            self._session.count_eviction(unit.members, sign=-1)
            self._candidates.put_back(unit)

    def _run(self, placer: Placer, *, limits_first: bool) -> Found | None:
        if limits_first and not self._make_way_in_queue():
            return None
        spots: list[Assignment] = []
        for member in self._members:
            spot = placer.place(member) or self._evict_and_place(placer, member)
            if spot is None:
                return None
            if self._most_groups is not None and len(self._groups) > self._most_groups:
                self.too_many = len(self._groups)
                return None
            spots.append(spot)
        if not self._make_way_in_queue() or not self._rules_admit(placer, spots):
            return None
        units = self._reprieve(placer, spots)
        return Found(tuple(spots), tuple(units))

    def _conceivable(self, placer: Placer) -> bool:
        """Tell whether all would fit by whole nodes' amounts if every candidate were gone; no means no."""
        columns = placer.trail.columns
        wanted: dict[str, int] = {}
        for member in self._members:
            key = self._session.key_of(member)
            wanted[key] = wanted.get(key, 0) + 1
        room = columns.allocatable - columns.used + self._candidates.sums()[0]
        for key, count in wanted.items():
            outlook = placer.outlook(self._session.classes[key])
            asked = np.flatnonzero(outlook.need)
            fits = (room[:, asked] // outlook.need[asked]).min(axis=1)
            if int(np.maximum(fits, 0)[outlook.eligible].sum()) < count:
                return False
        return True

    def _exceeded(self) -> tuple[Reason, ...]:
        accounts = self._session.accounts
        return tuple(reason for group, request in self._asked for reason in accounts.exceeded(group, request))

    def _make_way_in_queue(self) -> bool:
        """Evict until no limit is in the way, first whose going costs least for what it helps."""
        if self._bounds:
            for unit in self._that_help():
                self._evict(unit)
                if not self._bounds:
                    break
        return not self._bounds

    def _that_help(self) -> Iterator[Unit]:
        candidates = self._candidates
        there = sorted((one for members in candidates.on_row.values() for one in members.values()), key=name_of)
        units = [unit for member in there if (unit := candidates.unit(member)) is not None]
        helping = [(unit, relief) for unit in units if (relief := self._relief(unit))]
        for unit, _ in sorted(helping, key=lambda pair: (pair[0].cost * 1000 // pair[1], pair[0].key)):
            current = candidates.unit(unit.members[0]) if candidates.has(unit.members[0]) else None
            if current is not None and self._may_go(current):
                yield current

    def _relief(self, unit: Unit) -> int:
        accounts = self._session.accounts
        return sum(accounts.relief(group, held, self._bounds) for group, held in unit.held_by(self._session))

    def _may_go(self, unit: Unit) -> bool:
        """Tell whether a unit may go: it helps with the limits that are in the way, and nothing protects it."""
        session = self._session
        if self._bounds and not self._relief(unit):
            return False
        if not self._admits(unit):
            return False
        if not session.budgets.refuse(unit.members):
            return True
        self.budgets |= session.budgets.refusing(unit.members)
        return False

    def _evict(self, unit: Unit) -> None:
        session = self._session
        trail = session.future.trail
        for member in unit.members:
            trail.evict(session.tenancy(member))
        self._candidates.take(unit)
        for group, held in unit.held_by(session):
            session.accounts.release(group, held)
        session.count_eviction(unit.members)
        self._units.append(unit)
        self._groups.update(unit.groups)
        if self._bounds:
            self._bounds = self._exceeded()
        for heap in self._rows.values():
            for row in {trail.columns.rows[member.node] for member in unit.members}:
                heapq.heappush(heap, (0, self._order[row]))

    # Where evicting costs least.

    def _evict_and_place(self, placer: Placer, member: Member) -> Assignment | None:
        """Evict on the node where that costs least for one more pod, and place it there."""
        known = self._session.class_of(member)
        heap = self._rows.get(known.key)
        if heap is None:
            heap = self._rows[known.key] = self._lower_bounds(placer, known)
        while heap:
            _, place = heapq.heappop(heap)
            row = self._by_order[place]
            option = self._option(placer, member, row)
            if option is None:
                continue
            cost, units = option
            if heap and heap[0] < (cost, place):
                heapq.heappush(heap, (cost, place))
                continue
            if not all(self._may_go(unit) for unit in units):
                for unit in units:
                    if not self._may_go(unit):
                        self._candidates.ban(unit.groups[0])
                heapq.heappush(heap, (0, place))
                continue
            refused = self._evict_all(units)
            if refused is not None:
                self._candidates.ban(refused.groups[0])
                heapq.heappush(heap, (0, place))
            spot = placer.place_on(member, row) or placer.place(member)
            if spot is not None:
                heapq.heappush(heap, (0, place))
                return spot
        return None

    def _evict_all(self, units: Sequence[Unit]) -> Unit | None:
        """Evict, each only if it may still be after those before it; returns the first that may not."""
        for unit in units:
            if not self._candidates.has(unit.members[0]):
                continue
            current = self._candidates.unit(unit.members[0])
            if current is None or not self._may_go(current):
                return unit
            if not {other.pod.uid for other in current.members} <= {other.pod.uid for other in unit.members}:
                # It has no more single pods to spare: what this node takes is to be looked for again.
                return None
            self._evict(current)
        return None

    def _lower_bounds(self, placer: Placer, known: PodClass) -> list[tuple[int, int]]:
        """Return the rows where evicting may help, each with a cost below which it cannot, and its place by name."""
        outlook = placer.outlook(known)
        columns = placer.trail.columns
        asked = np.flatnonzero(outlook.need)
        total, most, least = self._candidates.sums()
        idle = (columns.allocatable - columns.used)[:, asked]
        missing = np.maximum(outlook.need[asked] - idle, 0)
        possible: Flags = outlook.eligible & (missing <= total[:, asked]).all(axis=1) & (total.any(axis=1))
        rows = np.flatnonzero(possible)
        count = np.maximum(-(-missing[rows] // np.maximum(most[rows][:, asked], 1)).max(axis=1), 1)
        # One gang may free many pods' room on a node at once: then one unit's cost is the least there is.
        places = columns.name_order()[rows]
        found = zip(rows.tolist(), count.tolist(), places.tolist(), strict=True)
        return sorted((least[row] + (pods - 1) * POD, place) for row, pods, place in found)

    def _option(self, placer: Placer, member: Member, row: int) -> tuple[int, tuple[Unit, ...]] | None:
        """Return the cheapest units found whose going lets a row take the pod, with their cost."""
        known = self._session.class_of(member)
        outlook = placer.outlook(known)
        if outlook.takes(row):
            return 0, ()
        candidates = self._candidates
        units: dict[tuple[str, ...], Unit] = {}
        for other in sorted(candidates.on_row.get(row, {}).values(), key=name_of):
            unit = candidates.unit(other)
            if unit is not None:
                units.setdefault(tuple(sorted(one.pod.uid for one in unit.members)), unit)
        ordered = sorted(units.values(), key=lambda unit: unit.key)
        if not ordered:
            return None
        rows = placer.trail.columns.rows
        here = [[other for other in unit.members if rows[other.node] == row] for unit in ordered]
        key = (
            known.key,
            placer.trail.columns.likeness(row),
            placer.trail.columns.allocatable[row].tobytes(),
            placer.trail.columns.used[row].tobytes(),
            tuple(
                (unit.cost, unit.shrinks, tuple((other.class_key, other.zone_charge) for other in members))
                for unit, members in zip(ordered, here, strict=True)
            ),
        )
        # Rules about other pods look beyond the node.
        if key not in self._known or outlook.may_change:
            self._known[key] = self._cheapest(placer, known, row, ordered, here)
        found = self._known[key]
        return None if found is None else (found[0], tuple(ordered[index] for index in found[1]))

    def _cheapest(
        self,
        placer: Placer,
        known: PodClass,
        row: int,
        units: Sequence[Unit],
        here: Sequence[Sequence[Member]],
    ) -> tuple[int, tuple[int, ...]] | None:
        """Look for the cheapest of the units whose going lets a row take a pod: by index, with their cost."""
        trail = placer.trail

        def fits(chosen: Sequence[int]) -> bool:
            self._session.steps_left -= 1
            savepoint = trail.savepoint()
            # Whoever goes with several of them goes once.
            for other in {other.pod.uid: other for index in chosen for other in here[index]}.values():
                trail.evict(self._session.tenancy(other))
            taken = placer.outlook(known).takes(row)
            trail.rollback(savepoint)
            return taken

        everything = list(range(len(units)))
        if self._session.steps_left <= 0 or not fits(everything):
            return None

        def cost(chosen: Sequence[int]) -> int:
            return sum(units[index].cost for index in chosen)

        best = everything
        for order in self._orders(units, here):
            chosen: list[int] = []
            for index in order:
                chosen.append(index)
                if fits(chosen):
                    break
            for index in sorted(chosen, key=lambda index: units[index].key, reverse=True):
                without = [other for other in chosen if other != index]
                if without != chosen and fits(without):
                    chosen = without
            if (cost(chosen), sorted(chosen)) < (cost(best), sorted(best)):
                best = chosen
        few: list[tuple[int, ...]] = [(index,) for index in everything]
        if len(units) <= _PAIRS:
            few += [(one, other) for one in everything for other in range(one + 1, len(units))]
        for pair in sorted(few, key=lambda pair: (cost(pair), pair)):
            if cost(pair) >= cost(best):
                break
            if fits(pair):
                best = list(pair)
                break
        return cost(best), tuple(sorted(best, key=lambda index: units[index].key))

    @staticmethod
    def _orders(units: Sequence[Unit], here: Sequence[Sequence[Member]]) -> Iterator[list[int]]:
        """Return in which orders to pile up victims: the cheapest first, also zone by zone."""
        by_cost = list(range(len(units)))
        yield by_cost
        zones = [{zone for other in members for zone, _, _ in other.zone_charge.split} for members in here]
        for zone in sorted(set().union(*zones)):
            yield sorted(by_cost, key=lambda index: (zone not in zones[index], len(zones[index]), index))

    # Who can stay after all.

    def _rules_admit(self, placer: Placer, spots: Sequence[Assignment]) -> bool:
        """Tell whether the rules about other pods let the spots be taken, as the nodes are now.

        A spot was good when it was found. Since then pods have gone that it needs near it, or are to stay that it must
        not be near. The same goes for room that is kept for others. The order is that in which the next cycle will
        keep the room.
        """
        session = self._session
        spots = sorted([*self._kept, *spots], key=lambda spot: session.rank(session.turns[spot.member.group]))
        outlooks = [placer.outlook(self._session.class_of(spot.member)) for spot in spots]
        if not any(outlook.may_change for outlook in outlooks):
            return True
        for spot in spots:
            placer.trail.leave(spot.tenancy, sign=-1)
        admitted = True
        for spot, outlook in zip(spots, outlooks, strict=True):
            admitted = admitted and not outlook.ruled_out(spot.row)
            placer.trail.leave(spot.tenancy)
        return admitted

    def _reprieve(self, placer: Placer, spots: Sequence[Assignment]) -> list[Unit]:
        """Put back whom it does not take, the dearest first, on the very zones that they have."""
        session = self._session
        kept: set[int] = set()
        ended: set[str] = set()
        for index in sorted(range(len(self._units)), key=lambda index: self._units[index].key, reverse=True):
            unit = self._units[index]
            if unit.shrinks and not ended.isdisjoint(unit.groups):
                continue
            before = session.accounts.savepoint()
            if charge_all(session.accounts, unit.held_by(session)) and self._stay_put(placer, unit, spots):
                session.count_eviction(unit.members, sign=-1)
                self._candidates.put_back(unit)
                kept.add(index)
                continue
            session.accounts.undo(before)
            if not unit.shrinks:
                ended.update(unit.groups)
        return [unit for index, unit in enumerate(self._units) if index not in kept]

    def _stay_put(self, placer: Placer, unit: Unit, spots: Sequence[Assignment]) -> bool:
        """Take the eviction of all of a unit back, if everything else can be as it is."""
        trail = placer.trail
        rows, columns = trail.columns.rows, trail.columns
        if not all(columns.fits(rows[member.node], member.requests) for member in unit.members):
            return False
        savepoint = trail.savepoint()
        stay = all(trail.stays_put(self._session.tenancy(member)) for member in unit.members)
        if stay and self._rules_admit(placer, spots):
            return True
        trail.rollback(savepoint)
        return False
