"""Routes of the questions that are answered from a kept state (`kaicore.analysis.inquiry`)."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import Response
from kaicore.analysis.inquiry.answers import ROWS, RowSelection, inapplicable_filters
from kaicore.analysis.inquiry.json_spelling import spelled, time_text
from kaicore.analysis.inquiry.queries import Inquiry
from kaicore.analysis.inquiry.topology_answers import TopologyQuestion
from kaicore.errors import InvalidObject, UnknownEvent, UnknownSubject
from kaicore.ledger.log.port import Filter
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event

#: Most events in one answer, and most rows.
_MOST_EVENTS, _MOST_ROWS = 1000, 100_000
#: Largest position that Postgres can compare with.
_LARGEST_POSITION = 2**63 - 1
#: Most seconds that a client may wait for news.
_MOST_WAIT_S = 60.0


def make_router(inquiry: Inquiry) -> APIRouter:  # long: one small handler for each route
    """Make the routes that answer from kept states."""
    router = APIRouter()
    log = inquiry.log

    async def check_cluster(cluster: str) -> None:
        if cluster not in await log.clusters():
            raise HTTPException(404, f"no cluster {cluster!r} in the log")

    @router.get("/v1/clusters")
    async def clusters() -> Response:
        return _json(await inquiry.clusters())

    @router.get("/v1/clusters/{cluster}")
    async def cluster_summary(cluster: str, *, at: str = "") -> Response:
        await check_cluster(cluster)
        return _json(await inquiry.cluster(cluster, at=at))

    @router.get("/v1/clusters/{cluster}/position")
    async def position(
        cluster: str,
        *,
        beyond: Annotated[int, Query(ge=0, le=_LARGEST_POSITION)] = 0,
        wait: Annotated[float, Query(ge=0, le=_MOST_WAIT_S)] = 0,
    ) -> Response:
        await check_cluster(cluster)
        return _json({"position": await inquiry.wait_beyond(cluster, beyond, timeout_s=wait)})

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
        await check_cluster(cluster)
        where = Filter(
            streams=None if stream is None else (stream,), subject=subject, types=None if type is None else (type,)
        )
        page = await log.read(cluster, after=after, limit=limit, where=where)
        return _json([_event(event) for event in page])

    @router.get("/v1/clusters/{cluster}/why/{kind}/{name}")
    async def why(cluster: str, kind: str, name: str, namespace: str = "", at: str = "") -> Response:
        await check_cluster(cluster)
        try:
            return _json(await inquiry.why(cluster, kind, namespace, name, at=at))
        except UnknownSubject as error:
            raise HTTPException(404, str(error)) from error

    @router.get("/v1/clusters/{cluster}/pods/{namespace}/{name}/why")
    async def why_pod(cluster: str, namespace: str, name: str, at: str = "") -> Response:
        return await why(cluster, "Pod", name, namespace, at)

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
    ) -> Response:
        await check_cluster(cluster)
        wanted = TopologyQuestion(topology=topology, slots=slots, pod=pod, segments=segments, nodes=nodes)
        try:
            return _json(await inquiry.topologies(cluster, wanted, at=at))
        except InvalidObject as error:
            raise HTTPException(400, str(error)) from error
        except UnknownSubject as error:
            raise HTTPException(404, str(error)) from error

    @router.get("/v1/clusters/{cluster}/groups/{kind}/{namespace}/{name}/topology-assignment")
    async def topology_assignment(
        cluster: str, kind: str, namespace: str, name: str, *, version: str = "v1beta2", at: str = ""
    ) -> Response:
        await check_cluster(cluster)
        try:
            return _json(await inquiry.topology_assignments(cluster, kind, namespace, name, version=version, at=at))
        except InvalidObject as error:
            raise HTTPException(400, str(error)) from error
        except UnknownSubject as error:
            raise HTTPException(404, str(error)) from error

    @router.get("/v1/clusters/{cluster}/{kind}")
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
    ) -> Response:
        await check_cluster(cluster)
        if kind not in ROWS:
            raise HTTPException(404, f"no such list: {kind}; there are: {', '.join(ROWS)}")
        wanted = RowSelection(
            namespace=namespace, name=name, queue=queue, node=node, pending=pending, rejected=rejected, limit=limit
        )
        if wrong := inapplicable_filters(kind, wanted):
            raise HTTPException(400, f"{kind} cannot be filtered by {', '.join(wrong)}")
        return _json(await inquiry.listing(cluster, kind, wanted, at=at))

    return router


def _json(answer: object) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")


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
