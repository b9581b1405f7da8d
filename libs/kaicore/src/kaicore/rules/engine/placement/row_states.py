"""Numbers for what nodes are like in a cycle, so that what is once found out of a node holds for all that are like it.

A large cluster has few kinds of nodes, and a cycle takes each through the same states: what a class of pods meets on a
node, and what becomes of the node when a pod is charged to it, depends on nothing but that state.
"""

import msgspec
import numpy as np
import numpy.typing as npt

from kaicore.rules.engine.placement.node_columns import NodeColumns, NodeMark
from kaicore.rules.model.pod import Amounts
from kaicore.rules.numa.zone_arrays import Ints
from kaicore.rules.numa.zone_charge import ZoneCharge

#: Up to this many rows are looked at one by one.
_FEW = 32
#: Where rows have more than one state for so many of them, they are said to differ.
_MANY = 4


def _factors(count: int) -> npt.NDArray[np.uint64]:
    """Return numbers that look random and are the same on every machine (SplitMix64)."""
    numbers = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))


class Before(msgspec.Struct, frozen=True, gc=False):
    """How a row was at one moment, for `RowStates.restore`."""

    mark: NodeMark
    state: int


class _Effect(msgspec.Struct, frozen=True, gc=False):
    """What charging comes to on a row of one state; it keeps its arguments alive, which are looked up by identity.

    Attributes:
        requests: an argument.
        requested: an argument.
        charge: as it came about.
        state: the row's state afterwards.
        after: the row afterwards.
    """

    requests: Amounts
    requested: ZoneCharge
    charge: ZoneCharge
    state: int
    after: NodeMark


class RowStates:
    """The rows of a cycle's own columns; a row that is changed by other code is announced by `changed`."""

    def __init__(self, columns: NodeColumns) -> None:
        self._columns = columns
        #: By row, -1 where it is not known; twice, for a list is read one by one faster than an array.
        self._states = [-1] * len(columns.present)
        self._states_array: Ints = np.full(len(columns.present), -1)
        #: Whether most rows differ.
        self._differ = False
        self._kind_numbers: dict[object, int] = {}
        self._state_numbers: dict[object, int] = {}
        #: By state.
        self._kinds_of_states: list[int] = []
        self._befores: list[Before | None] = []
        self._effects: dict[tuple[int, int, int, bool], _Effect] = {}

    def kind(self, row: int) -> int:
        """Return a row's number; equal where any pod fares the same on the zones."""
        return self._kinds_of_states[self.state(row)]

    def kinds(self, rows: Ints) -> Ints:
        """Return the numbers of rows as `kind` does."""
        if len(rows) <= _FEW:
            return np.array([self.kind(row) for row in rows.tolist()], np.int64)
        states = self.states(rows)
        kinds: Ints = np.array(self._kinds_of_states, np.int64)[states]
        return kinds

    def states(self, rows: Ints) -> Ints:
        """Return the numbers of rows as `state` does."""
        states: Ints = self._states_array[rows]
        unknown = states < 0
        if np.count_nonzero(unknown):
            self._look_at(rows[unknown])
            states = self._states_array[rows]
        return states

    def state(self, row: int) -> int:
        """Return a row's number; equal where also the whole nodes' amounts are the same, and what is being released."""
        state = self._states[row]
        if state < 0:
            columns = self._columns
            likeness = columns.likeness(row, published=True)
            kind = self._kind_numbers.setdefault(likeness, len(self._kind_numbers))
            figures = (columns.used, columns.allocatable, columns.releasing, columns.zones.releasing)
            key = kind, *(figure[row].tobytes() for figure in figures)
            state = self._state_numbers.setdefault(key, len(self._state_numbers))
            if state == len(self._befores):
                self._befores.append(None)
                self._kinds_of_states.append(kind)
            self._set(row, state)
        return state

    def before(self, row: int) -> Before:
        """Return how a row is, to restore it later."""
        state = self._states[row]
        if state < 0:
            return Before(self._columns.mark(row), state)
        return self._befores[state] or self._keep(row, state)

    def restore(self, row: int, before: Before) -> None:
        """Put a row back to where it was."""
        self._columns.restore(row, before.mark)
        self._set(row, before.state)

    def changed(self, row: int) -> None:
        """Forget the state of a row that was changed."""
        self._set(row, -1)

    def charge(self, row: int, requests: Amounts, charge: ZoneCharge, *, releasing: bool = False) -> ZoneCharge:
        """Charge a pod to a row.

        Args:
            row: the node.
            requests: what the pod takes of the node as a whole; never changed afterwards.
            charge: what it takes of its zones.
            releasing: it terminates already.

        Returns:
            the charge as it came about: memory is drawn from what is free now.
        """
        columns, state = self._columns, self._states[row]
        if state < 0:
            state = self.state(row)
        key = state, id(requests), id(charge), releasing
        effect = self._effects.get(key)
        if effect is None:
            columns.charge(row, requests, releasing=releasing)
            placed = columns.zones.charge(row, charge, releasing=releasing)
            columns.zones.assume(row, placed)
            self._set(row, -1)
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
        self._states[row] = self._states_array[row] = effect.state
        return effect.charge

    def states_of_many(self, rows: Ints) -> Ints | None:
        """Return the numbers of rows as `state` does; None where most of them differ, so that it is not worth it."""
        if self._differ:
            return None
        states: Ints = self._states_array[rows]
        unknown = states < 0
        if unknown.any():
            self._differ = not self._look_at(rows[unknown], unless_many=True)
            return None if self._differ else self._states_array[rows]
        return states

    @property
    def count(self) -> int:
        """How many states there are so far; their numbers are below that."""
        return len(self._befores)

    def _look_at(self, rows: Ints, *, unless_many: bool = False) -> bool:
        """Find out the numbers of rows; of those whose figures are equal, one is looked at.

        Args:
            rows: whose numbers are not known.
            unless_many: not if most of the rows differ.

        Returns:
            whether the numbers are known now.
        """
        if len(rows) <= _FEW:
            for row in rows.tolist():
                self.state(row)
            return True
        columns = self._columns
        whole = (columns.used[rows], columns.allocatable[rows], columns.releasing[rows])
        figures = np.ascontiguousarray(np.hstack([*whole, columns.zones.likenesses(rows)]), np.int64)
        # Sums that differ tell rows apart; those with equal sums are compared.
        sums = figures.view(np.uint64) @ _factors(figures.shape[1])
        _, first, which = np.unique(sums, return_index=True, return_inverse=True)
        if unless_many and len(first) * _MANY > len(rows):
            return False
        numbers = np.array([self.state(row) for row in rows[first].tolist()], np.int64)[which]
        equal = (figures == figures[first][which]).all(axis=1)
        self._states_array[rows[equal]] = numbers[equal]
        for row, state in zip(rows[equal].tolist(), numbers[equal].tolist(), strict=True):
            self._states[row] = state
        for row in rows[~equal].tolist():
            self.state(row)
        return True

    def _keep(self, row: int, state: int) -> Before:
        before = self._befores[state]
        if before is None:
            before = self._befores[state] = Before(self._columns.mark(row), state)
        return before

    def _set(self, row: int, state: int) -> None:
        self._states[row] = state
        self._states_array[row] = state
