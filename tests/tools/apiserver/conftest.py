"""Servers and clients for the tests of the simulated API server."""

import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from kai_apiserver.server import ApiServer, ApiServerOptions

from tests.tools.apiserver.client import Client

ServerFactory = Callable[..., Coroutine[Any, Any, ApiServer]]


@pytest.fixture
async def start_server() -> AsyncIterator[ServerFactory]:
    """Start servers in this process; they stop with the test. Takes the fields of `ApiServerOptions`."""
    async with AsyncExitStack() as stack:

        async def start(*, clock: Callable[[], datetime] | None = None, **options: Any) -> ApiServer:
            return await stack.enter_async_context(ApiServer(ApiServerOptions(**options), clock=clock))

        yield start


@pytest.fixture
async def server(request: pytest.FixtureRequest, start_server: ServerFactory) -> ApiServer:
    """A server in memory, with the module's `SERVER_OPTIONS`; without controllers where it has none."""
    return await start_server(**getattr(request.module, "SERVER_OPTIONS", {"controllers": False}))


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    """The administrator's client of `server`."""
    async with Client(server.http_url, server.admin_token) as connected:
        yield connected


@pytest.fixture(scope="session")
def recorded_exchanges() -> list[dict[str, Any]]:
    """The recorded exchanges of a real API server."""
    shared = Path(os.environ.get("KAI_SHARED", Path(__file__).parents[4] / "shared"))
    path = shared / "data" / "apiserver" / "exchanges.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there; set KAI_SHARED to where the recordings are")
    return [json.loads(line) for line in path.read_text().splitlines()]
