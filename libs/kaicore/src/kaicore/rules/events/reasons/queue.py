"""Reasons for which a queue does not let work start, or not evict others. Where KAI has a word, it is the code."""

from typing import ClassVar

from msgspec import field

from kaicore.rules.events.reasons.base import CodedReason, WorkReason, named_amount
from kaicore.rules.model.gpu_share import gpus_text
from kaicore.rules.model.quantity import format_amount


class QueueDoesNotExist(WorkReason, frozen=True, kw_only=True):
    """The queue that the work names does not exist.

    Attributes:
        queue: its name; empty in logs of engines up to 19, where work named none and there was no default.
    """

    queue: str = ""

    def __str__(self) -> str:
        if not self.queue:
            return "names no queue, and there is no default one"
        return f"queue {self.queue} does not exist"


class QueueInvalid(WorkReason, frozen=True, kw_only=True):
    """The queue cannot be used: its ancestors are missing or form a circle, or it points nowhere.

    Attributes:
        problem: what is wrong with it.
        queue: its name.
    """

    problem: str = field(name="detail", default="")
    queue: str = ""
    says: ClassVar[str] = "queue {queue} cannot be used: {problem}"


class QueueNotLeaf(WorkReason, frozen=True, kw_only=True):
    """The queue has queues below it; only queues without take work.

    Attributes:
        queue: its name.
    """

    queue: str = ""
    says: ClassVar[str] = "queue {queue} has queues below it and takes no work itself"


class QueueStopped(WorkReason, frozen=True, kw_only=True):
    """The queue, or one above it, is stopped.

    Attributes:
        queue: which is stopped.
    """

    queue: str = ""
    says: ClassVar[str] = "queue {queue} is stopped"


class NamespaceNotSelected(WorkReason, frozen=True, kw_only=True):
    """The queue is not for work of the pod's namespace.

    Attributes:
        namespace: the pod's.
        queue: its name.
    """

    namespace: str = field(name="detail", default="")
    queue: str = ""
    says: ClassVar[str] = "queue {queue} is not for work of the namespace {namespace}"


class QueueUnsupported(WorkReason, frozen=True, kw_only=True):
    """The queue has settings that this version cannot honour.

    Attributes:
        features: which settings.
        queue: its name.
    """

    features: str = field(name="detail", default="")
    queue: str = ""
    says: ClassVar[str] = "queue {queue} has what kai-ledger does not support: {features}"


class ResourceNotCovered(WorkReason, frozen=True, kw_only=True):
    """The queue has no quota for a resource that the work asks for.

    Attributes:
        resource: which.
        queue: its name.
    """

    resource: str = ""
    queue: str = ""
    says: ClassVar[str] = "queue {queue} is not for work that asks for {resource}"


class BoundReason(WorkReason, frozen=True, kw_only=True):
    """Work would put a queue over one of its bounds.

    Attributes:
        resource: of which.
        requested: by the work, in the resource's unit.
        left: below the bound; negative where the queue is over it already.
        queue: the queue, or the ancestor of it, that has the bound.
        unit: how many of the amounts make one of the resource: 1000 where parts of GPUs are counted.
    """

    resource: str = ""
    requested: int = field(name="need", default=0)
    left: int = field(name="free", default=0)
    queue: str = ""
    unit: int = 1

    @property
    def excess(self) -> int:
        """By how much the queue would be over, in `unit`."""
        return self.requested - self.left

    def whole(self, amount: int) -> int:
        """Return an amount in the resource's own unit, rounded up."""
        return -(-amount // self.unit)

    def _named(self, amount: int) -> str:
        if self.unit == 1:
            return named_amount(self.resource, amount)
        return f"{self._plain(amount)} {self.resource}"

    def _plain(self, amount: int) -> str:
        if self.unit == 1:
            return format_amount(self.resource, amount)
        return gpus_text(amount) if amount >= 0 else f"-{gpus_text(-amount)}"

    def _over(self, bound: str) -> str:
        requested, left, excess = self._named(self.requested), self._plain(self.left), self._named(self.excess)
        return f"queue {self.queue} would be {excess} over its {bound}: {requested} asked for, {left} left"


class OverLimit(BoundReason, frozen=True, kw_only=True):
    """The work would put a queue over its limit.

    Attributes:
        limit: the queue's, where the work alone is more than that; None where it fits as soon as other work ends.
    """

    limit: int | None = None

    @property
    def decisive(self) -> bool:
        """True if the work alone is more than the limit."""
        return self.limit is not None

    def __str__(self) -> str:
        if self.limit is None:
            return self._over("limit")
        requested, limit = self._named(self.requested), self._plain(self.limit)
        return f"queue {self.queue} never takes it: {requested} needed at once, and its limit is {limit}"


class NonPreemptibleOverQuota(BoundReason, frozen=True, kw_only=True):
    """Work that cannot be preempted would put a queue over its quota."""

    def __str__(self) -> str:
        return self._over("quota with work that cannot be preempted")


class OverFairShare(BoundReason, frozen=True, kw_only=True):
    """The work would put its queue over its fair share, so it may not reclaim from others."""

    of_nodes: ClassVar[bool] = True

    def __str__(self) -> str:
        return self._over("fair share")


class VictimWithinShare(CodedReason, frozen=True, kw_only=True):
    """The queue that would have to make way uses no more than its fair share.

    Attributes:
        queue: its name.
    """

    queue: str = ""
    says: ClassVar[str] = "queue {queue} uses no more than its fair share"


class QueueMayNotReclaim(CodedReason, frozen=True, kw_only=True):
    """The queue never reclaims from others.

    Attributes:
        queue: its name.
    """

    queue: str = ""
    says: ClassVar[str] = "queue {queue} takes nothing from other queues"


class QueueMayNotPreempt(CodedReason, frozen=True, kw_only=True):
    """The queue allows no preemption among its own work.

    Attributes:
        queue: its name.
    """

    queue: str = ""
    says: ClassVar[str] = "queue {queue} allows no preemption among its own work"


class PreemptionRuleUnsupported(CodedReason, frozen=True, kw_only=True):
    """A rule of preemption asks for what is not known of work here, so it lets nothing be evicted.

    Attributes:
        queue: its work the rule is for.
        rule: its name.
        what: the field.
    """

    queue: str = ""
    rule: str = ""
    what: str = ""
    says: ClassVar[str] = "rule {rule} of the PreemptionConfig of queue {queue} counts for nothing: {what} is not read"
