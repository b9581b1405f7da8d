"""Queues in the state: what they are, what their work holds and waits for, and what it held over time.

Kept by the fold, one entry per scheduler and queue name, so that a cycle need not look at the pods. What an entry is
charged stays charged under that name also while no such queue exists; which queue of the hierarchy a name means is
found out when somebody asks.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec

from kaicore.rules.engine.constraints.flavor_demand import ANY_FLAVOR, FlavorDemand, flavor_demand
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.events.payloads import QueueFigures
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.queue import Queue, ResourceFlavor
from kaicore.rules.queues.config import HOUR_US, RETENTION_HOURS
from kaicore.rules.queues.resources import counted
from kaicore.rules.queues.tree import QueueTree
from kaicore.rules.queues.usage import UsageReader, UseHistory

#: How many demands of flavors are remembered, by queue and class.
_MOST_DEMANDS = 1 << 14


class Account(NamedTuple):
    """Whose work it is.

    Attributes:
        scheduler: the pods' `spec.schedulerName`.
        queue: that the work names; empty for none.
        namespace: of work that names no queue, for there may be a default one in its namespace.
    """

    scheduler: str
    queue: str
    namespace: str = ""


class Bill(msgspec.Struct, frozen=True):
    """What a pod is counted under.

    Attributes:
        account: whose it is.
        preemptible: whether it may be preempted.
        running: whether it holds its amounts; otherwise it waits for them.
    """

    account: Account
    preemptible: bool
    running: bool


@lru_cache(maxsize=1 << 14)
def bill_of(scheduler: str, queue: str, namespace: str, preemptible: bool, running: bool) -> Bill:
    """Return a bill; the same one for the same, of which there are few."""
    return Bill(Account(scheduler, queue, namespace), preemptible=preemptible, running=running)


class QueueUse(msgspec.Struct):
    """What the pods of an account hold, what of that cannot be preempted, and what they wait for."""

    used: Amounts = {}
    non_preemptible: Amounts = {}
    pending: Amounts = {}
    history: UseHistory = msgspec.field(default_factory=UseHistory)


class UseRecord(msgspec.Struct):
    """An account as plain data; `hours` by resource and hour, in order."""

    account: Account
    used: Amounts
    non_preemptible: Amounts
    pending: Amounts
    settled_ms: int
    hours: list[tuple[str, list[tuple[int, int]]]]


class QueueRecord(msgspec.Struct):
    """The whole book, for snapshots."""

    queues: list[Queue]
    flavors: list[ResourceFlavor]
    uses: list[UseRecord]
    reported: dict[str, QueueFigures]
    reported_at: int
    since: int
    swept: int


class QueueBook:
    """The queues of a cluster and their accounts.

    Attributes:
        queues: by name.
        flavors: by name.
        uses: by account.
        reported: what was last reported of each queue.
        reported_at: when, by the cycle's clock; microseconds since the epoch.
        since: when use began to be counted, microseconds since the epoch.
        reader: weighs histories.
        changes: grows with whatever may change what is to be reported.
    """

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.flavors: dict[str, ResourceFlavor] = {}
        self.uses: dict[Account, QueueUse] = {}
        self.reported: dict[str, QueueFigures] = {}
        self.reported_at = 0
        self.since = 0
        self.changes = 0
        self.reader: UsageReader[Account] = UsageReader()
        self._swept = 0
        self._tree: QueueTree | None = None
        self._demands: dict[tuple[str, str, str], FlavorDemand] = {}

    @property
    def tree(self) -> QueueTree:
        """The hierarchy as it is now."""
        if self._tree is None:
            self._tree = QueueTree(self.queues)
        return self._tree

    def flavor_demand(self, queue: str, namespace: str, known: PodClass) -> FlavorDemand:
        """Return where the flavors of a queue let pods of a class go.

        Args:
            queue: as the pods name it; empty for pods that name none.
            namespace: the pods', if they name none.
            known: their class.
        """
        key = (queue, namespace, known.key)
        found = self._demands.get(key)
        if found is None:
            number = self.tree.find(queue, namespace=namespace)
            found = ANY_FLAVOR
            if number is not None:
                found = flavor_demand(
                    self.tree.queues[number], self.flavors, requests=known.requests, tolerations=known.tolerations
                )
            if len(self._demands) >= _MOST_DEMANDS:
                self._demands.clear()
            self._demands[key] = found
        return found

    def _rearranged(self) -> None:
        self.changes += 1
        self._tree = None
        self._demands.clear()

    def queue_seen(self, queue: Queue) -> None:
        """Take in a queue that is new or has changed."""
        self.queues[queue.name] = queue
        self._rearranged()

    def queue_gone(self, name: str, uid: str) -> None:
        """Take in that a queue is gone, unless another one of its name is there."""
        if name in self.queues and self.queues[name].uid == uid:
            del self.queues[name]
            self.reported.pop(name, None)
            self._rearranged()

    def flavor_seen(self, flavor: ResourceFlavor) -> None:
        """Take in a ResourceFlavor that is new or has changed."""
        self.flavors[flavor.name] = flavor
        self._rearranged()

    def flavor_gone(self, name: str, uid: str) -> None:
        """Take in that a ResourceFlavor is gone, unless another one of its name is there."""
        if name in self.flavors and self.flavors[name].uid == uid:
            del self.flavors[name]
            self._rearranged()

    def charge(self, bill: Bill, amounts: Amounts, *, sign: int = 1, at_us: int) -> None:
        """Count a pod's amounts under its bill, or take them off again with `sign=-1`."""
        self._sweep(at_us)
        self.changes += 1
        use = self.uses.get(bill.account)
        if use is None:
            use = self.uses[bill.account] = QueueUse()
        if not bill.running:
            _add(use.pending, amounts, sign)
        else:
            _add(use.used, amounts, sign)
            if not bill.preemptible:
                _add(use.non_preemptible, amounts, sign)
            use.history.change(counted(amounts), sign=sign, at_us=at_us)
        if not (use.used or use.pending or use.history.hours):
            del self.uses[bill.account]

    def of_scheduler(self, name: str) -> Iterator[tuple[Account, QueueUse]]:
        """Return the accounts of a scheduler's work, in order."""
        return ((account, self.uses[account]) for account in sorted(self.uses) if account.scheduler == name)

    def used_by_others(self, scheduler: str) -> Amounts:
        """Return what the work of all other schedulers holds."""
        held: Amounts = {}
        for account, use in self.uses.items():
            if account.scheduler != scheduler:
                _add(held, use.used, 1)
        return held

    def record(self) -> QueueRecord:
        """Return the book as plain data; equal books give equal data."""
        return QueueRecord(
            queues=[self.queues[name] for name in sorted(self.queues)],
            flavors=[self.flavors[name] for name in sorted(self.flavors)],
            uses=[_use_record(account, self.uses[account]) for account in sorted(self.uses)],
            reported=self.reported,
            reported_at=self.reported_at,
            since=self.since,
            swept=self._swept,
        )

    @classmethod
    def restored(cls, record: QueueRecord) -> "QueueBook":
        """Return the book of a record."""
        book = cls()
        book.queues = {queue.name: queue for queue in record.queues}
        book.flavors = {flavor.name: flavor for flavor in record.flavors}
        book.uses = {use.account: _restored_use(use) for use in record.uses}
        book.reported, book.reported_at = record.reported, record.reported_at
        book.since, book._swept = record.since, record.swept
        return book

    def _sweep(self, at_us: int) -> None:
        """Once an hour, forget what is too long ago for any window."""
        hour = at_us // HOUR_US
        self.since = self.since or at_us
        if hour == self._swept:
            return
        self._swept = hour
        for account in [account for account, use in self.uses.items() if _is_empty(use, hour)]:
            del self.uses[account]


def _use_record(account: Account, use: QueueUse) -> UseRecord:
    hours = [(resource, sorted(by_hour.items())) for resource, by_hour in sorted(use.history.hours.items())]
    return UseRecord(account, use.used, use.non_preemptible, use.pending, use.history.settled_ms, hours)


def _restored_use(record: UseRecord) -> QueueUse:
    hours = {resource: dict(by_hour) for resource, by_hour in record.hours}
    history = UseHistory(counted(record.used), record.settled_ms, hours)
    return QueueUse(record.used, record.non_preemptible, record.pending, history)


def _is_empty(use: QueueUse, hour: int) -> bool:
    return use.history.forget(hour - RETENTION_HOURS) and not (use.used or use.pending)


def _add(amounts: Amounts, more: Mapping[str, int], sign: int) -> None:
    for resource, amount in more.items():
        now = amounts.get(resource, 0) + sign * amount
        if now:
            amounts[resource] = now
        else:
            amounts.pop(resource, None)
