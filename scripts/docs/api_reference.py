"""The reference page of the API, made from what `/openapi.json` says."""

from collections.abc import Iterator
from typing import Any

from kai_api.board import Board
from kai_api.live import LiveLog
from kai_api.long_answers import LongAnswers
from kai_api.main import make_routes
from kaicore.analysis.ask.projections.store import ViewStore
from kaicore.analysis.ask.queries import Inquiry
from kaicore.ledger.connections import Connections
from kaicore.ledger.log.memory import MemoryLog
from kaicore.runtime.access.callers import HttpAccess

_INTRODUCTION = """# The API

The routes of `kai-api`. `/openapi.json` of a running `kai-api` describes the fields of parameters and answers.
[Use the API](../how-to/api.md) describes access, paging and how to follow the log.

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
        board=Board(),
    )
    document = app.openapi()
    return "\n".join([_INTRODUCTION, "## Routes\n", *_routes(document)]) + "\n"


def _routes(document: dict[str, Any]) -> Iterator[str]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            asked = ", ".join(f"`{one['name']}`" for one in operation.get("parameters", ()) if one["in"] != "path")
            parameters = f" ({asked})" if asked else ""
            yield f"- {method.upper()} `{path}`: {_prose(operation['description'])}{parameters}"


def _prose(text: str) -> str:
    return " ".join(text.split()).strip()
