"""Numbers for the states of nodes in a cycle, so that a result about one node holds for all equal nodes.

A large cluster has few kinds of nodes, and a cycle takes each through the same states. The fit of a class of pods on a
node depends on nothing but that state. The same holds for the node's next state after a pod is charged to it.
"""

import msgspec
import numpy as np
import numpy.typing as npt

from kaicore.rules.engine.placement.node_columns import NodeColumns, NodeMark
from kaicore.rules.model.pod import Amounts
from kaicore.rules.numa.columns import Ints, StateNumbers
from kaicore.rules.numa.kubelet.zones import ZoneCharge

#: Up to this many rows are looked at one by one.
_FEW = 32
#: Of so many states, and of so many times the rows, numbers begin anew with the next cycle.
_MOST, _MOST_PER_ROW = 20_000, 4


def _factors(count: int) -> npt.NDArray[np.uint64]:
    """Return numbers that look random and are the same on every machine (SplitMix64)."""
    numbers = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))


class Before(msgspec.Struct, frozen=True, gc=False):
    """A row's state at one moment, for `RowStates.restore`."""

    mark: NodeMark
    state: int


class _Effect(msgspec.Struct, frozen=True, gc=False):
    """The result of a charge on a row of one state; it keeps its arguments alive, which are looked up by identity.

    Attributes:
        state: the row's state afterwards.
        after: the row afterwards.
    """

    requests: Amounts
    requested: ZoneCharge
    charge: ZoneCharge
    state: int
    after: NodeMark


class _Shift(msgspec.Struct, frozen=True, gc=False):
    """The figures that a charge adds to any row of which memory serves the same; it keeps its arguments, too."""

    requests: Amounts
    requested: ZoneCharge
    charge: ZoneCharge
    used: Ints
    zones: Ints


