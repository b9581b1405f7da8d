"""Read models as answers. Each states the position up to which it is built, because the log may be further."""

from kaicore.analysis.ask.answers import Answer
from kaicore.analysis.ask.projections.rows import DecisionsHour, Occupancy, PodHistory, QueueHour
from kaicore.analysis.json_spelling import time_text
from kaicore.rules.model.quantity import format_amount


class PodRecord(Answer, frozen=True, kw_only=True):
    """A pod's life from its creation to its end; times are null for events that have not happened.

    Attributes:
        group: key of its group; empty for a pod of its own.
        gpus: that it asks for.
        seen_at: its first event was recorded.
        tried_at: a cycle first decided on it, or left it waiting.
        decided_at: a cycle last chose a node for it; `cycle` is which.
        outcome: its last phase, or Rejected.
        placements: how often a node was chosen for it.
    """

    uid: str
    namespace: str
    name: str
    group: str
    queue: str
    node: str
    cycle: str
    gpus: int
    created_at: str | None
    seen_at: str | None
    tried_at: str | None
    decided_at: str | None
    bound_at: str | None
    started_at: str | None
    finished_at: str | None
    gone_at: str | None
    outcome: str
    placements: int
    bind_failures: int
    rejections: int
    evictions: int


class PodRecords(Answer, frozen=True, kw_only=True):
    """Pods by when they were first seen, the last one first.

    Attributes:
        position: up to which this is made.
        next: the next page's `after`; empty where there is none.
    """

    cluster: str
    position: int
    recorded_at: str
    next: str
    items: list[PodRecord]


class OccupancyPoint(Answer, frozen=True, kw_only=True):
    """A cluster's state from one point until the next.

    Attributes:
        at: when the minute, or the step that was asked for, began.
        position: as of which it stood so.
        gpus_stranded: free, but without enough CPU or memory beside them for such pods as run.
        gpus_out: free, on nodes that are not ready or cordoned.
        gpus_waiting: that waiting pods ask for.
    """

    at: str
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


class QueueUse(Answer, frozen=True, kw_only=True):
    """A queue's mean use of a resource in an hour; the queues below it included.

    Attributes:
        seconds: of the hour that are counted.
    """

    at: str
    queue: str
    resource: str
    seconds: int
    allocated: str
    requested: str
    fair_share: str


class Decisions(Answer, frozen=True, kw_only=True):
    """An hour's decisions, and the agreement of kubelets with predictions.

    Attributes:
        agreed: predictions decided in that hour, for pods that were last observed on the predicted zones.
        contradicted: those for pods that were last observed on others.
        missed: predictions that a kubelet did not follow.
    """

    at: str
    cycles: int
    placed: int
    bound: int
    bind_failures: int
    rejected: int
    evictions: int
    agreed: int
    contradicted: int
    missed: int


class OccupancySeries(Answer, frozen=True, kw_only=True):
    """A cluster's use over time; `position` is the last position that it covers."""

    cluster: str
    position: int
    recorded_at: str
    items: list[OccupancyPoint]


class QueueSeries(Answer, frozen=True, kw_only=True):
    """The use of queues by the hour; `position` is the last position that it covers."""

    cluster: str
    position: int
    recorded_at: str
    items: list[QueueUse]


class DecisionSeries(Answer, frozen=True, kw_only=True):
    """The decisions by the hour; `position` is the last position that it covers."""

    cluster: str
    position: int
    recorded_at: str
    items: list[Decisions]


def _time(microseconds: int) -> str | None:
    return time_text(microseconds) if microseconds else None


def pod_record(row: PodHistory) -> PodRecord:
    """Return a pod's history as an answer."""
    return PodRecord(
        uid=row.uid,
        namespace=row.namespace,
        name=row.name,
        group=row.group,
        queue=row.queue,
        node=row.node,
        cycle=row.cycle,
        gpus=row.gpus,
        created_at=_time(row.created_at),
        seen_at=_time(row.seen_at),
        tried_at=_time(row.tried_at),
        decided_at=_time(row.decided_at),
        bound_at=_time(row.bound_at),
        started_at=_time(row.started_at),
        finished_at=_time(row.finished_at),
        gone_at=_time(row.gone_at),
        outcome=row.outcome,
        placements=row.placements,
        bind_failures=row.bind_failures,
        rejections=row.rejections,
        evictions=row.evictions,
    )


def occupancy_point(row: Occupancy, *, at: int) -> OccupancyPoint:
    """Return how a cluster stood as an answer; `at` is when its step began."""
    return OccupancyPoint(
        at=time_text(at),
        position=row.position,
        nodes=row.nodes,
        gpus=row.gpus,
        gpus_held=row.gpus_held,
        gpus_releasing=row.gpus_releasing,
        gpus_free=row.gpus_free,
        gpus_stranded=row.gpus_stranded,
        gpus_out=row.gpus_out,
        gpus_waiting=row.gpus_waiting,
        pods_waiting=row.pods_waiting,
        pods_placed=row.pods_placed,
        pods_bound=row.pods_bound,
    )


def queue_use(row: QueueHour) -> QueueUse:
    """Return what a queue used as an answer."""

    def average(amount: int) -> str:
        return format_amount(row.resource, amount // max(1, row.seconds))

    return QueueUse(
        at=time_text(row.at),
        queue=row.queue,
        resource=row.resource,
        seconds=row.seconds,
        allocated=average(row.allocated),
        requested=average(row.requested),
        fair_share=average(row.fair_share),
    )


def decisions(row: DecisionsHour) -> Decisions:
    """Return an hour's decisions as an answer."""
    return Decisions(
        at=time_text(row.at),
        cycles=row.cycles,
        placed=row.placed,
        bound=row.bound,
        bind_failures=row.bind_failures,
        rejected=row.rejected,
        evictions=row.evictions,
        agreed=row.agreed,
        contradicted=row.contradicted,
        missed=row.missed,
    )
