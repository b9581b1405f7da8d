"""Whose turn it is: the first queue, and in it the first group."""

import heapq
from collections.abc import Iterable
from typing import Any

from kaicore.rules.engine.pending_group import PendingGroup
from kaicore.rules.engine.session import Session


class QueueOrder:
    """Groups by the order of queues and, within a queue, by their own.

    Charging a queue makes its place worse and nobody's better, so a place is looked up again when its turn seems to
    come. Where work is evicted, places get better too: then all of them are to be looked up again (`renew`).
    """

    def __init__(self, session: Session, turns: Iterable[PendingGroup]) -> None:
        self._session = session
        self._groups: dict[str, list[tuple[tuple[int, int, int, str, str, str], str]]] = {}
        self._queues: list[tuple[tuple[tuple[Any, ...], str], str]] = []
        for turn in turns:
            queue = session.accounts.queue_of(turn.workload.group)
            self._groups.setdefault(queue, []).append((session.turn_order(turn), turn.workload.group.key))
        for waiting in self._groups.values():
            heapq.heapify(waiting)
        self.renew()

    def renew(self) -> None:
        """Look up the places of all queues."""
        self._queues = [(self._place(queue), queue) for queue, waiting in self._groups.items() if waiting]
        heapq.heapify(self._queues)

    def next(self) -> PendingGroup | None:
        """Take out the group whose turn it is."""
        while self._queues:
            place, queue = self._queues[0]
            if len(self._queues) > 1:
                now = self._place(queue)
                if now > place:
                    heapq.heapreplace(self._queues, (now, queue))
                    continue
            _, key = heapq.heappop(self._groups[queue])
            if not self._groups[queue]:
                heapq.heappop(self._queues)
            elif len(self._queues) > 1:
                heapq.heapreplace(self._queues, (self._place(queue), queue))
            return self._session.turns[key]
        return None

    def again(self, turn: PendingGroup) -> None:
        """A group has started something and may go on."""
        queue = self._session.accounts.queue_of(turn.workload.group)
        waiting = self._groups[queue]
        heapq.heappush(waiting, (self._session.turn_order(turn), turn.workload.group.key))
        if len(waiting) > 1:
            return
        if len(self._queues) == 1:
            # As long as there was only one, its place was not kept.
            self.renew()
        else:
            heapq.heappush(self._queues, (self._place(queue), queue))

    def _place(self, queue: str) -> tuple[tuple[Any, ...], str]:
        return self._session.queue_turn(self._session.turns[self._groups[queue][0][1]])
