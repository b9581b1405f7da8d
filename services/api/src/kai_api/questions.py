"""Routes of the questions that are answered from a kept state (`kaicore.analysis.inquiry`)."""

import re
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from kaicore.analysis.inquiry.answers import ROWS, Answer, Listing, RowSelection, Why, inapplicable_filters
from kaicore.analysis.inquiry.cluster_answers import ClusterRow, ClusterSummary
from kaicore.analysis.inquiry.diff_answers import DiffAnswer, DiffQuestion
from kaicore.analysis.inquiry.hub_answers import DispatchRow, DispatchWhy
from kaicore.analysis.inquiry.queries import Inquiry
from kaicore.analysis.inquiry.topology_answers import TopologiesAnswer, TopologyAssignments, TopologyQuestion
from kaicore.analysis.submission.start_forecasts import StartForecasts
from kaicore.rules.hub.hub_state import HUB
from kaicore.runtime.access.scopes import current_caller, current_view

from kai_api.answering import AnswerRouter
from kai_api.auth.middleware import check_kind, for_namespaces
from kai_api.events import PositionQuery

#: Most rows in one answer.
_MOST_ROWS = 100_000
#: Most seconds that a client may wait for news.
_MOST_WAIT_S = 60.0

#: Lists whose rows are in a namespace.
_NAMESPACED = frozenset({"pods", "groups"})

_CURSOR = re.compile(r"([0-9]{1,18})-([0-9]{1,9})", re.ASCII)


class Position(Answer, frozen=True, kw_only=True):
    """Where a log ends."""

    position: int


