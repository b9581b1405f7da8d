"""HTTP applications of services, served as the services serve them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import Any

from kaicore.runtime.service.http_server import HttpLimits, HttpServer


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
