"""HTTP applications on free ports of this machine: those of services, and functions that stand for other servers."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

from aiohttp import web
from fastapi import routing
from fastapi.dependencies.models import Dependant
from kaicore.runtime.service.http_server import HttpLimits, HttpServer

#: What FastAPI has read of handlers, by path, code and signature.
_known: dict[tuple[str, Any, str], Dependant] = {}
_read = routing.get_dependant


def _read_once(*, path: str, call: Any, **options: Any) -> Dependant:
    """Read a handler's parameters, which takes a tenth of a second for all of an API; each test has its own."""
    handler = inspect.unwrap(call)
    key = path, getattr(handler, "__code__", handler), str(inspect.signature(handler))
    if key not in _known:
        _known[key] = _read(path=path, call=call, **options)
    if _known[key].dependencies:
        return _read(path=path, call=call, **options)
    return replace(_known[key], call=call, dependencies=[])


routing.get_dependant = _read_once


async def answered(app: Any, path: str) -> tuple[int, str]:
    """Ask an ASGI application without a server; status and body of its answer."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "http", "method": "GET", "path": path}, None, send)
    return sent[0]["status"], sent[1]["body"].decode()


@asynccontextmanager
async def served_app(
    app: Any, *, limits: HttpLimits | None = None, trusted_proxies: Iterable[str] = ()
) -> AsyncIterator[str]:
    """Serve an ASGI application on a free port of this machine; yield its url."""
    proxies = [ip_network(one) for one in trusted_proxies]
    server = HttpServer(app, host="127.0.0.1", port=0, limits=limits, trusted_proxies=proxies)
    stopping = asyncio.Event()
    serving = asyncio.create_task(server.run(stopping))
    try:
        yield f"http://{server.address}"
    finally:
        stopping.set()
        await serving


@asynccontextmanager
async def served_routes(*routes: web.RouteDef, port: int = 0) -> AsyncIterator[str]:
    """Serve functions for their routes on a port, a free one by default; yield its url."""
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True if port else None).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