class RowStates:
    """The rows of a cycle's own columns; a row that is changed by other code is announced by `changed`.

    The numbers go on from cycle to cycle (`StateNumbers`): rows with the figures of the cycle before are
    not looked at again.

    Attributes:
        said: what the built-in rules said of rows, by what was asked for, then by what they looked at.
        of_rows: by row, its number, -1 where it is not known; not to be changed by others.
    """

    def __init__(self, columns: NodeColumns, like: "RowStates | None" = None) -> None:
        """Args:
        like: of columns that these are a copy of, as they are now; None where a cycle begins.
        """
        self._columns = columns
        self._effects: dict[tuple[int, int, int, bool], _Effect] = {}
        self._shifts: dict[tuple[object, ...], _Shift] = {}
        self.said: dict[object, dict[object, int]] = {}
        #: By row, a number of what it is like without its pods; None where nobody asked yet.
        self._empty_kinds: Ints | None = None
        #: The rows that `alike_when_empty` was asked about last, and its answer: classes mostly ask about the same.
        self._empty_asked: tuple[bytes, tuple[Ints, Ints]] | None = None
        #: Where the states of rows are kept for the next cycle, as long as this one has not changed a row.
        self._kept: Ints | None = None
        self._as_found = bytearray(0 if like is not None else b"\1" * len(columns.present))
        self.numbers: StateNumbers
        if like is None:
            self.numbers, states = self._goes_on()
        else:
            self.numbers, states = like.numbers, like.of_all_rows()
        #: By row, -1 where it is not known; twice, for a list is read one by one faster than an array.
        self._states_array: Ints = states
        self.of_rows: list[int] = states.tolist()

    def _goes_on(self) -> tuple[StateNumbers, Ints]:
        """Return the numbers of the last cycle, and the states of the rows that are as it found them."""
        columns, memory = self._columns, self._columns.zones.remembered
        numbers, resources = memory.states, tuple(columns.resources)
        most = max(_MOST, _MOST_PER_ROW * len(columns.present))
        if numbers is None or numbers.resources != resources or len(numbers.befores) > most:
            numbers = memory.states = StateNumbers(resources)
        figures = self._figures(slice(0, len(columns.present)))
        kept = numbers.figures
        if [part.shape for part in figures] == [part.shape for part in kept]:
            states = numbers.of_rows.copy()
            # Only what differs is copied: these are megabytes, and a cycle changes a few hundred rows.
            for part, before in zip(figures, kept, strict=True):
                other = np.flatnonzero((part != before).any(axis=1))
                before[other], states[other] = part[other], -1
        else:
            states = np.full(len(columns.present), -1)
            numbers.figures = tuple(part.copy() for part in figures)
        self._kept = numbers.of_rows = states
        return numbers, states.copy()

    def _figures(self, rows: Ints | slice) -> tuple[Ints, ...]:
        """Return all that the states of rows depend on; each of shape (rows, figures)."""
        columns = self._columns
        return columns.used[rows], columns.allocatable[rows], columns.releasing[rows], *columns.zones.likenesses(rows)

    def of_all_rows(self) -> Ints:
        """Return the state of each row as it is now, -1 where it is not known; a copy."""
        return self._states_array.copy()

    def kind(self, row: int) -> int:
        """Return a row's number; equal where any pod fares the same on the zones."""
        return self.numbers.kinds_of_states[self.state(row)]

    def kinds(self, rows: Ints) -> Ints:
        """Return the numbers of rows as `kind` does."""
        if len(rows) <= _FEW:
            return np.array([self.kind(row) for row in rows.tolist()], np.int64)
        states = self.states(rows)
        kinds: Ints = np.array(self.numbers.kinds_of_states, np.int64)[states]
        return kinds

    def alike(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return one place of each kind of rows, and for each row the number of its kind."""
        if len(rows) == 1:
            # An explanation asks node by node.
            return np.zeros(1, np.int64), np.zeros(1, np.int64)
        _, first, which = np.unique(self.kinds(rows), return_index=True, return_inverse=True)
        return first, which

    def states(self, rows: Ints) -> Ints:
        """Return the numbers of rows as `state` does."""
        states: Ints = self._states_array[rows]
        unknown = states < 0
        if np.count_nonzero(unknown):
            self._look_at(rows[unknown])
            states = self._states_array[rows]
        return states

    def first_states(self, count: int) -> Ints:
        """Return the numbers of the first rows as `state` does; not a copy."""
        states: Ints = self._states_array[:count]
        unknown = np.flatnonzero(states < 0)
        if len(unknown):
            self._look_at(unknown)
        return states

    def state(self, row: int) -> int:
        """Return a row's number; equal where also the whole nodes' amounts are the same, and what is being released."""
        state = self.of_rows[row]
        if state < 0:
            columns = self._columns
            likeness = columns.likeness(row, published=True)
            numbers = self.numbers
            kind = numbers.kinds.setdefault(likeness, len(numbers.kinds))
            figures = (columns.used, columns.allocatable, columns.releasing, columns.zones.releasing)
            key: tuple[object, ...] = (kind, *(figure[row].tobytes() for figure in figures))
            if len(columns.resources) != len(numbers.resources):
                key = *key, *columns.resources
            state = numbers.states.setdefault(key, len(numbers.states))
            if state == len(numbers.befores):
                numbers.befores.append(None)
                numbers.kinds_of_states.append(kind)
            self._found(row, state)
        return state

    def before(self, row: int) -> Before:
        """Return how a row is, to restore it later."""
        state = self.of_rows[row]
        if state < 0:
            return Before(self._columns.mark(row), state)
        return self._keep(row, state)

    def known(self, row: int) -> Before:
        """Return how a row is, as `before` does, with its state."""
        return self._keep(row, self.state(row))

    def restore(self, row: int, before: Before) -> None:
        """Put a row back to where it was."""
        self._columns.restore(row, before.mark)
        self._change(row, before.state)

    def changed(self, row: int) -> None:
        """Forget the state of a row that was changed."""
        self._change(row, -1)

    def charge(self, row: int, requests: Amounts, charge: ZoneCharge, *, releasing: bool = False) -> ZoneCharge:
        """Charge a pod to a row.

        Args:
            requests: what the pod takes of the node as a whole; never changed afterwards.

        Returns:
            the charge as it came about: memory is drawn from what is free now.
        """
        columns, state = self._columns, self.of_rows[row]
        if state < 0:
            state = self.state(row)
        key = state, id(requests), id(charge), releasing
        effect = self._effects.get(key)
        if effect is None:
            placed = self._shift(row, requests, charge, releasing=releasing)
            self._change(row, -1)
            state = self.state(row)
            self._effects[key] = _Effect(requests, charge, placed, state, self._keep(row, state).mark)
            return placed
        after = effect.after
        if len(after.used) == columns.used.shape[1]:
            columns.used[row] = after.used
            if releasing:
                columns.releasing[row] = after.releasing
            columns.zones.charged[row] = after.zones.figures
        else:
            columns.restore(row, after)
        self._change(row, effect.state)
        return effect.charge

    def _shift(self, row: int, requests: Amounts, charge: ZoneCharge, *, releasing: bool) -> ZoneCharge:
        """Charge a pod to a row of a new state.

        Memory of one zone is drawn from it whatever is free there, so the figures change as on another row.
        """
        columns, zones = self._columns, self._columns.zones
        serving = int(zones.kubelet[row]), zones.cells[row].tobytes(), len(columns.resources), zones.charged.shape[1]
        key = id(requests), id(charge), releasing, *serving
        shift = self._shifts.get(key)
        if shift is not None:
            columns.used[row] += shift.used
            if releasing:
                columns.releasing[row] += shift.used
            zones.charged[row] += shift.zones
            return shift.charge
        used, charged = columns.used[row].copy(), zones.charged[row].copy()
        columns.charge(row, requests, releasing=releasing)
        placed = zones.charge(row, charge, releasing=releasing)
        zones.assume(row, placed)
        if not any(block.mask & (block.mask - 1) for block in charge.blocks):
            added = columns.used[row] - used, zones.charged[row] - charged
            self._shifts[key] = _Shift(requests, charge, placed, *added)
        return placed

    def alike_when_empty(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return a place for each kind of rows that there would be without their pods, and for each row its kind."""
        if self._empty_kinds is None:
            columns, numbers = self._columns, dict[object, int]()
            named = len(columns.names)
            shapes = zip(columns.zones.shape[:named].tolist(), columns.zones.kubelet[:named].tolist(), strict=True)
            keys = [(*shape, columns.shared_devices(row)) for row, shape in enumerate(shapes)]
            self._empty_kinds = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
        asked = rows.tobytes()
        if self._empty_asked is None or self._empty_asked[0] != asked:
            _, first, which = np.unique(self._empty_kinds[rows], return_index=True, return_inverse=True)
            self._empty_asked = asked, (first, which)
        return self._empty_asked[1]

    @property
    def count(self) -> int:
        """The number of states so far; their numbers are below that."""
        return len(self.numbers.befores)

    def _look_at(self, rows: Ints) -> None:
        """Find out the numbers of rows; of rows with equal figures, one is looked at."""
        if len(rows) <= _FEW:
            for row in rows.tolist():
                self.state(row)
            return
        figures = np.concatenate(self._figures(rows), axis=1)
        # Sums that differ tell rows apart; those with equal sums are compared.
        sums = figures.view(np.uint64) @ _factors(figures.shape[1])
        _, first, which = np.unique(sums, return_index=True, return_inverse=True)
        numbers = np.array([self.state(row) for row in rows[first].tolist()], np.int64)[which]
        equal = (figures == figures[first][which]).all(axis=1)
        for row, state in zip(rows[equal].tolist(), numbers[equal].tolist(), strict=True):
            self._found(row, state)
        for row in rows[~equal].tolist():
            self.state(row)

    def _keep(self, row: int, state: int) -> Before:
        before: Before | None = self.numbers.befores[state]
        if before is None:
            before = self.numbers.befores[state] = Before(self._columns.mark(row), state)
        return before

    def _found(self, row: int, state: int) -> None:
        self.of_rows[row] = self._states_array[row] = state
        if self._kept is not None and self._as_found[row]:
            self._kept[row] = state

    def _change(self, row: int, state: int) -> None:
        """Note the state of a row that was changed, -1 if it is not known."""
        self.of_rows[row] = self._states_array[row] = state
        if self._kept is not None:
            self._as_found[row] = 0
