"""Routes of audits: placements, nodes, groups (`kaicore.analysis.inquiry.audit_answers`).

`from` and `to` are moments, as `at` is elsewhere: a position, a time, or a time before the log's end.
"""

from typing import Annotated

import msgspec
from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import Response
from kaicore.analysis.inquiry.audit_answers import Span
from kaicore.analysis.inquiry.queries import Inquiry
from kaicore.errors import UnknownSubject

Since = Annotated[str, Query(alias="from")]
Until = Annotated[str, Query(alias="to")]


def audit_router(inquiry: Inquiry) -> APIRouter:
    """Make the routes."""
    router = APIRouter()

    async def check_cluster(cluster: str) -> None:
        if cluster not in await inquiry.log.clusters():
            raise HTTPException(404, f"no cluster {cluster!r} in the log")

    @router.get("/v1/clusters/{cluster}/audit/placements")
    async def placements(cluster: str, *, node: str = "", since: Since = "", until: Until = "") -> Response:
        await check_cluster(cluster)
        try:
            return _json(await inquiry.audit_placements(cluster, Span(since=since, until=until), node=node))
        except UnknownSubject as error:
            raise HTTPException(404, str(error)) from error

    @router.get("/v1/clusters/{cluster}/audit/nodes/{node}")
    async def node(cluster: str, node: str, *, since: Since = "", until: Until = "") -> Response:
        await check_cluster(cluster)
        try:
            return _json(await inquiry.audit_node(cluster, node, Span(since=since, until=until)))
        except UnknownSubject as error:
            raise HTTPException(404, str(error)) from error

    @router.get("/v1/clusters/{cluster}/audit/groups/{namespace}/{name}")
    async def group(cluster: str, namespace: str, name: str, *, since: Since = "", until: Until = "") -> Response:
        await check_cluster(cluster)
        try:
            return _json(await inquiry.audit_group(cluster, namespace, name, Span(since=since, until=until)))
        except UnknownSubject as error:
            raise HTTPException(404, str(error)) from error

    return router


def _json(answer: object) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
