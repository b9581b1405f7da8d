"""Assistants over HTTP: each request's key is that of its caller, and the API's scopes hold."""

import json
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import pytest
from kai_cli.asking.mcp import http_app
from kai_cli.sources.source import AnswerSource
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult

from tests.given.cluster.sharing_cluster import of_two_namespaces
from tests.given.logs.stored import stored
from tests.given.servers.http_app import served_app
from tests.integration.test_api_access import make_key, serving


async def asked(url: str, key: str, subject: str) -> CallToolResult:
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        return await client.call_tool("why", {"subject": subject})


async def test_an_assistant_sees_what_its_callers_key_may_see(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "access.yaml"
    red = make_key(file, "red", "c/red", capsys=capsys)
    async with serving(await stored(of_two_namespaces()), file=file) as api, AsyncExitStack() as stack:
        app = http_app(AnswerSource(api_url=api.url), host="127.0.0.1")
        await stack.enter_async_context(app.router.lifespan_context(app))
        url = await stack.enter_async_context(served_app(app))
        own, others, unknown = [
            (result.is_error, getattr(result.content[0], "text", ""))
            for result in (
                await asked(url, red, "red/notebook"),
                await asked(url, red, "blue/notebook"),
                await asked(url, "kai_wrong", "red/notebook"),
            )
        ]
    assert (own[0], json.loads(own[1])["facts"]["placement"]["node"], "blue" in own[1]) == (False, "n0", False)
    assert (others[0], "may not see namespace 'blue'" in others[1]) == (True, True), others
    assert (unknown[0], "not known" in unknown[1]) == (True, True), unknown
