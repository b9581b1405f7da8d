"""Use of a queue's pods: present use, waiting requests, and use over time.

Counted by the fold, so that a cycle does not count pods.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec

from kaicore.rules.model.pod import Amounts
from kaicore.rules.queues.config import RETENTION_HOURS
from kaicore.rules.queues.resources import counted
from kaicore.rules.queues.usage import UseHistory


class UsageKey(NamedTuple):
    """Under what the usage of pods is counted.

    Attributes:
        scheduler: the pods' `spec.schedulerName`.
        queue: that the pods name; empty for none.
        namespace: of pods that name no queue, for there may be a default one in their namespace.
    """

    scheduler: str
    queue: str
    namespace: str = ""


class QueueCharge(msgspec.Struct, frozen=True):
    """How a pod counts in the usage of its queue.

    Attributes:
        key: under which usage.
        preemptible: whether the pod may be preempted.
        running: whether it holds its amounts; otherwise it waits for them.
    """

    key: UsageKey
    preemptible: bool
    running: bool


@lru_cache(maxsize=1 << 14)
def queue_charge(scheduler: str, queue: str, namespace: str, preemptible: bool, running: bool) -> QueueCharge:
    """Return a charge; equal arguments give the same object, for there are few."""
    return QueueCharge(UsageKey(scheduler, queue, namespace), preemptible=preemptible, running=running)


class QueueUsage(msgspec.Struct):
    """What pods hold, what of that cannot be preempted, what they wait for, and what they held over time."""

    used: Amounts = {}
    non_preemptible: Amounts = {}
    pending: Amounts = {}
    history: UseHistory = msgspec.field(default_factory=UseHistory)

    @property
    def empty(self) -> bool:
        """Whether nothing is counted, nor was for as long as any window looks back."""
        return not (self.used or self.pending or self.history.hours)

    def count(self, charge: QueueCharge, amounts: Amounts, *, sign: int, at_us: int) -> None:
        """Count a pod's amounts, or take them off with `sign=-1`; `at_us` in microseconds since the epoch."""
        if not charge.running:
            add_amounts(self.pending, amounts, sign)
            return
        add_amounts(self.used, amounts, sign)
        if not charge.preemptible:
            add_amounts(self.non_preemptible, amounts, sign)
        self.history.change(counted(amounts), sign=sign, at_us=at_us)

    def forget(self, hour: int) -> bool:
        """Forget what is too long before an hour (since the epoch) for any window; return whether nothing is left."""
        return self.history.forget(hour - RETENTION_HOURS) and not (self.used or self.pending)

    def record(self, key: UsageKey) -> "UsageRecord":
        """Return it as plain data."""
        hours = [(resource, sorted(by_hour.items())) for resource, by_hour in sorted(self.history.hours.items())]
        return UsageRecord(key, self.used, self.non_preemptible, self.pending, self.history.settled_ms, hours)


class UsageRecord(msgspec.Struct):
    """Usage as plain data; `hours` by resource and hour, in order."""

    key: UsageKey
    used: Amounts
    non_preemptible: Amounts
    pending: Amounts
    settled_ms: int
    hours: list[tuple[str, list[tuple[int, int]]]]

    def restored(self) -> QueueUsage:
        """Return the usage of a record."""
        hours = {resource: dict(by_hour) for resource, by_hour in self.hours}
        history = UseHistory(counted(self.used), self.settled_ms, hours)
        return QueueUsage(self.used, self.non_preemptible, self.pending, history)


def add_amounts(amounts: Amounts, more: Mapping[str, int], sign: int) -> None:
    """Add amounts to others, or take them off with `sign=-1`; an amount of 0 is left out."""
    for resource, amount in more.items():
        now = amounts.get(resource, 0) + sign * amount
        if now:
            amounts[resource] = now
        else:
            amounts.pop(resource, None)
