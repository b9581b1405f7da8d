"""Route of the webhook."""

from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response
from kaicore.errors import InvalidObject
from kaicore.rules.topology.book import TopologyBook
from kaicore.runtime.service import Health
from kaicore.runtime.service.health import Asgi, with_health
from kaicore.runtime.service.http_errors import add_error_handlers
from prometheus_client import Counter

from kai_webhook.admission_review import AdmissionRequest, answer_review, read_review
from kai_webhook.judging import Judgement, denials_and_warnings, judge

_REVIEWS = Counter("kai_webhook_reviews", "Objects judged: allowed, warned, denied", ["kind", "result"])

#: What API servers send most: an object of 1.5 MiB, the largest that etcd takes, as it was and as it is to be.
MOST_BYTES = 4 << 20


def make_app(topologies: Callable[[], TopologyBook | None], health: Health, *, scheduler_name: str) -> Asgi:
    """Make the application that judges objects.

    Args:
        topologies: returns those that there are; None where that is not known.
        health: of the service.
        scheduler_name: of the pods that are ours.
    """
    app = FastAPI(title="kai-webhook", docs_url=None, redoc_url=None)
    add_error_handlers(app)

    def look(request: AdmissionRequest, body: msgspec.Raw) -> Judgement:
        if not bytes(body) or bytes(body) == b"null":
            return Judgement()
        kind = request.kind
        return judge(kind.api_version, kind.kind, bytes(body), topologies=topologies(), scheduler_name=scheduler_name)

    @app.post("/validate")
    async def validate(http: Request) -> Response:
        try:
            request = read_review(await http.body())
        except InvalidObject as error:
            raise HTTPException(400, str(error)) from error
        denial, warnings = "", list[str]()
        if request.operation in ("CREATE", "UPDATE") and not request.sub_resource and not _is_leaving(request.object):
            before = look(request, request.old_object) if request.operation == "UPDATE" else Judgement()
            denial, warnings = denials_and_warnings(look(request, request.object), before)
        result = "denied" if denial else "warned" if warnings else "allowed"
        _REVIEWS.labels(request.kind.kind, result).inc()
        return _json(answer_review(request.uid, denial, warnings))

    return with_health(health, app=app)


class _Leaving(msgspec.Struct):
    """As much of an object as tells whether it is being deleted."""

    metadata: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


def _is_leaving(body: msgspec.Raw) -> bool:
    """Tell whether an object is being deleted: nothing is to stand in the way of its last finalizer."""
    try:
        return "deletionTimestamp" in msgspec.json.decode(bytes(body) or b"{}", type=_Leaving).metadata
    except msgspec.DecodeError:
        return False


def _json(answer: Any) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
