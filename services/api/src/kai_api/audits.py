"""Routes of audits: placements, nodes, groups (`kaicore.analysis.inquiry.audit_answers`).

`from` and `to` are moments, as `at` is elsewhere: a position, a time, or a time before the log's end.
"""

from typing import Annotated

from fastapi import APIRouter, Query
from kaicore.analysis.inquiry.audit_answers import GroupAudit, NodeAudit, PlacementAudit, Span
from kaicore.analysis.inquiry.queries import Inquiry

from kai_api.answering import AnswerRouter
from kai_api.auth.middleware import for_namespaces

Since = Annotated[str, Query(alias="from")]
Until = Annotated[str, Query(alias="to")]


def make_audit_router(inquiry: Inquiry) -> APIRouter:
    """Make the routes."""
    router = AnswerRouter()

    @router.get("/v1/clusters/{cluster}/audit/placements")
    async def placements(cluster: str, *, node: str = "", since: Since = "", until: Until = "") -> PlacementAudit:
        """Compare predicted placements with observed ones, by node, policy, cause and hour."""
        return await inquiry.audit_placements(cluster, Span(since=since, until=until), node=node)

    @router.get("/v1/clusters/{cluster}/audit/nodes/{node}")
    async def node(cluster: str, node: str, *, since: Since = "", until: Until = "") -> NodeAudit:
        """Return everything that held a node, and on whose decision."""
        return await inquiry.audit_node(cluster, node, Span(since=since, until=until))

    @router.get("/v1/clusters/{cluster}/audit/groups/{namespace}/{name}")
    @for_namespaces
    async def group(cluster: str, namespace: str, name: str, *, since: Since = "", until: Until = "") -> GroupAudit:
        """Return what was decided about a group, by whom and with which rules."""
        return await inquiry.audit_group(cluster, namespace, name, Span(since=since, until=until))

    return router
