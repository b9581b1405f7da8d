"""Parts of a class's ranks that depend on more of a row than its state: devices of claims, and the classes it is for.

They are worked out for rows that are alike at once, and added to the ranks of states (`FeasibleNodes`).
"""

import numpy as np

from kaicore.rules.engine.config import EngineConfig, PlacementStrategy
from kaicore.rules.engine.placement.device_counts import DeviceCounts
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.node_score import FULL, LEAVES, MOST_IDLE, MOST_TAKEN, TAKEN
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.placement.room_for_work import RoomForWork
from kaicore.rules.model.device import DeviceRequest
from kaicore.rules.model.quantity import is_native
from kaicore.rules.numa.columns import Ints

#: So many kinds are found without sorting.
_MOST_COUNTED_KINDS = 1 << 20


class RowParts:
    """The parts of one class in one cycle.

    Attributes:
        by_claims: whether the devices of claims in use order rows, for a class that asks for no
            others.
    """

    def __init__(
        self,
        pod_class: PodClass,
        columns: NodeColumns,
        config: EngineConfig,
        *,
        room: RoomForWork | None,
        counts: DeviceCounts | None,
    ) -> None:
        """Args: see `FeasibleNodes`."""
        self._columns, self._counts = columns, counts
        wanted = [want for want in pod_class.devices.wanted if not want.extended]
        self._claimed = sum(_devices_of(request) for want in wanted for request in want.requests)
        requested = any(not is_native(name) for name in pod_class.requests)
        self._asks_none = not (requested or pod_class.devices.wanted)
        self.by_claims = counts is not None and bool(self._claimed) and not requested
        #: Where pods are spread they are not kept together for the sake of others.
        spread = config.strategy(devices=not self._asks_none) is PlacementStrategy.SPREAD
        self._room = None if self._asks_none or spread else room
        self._full = -FULL if spread else FULL
        #: Columns of the kubelets' devices.
        self._of_kubelets: Ints = np.array(columns.device_columns(), np.int64)
        self._need: Ints = columns.vector(pod_class.requests)
        if room is not None:
            self._need = self._need[room.asked]
        #: The room that a pod takes, by the row's state, pattern and free devices of claims.
        self._taken: dict[tuple[int, int, int], int] = {}

    def __bool__(self) -> bool:
        """True if there are any such parts."""
        return self._room is not None or (self._counts is not None and (self._asks_none or self.by_claims))

    def of_row(self, row: int, state: int) -> int:
        """Return what is added to the rank of a row in a state."""
        if not self:
            return 0
        if self._room is not None and self._counts is None:
            return -TAKEN * min(self._taken_on_row(self._room, row, state), MOST_TAKEN)
        return int(self.of_rows(np.array([row], np.int64), np.array([state], np.int64))[0])

    def of_rows(self, rows: Ints, states: Ints) -> Ints:
        """Return what is added to the ranks of rows in these states."""
        added = np.zeros(len(rows), np.int64)
        if not len(rows):
            return added
        counts = self._counts
        if counts is not None:
            counts.catch_up()
            total, free = counts.total[rows], counts.free[rows]
            if self._asks_none:
                others = self._columns.allocatable[rows][:, self._of_kubelets].any(axis=1)
                added -= LEAVES * ((total > 0) & ~others) + TAKEN * np.minimum(free, MOST_IDLE)
            elif self.by_claims:
                used = np.minimum(total - free + self._claimed, total)
                added += self._full * (used * 1000 // np.maximum(total, 1))
        if self._room is not None:
            added -= TAKEN * np.minimum(self._taken_on(self._room, rows, states), MOST_TAKEN)
        return added

    def _taken_on_row(self, room: RoomForWork, row: int, state: int) -> int:
        """Return the room taken on one row, where no node has devices of claims; `_taken_on` for most placements."""
        key = state, room.pattern_of[row], 0
        taken = self._taken.get(key)
        if taken is None:
            taken = self._taken[key] = int(self._work_out(room, np.array([row], np.int64), np.zeros(1, np.int64))[0])
        return taken

    def _taken_on(self, room: RoomForWork, rows: Ints, states: Ints) -> Ints:
        free = np.zeros(len(rows), np.int64) if self._counts is None else self._counts.free[rows]
        patterns, known = room.patterns[rows], self._taken
        first, which = _alike((states * (int(patterns.max()) + 1) + patterns) * (int(free.max()) + 1) + free)
        alike = list(zip(states[first].tolist(), patterns[first].tolist(), free[first].tolist(), strict=True))
        new = np.array([place for place, key in enumerate(alike) if key not in known], np.int64)
        if len(new):
            asked = first[new]
            taken = self._work_out(room, rows[asked], free[asked])
            known |= zip((alike[place] for place in new.tolist()), taken.tolist(), strict=True)
        found: Ints = np.array([known[key] for key in alike], np.int64)[which]
        return found

    def _work_out(self, room: RoomForWork, rows: Ints, free: Ints) -> Ints:
        return room.taken(
            room.free(self._columns, rows), free, room.patterns[rows], need=self._need, claimed=self._claimed
        )


def _alike(kinds: Ints) -> tuple[Ints, Ints]:
    """Return the first place of each kind, by kind, and by place the number of its kind; kinds are not negative."""
    size = int(kinds.max()) + 1
    if size > _MOST_COUNTED_KINDS:
        _, first, which = np.unique(kinds, return_index=True, return_inverse=True)
        return first, which
    places = np.full(size, -1, np.int64)
    places[kinds[::-1]] = np.arange(len(kinds) - 1, -1, -1)
    there = np.flatnonzero(places >= 0)
    numbers = np.empty(size, np.int64)
    numbers[there] = np.arange(len(there))
    return places[there], numbers[kinds]


def _devices_of(request: DeviceRequest) -> int:
    """Return how many devices a request takes; of alternatives, the first."""
    if request.alternatives:
        return _devices_of(request.alternatives[0])
    return 0 if request.admin else request.count
