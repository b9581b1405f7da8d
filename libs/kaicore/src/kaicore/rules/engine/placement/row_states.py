"""Numbers for what nodes are like in a cycle, so that what is once found out of a node holds for all that are like it.

A large cluster has few kinds of nodes, and a cycle takes each through the same states: what a class of pods meets on a
node, and what becomes of the node when a pod is charged to it, depends on nothing but that state.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kaicore.rules.engine.placement.node_columns import NodeColumns, NodeMark
from kaicore.rules.model.pod import Amounts
from kaicore.rules.numa.zone_arrays import Ints
from kaicore.rules.numa.zone_charge import ZoneCharge

#: Up to this many rows are looked at one by one.
_FEW = 32


def _factors(count: int) -> npt.NDArray[np.uint64]:
    """Return numbers that look random and are the same on every machine (SplitMix64)."""
    numbers = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Before:
    """How a row was at one moment, for `RowStates.restore`."""

    mark: NodeMark
    state: int


@dataclass(frozen=True, slots=True)
class _Effect:
    """What charging comes to on a row of one state; it keeps its arguments alive, which are looked up by identity."""

    requests: Amounts
    requested: ZoneCharge
    charge: ZoneCharge
    state: int


class RowStates:
    """The rows of a cycle's own columns; a row that is changed by other code is announced by `changed`."""

    def __init__(self, columns: NodeColumns) -> None:
        self._columns = columns
        #: By row; -1 where it is not known.
        self._kinds: Ints = np.full(len(columns.present), -1)
        self._states = [-1] * len(columns.present)
        self._kind_numbers: dict[object, int] = {}
        self._state_numbers: dict[object, int] = {}
        #: By state.
        self._kinds_of_states: list[int] = []
        self._marks: list[NodeMark | None] = []
        self._effects: dict[tuple[int, int, int, bool], _Effect] = {}

    def kind(self, row: int) -> int:
        """Return a row's number; equal where any pod fares the same on the zones."""
        kind = int(self._kinds[row])
        if kind < 0:
            likeness = self._columns.likeness(row, published=True)
            kind = self._kinds[row] = self._kind_numbers.setdefault(likeness, len(self._kind_numbers))
        return kind

    def kinds(self, rows: Ints) -> Ints:
        """Return the numbers of rows as `kind` does."""
        kinds = self._kinds[rows]
        if (kinds < 0).any():
            self._look_at(rows[kinds < 0])
            kinds = self._kinds[rows]
        return kinds

    def states(self, rows: Ints) -> Ints:
        """Return the numbers of rows as `state` does."""
        states = np.array([self._states[row] for row in rows.tolist()], np.int64)
        if (states < 0).any():
            self._look_at(rows[states < 0])
            states = np.array([self._states[row] for row in rows.tolist()], np.int64)
        return states

    def state(self, row: int) -> int:
        """Return a row's number; equal where also the whole nodes' amounts are the same, and what is being released."""
        state = self._states[row]
        if state < 0:
            columns, kind = self._columns, self.kind(row)
            figures = (columns.used, columns.allocatable, columns.releasing, columns.zones.releasing)
            key = kind, *(figure[row].tobytes() for figure in figures)
            state = self._states[row] = self._state_numbers.setdefault(key, len(self._state_numbers))
            if state == len(self._marks):
                self._marks.append(None)
                self._kinds_of_states.append(kind)
        return state

    def before(self, row: int) -> Before:
        """Return how a row is, to restore it later."""
        state = self._states[row]
        if state < 0:
            return Before(self._columns.mark(row), state)
        return Before(self._mark(row, state), state)

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
        key = self.state(row), id(requests), id(charge), releasing
        effect = self._effects.get(key)
        if effect is None:
            columns = self._columns
            columns.charge(row, requests, releasing=releasing)
            placed = columns.zones.charge(row, charge, releasing=releasing)
            columns.zones.assume(row, placed)
            self._set(row, -1)
            state = self.state(row)
            self._mark(row, state)
            effect = self._effects[key] = _Effect(requests, charge, placed, state)
            return placed
        mark = self._marks[effect.state]
        assert mark is not None, "kept with the effect"
        self._columns.restore(row, mark)
        self._set(row, effect.state)
        return effect.charge

    def _look_at(self, rows: Ints) -> None:
        """Find out the numbers of rows; of those whose figures are equal, one is looked at."""
        if len(rows) <= _FEW:
            for row in rows.tolist():
                self.state(row)
            return
        columns = self._columns
        whole = (columns.used[rows], columns.allocatable[rows], columns.releasing[rows])
        figures = np.ascontiguousarray(np.hstack([*whole, columns.zones.likenesses(rows)]), np.int64)
        # Sums that differ tell rows apart; those with equal sums are compared.
        sums = figures.view(np.uint64) @ _factors(figures.shape[1])
        _, first, which = np.unique(sums, return_index=True, return_inverse=True)
        numbers = np.array([self.state(row) for row in rows[first].tolist()], np.int64)[which]
        equal = (figures == figures[first][which]).all(axis=1)
        for row, state in zip(rows[equal].tolist(), numbers[equal].tolist(), strict=True):
            self._set(row, state)
        for row in rows[~equal].tolist():
            self.state(row)

    def _mark(self, row: int, state: int) -> NodeMark:
        mark = self._marks[state]
        if mark is None:
            mark = self._marks[state] = self._columns.mark(row)
        return mark

    def _set(self, row: int, state: int) -> None:
        self._states[row] = state
        self._kinds[row] = -1 if state < 0 else self._kinds_of_states[state]
