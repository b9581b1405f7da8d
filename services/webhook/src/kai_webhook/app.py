"""Route of the webhook.

The question of an API server, and the answer (Kubernetes 1.36, `admission.k8s.io/v1`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response
from kaicore.errors import InvalidObject
from kaicore.rules.objects.wire import Wire
from kaicore.rules.topology.book import TopologyBook
from kaicore.runtime.service import Health
from kaicore.runtime.service.health import Asgi, with_health
from kaicore.runtime.service.http_errors import add_error_handlers
from prometheus_client import Counter

from kai_webhook.judging import Judgement, denials_and_warnings, judge

_API_VERSION, _KIND = "admission.k8s.io/v1", "AdmissionReview"

#: Longest warning, and most of them; what is longer is cut by API servers, and where there are more, all are.
_LONGEST_WARNING, _MOST_WARNINGS = 256, 10

_FORBIDDEN = 403


class ObjectKind(Wire):
    """The kind of the object."""

    group: str = ""
    version: str = ""
    kind: str = ""

    @property
    def api_version(self) -> str:
        """As objects name it."""
        return f"{self.group}/{self.version}" if self.group else self.version


class AdmissionRequest(Wire):
    """What is to be judged; `object` is absent for deletions, `old_object` for creations."""

    uid: str
    kind: ObjectKind
    operation: str = ""
    sub_resource: str = ""
    object: msgspec.Raw = msgspec.Raw()
    old_object: msgspec.Raw = msgspec.Raw()


class _Review(Wire):
    request: AdmissionRequest
    api_version: str = ""
    kind: str = ""


_decoder = msgspec.json.Decoder(_Review)


def read_review(body: bytes) -> AdmissionRequest:
    """Read an API server's question.

    Raises:
        InvalidObject: it is none.
    """
    try:
        review = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidObject(_KIND, "body", body[:80], str(error)) from error
    if (review.api_version, review.kind) != (_API_VERSION, _KIND):
        raise InvalidObject(
            _KIND, "apiVersion", f"{review.api_version} {review.kind}", f"is not {_API_VERSION} {_KIND}"
        )
    return review.request


def answer_review(uid: str, denial: str, warnings: Sequence[str]) -> dict[str, Any]:
    """Return the answer to a question.

    Args:
        uid: of the question.
        denial: why the object is refused; empty if it is not.
        warnings: what its author should know.
    """
    response: dict[str, Any] = {"uid": uid, "allowed": not denial}
    if denial:
        response["status"] = {"code": _FORBIDDEN, "reason": "Forbidden", "message": denial}
    if warnings:
        response["warnings"] = [_cut(text) for text in warnings[:_MOST_WARNINGS]]
    return {"apiVersion": _API_VERSION, "kind": _KIND, "response": response}


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_WARNING else f"{text[: _LONGEST_WARNING - 1]}…"


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
