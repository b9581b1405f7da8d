"""The page of queues: their tree, and what they held and deserved over time."""

from collections.abc import Sequence
from dataclasses import dataclass

from kaicore.rules.events.envelope import Event
from kaicore.rules.state.cluster_state import ClusterState

from kai_api.pages.queue_history import QueueCharts, charts_of_hours, charts_of_reports, reads_reports
from kai_api.pages.queue_tree import QueueLine, queue_lines, queue_resources


@dataclass(frozen=True, slots=True)
class QueuesPage:
    """The queues and one resource.

    Attributes:
        resource: of `resources`, those that queues have accounts of.
    """

    resource: str
    resources: tuple[str, ...]
    lines: tuple[QueueLine, ...]
    charts: QueueCharts


def queues_page(state: ClusterState, reports: Sequence[Event], *, resource: str, span: str) -> QueuesPage:
    """Return the model of the page of queues.

    Args:
        state: of the cluster.
        reports: `QueuesReported` of the span, where its charts are made from these.
        resource: as queues name it; the first one that they do where they name no such.
        span: one of `spans_of`.
    """
    resources = queue_resources(state)
    resource = resource if resource in resources else resources[0]
    lines = queue_lines(state, resource)
    names = [line.name for line in lines]
    if reads_reports(span):
        charts = charts_of_reports(reports, names, resource, span=span, ended=state.recorded_at)
    else:
        charts = charts_of_hours(state, names, resource, span=span)
    return QueuesPage(resource, resources, lines, charts)
