"""Questions about history as they come over HTTP, and answers as pages."""

from typing import Any

import msgspec
from fastapi import HTTPException
from fastapi.responses import Response
from kaicore.analysis.history.comparison import HistoryComparison
from kaicore.analysis.history.page import page
from kaicore.analysis.history.question import HistoryQuestion
from kaicore.analysis.shadow import page as shadow
from kaicore.analysis.shadow.report import ShadowReport
from kaicore.errors import InvalidObject

#: Bytes of a question at most: it is an argument of the process that answers.
_MOST_BYTES = 100_000

WHAT_IF_DESCRIBED: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A window, and what is to be different; a patch is the text of a file (docs/how-to/what-if.md)",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "from": {"type": "string"},
                        "to": {"type": "string"},
                        "settings": {"type": "array", "items": {"type": "string"}},
                        "patches": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "properties": {"name": {"type": "string"}, "text": {"type": "string"}},
                                "required": ["name", "text"],
                            },
                        },
                    },
                }
            }
        },
    }
}

#: The report's styles are in it; nothing else is allowed.
_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


def read_question(body: bytes) -> str:
    """Return a question as text, once it can be read.

    Raises:
        InvalidObject: it is none.
        HTTPException: 413, it is too long.
    """
    if len(body) > _MOST_BYTES:
        raise HTTPException(413, f"a question has {_MOST_BYTES:,} bytes at most")
    try:
        return msgspec.json.encode(msgspec.json.decode(body or b"{}", type=HistoryQuestion)).decode()
    except msgspec.DecodeError as error:
        raise InvalidObject("question", "body", body[:100].decode(errors="replace"), str(error)) from error


def as_page(response: Response) -> Response:
    """Return an answer as a report."""
    comparison = msgspec.json.decode(response.body, type=HistoryComparison)
    return Response(page(comparison), media_type="text/html; charset=utf-8", headers=_HEADERS)


def as_shadow_page(response: Response) -> Response:
    """Return a shadow's report with its simulated window as a page."""
    report = msgspec.json.decode(response.body, type=ShadowReport)
    assert report.trajectory is not None
    text = shadow.page(report, report.trajectory)
    return Response(text, media_type="text/html; charset=utf-8", headers=_HEADERS)
