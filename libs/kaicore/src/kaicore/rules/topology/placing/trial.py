"""Pods put on nodes on trial, in order, so that they can be taken off again."""

import numpy as np

from kaicore.rules.topology.placing.capacity import Scope
from kaicore.rules.topology.placing.request import Room
from kaicore.rules.topology.tree import Numbers, OrderedTree, Truths

#: So many times pods of several classes are put on a node to find out which mixtures it takes, all in all.
MIXTURES = 4096


class Trial:
    """The pods that a search has put so far.

    Attributes:
        pods: in the order in which they were put.
        spots: where each of them is.
        mixtures: how many more times a mixture may be tried on a node.
    """

    def __init__(self, tree: OrderedTree, room: Room) -> None:
        self._tree, self._room = tree, room
        self.mixtures = MIXTURES
        self.pods: list[int] = []
        self.spots: list[int] = []

    def counts(self, pod_class: int, scope: Scope, closed: Truths | None) -> Numbers:
        """Return how many pods of a class each spot of a scope takes now; closed ones take none."""
        counts = self._room.counts(pod_class)[self._tree.rows[scope.low : scope.high]]
        if closed is not None:
            counts[closed[scope.low : scope.high]] = 0
        return counts

    def preferences(self, pod_class: int, scope: Scope) -> Numbers | None:
        """Return how much a class prefers each spot of a scope; None where all are alike."""
        preferences = self._room.preferences(pod_class)
        return None if preferences is None else preferences[self._tree.rows[scope.low : scope.high]]

    def remaining(self, scope: Scope) -> Numbers | None:
        """Return what each spot of a scope has left, by resource; None where that is not known."""
        remaining = self._room.remaining()
        return None if remaining is None else remaining[self._tree.rows[scope.low : scope.high]]

    def takes(self, pod_class: int) -> Numbers:
        """Return what a pod of a class takes, by resource."""
        return self._room.takes(pod_class)

    def put(self, pods: tuple[int, ...], taken: Numbers, scope: Scope) -> tuple[int, int] | None:
        """Put pods in order onto a scope's spots in order, so many each.

        Returns:
            None if all are there; otherwise which spot of the scope took too few, and how many it took.
        """
        there = np.flatnonzero(taken)
        rows, counts = self._tree.rows[scope.low + there].tolist(), taken[there].tolist()
        begin = 0
        for at, row, count in zip(there.tolist(), rows, counts, strict=True):
            end = begin + count
            put = self._room.put(pods[begin:end], row)
            if put < count:
                return at, put
            begin = end
        self.pods.extend(pods)
        self.spots.extend(np.repeat(scope.low + there, counts).tolist())
        return None

    def put_some(self, pods: tuple[int, ...], spot: int) -> int:
        """Put pods on a spot until one finds no room; returns how many are there now."""
        put = self._room.put(pods, int(self._tree.rows[spot])) if pods else 0
        self.pods.extend(pods[:put])
        self.spots.extend([spot] * put)
        return put

    def mark(self) -> tuple[int, int]:
        """Return where to go back to later."""
        return len(self.pods), self._room.savepoint()

    def undo(self, mark: tuple[int, int]) -> None:
        """Take off all that was put since a mark."""
        count, savepoint = mark
        self._room.rollback(savepoint)
        del self.pods[count:]
        del self.spots[count:]

    def placed_since(self, begin: int, end: int | None = None) -> Numbers | None:
        """Of each spot, how many of the pods are there that were put as number `begin` and later; None for none."""
        there = self.spots[begin:end]
        return np.bincount(there, minlength=len(self._tree.rows)) if there else None
