"""The dynamic order of groups that the actions share: the first queue, and within it the first group."""

import heapq
from collections.abc import Iterable
from typing import Any

from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.work.pending_group import PendingGroup


class GroupOrder:
    """Groups by the order of queues and, within a queue, by their own.

    Charging a queue moves it back in the order and no other queue forward, so a queue's place is looked up again when
    it comes first. Evictions also move queues forward: then all places have to be looked up again (`renew`).
    """

    def __init__(self, session: Session, pending_groups: Iterable[PendingGroup]) -> None:
        self._session = session
        #: By queue, its groups as a heap of order key and group key.
        self._groups: dict[str, list[tuple[tuple[int, int, int, str, str, str], str]]] = {}
        #: The queues that have groups, as a heap of order key and name.
        self._queues: list[tuple[tuple[tuple[Any, ...], str], str]] = []
        for pending_group in pending_groups:
            queue = session.accounts.queue_of(pending_group.group)
            self._groups.setdefault(queue, []).append((pending_group.order_key, pending_group.key))
        #: The first groups of all queues by their own order, with their queues; see `first_above`.
        self._heads: list[tuple[tuple[int, int, int, str, str, str], str]] = []
        for queue, groups in self._groups.items():
            heapq.heapify(groups)
            self._push_head(queue)
        self.renew()

    def renew(self) -> None:
        """Look up the places of all queues again."""
        self._queues = [(self._queue_key(queue), queue) for queue, groups in self._groups.items() if groups]
        heapq.heapify(self._queues)

    def next(self) -> PendingGroup | None:
        """Take out the first group of the first queue; None if no group is left."""
        while self._queues:
            recorded, queue = self._queues[0]
            if len(self._queues) > 1:
                now = self._queue_key(queue)
                if now > recorded:
                    heapq.heapreplace(self._queues, (now, queue))
                    continue
            _, key = heapq.heappop(self._groups[queue])
            self._push_head(queue)
            if not self._groups[queue]:
                heapq.heappop(self._queues)
            elif len(self._queues) > 1:
                heapq.heapreplace(self._queues, (self._queue_key(queue), queue))
            if self._session.observer is not None:
                self._session.observer.takes_up(key)
            return self._session.pending_groups[key]
        return None

    def first_above(self, priority: int) -> PendingGroup | None:
        """Return the first group of some queue that is of higher priority than this and was not passed over."""
        while self._heads and -self._heads[0][0][0] > priority:
            order_key, queue = self._heads[0]
            groups = self._groups[queue]
            if groups and groups[0][0] == order_key:
                return self._session.pending_groups[groups[0][1]]
            heapq.heappop(self._heads)
        return None

    def pass_over(self) -> None:
        """Have `first_above` not return the group again that it has returned; in the order it stays where it is."""
        heapq.heappop(self._heads)

    def remove(self, pending_group: PendingGroup) -> None:
        """Take out the first group of a queue."""
        queue = self._session.accounts.queue_of(pending_group.group)
        heapq.heappop(self._groups[queue])
        self._push_head(queue)
        self.renew()

    def _push_head(self, queue: str) -> None:
        if len(self._groups) > 1 and self._groups[queue]:
            heapq.heappush(self._heads, (self._groups[queue][0][0], queue))

    def is_last(self, pending_group: PendingGroup) -> bool:
        """Tell whether a group that has started something need not be put back: it has no pods left that may go on.

        Only where there is one queue: a group moves its queue in the order of queues as long as it is there.
        """
        over = not pending_group.held_back and not any(pending_group.waiting.values())
        return over and len(self._groups) == 1

    def put_back(self, pending_group: PendingGroup) -> None:
        """Put a group back that has started something and may go on."""
        queue = self._session.accounts.queue_of(pending_group.group)
        groups = self._groups[queue]
        heapq.heappush(groups, (pending_group.order_key, pending_group.key))
        if groups[0][1] == pending_group.key:
            self._push_head(queue)
        if len(groups) > 1:
            return
        if len(self._queues) == 1:
            # As long as there was only one queue, its place was not kept up to date.
            self.renew()
        else:
            heapq.heappush(self._queues, (self._queue_key(queue), queue))

    def _queue_key(self, queue: str) -> tuple[tuple[Any, ...], str]:
        """Return a queue's place among queues, by what its first group requests next.

        What an earlier cycle reserved for the group is on the queue's account already.
        """
        session = self._session
        pending_group = session.pending_groups[self._groups[queue][0][1]]
        charged = pending_group.nominated and not session.reservations.is_new(pending_group.key)
        request = {} if charged else session.gangs.request_of(pending_group)
        _, _, created_at, *_ = pending_group.order_key
        key = session.accounts.order_key(queue, request, priority=pending_group.priority, created_at=created_at)
        return key, queue
