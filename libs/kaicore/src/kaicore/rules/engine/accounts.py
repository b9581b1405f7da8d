"""What a cycle asks of the queues, and what holds where there is only one.

The rules of queues (quota, limit, fair share) are `kaicore.rules.queues`; the cycle only needs an order, a yes or no,
and accounts that can be put back.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.queue import DEFAULT_QUEUE
from kaicore.rules.queues.cycle_queues import Asked
from kaicore.rules.reasons.reason import Reason


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

    def exceeded(self, group: Group, request: Amounts) -> tuple[Reason, ...]:
        """Say why a group might not start so much, that being on the accounts already; empty if it might."""
        ...

    def relief(self, victim: Group, request: Amounts, refused: Iterable[Reason]) -> int:
        """Return how much of the excess over limits is gone when work that holds so much ends.

        In thousandths, summed over the limits; 0 if that is no help.
        """
        ...

    def preempt_refusal(self, group: Group) -> tuple[Reason, ...]:
        """Say why a group may not have other work of its queue evicted; empty if it may."""
        ...

    def reclaim_refusal(self, asked: Asked) -> tuple[Reason, ...]:
        """Say why groups may not have other queues' work evicted to start so much, together; empty if they may."""
        ...

    def reclaims_from(self, group: Group, victim: Group) -> bool:
        """Tell whether a group may have the victim evicted as one of another queue, by priority."""
        ...

    def may_reclaim(self, asked: Asked, victim: Group) -> bool:
        """Tell whether work of the victim's queue may be evicted so that groups can start so much.

        The accounts are those of just before, what is to start being on them.
        """
        ...

    def keeps_quotas(self, asked: Asked, victim: Group, held: Amounts) -> bool:
        """Tell whether the victim's queues keep their quotas if so much of its work goes for groups to start.

        The accounts are those of just before, what is to start being on them.
        """
        ...

    def exchange_refusal(self, asked: Asked, victims: Asked) -> tuple[Reason, ...]:
        """Say why groups may not start in place of some work, still on the accounts, as a whole; empty if they may."""
        ...

    def is_about(self, refused: Iterable[Reason], victim: Group) -> bool:
        """Tell whether an exchange was refused because of a victim's queue."""
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

    def exceeded(self, group: Group, request: Amounts) -> tuple[Reason, ...]:
        """See `QueueAccounts`."""
        return ()

    def relief(self, victim: Group, request: Amounts, refused: Iterable[Reason]) -> int:
        """See `QueueAccounts`."""
        return 0

    def preempt_refusal(self, group: Group) -> tuple[Reason, ...]:
        """See `QueueAccounts`."""
        return ()

    def reclaim_refusal(self, asked: Asked) -> tuple[Reason, ...]:
        """See `QueueAccounts`."""
        return ()

    def reclaims_from(self, group: Group, victim: Group) -> bool:
        """See `QueueAccounts`."""
        return False

    def may_reclaim(self, asked: Asked, victim: Group) -> bool:
        """See `QueueAccounts`."""
        return False

    def keeps_quotas(self, asked: Asked, victim: Group, held: Amounts) -> bool:
        """See `QueueAccounts`."""
        return True

    def exchange_refusal(self, asked: Asked, victims: Asked) -> tuple[Reason, ...]:
        """See `QueueAccounts`."""
        return ()

    def is_about(self, refused: Iterable[Reason], victim: Group) -> bool:
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
