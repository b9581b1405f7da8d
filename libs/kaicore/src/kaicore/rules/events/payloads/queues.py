"""Facts about queues, and their accounts."""

import msgspec

from kaicore.rules.events.payloads.base import Payload
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.queue import Queue, ResourceFlavor


class QueueObserved(Payload, frozen=True):
    """The watcher saw a queue that is new or has changed: a Queue, ClusterQueue, Cohort or LocalQueue."""

    queue: Queue


class QueueDeleted(Payload, frozen=True):
    """A queue is gone; `name` as the model has it."""

    uid: str
    name: str


class FlavorObserved(Payload, frozen=True):
    """The watcher saw a ResourceFlavor that is new or has changed."""

    flavor: ResourceFlavor


class FlavorDeleted(Payload, frozen=True):
    """A ResourceFlavor is gone."""

    uid: str
    name: str


class QueueReclaimed(Payload, frozen=True):
    """A replica of a shard takes work of a queue back for others; no other may do so by what it knew before.

    Attributes:
        queue: the root of the hierarchy that the queue is in.
        cycle: id of the cycle.
        pods: uids of the pods to be evicted.
    """

    queue: str
    cycle: str
    pods: tuple[str, ...]


class QueueFigures(Payload, frozen=True):
    """How a queue stands, the queues below it included; amounts of the resources that any queue names.

    Attributes:
        queue: its name, as the model has it.
        uid: of the object.
        requested: what its work holds and waits for.
        allocated: what it holds.
        non_preemptible: the part of that which cannot be preempted.
        fair_share: what the division gave it.
        children: names of the queues right below it.
    """

    queue: str
    uid: str = ""
    requested: Amounts = msgspec.field(default_factory=dict)
    allocated: Amounts = msgspec.field(default_factory=dict)
    non_preemptible: Amounts = msgspec.field(default_factory=dict)
    fair_share: Amounts = msgspec.field(default_factory=dict)
    children: tuple[str, ...] = ()


class QueuesReported(Payload, frozen=True):
    """How queues stand, for people and for the queues' own status: those that have changed since the last report.

    Attributes:
        shard: whose cycle it was.
        now: the cycle's clock, microseconds since the epoch.
        queues: in order of their names.
    """

    shard: str
    now: int
    queues: tuple[QueueFigures, ...]
