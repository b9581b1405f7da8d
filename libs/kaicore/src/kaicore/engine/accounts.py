"""What a cycle asks of the queues, and what holds where there is only one.

The rules of queues (quota, limit, fair share) are `kaicore.queues`; the cycle only needs an order, a yes or no, and
accounts that can be put back.
"""

from typing import Any, Protocol

from kaicore.events.payloads import Reason
from kaicore.model.group import Group
from kaicore.model.pod import Amounts
from kaicore.model.queue import DEFAULT_QUEUE


class QueueAccounts(Protocol):
    """Queues with what their work holds; a cycle has its own."""

    def queue_of(self, group: Group) -> str:
        """Return the name of the queue that pays for a group."""
        ...

    def turn(self, queue: str, request: Amounts) -> tuple[Any, ...]:
        """Return a queue's place in the order of queues if its next work asks for `request`; the lowest goes first.

        A queue's place never gets better by charging any queue.
        """
        ...

    def refusal(self, group: Group, request: Amounts) -> tuple[Reason, ...]:
        """Say why a group may not start so much now, whatever is free; empty if it may."""
        ...

    def reclaim_refusal(self, group: Group, request: Amounts) -> tuple[Reason, ...]:
        """Say why a group may not have other queues' work evicted to start so much; empty if it may."""
        ...

    def may_reclaim(self, group: Group, request: Amounts, victim: Group) -> bool:
        """Tell whether work of the victim's queue, as that now stands, may be evicted for a group to start so much."""
        ...

    def min_runtime_us(self, victim: Group, *, for_group: Group) -> int:
        """Return how long the victim must have run before it may be evicted for a group, microseconds."""
        ...

    def charge(self, group: Group, request: Amounts) -> None:
        """Count work as started."""
        ...

    def release(self, group: Group, request: Amounts) -> None:
        """Count work as ended."""
        ...

    def savepoint(self) -> int:
        """Return what `undo` is told to put the accounts back to where they are now."""
        ...

    def undo(self, savepoint: int) -> None:
        """Put the accounts back."""
        ...


class OneQueue:
    """One queue without quota or limit: everything goes by priority and age, and nothing is reclaimed."""

    def queue_of(self, group: Group) -> str:
        """See `QueueAccounts`."""
        return DEFAULT_QUEUE

    def turn(self, queue: str, request: Amounts) -> tuple[Any, ...]:
        """See `QueueAccounts`."""
        return ()

    def refusal(self, group: Group, request: Amounts) -> tuple[Reason, ...]:
        """See `QueueAccounts`."""
        return ()

    def reclaim_refusal(self, group: Group, request: Amounts) -> tuple[Reason, ...]:
        """See `QueueAccounts`."""
        return ()

    def may_reclaim(self, group: Group, request: Amounts, victim: Group) -> bool:
        """See `QueueAccounts`."""
        return False

    def min_runtime_us(self, victim: Group, *, for_group: Group) -> int:
        """See `QueueAccounts`."""
        return 0

    def charge(self, group: Group, request: Amounts) -> None:
        """See `QueueAccounts`."""

    def release(self, group: Group, request: Amounts) -> None:
        """See `QueueAccounts`."""

    def savepoint(self) -> int:
        """See `QueueAccounts`."""
        return 0

    def undo(self, savepoint: int) -> None:
        """See `QueueAccounts`."""
