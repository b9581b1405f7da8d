"""Rows of the read models, for answers and tables. Times are microseconds since the epoch; 0 means never. GPUs are
counted in thousandths, so that parts of GPUs that pods share add up.
"""

from typing import Self

import msgspec


class PodHistory(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's life; kept when the pod is gone.

    Attributes:
        group: key of its group; empty for a pod of its own.
        gpus: that it asks for, in thousandths; of memory of a GPU its part of that one, once it has a node.
        created_at: at the API server.
        seen_at: its first event was recorded.
        tried_at: a cycle first decided on it, or left it waiting.
        decided_at: a cycle last chose a node for it; `cycle` is which.
        bound_at: the API server took the binding.
        started_at: it was first seen running.
        finished_at: it was seen to have ended, or a kubelet rejected it.
        outcome: its last phase, or Rejected.
        placements: how often a node was chosen for it.
        position: of the last event that changed this.
        user: by the pod's label; empty without one.
        why_ended: the reason of its failure, rejection or last eviction; empty for none.
    """

    uid: str
    namespace: str
    name: str
    group: str = ""
    queue: str = ""
    node: str = ""
    cycle: str = ""
    gpus: int = 0
    created_at: int = 0
    seen_at: int = 0
    tried_at: int = 0
    decided_at: int = 0
    bound_at: int = 0
    started_at: int = 0
    finished_at: int = 0
    gone_at: int = 0
    outcome: str = ""
    placements: int = 0
    bind_failures: int = 0
    rejections: int = 0
    evictions: int = 0
    position: int = 0
    user: str = ""
    why_ended: str = ""


class Occupancy(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster's state at the end of a minute in which something was recorded.

    Attributes:
        at: when the minute began.
        position: of the last event of the minute.
        gpus: of all nodes, in thousandths as all that begin so: the sum of held, releasing, free, stranded and out
            (`capacity.Gpus`).
        gpus_waiting: that waiting pods ask for; memory of a GPU counts as the whole one.
    """

    at: int
    position: int
    nodes: int
    gpus: int
    gpus_held: int
    gpus_releasing: int
    gpus_free: int
    gpus_stranded: int
    gpus_out: int
    gpus_waiting: int
    pods_waiting: int
    pods_placed: int
    pods_bound: int


class _Hour(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of an hour (`at`: when it began)."""

    at: int

    def plus(self, more: "_Hour") -> Self:
        """Return the row with another part of the same hour."""
        counts = [name for name in self.__struct_fields__ if name != "at" and isinstance(getattr(self, name), int)]
        return msgspec.structs.replace(self, **{name: getattr(self, name) + getattr(more, name) for name in counts})


class QueueHour(_Hour, frozen=True, kw_only=True):
    """A queue's use of a resource in an hour, the queues below it included.

    Attributes:
        seconds: of the hour that are counted.
        allocated: the resource's amount times seconds; of GPUs in thousandths.
        requested: likewise, of what its work holds and waits for.
        fair_share: likewise, of what the division gives it.
    """

    queue: str
    resource: str
    seconds: int
    allocated: int
    requested: int
    fair_share: int


class DecisionsHour(_Hour, frozen=True, kw_only=True):
    """One hour's decisions and kubelets' outcomes.

    Attributes:
        agreed: predictions decided in that hour which were last observed as predicted, by amounts or by zones.
        contradicted: those last observed on other zones; both are counted as `kaicore.rules.state.counters` says.
        missed: predictions that a kubelet did not follow.
    """

    cycles: int = 0
    placed: int = 0
    bound: int = 0
    bind_failures: int = 0
    rejected: int = 0
    evictions: int = 0
    agreed: int = 0
    contradicted: int = 0
    missed: int = 0


#: A row of a minute or of an hour.
TimeRow = Occupancy | QueueHour | DecisionsHour


class RowChanges(msgspec.Struct, kw_only=True):
    """The changes that events make in the read models.

    Attributes:
        queues, decisions: what is to be added to the rows of their hours.
    """

    pods: list[PodHistory] = []
    occupancy: list[Occupancy] = []
    queues: list[QueueHour] = []
    decisions: list[DecisionsHour] = []
