"""What a simulation does to the nodes, and how it is taken back: placing, evicting and putting back, in any nesting.

Each step keeps how its node was before: two rows of numbers. Rolling back restores them, so it is exact whatever
happened in between, also for memory, whose manager gives back otherwise than it takes.

A victim that is put back is tried where it was first. A kubelet does not move a running pod, so "where it was" is not
another placement on the same zones: it means that the eviction never happens. `stays_put` therefore takes the eviction
out and does again what came after it on that node. If all of that comes out the same, the pod stays; if not, nothing
has changed, and any other place for it is a real move.
"""

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from enum import Enum

from kaicore.engine.node_columns import NodeColumns
from kaicore.engine.row_states import Before, RowStates
from kaicore.model.pod import Amounts
from kaicore.numa.arrivals import Arrival
from kaicore.numa.columns import ZoneCharge


@dataclass(frozen=True, slots=True)
class Tenancy:
    """A pod on a node.

    Attributes:
        uid: the pod.
        row: the node.
        requests: what it takes of the node as a whole.
        charge: what it takes of its zones.
        releasing: it terminates already.
        marks: what it leaves there for the rules of others (`kaicore.engine.pod_marks`).
        volumes: names of volumes that this cycle gives it; not those that it has, for they stay with its claims.
        arrival: it is decided on by this cycle, and what its kubelet gives it is not known for certain.
    """

    uid: str
    row: int
    requests: Amounts
    charge: ZoneCharge = field(default_factory=ZoneCharge)
    releasing: bool = False
    marks: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    arrival: Arrival | None = None

    def same_place(self, other: "Tenancy") -> bool:
        """Tell whether two tenancies of a pod are one place: the same node, zones and amounts per zone."""
        return self.row == other.row and self.charge.split == other.charge.split


class _Kind(Enum):
    PLACE = "place"
    EVICT = "evict"
    STAY = "stay"
    LET_GO = "let-go"


@dataclass(frozen=True, slots=True)
class _Step:
    kind: _Kind
    tenancy: Tenancy
    before: Before
    #: Place of the eviction that a pod's staying takes back.
    cancels: int = -1


