"""Routes of the read models: pods of all times, and figures over time."""

from typing import Annotated

from fastapi import APIRouter, Query
from kaicore.analysis.projections.answers import DecisionSeries, OccupancySeries, PodRecords, QueueSeries
from kaicore.analysis.projections.questions import ReadModels
from kaicore.runtime.access.scopes import current_view

from kai_api.answering import AnswerRouter
from kai_api.auth.middleware import for_namespaces

_Since = Annotated[str, Query(alias="from")]
_Until = Annotated[str, Query(alias="to")]


def make_history_router(history: ReadModels) -> APIRouter:
    """Make the routes."""
    router = AnswerRouter()

    @router.get("/v1/clusters/{cluster}/history/pods")
    @for_namespaces
    async def pods(
        cluster: str,
        *,
        namespace: str = "",
        name: str = "",
        group: str = "",
        queue: str = "",
        node: str = "",
        after: str = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> PodRecords:
        """Return what became of pods, those that are gone included, the last one first."""
        view = current_view()
        return await history.pods(
            cluster,
            namespaces=None if view.whole else view.namespaces,
            namespace=namespace,
            name=name,
            group=group,
            queue=queue,
            node=node,
            after=after,
            limit=limit,
        )

    @router.get("/v1/clusters/{cluster}/series/occupancy")
    async def occupancy(cluster: str, *, since: _Since = "", until: _Until = "", step: str = "") -> OccupancySeries:
        """Return how many GPUs were held, free, stranded and waited for, step by step."""
        return await history.occupancy(cluster, since=since, until=until, step=step)

    @router.get("/v1/clusters/{cluster}/series/queues")
    async def queues(cluster: str, *, queue: str = "", since: _Since = "", until: _Until = "") -> QueueSeries:
        """Return what queues used, asked for and deserved, by the hour."""
        return await history.queues(cluster, queue=queue, since=since, until=until)

    @router.get("/v1/clusters/{cluster}/series/decisions")
    async def decisions(cluster: str, *, since: _Since = "", until: _Until = "") -> DecisionSeries:
        """Return what was decided, and how often kubelets did as predicted, by the hour."""
        return await history.decisions(cluster, since=since, until=until)

    return router
