"""Clusters as data: the ends of their logs, and their figures (see `kaicore.analysis.inquiry.answers`)."""

from kaicore.analysis.inquiry.answers import Answer


class ClusterRow(Answer, frozen=True, kw_only=True):
    """A cluster that has a log.

    Attributes:
        position: of the log's end.
        hash: of its last event.
        state: as one of the hub's: Ready, Drained, Lost or NeverSeen; empty where it is none of the hub's.
        waiting, running: dispatches that the hub gave it and that have not started, or have.
    """

    name: str
    position: int
    recorded_at: str
    hash: str
    state: str = ""
    waiting: int = 0
    running: int = 0


class ClusterSummary(Answer, frozen=True, kw_only=True):
    """A cluster in figures.

    Attributes:
        pods: how many, by stage: waiting, placed, bound, finished.
        tally: counts over the whole log (`kaicore.rules.state.counters`).
    """

    name: str
    position: int
    recorded_at: str
    nodes: int
    queues: int
    groups: int
    pods: dict[str, int]
    tally: dict[str, object]
