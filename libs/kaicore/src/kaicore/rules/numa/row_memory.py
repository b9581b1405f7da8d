"""Memory of cycles about rows, kept beside the columns. All copies of one state's columns share it.

Every entry has all that it depends on in its key, so no change makes an entry outdated. A copy of a state for trials
(`kaicore.rules.state.fork`) begins with an empty memory.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kaicore.rules.numa.kubelet.zones import ZoneCharge

_Ints = npt.NDArray[np.int64]


class StateNumbers:
    """Numbers for what rows are like (`kaicore.rules.engine.placement.row_states`), and what follows from them.

    Attributes:
        resources: the columns' resources; the numbers hold for these, in this order.
        kinds, states: numbers by what a row is like.
        kinds_of_states: the kind of each state.
        befores: how a row of each state is, to restore it; None where nobody asked yet.
        scores: scores of states, by what was asked for.
        figures: all rows' figures as the last cycle found them, in parts; empty before the first cycle.
        of_rows: their states then, -1 where they were not looked at.
    """

    def __init__(self, resources: tuple[str, ...]) -> None:
        self.resources = resources
        self.kinds: dict[object, int] = {}
        self.states: dict[object, int] = {}
        self.kinds_of_states: list[int] = []
        self.befores: list[Any] = []
        self.scores: dict[object, _Ints] = {}
        self.figures: tuple[_Ints, ...] = ()
        self.of_rows: _Ints = np.zeros(0, np.int64)


class HeldOfRow(NamedTuple):
    """A pod's holdings on its node.

    Attributes:
        charge: of zones; this very object.
        releasing: whether it counts as being released.
        number: equal for pods that hold the same.
        zones: of which it holds anything.
    """

    charge: ZoneCharge
    releasing: bool
    number: int
    zones: frozenset[int]


class RelievedAnswers:
    """Answers of searches for victims (`kaicore.rules.engine.victims.node_victims`).

    Attributes:
        by_asking: answers by what was asked for, then by what a row is like.
        numbers: of what pods hold.
        by_uid: what pods held when they were last looked at, by uid.
        issued: how many numbers there have been; none is given again.
        count: how many answers there are.
    """

    def __init__(self) -> None:
        self.by_asking: dict[object, dict[object, dict[tuple[int, ...], bool]]] = {}
        self.numbers: dict[object, int] = {}
        self.by_uid: dict[str, HeldOfRow] = {}
        self.issued = self.count = 0

    def number(self, holding: object) -> int:
        """Return the number of what a pod holds."""
        number = self.numbers.get(holding)
        if number is None:
            number = self.numbers[holding] = self.issued = self.issued + 1
        return number

    def clear(self) -> None:
        """Forget all of it."""
        self.by_asking, self.numbers, self.by_uid, self.count = {}, {}, {}, 0


class RowMemory:
    """All that is remembered.

    Attributes:
        relieved: see `RelievedAnswers`.
        states: see `StateNumbers`; None before the first cycle.
    """

    def __init__(self) -> None:
        self.relieved = RelievedAnswers()
        self.states: StateNumbers | None = None
