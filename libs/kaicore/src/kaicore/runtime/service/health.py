"""Health and metrics of a service over HTTP: `/healthz`, `/readyz` and Prometheus `/metrics`; its host at `/instance`.

Error bodies have one form in all our HTTP servers.
"""

import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from kaicore.runtime.process_context import Health


def error_body(why: str) -> bytes:
    """Return `{"error": why}`, encoded."""
    return msgspec.json.encode({"error": why})


_JSON = "application/json"
#: The condition of a service that is given its application later.
_ANSWERS = "answers"

_Receive = Callable[[], Awaitable[Any]]
_Send = Callable[[Any], Awaitable[None]]
#: An application as of ASGI 3.
Asgi = Callable[[MutableMapping[str, Any], _Receive, _Send], Awaitable[None]]


class _Answer(NamedTuple):
    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


def with_health(health: Health, *, app: Asgi | None = None, registry: CollectorRegistry = REGISTRY) -> Asgi:
    """Return an application that answers these paths itself, and leaves the others to `app`."""
    answers = {
        "/healthz": lambda: _Answer(200, b"ok\n"),
        "/instance": lambda: _Answer(200, socket.gethostname().encode()),
        "/readyz": lambda: _Answer(200 if health.ready else 503, health.report().encode()),
        "/metrics": lambda: _Answer(200, generate_latest(registry), CONTENT_TYPE_LATEST),
    }

    async def routed(scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        answer = answers.get(scope["path"]) if scope["type"] == "http" else None
        if answer is None and app is not None:
            await (_asked_for_head(app) if scope.get("method") == "HEAD" else app)(scope, receive, send)
            return
        given = _Answer(404, error_body(f"nothing is at {scope['path']}"), _JSON)
        if answer is not None:
            given = answer() if scope["method"] in ("GET", "HEAD") else _Answer(405, error_body("only GET"), _JSON)
        headers = [(b"content-type", given.content_type.encode()), (b"content-length", b"%d" % len(given.body))]
        await send({"type": "http.response.start", "status": given.status, "headers": headers})
        await send({"type": "http.response.body", "body": given.body})

    return routed


def _asked_for_head(app: Asgi) -> Asgi:
    """Answer HEAD as GET, without the body, which the HTTP server leaves out (RFC 9110, 9.3.2)."""

    async def answered(scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        async def only_head(message: Any) -> None:
            # A stream would have no end.
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})

        await app({**scope, "method": "GET"}, receive, only_head)

    return answered


class Later:
    """An application that is given later; until then everything but health is answered with 503.

    The service is not ready before: a client that waited for `/readyz` is never answered with that 503.
    """

    def __init__(self, health: Health) -> None:
        """Args: health: what is answered from the start; it gets the condition `answers`."""
        self._health = health
        self._app = with_health(health, app=_not_yet)
        health.unmet(_ANSWERS, "not yet")

    def give(self, app: Asgi) -> None:
        """Answer with this application from now on; it answers for health, too."""
        self._app = app
        self._health.met(_ANSWERS)

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        """Answer a request."""
        await self._app(scope, receive, send)


async def _not_yet(_: MutableMapping[str, Any], __: _Receive, send: _Send) -> None:
    body = error_body("starting; /readyz says what is waited for")
    headers = [
        (b"content-type", _JSON.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"retry-after", b"1"),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
