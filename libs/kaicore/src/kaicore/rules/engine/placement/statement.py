"""The operations of a cycle on the nodes, and their rollback: placing, evicting and putting back, in any nesting.

Each operation keeps the previous state of its node: two rows of numbers. Rolling back restores them. So it is exact
whatever happened in between, also for memory, which its manager gives back in another way than it takes it.

A victim that is put back is tried first at its old place. A kubelet does not move a running pod, so "its old place" is
not another placement on the same zones: it means that the eviction never happens. `stays_put` therefore removes the
eviction and repeats all later operations on that node. If all results are the same, the pod stays. If not, nothing has
changed, and any other place for it is a real move.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable
from enum import Enum

import msgspec

from kaicore.rules.engine.constraints.claims.supplies import GivenClaim, GivenVolume
from kaicore.rules.engine.placement.gpu_supply import GivenPart, Reservation
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.row_states import Before, RowStates
from kaicore.rules.model.gpu_share import WHOLE
from kaicore.rules.model.pod import Amounts
from kaicore.rules.numa.arrivals import Arrival
from kaicore.rules.numa.kubelet.masks import zones_of
from kaicore.rules.numa.kubelet.zones import ZoneCharge


class PodCharge(msgspec.Struct, frozen=True, gc=False):
    """A pod on a node.

    Attributes:
        requests: what it takes of the node as a whole.
        releasing: it terminates already.
        marks: what it leaves there for the rules of others (`kaicore.rules.engine.constraints.pod_marks`).
        volumes: what this cycle gives it; not the volumes that it has, for they stay with its claims.
        devices: what this cycle gives its resource claims; not what they have already.
        arrival: it is decided on by this cycle, and what its kubelet gives it is not known for certain.
        gpus: the parts of GPUs that it gets, or has.
        reserves: of a reservation pod, its GPU group.
        hidden: it comes later, so what it opens is not offered to others now.
    """

    uid: str
    row: int
    requests: Amounts
    charge: ZoneCharge = ZoneCharge()
    releasing: bool = False
    marks: tuple[str, ...] = ()
    volumes: tuple[GivenVolume, ...] = ()
    devices: tuple[GivenClaim, ...] = ()
    arrival: Arrival | None = None
    gpus: tuple[GivenPart, ...] = ()
    reserves: str = ""
    hidden: bool = False

    def same_place(self, other: "PodCharge") -> bool:
        """Tell whether a pod has the same place twice: the same node, zones and amounts per zone."""
        return self.row == other.row and self.charge.split == other.charge.split


class _OperationKind(Enum):
    PLACE = "place"
    EVICT = "evict"
    STAY = "stay"
    LET_GO = "let-go"


class _Operation(msgspec.Struct, frozen=True, gc=False):
    kind: _OperationKind
    pod_charge: PodCharge
    before: Before
    #: Number of the operation that it takes out: a pod that stays was not evicted; one of this cycle has not come.
    cancels: int = -1

    @property
    def excludes(self) -> bool:
        """True if a pod was placed on zones of other groups, with pods that are being released."""
        cells = self.before.mark.zones.cells
        blocks = self.pod_charge.charge.blocks if self.kind is _OperationKind.PLACE else ()
        return any(cells[zone] not in (0, block.mask) for block in blocks for zone in zones_of(block.mask))


class _InARow(msgspec.Struct, frozen=True, gc=False):
    """Pods that were placed in a row. Hardly any is looked at again: each becomes an operation when it is.

    Attributes:
        first: the number of the first of them.
        charge_of: see `Statement.place_in_a_row`.
    """

    first: int
    charge_of: Callable[[int], tuple[PodCharge, Before]]


def _of_reservation(row: int, group: str, held: Reservation, *, hidden: bool) -> PodCharge:
    uid, requests, charge, releasing = held.uid, held.requests, held.charge, held.releasing
    return PodCharge(uid, row, requests, charge, releasing, arrival=held.arrival, reserves=group, hidden=hidden)


class Statement:
    """The operations of a cycle on its own columns, as in KAI-Scheduler v0.17.0, pkg/scheduler/framework/statement.go.

    A savepoint is the number of operations taken; a later one is void once an earlier one is rolled back to.
    """

    def __init__(self, columns: NodeColumns, *, like: "Statement | None" = None) -> None:
        """Args:
        like: on columns that these are a copy of, as they are now; None where a cycle begins.
        """
        self.columns = self._columns = columns
        self.states: RowStates = RowStates(columns, None if like is None else like.states)
        #: Every row that changed, in order, those that were put back included.
        self.touched: array[int] = array("q")
        self._operations: list[_Operation | _InARow] = []
        #: The numbers of the operations on each row.
        self._of_row: dict[int, list[int]] = {}

    def savepoint(self) -> int:
        """Return where to roll back to later."""
        return len(self._operations)

    def rollback(self, savepoint: int) -> set[int]:
        """Undo everything since a savepoint; returns the rows that changed."""
        undone = [self._operation(number) for number in range(savepoint, len(self._operations))]
        for operation in reversed(undone):
            row = operation.pod_charge.row
            self.states.restore(row, operation.before)
            if operation.kind is _OperationKind.LET_GO:
                self._note_let_go(operation.pod_charge, sign=-1)
            else:
                self.leave(operation.pod_charge, sign=1 if operation.kind is _OperationKind.EVICT else -1)
            self._of_row[row].pop()
            self.touched.append(row)
        del self._operations[savepoint:]
        return {operation.pod_charge.row for operation in undone}

    def place(self, pod_charge: PodCharge) -> PodCharge:
        """Charge a pod to a node; returns it with its memory as it is drawn there.

        A GPU that it has a part of is opened first if it is not open.
        """
        gpus = self._columns.gpus
        for part in pod_charge.gpus:
            opening = None if gpus.is_open(part.group) else part.opening or gpus.reservation_of(part.group)
            if opening is not None:
                self.open(pod_charge.row, part.group, opening, hidden=pod_charge.hidden)
        before = self.states.before(pod_charge.row)
        placed = self._charge(pod_charge)
        self.leave(placed)
        self._take(_Operation(_OperationKind.PLACE, placed, before))
        return placed

    def place_in_a_row(
        self,
        row: int,
        count: int,
        charge_of: Callable[[int], tuple[PodCharge, Before]],
        *,
        after: Before,
        marks: bool,
    ) -> None:
        """Charge pods of one class to one node of which it is known what it is like before each, and afterwards.

        Args:
            charge_of: returns one of the pods there by its place in the row, and the node before it.
            marks: whether the pods have any.
        """
        number = len(self._operations)
        self.states.restore(row, after)
        if marks or self._columns.devices.may_be_freed:
            for place in range(count):
                self.leave(charge_of(place)[0])
        self._operations += [_InARow(number, charge_of)] * count
        self._of_row.setdefault(row, []).extend(range(number, number + count))
        self.touched.append(row)

    def open(self, row: int, group: str, opening: Reservation, *, hidden: bool = False) -> None:
        """Open a GPU for sharing: charge its reservation pod to a node."""
        self.place(_of_reservation(row, group, opening, hidden=hidden))

    def close(self, group: str) -> None:
        """Take the reservation pod of an open GPU off its node."""
        reservation = self._columns.gpus.reservation(group)
        if reservation is not None:
            self.evict(self._reserving(group, reservation))

    def evict(self, pod_charge: PodCharge) -> None:
        """Take a pod off its node, as if it were gone, or had never come where this cycle put it over other groups.

        GPUs of which it has the last part are closed.
        """
        before, place = self.states.before(pod_charge.row), self._excluding_placement(pod_charge)
        if place < 0:
            self._release(pod_charge)
        else:
            self._do_again(pod_charge.row, without=place)
        self._take(_Operation(_OperationKind.EVICT, pod_charge, before, cancels=place))
        self.leave(pod_charge, sign=-1)
        for part in pod_charge.gpus:
            if not self._columns.gpus.pods(part.group):
                self.close(part.group)

    def let_go(self, pod_charge: PodCharge) -> None:
        """Count a pod among those that are being released; it holds what it holds until it is gone.

        So do GPUs of which all pods are being released.
        """
        self._take(_Operation(_OperationKind.LET_GO, pod_charge, self.states.before(pod_charge.row)))
        self._count_releasing(pod_charge)
        self._note_let_go(pod_charge)
        gpus = self._columns.gpus
        for part in pod_charge.gpus:
            reservation = gpus.reservation(part.group) if gpus.is_ending(part.group) else None
            if reservation is not None and not reservation.releasing:
                self.let_go(self._reserving(part.group, reservation))

    def leave(self, pod_charge: PodCharge, *, sign: int = 1) -> None:
        """Leave for the rules of others what a pod leaves where it is, amounts aside; `sign=-1` takes it off again."""
        if pod_charge.marks:
            self._columns.marks.charge(pod_charge.row, pod_charge.marks, sign=sign)
        if pod_charge.volumes:
            self._columns.volumes.give(pod_charge.volumes, sign=sign)
        if pod_charge.devices:
            self._columns.devices.give(pod_charge.devices, sign=sign)
        elif self._columns.devices.may_be_freed:
            self._columns.devices.leave(pod_charge.uid, sign=sign)
        gpus = self._columns.gpus
        for part in pod_charge.gpus:
            gpus.hold(part.group, part.milli, sign=sign)
            if pod_charge.releasing:
                gpus.leave(part.group, sign=sign)
        if pod_charge.reserves and sign > 0:
            reservation = Reservation(
                pod_charge.uid, pod_charge.requests, pod_charge.charge, pod_charge.arrival, pod_charge.releasing
            )
            gpus.open(pod_charge.reserves, pod_charge.row, reservation, offered=not pod_charge.hidden)
        elif pod_charge.reserves:
            gpus.close(pod_charge.reserves)

    def arrivals(self, row: int, *, before: int | None = None) -> tuple[Arrival, ...]:
        """Return the pods that were put on a row, before a savepoint, and may get other zones than predicted."""
        numbers, place = self._of_row.get(row, ()), _OperationKind.PLACE
        operations = [self._operation(number) for number in numbers if before is None or number < before]
        placed = [one.pod_charge.arrival for one in operations if one.kind is place]
        return tuple([arrival for arrival in placed if arrival is not None])

    def reserved(self, row: int) -> tuple[tuple[PodCharge, ...], bool]:
        """Return what is charged to a row for pods that do not come now, and whether anything ever was.

        A kubelet knows nothing of it.
        """
        charges: dict[str, PodCharge] = {}
        ever = False
        for number in self._of_row.get(row, ()):
            operation = self._operation(number)
            pod_charge = operation.pod_charge
            aligned = bool(pod_charge.charge.amounts or pod_charge.charge.blocks)
            if operation.kind is _OperationKind.PLACE and pod_charge.arrival is None and aligned:
                charges[pod_charge.uid] = pod_charge
                ever = True
            elif operation.kind is _OperationKind.EVICT:
                charges.pop(pod_charge.uid, None)
        return tuple(charges.values()), ever

    def stays_put(self, pod_charge: PodCharge) -> bool:
        """Take a pod's eviction back if all that came after it on its node can be as it is.

        Amounts and zones are looked at; whether the rules of pods that came since admit it is the caller's to ask
        (`kaicore.rules.engine.constraints.constraint_evaluator`). Raises ValueError: it is not evicted.
        """
        savepoint = self.savepoint()
        if pod_charge.gpus and not self._parts_stay(pod_charge):
            self.rollback(savepoint)
            return False
        place = self._eviction(pod_charge)
        now = self.states.before(pod_charge.row)
        if not self._do_again(pod_charge.row, without=place, same_places=True):
            self.states.restore(pod_charge.row, now)
            self.rollback(savepoint)
            return False
        self.leave(pod_charge)
        self._take(_Operation(_OperationKind.STAY, pod_charge, now, cancels=place))
        return True

    def _parts_stay(self, pod_charge: PodCharge) -> bool:
        """Tell whether parts of GPUs are still free; reservations that were evicted with the pod stay, too."""
        gpus = self._columns.gpus
        for part in pod_charge.gpus:
            if gpus.used(part.group) + part.milli > WHOLE:
                return False
            held = gpus.reservation_of(part.group) if gpus.reservation(part.group) is None else None
            if held is None or not self._is_evicted(held.uid, pod_charge.row):
                continue
            if not self.stays_put(_of_reservation(pod_charge.row, part.group, held, hidden=held.releasing)):
                return False
        return True

    def _reserving(self, group: str, reservation: Reservation) -> PodCharge:
        """Return what the reservation pod of an open GPU is charged with."""
        gpus = self._columns.gpus
        return _of_reservation(gpus.row(group), group, reservation, hidden=not gpus.is_offered(group))

    def _note_let_go(self, pod_charge: PodCharge, *, sign: int = 1) -> None:
        """Count a pod among those that leave their GPUs, or no more with `sign=-1`; a GPU that goes gives no parts."""
        gpus = self._columns.gpus
        for part in pod_charge.gpus:
            gpus.leave(part.group, sign=sign)
        if pod_charge.reserves and not pod_charge.hidden:
            (gpus.withhold if sign > 0 else gpus.offer)(pod_charge.reserves)

    def _count_releasing(self, pod_charge: PodCharge) -> None:
        for sign, releasing in ((-1, False), (1, True)):
            self._columns.charge(pod_charge.row, pod_charge.requests, sign=sign, releasing=releasing)
        self._columns.zones.set_releasing(pod_charge.row, pod_charge.charge, releasing=True)
        self.states.changed(pod_charge.row)

    def _excluding_placement(self, pod_charge: PodCharge) -> int:
        """Return the number of a pod's placing on a row where groups of zones exclude each other; -1 if it is no such.

        The kubelet's rule of giving back is for groups that do not: it would give back what the other group holds.
        """
        if not pod_charge.charge.blocks:
            return -1
        numbers = self._of_row.get(pod_charge.row, ())
        own = [number for number in numbers if self._operation(number).pod_charge.uid == pod_charge.uid]
        if not own or self._operation(own[-1]).kind is not _OperationKind.PLACE:
            return -1
        return own[-1] if any(self._operation(number).excludes for number in numbers) else -1

    def _do_again(self, row: int, *, without: int, same_places: bool = False) -> bool:
        """Do again what was done on a row, but for one operation.

        Args:
            without: the number of the operation that is taken out.
            same_places: give up where a pod would get another place than it had.

        Returns:
            whether all was done again; if not, the row is to be restored.
        """
        cancelled, numbers = self._cancelled(row, without), self._of_row[row]
        first = min(cancelled)
        self.states.restore(row, self._operation(first).before)
        for number in numbers[bisect_left(numbers, first) :]:
            operation = self._operation(number)
            pod_charge = operation.pod_charge
            if number in cancelled:
                continue
            match operation.kind:
                case _OperationKind.EVICT:
                    self._release(pod_charge)
                case _OperationKind.LET_GO:
                    self._count_releasing(pod_charge)
                case _OperationKind.PLACE:
                    if same_places and not self._fits(pod_charge):
                        return False
                    if not self._charge(pod_charge).same_place(pod_charge) and same_places:
                        return False
                case _OperationKind.STAY:
                    pass
        return True

    def _cancelled(self, row: int, other: int) -> set[int]:
        """Return the number of an operation that is taken out, and of those of its row that later ones took out."""
        cancelled = {other}
        for number in reversed(self._of_row[row]):
            operation = self._operation(number)
            if operation.cancels >= 0 and number not in cancelled:
                cancelled.add(operation.cancels)
                if operation.kind is _OperationKind.EVICT:
                    cancelled.add(number)
        return cancelled

    def _operation(self, number: int) -> _Operation:
        operation = self._operations[number]
        if isinstance(operation, _InARow):
            pod_charge, before = operation.charge_of(number - operation.first)
            operation = self._operations[number] = _Operation(_OperationKind.PLACE, pod_charge, before)
        return operation

    def _take(self, operation: _Operation) -> None:
        self._of_row.setdefault(operation.pod_charge.row, []).append(len(self._operations))
        self._operations.append(operation)
        self.touched.append(operation.pod_charge.row)

    def _is_evicted(self, uid: str, row: int) -> bool:
        operations = (self._operation(number) for number in reversed(self._of_row.get(row, ())))
        last = next((one for one in operations if one.pod_charge.uid == uid), None)
        return last is not None and last.kind is _OperationKind.EVICT

    def _eviction(self, pod_charge: PodCharge) -> int:
        for number in reversed(self._of_row.get(pod_charge.row, ())):
            operation = self._operation(number)
            if operation.pod_charge.uid == pod_charge.uid:
                if operation.kind is _OperationKind.EVICT:
                    return number
                break
        raise ValueError(f"pod {pod_charge.uid}: is not evicted from row {pod_charge.row}")

    def _fits(self, pod_charge: PodCharge) -> bool:
        return self._columns.fits(pod_charge.row, pod_charge.requests) and self._columns.zones.holds(
            pod_charge.row, pod_charge.charge
        )

    def _charge(self, pod_charge: PodCharge) -> PodCharge:
        charge = self.states.charge(
            pod_charge.row, pod_charge.requests, pod_charge.charge, releasing=pod_charge.releasing
        )
        if charge is pod_charge.charge:
            return pod_charge
        arrival = pod_charge.arrival and msgspec.structs.replace(pod_charge.arrival, charge=charge)
        return msgspec.structs.replace(pod_charge, charge=charge, arrival=arrival)

    def _release(self, pod_charge: PodCharge) -> None:
        zones = self._columns.zones
        self._columns.charge(pod_charge.row, pod_charge.requests, sign=-1, releasing=pod_charge.releasing)
        zones.release(pod_charge.row, pod_charge.charge, releasing=pod_charge.releasing)
        zones.assume(pod_charge.row, pod_charge.charge, sign=-1)
        self.states.changed(pod_charge.row)
