"""Routes whose handlers return an answer (`kaicore.analysis.inquiry.answers`), not a response.

    router = AnswerRouter()

    @router.get("/v1/clusters/{cluster}/pods/{namespace}/{name}/why")
    async def why(cluster: str, namespace: str, name: str) -> Why: ...

The annotation is the route's schema in `/openapi.json`: made by msgspec, so no answer is described a second time. What
goes wrong is raised as the library raises it; `error_statuses` says which HTTP status that is. For a caller who may see
some namespaces only, the names of what is in others are taken out of the answer.
"""

from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from typing import Any, get_type_hints

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from fastapi.routing import APIRoute
from kaicore.analysis.inquiry.answers import Answer
from kaicore.errors import KaiError
from kaicore.runtime.service.http_errors import error_response
from kaicore.version import version

from kai_api.auth.redaction import redacted
from kai_api.auth.scopes import current_view
from kai_api.error_statuses import status_of

_REFERENCE = "#/components/schemas/{name}"


class Problem(Answer, frozen=True, kw_only=True):
    """What is wrong, in a sentence."""

    error: str


class AnswerRouter(APIRouter):
    """Routes that return answers; a handler that is annotated with a response returns it as it is."""

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """See `APIRouter.add_api_route`."""
        answer = get_type_hints(endpoint).get("return")
        if answer is not None and not (isinstance(answer, type) and issubclass(answer, Response)):
            endpoint = _encoding(endpoint, answer)
            options["response_model"] = None
        super().add_api_route(path, endpoint, **options)


def encoded(answer: object) -> Response:
    """Return an answer as JSON, without what the caller may not see."""
    view = current_view()
    if not view.whole:
        answer = redacted(msgspec.json.decode(msgspec.json.encode(answer)), view)
    return Response(msgspec.json.encode(answer), media_type="application/json")


def _encoding(endpoint: Callable[..., Awaitable[object]], answer: object) -> Callable[..., Awaitable[Response]]:
    @wraps(endpoint)
    async def answered(*args: Any, **parameters: Any) -> Response:
        given = await endpoint(*args, **parameters)
        return given if isinstance(given, Response) else encoded(given)

    answered.__dict__["answer"] = answer
    return answered


def answer_errors(app: FastAPI) -> None:
    """Have an application answer what the library raises with the status that says so."""

    async def failed(_: Request, error: Exception) -> Response:
        assert isinstance(error, KaiError)
        why = str(error)
        if not current_view().whole:
            # Names that are like the one that was asked for are of other namespaces, too.
            why = str(redacted(why.partition("; did you mean")[0], current_view()))
        return error_response(status_of(error), why)

    app.add_exception_handler(KaiError, failed)


def describe(app: FastAPI) -> None:
    """Have an application describe its answers in `/openapi.json`."""

    def description() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _description(app)
        return app.openapi_schema

    app.openapi = description  # type: ignore[method-assign]


def _description(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=version(), description=app.description, routes=app.routes)
    answers = {
        (method.lower(), route.path_format): route.endpoint.__dict__["answer"]
        for route in app.routes
        if isinstance(route, APIRoute) and "answer" in route.endpoint.__dict__
        for method in route.methods or ()
    }
    schemas, components = msgspec.json.schema_components([*answers.values(), Problem], ref_template=_REFERENCE)
    by_route = dict(zip(answers, schemas, strict=False))
    problem = {"description": "Error", "content": {"application/json": {"schema": schemas[-1]}}}
    for path, method, operation in _operations(document):
        responses = operation["responses"]
        if (schema := by_route.get((method, path))) is not None:
            responses["200"]["content"] = {"application/json": {"schema": schema}} | {
                kind: content
                for kind, content in responses["200"].get("content", {}).items()
                if kind != "application/json"
            }
        responses.pop("422", None)
        responses["default"] = problem
        operation["security"] = [{"key": []}, {"session": []}]
    parts = document.setdefault("components", {})
    parts["schemas"] = {
        **{name: part for name, part in parts.get("schemas", {}).items() if "ValidationError" not in name},
        **components,
    }
    parts["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "A key, or a token of the identity provider"},
        "session": {"type": "apiKey", "in": "cookie", "name": "kai_session", "description": "Of a browser"},
    }
    return document


def _operations(document: dict[str, Any]) -> Iterable[tuple[str, str, dict[str, Any]]]:
    for path, item in document.get("paths", {}).items():
        for method, operation in item.items():
            yield path, method, operation
