"""Records of a cycle about the pods that it leaves waiting."""

from kaicore.rules.events.payloads.base import Payload
from kaicore.rules.reasons.reason import Reason


class AlonePending(Payload, frozen=True):
    """Why pods of a class and a queue that start one by one wait: what held for most of their groups in a cycle.

    Attributes:
        queue: as their groups name it.
        priority: of their groups.
    """

    queue: str
    priority: int
    reasons: tuple[Reason, ...]


class ClassPending(Payload, frozen=True):
    """A class of pods of which a cycle left some unplaced, and why.

    Attributes:
        reasons: why no node is for them.
        alone: what else stands in the way of those that start one by one, where anything does.
    """

    pod_class: str
    pods: int
    reasons: tuple[Reason, ...] = ()
    alone: tuple[AlonePending, ...] = ()


class GroupPending(Payload, frozen=True):
    """A group of which a cycle left pods unplaced, for reasons that are not recorded with their class.

    Attributes:
        pods: how many; 0 takes back what was recorded of it before.
        reasons: all of them; those of its pods' classes may be left out.
    """

    group: str
    pods: int
    reasons: tuple[Reason, ...] = ()


class WaitingPod(Payload, frozen=True):
    """A pod that a cycle left waiting, and under what the reasons for that are recorded.

    Attributes:
        pod_class: key of the class as which it was decided on, as `ClassPending` has it.
        group: key of its group, as `GroupPending` has it.
        alone: whether it starts without others of its group, so that `AlonePending` of its queue and priority holds.
        queue: as its group names it.
        priority: of its group.
        problem: why its group cannot be decided on with it (`kaicore.rules.reasons.group`); None if it can.
    """

    uid: str
    namespace: str
    name: str
    pod_class: str
    group: str
    alone: bool = False
    queue: str = ""
    priority: int = 0
    problem: Reason | None = None


class PodsLeftWaiting(Payload, frozen=True):
    """Pods that a cycle left waiting, those of which it was not recorded just so before.

    Attributes:
        shard: whose cycle it was.
        pods: in order of their uids.
    """

    shard: str
    pods: tuple[WaitingPod, ...]
