"""A room of nodes in memory for the placement on topologies: free amounts as one array."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from kaicore.rules.model.node import TopologyLevel
from kaicore.rules.topology.placing.request import PodsByRow
from kaicore.rules.topology.tree import TopologyColumns
from numpy.typing import NDArray


class MemoryRoom:
    """Nodes with free amounts of resources, and pods by class with what they request.

    `shy` rows tell more than they take: counts say what is free, but no pod finds room there. `preferences` of a class
    are by row.
    """

    def __init__(
        self,
        free: NDArray[np.int64],
        requests: NDArray[np.int64],
        classes: Sequence[int],
        shy: frozenset[int] = frozenset(),
        preferences: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        self._free = (free[:, None] if free.ndim == 1 else free).astype(np.int64)
        self._now: list[list[int]] = self._free.tolist()
        self._changed: set[int] = set()
        self._counts: dict[int, PodsByRow] = {}
        self._requests = requests[:, None] if requests.ndim == 1 else requests
        self._asked = [[(at, asked) for at, asked in enumerate(one) if asked] for one in self._requests.tolist()]
        self.classes = tuple(classes)
        self._shy = shy
        self._preferences = {one: np.array(rows, np.int64) for one, rows in (preferences or {}).items()}
        self._trail: list[tuple[int, int, int]] = []

    def takes(self, pod_class: int) -> NDArray[np.int64]:
        requests: NDArray[np.int64] = self._requests[pod_class]
        return requests

    def remaining(self) -> NDArray[np.int64]:
        return self.free

    @property
    def free(self) -> NDArray[np.int64]:
        for row in self._changed:
            self._free[row] = self._now[row]
        self._changed.clear()
        return self._free

    def counts(self, pod_class: int) -> PodsByRow:
        if pod_class not in self._counts:
            asked = self._requests[pod_class]
            used = asked > 0
            self._counts[pod_class] = (self.free[:, used] // asked[used]).min(axis=1)
        return self._counts[pod_class]

    def preferences(self, pod_class: int) -> PodsByRow | None:
        return self._preferences.get(pod_class)

    def put(self, pods: Sequence[int], row: int) -> int:
        if row in self._shy:
            return 0
        classes = self.classes
        pod_class = classes[pods[0]]
        if len(pods) == 1 or all(classes[pod] == pod_class for pod in pods):
            return self._put_alike(pod_class, len(pods), row)
        for done, pod in enumerate(pods):
            if not self._put_alike(classes[pod], 1, row):
                return done
        return len(pods)

    def savepoint(self) -> int:
        return len(self._trail)

    def rollback(self, savepoint: int) -> None:
        while len(self._trail) > savepoint:
            pod_class, count, row = self._trail.pop()
            self._take(pod_class, -count, row)

    def _put_alike(self, pod_class: int, count: int, row: int) -> int:
        now = self._now[row]
        for at, asked in self._asked[pod_class]:
            if now[at] < count * asked:
                count = now[at] // asked
        if count > 0:
            self._take(pod_class, count, row)
            self._trail.append((pod_class, count, row))
        return count

    def _take(self, pod_class: int, count: int, row: int) -> None:
        now = self._now[row]
        for at, asked in self._asked[pod_class]:
            now[at] -= count * asked
        self._changed.add(row)
        self._counts.clear()


def room_of(free: Sequence[int], pods: int, request: int = 1, **more: Any) -> MemoryRoom:
    """Nodes with one resource, and pods of one class."""
    return MemoryRoom(np.array(free, np.int64), np.array([request]), [0] * pods, **more)


def tree_of(
    paths: Sequence[Sequence[str]], names: Sequence[str] | None = None, least_levels: int = 0
) -> TopologyColumns:
    """A tree from the path of each row's node; a path may end early. Names are n0, n1, … unless given."""
    depth = max(least_levels, *(len(path) for path in paths), 0)
    levels = tuple(TopologyLevel(f"l{number}", (f"label-{number}",)) for number in range(depth))
    named = names or [f"n{number:05}" for number in range(len(paths))]
    domains, of_rows, parents = [], [], []
    above: dict[tuple[str, ...], int] = {}
    for level in range(depth):
        here = sorted({tuple(path[: level + 1]) for path in paths if len(path) > level})
        numbers = {path: number for number, path in enumerate(here)}
        domains.append(tuple(here))
        of_rows.append(np.array([numbers.get(tuple(path[: level + 1]), -1) for path in paths], np.int32))
        parents.append(np.array([above.get(path[:-1], -1) for path in here], np.int32))
        above = numbers
    order = np.array(sorted(range(len(paths)), key=lambda row: named[row]), np.int64)
    return TopologyColumns(levels, tuple(domains), tuple(of_rows), tuple(parents), order)
