"""Routes with handlers that return an answer (`kaicore.analysis.ask.answers`), not a response.

    router = AnswerRouter()

    @router.get("/v1/clusters/{cluster}/pods/{namespace}/{name}/why")
    async def why(cluster: str, namespace: str, name: str) -> Why: ...

The annotation is the route's schema in `/openapi.json`: made by msgspec, so no answer is described a second time.
Errors are raised as the library raises them; `error_statuses` has their HTTP statuses. A caller may see some
namespaces only: then names from the others are taken out of the answer.

A pod's reasons and story name objects of other namespaces: the holder of a node, or the group for which the pod was
evicted. Our texts write an object of a namespace as `namespace/name` or `Kind/namespace/name`. Everything of that form
is replaced unless the caller may see its namespace: rather too much than too little. Names of resources and labels have
a dot before the slash, which no namespace has.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import wraps
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from kaicore.analysis.json_spelling import Answer
from kaicore.errors import (
    EventsRetired,
    InvalidObject,
    KaiError,
    LogUnavailable,
    TooManyQuestions,
    UnknownMoment,
    UnknownSubject,
)
from kaicore.interpreter import version
from kaicore.runtime.access.scopes import View, current_view
from kaicore.runtime.service.http_errors import error_response

#: Stands for what may not be named.
HIDDEN = "(in another namespace)"

_path = re.compile(r"[\w.\-*]+(?:/[\w.\-*]+)+")

#: Fields with ids of our own as values, not names.
_IDS = frozenset({"cycle", "correlation", "shard", "source", "traceparent", "uid", "id", "cause"})
#: Streams that are not of a namespace: what one pod is about is checked before.
_KEPT = frozenset({"stream", "cluster", "kind", "type", "position", "hash"})


def redacted(value: object, view: View) -> object:
    """Return an answer, as dictionaries and lists, without the names of what is in namespaces that are not seen."""
    if isinstance(value, dict):
        return {
            _text(key, view): item if key in _IDS or key in _KEPT else redacted(item, view)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [redacted(item, view) for item in value]
    return _text(value, view) if isinstance(value, str) else value


def _text(text: str, view: View) -> str:
    return _path.sub(lambda match: match[0] if _open(match[0], view) else HIDDEN, text) if "/" in text else text


def _open(path: str, view: View) -> bool:
    parts = path.rstrip(".").split("/")
    if all(part.isdigit() for part in parts):
        return True
    if len(parts) == 2:
        first, _ = parts
        return "." in first or first != first.lower() or view.sees(first)
    # Kind, namespace, name, or deeper; a group's kind may have its API group.
    return view.sees(parts[0]) or view.sees(parts[1])


_STATUS: dict[type[KaiError], int] = {
    InvalidObject: 400,
    UnknownMoment: 400,
    UnknownSubject: 404,
    EventsRetired: 410,
    TooManyQuestions: 429,
    LogUnavailable: 503,
}


def status_of(error: KaiError) -> int:
    """Return the status of an error; 500 for what nobody who asks can do anything about."""
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)


#: Where an operation names its answer and its body until it is described: schemas take half of the time in which routes
#: are made, and few ask for `/openapi.json`.
_ANSWER, _BODY = "x-answer", "x-body"
#: Answers by the names of handlers, and bodies by their own.
_described: dict[str, object] = {}

_REFERENCE = "#/components/schemas/{name}"


class Problem(Answer, frozen=True, kw_only=True):
    """The problem, in a sentence."""

    error: str


class AnswerRouter(APIRouter):
    """Routes that return answers; a handler that is annotated with a response returns it as it is."""

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """See `APIRouter.add_api_route`."""
        answer = _answer_of(get_type_hints(endpoint).get("return"))
        if answer is not None:
            name = f"{endpoint.__module__}.{endpoint.__qualname__}"
            _described[name] = answer
            endpoint = _encoding(endpoint)
            options["response_model"] = None
            options["openapi_extra"] = {**(options.get("openapi_extra") or {}), _ANSWER: name}
        super().add_api_route(path, endpoint, **options)


def asking(body: type[msgspec.Struct]) -> dict[str, str]:
    """Return the `openapi_extra` of a route that decodes its body as this."""
    _described[body.__name__] = body
    return {_BODY: body.__name__}


def _answer_of(annotation: Any) -> object:
    """Return what a handler answers, besides responses that it makes itself; None where it answers nothing else."""
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    answers = [one for one in options if not (one is None or (isinstance(one, type) and issubclass(one, Response)))]
    return Union[tuple(answers)] if answers else None  # noqa: UP007  # made at run time


def _anything(_: type) -> dict[str, Any]:
    """Return the schema of what has no type of its own, such as `object`."""
    return {"description": "Anything"}


def encoded(answer: object, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer as JSON, without what the caller may not see."""
    view = current_view()
    if not view.whole:
        answer = redacted(msgspec.json.decode(msgspec.json.encode(answer)), view)
    return Response(msgspec.json.encode(answer), media_type="application/json", headers=headers)


def _encoding(endpoint: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[Response]]:
    @wraps(endpoint)
    async def answered(*args: Any, **parameters: Any) -> Response:
        given = await endpoint(*args, **parameters)
        return given if isinstance(given, Response) else encoded(given)

    return answered


def answer_errors(app: FastAPI) -> None:
    """Have an application answer what the library raises with the status that says so."""

    async def failed(_: Request, error: Exception) -> Response:
        assert isinstance(error, KaiError)
        return error_response(status_of(error), error_text(error))

    app.add_exception_handler(KaiError, failed)


def error_text(error: KaiError) -> str:
    """Say what is wrong, without names of what the caller does not see."""
    if current_view().whole:
        return str(error)
    # Names that are like the one that was asked for are of other namespaces, too.
    return str(redacted(str(error).partition("; did you mean")[0], current_view()))


def describe(app: FastAPI) -> None:
    """Have an application describe its answers in `/openapi.json`."""

    def description() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _description(app)
        return app.openapi_schema

    app.openapi = description  # type: ignore[method-assign]


def _description(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=version(), description=app.description, routes=app.routes)
    (problem,), components = msgspec.json.schema_components([Problem], ref_template=_REFERENCE)
    for operation in _operations(document):
        responses = operation["responses"]
        for of, described in ((_ANSWER, responses["200"]), (_BODY, operation.setdefault("requestBody", {}))):
            if name := operation.pop(of, None):
                (schema,), its = msgspec.json.schema_components(
                    [_described[name]], schema_hook=_anything, ref_template=_REFERENCE
                )
                components |= its
                described["content"] = {"application/json": {"schema": schema}}
        if not operation["requestBody"]:
            del operation["requestBody"]
        responses.pop("422", None)
        responses["default"] = {"description": "Error", "content": {"application/json": {"schema": problem}}}
        operation["security"] = [{"key": []}, {"session": []}]
    parts = document.setdefault("components", {})
    parts["schemas"] = {
        **{name: part for name, part in parts.get("schemas", {}).items() if "ValidationError" not in name},
        **components,
    }
    parts["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "A key"},
        "session": {"type": "apiKey", "in": "cookie", "name": "kai_session", "description": "Of a browser"},
    }
    return document


def _operations(document: dict[str, Any]) -> Iterable[dict[str, Any]]:
    for item in document.get("paths", {}).values():
        yield from item.values()