class Trail:
    """The steps of a simulation on a cycle's own columns.

    A savepoint is the number of steps taken; a later one is void once an earlier one is rolled back to.
    """

    def __init__(self, columns: NodeColumns) -> None:
        self.columns = self._columns = columns
        self.states = RowStates(columns)
        #: Every row that changed, in order, those that were put back included.
        self.touched: list[int] = []
        self._steps: list[_Step] = []
        #: The numbers of the steps on each row.
        self._of_row: dict[int, list[int]] = {}

    def savepoint(self) -> int:
        """Return where to roll back to later."""
        return len(self._steps)

    def rollback(self, savepoint: int) -> set[int]:
        """Undo everything since a savepoint; returns the rows that changed."""
        undone = self._steps[savepoint:]
        for step in reversed(undone):
            row = step.tenancy.row
            self.states.restore(row, step.before)
            if step.kind is not _Kind.LET_GO:
                self.leave(step.tenancy, sign=1 if step.kind is _Kind.EVICT else -1)
            self._of_row[row].pop()
            self.touched.append(row)
        del self._steps[savepoint:]
        return {step.tenancy.row for step in undone}

    def place(self, tenancy: Tenancy) -> Tenancy:
        """Charge a pod to a node; returns it with its memory as it is drawn there."""
        before = self.states.before(tenancy.row)
        placed = self._charge(tenancy)
        self.leave(placed)
        self._take(_Step(_Kind.PLACE, placed, before))
        return placed

    def evict(self, tenancy: Tenancy) -> None:
        """Take a pod off its node, as if it were gone."""
        self._take(_Step(_Kind.EVICT, tenancy, self.states.before(tenancy.row)))
        self._release(tenancy)
        self.leave(tenancy, sign=-1)

    def let_go(self, tenancy: Tenancy) -> None:
        """Count a pod among those that are being released; it holds what it holds until it is gone."""
        self._take(_Step(_Kind.LET_GO, tenancy, self.states.before(tenancy.row)))
        for sign, releasing in ((-1, False), (1, True)):
            self._columns.charge(tenancy.row, tenancy.requests, sign=sign, releasing=releasing)
        self._columns.zones.set_releasing(tenancy.row, tenancy.charge, releasing=True)
        self.states.changed(tenancy.row)

    def leave(self, tenancy: Tenancy, *, sign: int = 1) -> None:
        """Leave for the rules of others what a pod leaves where it is, amounts aside; `sign=-1` takes it off again."""
        if tenancy.marks:
            self._columns.marks.charge(tenancy.row, tenancy.marks, sign=sign)
        if tenancy.volumes:
            self._columns.volumes.give(tenancy.volumes, sign=sign)

    def arrivals(self, row: int) -> tuple[Arrival, ...]:
        """Return the pods that were put on a row and may get other zones than predicted, in order."""
        steps = (self._steps[number] for number in self._of_row.get(row, ()))
        return tuple(step.tenancy.arrival for step in steps if step.kind is _Kind.PLACE and step.tenancy.arrival)

    def stays_put(self, tenancy: Tenancy) -> bool:
        """Take a pod's eviction back if all that came after it on its node can be as it is.

        Amounts and zones are looked at; whether the rules of pods that came since admit it is the caller's to ask
        (`kaicore.engine.neighbourhood`).

        Args:
            tenancy: as it was evicted.

        Raises:
            ValueError: it is not evicted.
        """
        place = self._eviction(tenancy)
        row, now = tenancy.row, self.states.before(tenancy.row)
        numbers = self._of_row[row]
        cancelled = {step.cancels for number in numbers if (step := self._steps[number]).kind is _Kind.STAY} | {place}
        first = min(cancelled)
        self.states.restore(row, self._steps[first].before)
        for number in numbers[bisect_left(numbers, first) :]:
            step = self._steps[number]
            if step.kind is _Kind.EVICT:
                if number not in cancelled:
                    self._release(step.tenancy)
            elif step.kind is _Kind.PLACE and not (
                self._fits(step.tenancy) and self._charge(step.tenancy).same_place(step.tenancy)
            ):
                self.states.restore(row, now)
                return False
        self.leave(tenancy)
        self._take(_Step(_Kind.STAY, tenancy, now, cancels=place))
        return True

    def _take(self, step: _Step) -> None:
        self._of_row.setdefault(step.tenancy.row, []).append(len(self._steps))
        self._steps.append(step)
        self.touched.append(step.tenancy.row)

    def _eviction(self, tenancy: Tenancy) -> int:
        for number in reversed(self._of_row.get(tenancy.row, ())):
            step = self._steps[number]
            if step.tenancy.uid == tenancy.uid:
                if step.kind is _Kind.EVICT:
                    return number
                break
        raise ValueError(f"pod {tenancy.uid}: is not evicted from row {tenancy.row}")

    def _fits(self, tenancy: Tenancy) -> bool:
        return self._columns.fits(tenancy.row, tenancy.requests) and self._columns.zones.holds(
            tenancy.row, tenancy.charge
        )

    def _charge(self, tenancy: Tenancy) -> Tenancy:
        charge = self.states.charge(tenancy.row, tenancy.requests, tenancy.charge, releasing=tenancy.releasing)
        return Tenancy(
            tenancy.uid,
            tenancy.row,
            tenancy.requests,
            charge,
            releasing=tenancy.releasing,
            marks=tenancy.marks,
            volumes=tenancy.volumes,
            arrival=tenancy.arrival and replace(tenancy.arrival, charge=charge),
        )

    def _release(self, tenancy: Tenancy) -> None:
        zones = self._columns.zones
        self._columns.charge(tenancy.row, tenancy.requests, sign=-1, releasing=tenancy.releasing)
        zones.release(tenancy.row, tenancy.charge, releasing=tenancy.releasing)
        zones.assume(tenancy.row, tenancy.charge, sign=-1)
        self.states.changed(tenancy.row)
