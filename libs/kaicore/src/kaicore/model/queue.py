"""Queues: who may use how much of a cluster, as a hierarchy."""

import msgspec

#: The queue of work that names none, when no queue is configured.
DEFAULT_QUEUE = "default"


class QueueShare(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a queue may have of one resource, in the resource's canonical units (`kaicore.model.quantity`).

    Attributes:
        quota: guaranteed; None for unlimited.
        limit: never exceeded; None for none.
        lendable: how much of the quota others may use while it is idle; None for all of it (Kueue's lending limit).
        weight: share of what is beyond the quotas, in thousandths; 0 for none.
    """

    quota: int | None = 0
    limit: int | None = None
    lendable: int | None = None
    weight: int = 1000


class Queue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A queue.

    Attributes:
        name: unique in its cluster.
        parent: name of its parent; empty for a root.
        shares: by resource; a resource that is not named has neither quota nor limit.
        priority: queues of higher priority are given what is beyond the quotas first.
        created_at: seconds since the epoch.
        preempt_min_runtime_us: how long its groups run at least before one of the same queue may have them evicted.
        reclaim_min_runtime_us: the same for groups of other queues.
    """

    name: str
    uid: str = ""
    parent: str = ""
    shares: dict[str, QueueShare] = {}
    priority: int = 100
    created_at: int = 0
    preempt_min_runtime_us: int = 0
    reclaim_min_runtime_us: int = 0
