"""The route that predicts what becomes of manifests that are submitted."""

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, HTTPException, Request
from kaicore.analysis.simulation import Located
from kaicore.analysis.simulation.manifest_text import Reading, read_text
from kaicore.analysis.submission.answers import StartsAnswer, SubmitAnswer, SubmittedGroup
from kaicore.analysis.submission.submissions import Submissions
from kaicore.errors import InvalidObject
from kaicore.runtime.access.scopes import View, current_view

from kai_api.answering import AnswerRouter
from kai_api.auth.middleware import for_namespaces
from kai_api.auth.redaction import HIDDEN

#: How a request's documents are called in problems.
_BODY = "request"

_OBJECT = {"schema": {"type": "object", "description": "An object of Kubernetes, or a List of them"}}
_DESCRIBED: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "Manifests: one JSON object or List, or documents of YAML",
        "content": {"application/json": _OBJECT, "application/yaml": {"schema": {"type": "string"}}},
    }
}


def make_submission_router(submissions: Submissions) -> APIRouter:
    """Make the route that says what would become of manifests."""
    router = AnswerRouter()

    @router.post("/v1/clusters/{cluster}/submit", openapi_extra=_DESCRIBED)
    @for_namespaces
    async def submit(cluster: str, request: Request, at: str = "") -> SubmitAnswer:
        """Say what would become of manifests: where they start now, whom that evicts, or when they are likely to.

        Nothing is created, and nothing is recorded.
        """
        reading = Reading()
        read_text(reading, _BODY, await request.body(), is_json=None, named=True)
        if reading.problems and not reading.objects:
            raise InvalidObject("manifests", "body", "", "; ".join(map(str, reading.problems)))
        _check_namespaces(reading.objects, current_view())
        answer = await submissions.submit(cluster, reading.objects, at=at)
        problems = [*map(str, reading.problems), *answer.problems]
        groups = [_seen(group, current_view()) for group in answer.groups]
        return msgspec.structs.replace(answer, problems=problems, groups=groups)

    @router.get("/v1/clusters/{cluster}/start/{kind}/{name}")
    @for_namespaces
    async def start(cluster: str, kind: str, name: str, namespace: str = "default", at: str = "") -> StartsAnswer:
        """Say when the pods of something that wait are likely to start."""
        if not current_view().sees(namespace):
            raise HTTPException(403, f"namespace {namespace!r} is not yours to ask about")
        return await submissions.starts(cluster, kind, namespace, name, at=at)

    return router


def _check_namespaces(objects: Sequence[Located], view: View) -> None:
    """Refuse to answer for namespaces that the caller does not see, and for what is in none.

    Raises:
        HTTPException: 403.
    """
    if view.whole:
        return
    for item in objects:
        metadata = item.object.get("metadata")
        namespace = (metadata.get("namespace") or "default") if isinstance(metadata, dict) else ""
        if not isinstance(namespace, str) or not view.sees(namespace):
            raise HTTPException(403, f"{item.where}: namespace {namespace!r} is not yours to submit to")


def _seen(group: SubmittedGroup, view: View) -> SubmittedGroup:
    """Return a group without the names of pods that are evicted in namespaces that the caller does not see."""
    evictions = [
        one if view.sees(one.namespace) else msgspec.structs.replace(one, namespace=HIDDEN, name=HIDDEN, group=HIDDEN)
        for one in group.evictions
    ]
    return msgspec.structs.replace(group, evictions=evictions)
