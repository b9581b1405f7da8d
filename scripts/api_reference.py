"""The reference page of the API, made from what `/openapi.json` says."""

from collections.abc import Iterator
from typing import Any

from kai_api.app import make_routes
from kai_api.live import LiveLog
from kai_api.long_answers import LongAnswers
from kaicore.analysis.inquiry.queries import Inquiry
from kaicore.analysis.projections.store import ViewStore
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.postgres.connections import Connections
from kaicore.runtime.access.callers import HttpAccess

_INTRODUCTION = """# The API

The routes of `kai-api`, as `/openapi.json` describes them. [Use the API](../how-to/api.md) has access, paging and
following the log.

An error is `{"error": "…"}`:

| status | meaning |
|---|---|
| 400, 422 | The question is malformed. |
| 401, 403 | The caller is unknown, or lacks the right. |
| 404 | There is no such thing. |
| 410 | It has left the log. |
| 429 | The caller asks too often. |
| 503 | The log does not answer. |
"""


def api() -> str:
    """Return the page."""
    inquiry = Inquiry(MemoryLog(clock=lambda: 0))
    long_answers = LongAnswers("", at_once=1, most_s=1)
    app = make_routes(
        inquiry,
        long_answers,
        HttpAccess(anonymous="no"),
        LiveLog(inquiry.log),
        ViewStore(Connections("", size=1, patience_s=1, application="reference")),
    )
    document = app.openapi()
    return "\n".join([_INTRODUCTION, *_routes(document), *_answers(document)])


def _routes(document: dict[str, Any]) -> Iterator[str]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield f"## {method.upper()} `{path}`\n"
            yield f"{_prose(operation['description'])}\n"
            asked = [one for one in operation.get("parameters", ()) if one["in"] != "path"]
            if asked:
                yield f"Parameters: {_fields({one['name']: one['schema'] for one in asked})}.\n"
            content = operation["responses"].get("200", {}).get("content", {})
            kinds = "; ".join(
                f"`{name}`: {_kind(body['schema'])}" if body.get("schema") else f"`{name}`"
                for name, body in content.items()
            )
            yield f"Answers {kinds or 'with a status alone'}.\n"


def _answers(document: dict[str, Any]) -> Iterator[str]:
    yield "## Answers\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f'### <a id="{name.lower()}"></a>`{name}`\n'
        if "description" in schema:
            yield f"{_prose(schema['description'].partition('Attributes:')[0])}\n"
        if schema.get("properties"):
            yield f"{_fields(schema['properties'])}\n"


def _fields(schemas: dict[str, dict[str, Any]]) -> str:
    """The names of fields, those of one kind together."""
    by_kind: dict[str, list[str]] = {}
    for name, schema in schemas.items():
        by_kind.setdefault(_kind(schema), []).append(f"`{name}`")
    return "; ".join(f"{', '.join(names)}: {kind}" for kind, names in by_kind.items())


def _prose(text: str) -> str:
    return " ".join(text.split()).strip()


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[`{name}`](#{name.lower()})"
    if options := schema.get("anyOf"):
        named = [_kind(option) for option in options if option.get("type") != "null"]
        return " or ".join(named) + (", or null" if len(named) < len(options) else "")
    if values := schema.get("enum"):
        return ", ".join(f"`{value}`" for value in values)
    kind = schema.get("type", "anything")
    if kind == "array":
        items = schema.get("items")
        return f"list of {_kind(items)}" if isinstance(items, dict) and items else "list"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"{_kind(values)} by name" if isinstance(values, dict) and values else "object"
    bounds = [
        f"{word} {schema[key]}" for key, word in (("minimum", "at least"), ("maximum", "at most")) if key in schema
    ]
    return ", ".join([kind, *bounds])
