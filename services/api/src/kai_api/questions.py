"""Routes of the questions that are answered from a kept state (`kaicore.analysis.inquiry`)."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import Response
from kaicore.analysis.inquiry.answers import ROWS, Answer, Listing, RowSelection, Why, inapplicable_filters
from kaicore.analysis.inquiry.cluster_answers import ClusterRow, ClusterSummary
from kaicore.analysis.inquiry.diff_answers import DiffAnswer, DiffQuestion
from kaicore.analysis.inquiry.json_spelling import spelled, time_text
from kaicore.analysis.inquiry.queries import Inquiry
from kaicore.analysis.inquiry.topology_answers import TopologiesAnswer, TopologyAssignments, TopologyQuestion
from kaicore.errors import UnknownEvent
from kaicore.ledger.log.port import Filter
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event

from kai_api.answering import AnswerRouter, encoded
from kai_api.auth.middleware import for_namespaces
from kai_api.auth.scopes import current_caller, current_view

#: Most events in one answer, and most rows.
_MOST_EVENTS, _MOST_ROWS = 1000, 100_000
#: Largest position that Postgres can compare with.
_LARGEST_POSITION = 2**63 - 1
#: Most seconds that a client may wait for news.
_MOST_WAIT_S = 60.0

#: Lists whose rows are in a namespace, and kinds that are in none or tell of others' work.
_NAMESPACED = frozenset({"pods", "groups"})
_CLUSTER_WIDE = frozenset({"Node", "Queue", "ClusterQueue", "Cohort", "LocalQueue"})


class Position(Answer, frozen=True, kw_only=True):
    """Where a log ends."""

    position: int


def make_router(inquiry: Inquiry) -> APIRouter:  # long: one small handler for each route
    """Make the routes that answer from kept states."""
    router = AnswerRouter()
    log = inquiry.log

    @router.get("/v1/clusters")
    async def clusters() -> list[ClusterRow]:
        """List the clusters that have a log."""
        caller = current_caller()
        return [row for row in await inquiry.clusters() if caller.view(row.name) is not None]

    @router.get("/v1/clusters/{cluster}")
    async def cluster_summary(cluster: str, *, at: str = "") -> ClusterSummary:
        """Return a cluster in figures."""
        return await inquiry.cluster(cluster, at=at)

    @router.get("/v1/clusters/{cluster}/position")
    @for_namespaces
    async def position(
        cluster: str,
        *,
        beyond: Annotated[int, Query(ge=0, le=_LARGEST_POSITION)] = 0,
        wait: Annotated[float, Query(ge=0, le=_MOST_WAIT_S)] = 0,
    ) -> Position:
        """Return the position of the log's end; wait until it is beyond another one."""
        return Position(position=await inquiry.wait_beyond(cluster, beyond, timeout_s=wait))

    @router.get("/v1/clusters/{cluster}/events")
    async def events(
        cluster: str,
        *,
        after: Annotated[int, Query(ge=0, le=_LARGEST_POSITION)] = 0,
        limit: Annotated[int, Query(ge=1, le=_MOST_EVENTS)] = 100,
        stream: str | None = None,
        subject: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> Response:
        """Return events in order, those after a position."""
        where = Filter(
            streams=None if stream is None else (stream,), subject=subject, types=None if type is None else (type,)
        )
        page = await log.read(cluster, after=after, limit=limit, where=where)
        return encoded([_event(event) for event in page])

    @router.get("/v1/clusters/{cluster}/why/{kind}/{name}")
    @for_namespaces
    async def why(cluster: str, kind: str, name: str, namespace: str = "", at: str = "") -> Why:
        """Say why something is as it is: a pod, what owns pods, a group, a queue, a node."""
        if not current_view().whole and (not namespace or kind in _CLUSTER_WIDE):
            raise HTTPException(403, f"{kind} without a namespace is for callers who may see all of cluster {cluster}")
        return await inquiry.why(cluster, kind, namespace, name, at=at)

    @router.get("/v1/clusters/{cluster}/pods/{namespace}/{name}/why")
    @for_namespaces
    async def why_pod(cluster: str, namespace: str, name: str, at: str = "") -> Why:
        """Say why a pod is where it is, or nowhere."""
        return await inquiry.why(cluster, "Pod", namespace, name, at=at)

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
        at: str = "",
    ) -> Listing:
        """List pods, groups, queues, nodes or cycles."""
        if kind not in ROWS:
            raise HTTPException(404, f"no such list: {kind}; there are: {', '.join(ROWS)}")
        view = current_view()
        if not view.whole and kind not in _NAMESPACED:
            raise HTTPException(403, f"{kind} are for callers who may see all of cluster {cluster}")
        wanted = RowSelection(
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


def _event(event: Event) -> object:
    """Spell an event for a client; the payload of one that this program is too old for stays as it was recorded."""
    try:
        body: object = spelled(decode_payload(event))
    except UnknownEvent:
        body = msgspec.json.decode(event.body)
    return {
        "cluster": event.cluster,
        "position": event.position,
        "stream": event.stream,
        "version": event.version,
        "type": event.type,
        "schema": event.schema,
        "id": str(event.id),
        "subject": event.subject,
        "actor": event.actor,
        "cause": None if event.cause is None else str(event.cause),
        "correlation": event.correlation,
        "occurredAt": time_text(event.occurred_at),
        "recordedAt": time_text(event.recorded_at),
        "hash": event.hash.hex(),
        "body": body,
    }
