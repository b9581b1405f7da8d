"""Serve a FastAPI application within a service's own event loop and its own handling of signals."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the service."""
        yield


async def serve_app(app: Any, *, host: str, port: int, stopping: asyncio.Event) -> None:
    """Serve an ASGI application until `stopping` is set, then finish the requests under way.

    Args:
        app: the application.
        host: address to listen on.
        port: port to listen on.
        stopping: ends it.
    """
    config = uvicorn.Config(app, host=host, port=port, log_config=None, access_log=False, lifespan="off")
    server = _Server(config)
    serving = asyncio.create_task(server.serve())
    ending = asyncio.create_task(stopping.wait())
    await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    server.should_exit = True
    await serving
