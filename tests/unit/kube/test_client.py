"""The client against an HTTP server with prepared answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from aiohttp import web
from kaicore.errors import ApiStatus, ClusterUnavailable, ConfigurationError
from kaicore.kube.api.access import Access, plain_access
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.failures import error_of

from tests.given.servers.http_app import served_routes

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

STATUS = {"kind": "Status", "code": 409, "reason": "Conflict", "message": "already assigned"}


def served(handler: Handler) -> AbstractAsyncContextManager[str]:
    return served_routes(web.route("*", "/{path:.*}", handler))


@asynccontextmanager
async def client_of(handler: Handler, *, token: str = "t", timeout_s: float = 10.0) -> AsyncIterator[KubeClient]:
    async with served(handler) as url, KubeClient(plain_access(url, token=token), timeout_s=timeout_s) as client:
        yield client


async def test_requests_carry_what_they_must() -> None:
    requests = []

    async def handler(request: web.Request) -> web.Response:
        requests.append((request.method, request.path_qs, dict(request.headers), await request.read()))
        return web.Response(body=b"{}")

    async with client_of(handler) as client:
        assert await client.get("/api/v1/pods", {"labelSelector": "a=b"}) == b"{}"
        await client.list_page("/api/v1/pods", limit=500, continue_token="abc=")
        await client.post("/api/v1/x", {"a": 1})
        await client.patch("/api/v1/x", {"b": None})
        await client.delete("/api/v1/x")
    assert [(method, path, body) for method, path, _, body in requests] == [
        ("GET", "/api/v1/pods?labelSelector=a%3Db", b""),
        ("GET", "/api/v1/pods?limit=500&continue=abc%3D", b""),
        ("POST", "/api/v1/x", b'{"a":1}'),
        ("PATCH", "/api/v1/x", b'{"b":null}'),
        ("DELETE", "/api/v1/x", b""),
    ]
    headers = [headers for _, _, headers, _ in requests]
    assert {one["Authorization"] for one in headers} == {"Bearer t"}
    assert [one.get("Content-Type") for one in headers[2:4]] == ["application/json", "application/merge-patch+json"]


async def test_what_is_there_already_is_not_made_again() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response(
            STATUS if request.path == "/there" else {}, status=409 if request.path == "/there" else 201
        )

    async with client_of(handler) as client:
        assert [await client.ensure(path, {}) for path in ("/new", "/there")] == [True, False]


@pytest.mark.parametrize(
    ("code", "headers", "body", "expected"),
    [
        (409, {}, STATUS, ApiStatus(409, "Conflict", "already assigned")),
        (404, {}, None, ApiStatus(404, "Unknown", "not json")),
        (302, {}, None, ApiStatus(302, "Unknown", "not json")),
        (503, {"Retry-After": "3"}, None, ClusterUnavailable("503 POST /x: not json")),
        (500, {}, {"message": "etcd"}, ClusterUnavailable("500 POST /x: etcd")),
        (429, {}, {"reason": "TooManyRequests"}, ClusterUnavailable("429 POST /x: no message")),
    ],
)
async def test_malformed_answer_is_an_error_that_names_it(
    code: int, headers: dict[str, str], body: object, expected: Exception
) -> None:
    async def handler(_: web.Request) -> web.Response:
        if body is None:
            return web.Response(status=code, text="not json", headers=headers)
        return web.json_response(body, status=code, headers=headers)

    async with client_of(handler) as client:
        with pytest.raises(type(expected)) as caught:
            await client.post("/x", {})
    assert str(caught.value) == str(expected)
    assert caught.value.code == code  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("header", "body", "wait_s"),
    [
        ("3", b"{}", 3),
        ("", b'{"details":{"retryAfterSeconds":5}}', 5),
        ("3", b'{"details":{"retryAfterSeconds":5}}', 3),
        ("Fri, 31 Dec 1999 23:59:59 GMT", b"", None),
    ],
)
def test_retry_after_of_the_server_is_read(header: str, body: bytes, wait_s: int | None) -> None:
    error = error_of("GET", "/x", 429, header, body)
    assert isinstance(error, ClusterUnavailable)
    assert error.retry_after_s == wait_s


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    async with served(_refuse) as url:
        pass
    async with KubeClient(plain_access(url)) as client:
        with pytest.raises(ClusterUnavailable) as caught:
            await client.get("/api/v1/nodes")
    assert caught.value.code == 0


async def _refuse(_: web.Request) -> web.Response:
    return web.Response(status=401)


async def test_answer_that_does_not_come_in_time_is_an_error() -> None:
    over = asyncio.Event()

    async def handler(_: web.Request) -> web.Response:
        await over.wait()
        return web.Response()

    async with client_of(handler, timeout_s=0.05) as client:
        with pytest.raises(ClusterUnavailable):
            await client.get("/x")
        over.set()


async def test_credentials_are_read_anew_when_refused() -> None:
    tokens = iter(["old", "new"])
    reads = 0

    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=200 if request.headers["Authorization"] == "Bearer new" else 401)

    async with served(handler) as url:

        async def source() -> Access:
            nonlocal reads
            reads += 1
            return await plain_access(url, token=next(tokens))()

        async with KubeClient(source) as client:
            await asyncio.gather(*(client.get("/x") for _ in range(20)))
            await client.get("/x")
    assert reads == 2


async def test_refused_credentials_that_cannot_be_renewed_are_an_error() -> None:
    async with served(_refuse) as url:
        async with KubeClient(plain_access(url)) as client:
            with pytest.raises(ApiStatus) as refused:
                await client.get("/x")
        assert refused.value.code == 401
        answers = iter([await plain_access(url)()])

        async def source() -> Access:
            for access in answers:
                return access
            raise ConfigurationError("exec plugin failed")

        async with KubeClient(source) as client:
            with pytest.raises(ClusterUnavailable, match="exec plugin"):
                await client.get("/x")


async def test_lines_of_a_watch_are_whole_however_they_arrive() -> None:
    text = b'{"a":1}\n{"b":' + b"2" * 3_000_000 + b"}\n\n" + b'{"c":3}\n{"cut off'

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.query["allowWatchBookmarks"] == "true"
        response = web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(text), 99_991):
            await response.write(text[start : start + 99_991])
        return response

    async with client_of(handler) as client, client.watch("/w", resource_version="7", timeout_s=60) as chunks:
        lines = [line async for chunk in chunks for line in chunk]
    assert b"".join(line + b"\n" for line in lines) == text[: text.rindex(b"{")].replace(b"\n\n", b"\n")


async def test_watch_that_breaks_or_is_refused_is_an_error() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.query["resourceVersion"] == "1":
            return web.json_response({"code": 410, "reason": "Expired"}, status=410)
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"{}\n")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with client_of(handler) as client:
        with pytest.raises(ApiStatus) as refused:
            async with client.watch("/w", resource_version="1", timeout_s=60):
                pass
        assert refused.value.code == 410
        async with client.watch("/w", resource_version="2", timeout_s=60) as chunks:
            assert await anext(chunks) == [b"{}"]
            with pytest.raises(ClusterUnavailable):
                await anext(chunks)


async def test_a_watch_that_is_quiet_for_as_long_as_asked_is_no_error() -> None:
    release = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if request.path == "/ends":
            await asyncio.sleep(float(request.query["timeoutSeconds"]) + 0.5)
        else:
            await release.wait()
        return response

    async with (
        served(handler) as url,
        KubeClient(plain_access(url), watch_grace_s=5.0) as client,
        client.watch("/ends", resource_version="1", timeout_s=1) as chunks,
    ):
        assert [lines async for lines in chunks] == []
    async with served(handler) as url, KubeClient(plain_access(url), watch_grace_s=0.2) as client:
        with pytest.raises(ClusterUnavailable, match="WATCH /never-ends"):
            async with client.watch("/never-ends", resource_version="1", timeout_s=1) as chunks:
                assert [lines async for lines in chunks] == []
        release.set()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "the connection ended without an answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", "the connection ended within the answer"),
        (None, "cannot connect to 127.0.0.1:{port}: Connection refused"),
    ],
)
async def test_a_server_that_does_not_answer_is_said_in_words_of_no_library(answer: bytes | None, said: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer or b"")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        if answer is None:
            server.close()
        async with KubeClient(plain_access(f"http://127.0.0.1:{port}", token="t")) as client:
            with pytest.raises(ClusterUnavailable) as raised:
                await client.get("/x")
    assert str(raised.value) == f"GET /x: {said.format(port=port)}"