def make_router(inquiry: Inquiry, forecasts: StartForecasts) -> APIRouter:  # long: a small handler for each route
    """Make the routes that answer from kept states."""
    router = AnswerRouter()

    @router.get("/v1/clusters")
    async def clusters() -> list[ClusterRow]:
        """List the clusters that have a log."""
        caller = current_caller()
        return [row for row in await inquiry.clusters() if caller.view(row.name) is not None]

    @router.get("/v1/dispatches")
    async def dispatches(*, pending: bool = False) -> list[DispatchRow]:
        """List what was submitted to the hub, the oldest first."""
        _check_sees_hub()
        return await inquiry.dispatches(pending=pending)

    @router.get("/v1/dispatches/{name}/why")
    async def why_dispatch(name: str) -> DispatchWhy:
        """Say in which cluster a dispatch is, and why."""
        _check_sees_hub()
        return await inquiry.why_dispatch(name)

    @router.get("/v1/clusters/{cluster}")
    async def cluster_summary(cluster: str, *, at: str = "") -> ClusterSummary:
        """Return a cluster in figures."""
        return await inquiry.cluster(cluster, at=at)

    @router.get("/v1/clusters/{cluster}/position")
    @for_namespaces
    async def position(
        cluster: str,
        *,
        beyond: PositionQuery = 0,
        wait: Annotated[float, Query(ge=0, le=_MOST_WAIT_S)] = 0,
        at: str = "",
    ) -> Position:
        """Return the position of the log's end, or of a moment; wait until the end is beyond another position."""
        if at:
            return Position(position=await inquiry.position(cluster, at=at))
        return Position(position=await inquiry.wait_beyond(cluster, beyond, timeout_s=wait))

    @router.get("/v1/clusters/{cluster}/why/{kind}/{name}")
    @for_namespaces
    async def why(cluster: str, kind: str, name: str, namespace: str = "", at: str = "") -> Why:
        """Say why something is as it is: a pod, what owns pods, a group, a queue, a node."""
        check_kind(kind, namespace)
        return await forecasts.why(cluster, kind, namespace, name, at=at)

    @router.get("/v1/clusters/{cluster}/pods/{namespace}/{name}/why")
    @for_namespaces
    async def why_pod(cluster: str, namespace: str, name: str, at: str = "") -> Why:
        """Say why a pod is where it is, or nowhere."""
        return await forecasts.why(cluster, "Pod", namespace, name, at=at)

    @router.get("/v1/clusters/{cluster}/diff")
    async def diff(
        cluster: str,
        *,
        before: Annotated[str, Query(alias="from")],
        after: Annotated[str, Query(alias="to")] = "end",
        kind: str = "",
        namespace: str = "",
        node: str = "",
        queue: str = "",
    ) -> DiffAnswer:
        """Return what is different between two moments: what is new, gone or changed, field by field."""
        wanted = DiffQuestion(kind=kind, namespace=namespace, node=node, queue=queue)
        return await inquiry.diff(cluster, before, after, wanted)

    @router.get("/v1/clusters/{cluster}/topologies")
    async def topologies(
        cluster: str,
        *,
        topology: str = "",
        slots: str = "",
        pod: str = "",
        segments: str = "",
        nodes: bool = False,
        at: str = "",
    ) -> TopologiesAnswer:
        """Return what the domains of the topologies have, use, and still have room for."""
        wanted = TopologyQuestion(topology=topology, slots=slots, pod=pod, segments=segments, nodes=nodes)
        return await inquiry.topologies(cluster, wanted, at=at)

    @router.get("/v1/clusters/{cluster}/groups/{kind}/{namespace}/{name}/topology-assignment")
    async def topology_assignment(
        cluster: str, kind: str, namespace: str, name: str, *, version: str = "v1beta2", at: str = ""
    ) -> TopologyAssignments:
        """Return where the pods of a group are in its topology, as Kueue spells it."""
        return await inquiry.topology_assignments(cluster, kind, namespace, name, version=version, at=at)

    @router.get("/v1/clusters/{cluster}/{kind}")
    @for_namespaces
    async def listing(
        cluster: str,
        kind: str,
        *,
        namespace: str = "",
        name: str = "",
        queue: str = "",
        node: str = "",
        pending: bool = False,
        rejected: bool = False,
        limit: Annotated[int, Query(ge=0, le=_MOST_ROWS)] = 0,
        after: str = "",
        at: str = "",
    ) -> Listing:
        """List pods, groups, queues, nodes or cycles; `next` is the next page's `after`, of the same moment."""
        if kind not in ROWS:
            raise HTTPException(404, f"no such list: {kind}; there are: {', '.join(ROWS)}")
        view = current_view()
        if not view.whole and kind not in _NAMESPACED:
            raise HTTPException(403, f"{kind} are for callers who may see all of cluster {cluster}")
        skip, at = _cursor(after, at)
        wanted = RowSelection(
            skip=skip,
            namespace=namespace,
            namespaces=None if view.whole else view.namespaces,
            name=name,
            queue=queue,
            node=node,
            pending=pending,
            rejected=rejected,
            limit=limit,
        )
        if wrong := inapplicable_filters(kind, wanted):
            raise HTTPException(400, f"{kind} cannot be filtered by {', '.join(wrong)}")
        return await inquiry.listing(cluster, kind, wanted, at=at)

    return router


def _cursor(after: str, at: str) -> tuple[int, str]:
    """Return how many rows a page skips, and the moment that it is of: a page's cursor is `POSITION-ROWS`."""
    if not after:
        return 0, at
    match = _CURSOR.fullmatch(after)
    if match is None:
        raise HTTPException(400, f"after: is not the `next` of a list: {after[:100]!r}")
    if at:
        raise HTTPException(
            400, "after, at: a page that follows another is of the same moment, so at is not named again"
        )
    return int(match[2]), match[1]


def _check_sees_hub() -> None:
    """Refuse callers who may not see the hub whole: a dispatch tells of all clusters.

    Raises:
        HTTPException: 403.
    """
    view = current_caller().view(HUB)
    if view is None or not view.whole:
        raise HTTPException(403, "this is for callers who may see all of cluster hub")
