"""The lean client and the queue in front of it, against a server that does what servers do to clients."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from kai_simulator.fleet.metrics import Metrics
from kai_simulator.fleet.write_client import WriteClient
from kai_simulator.fleet.writer import Write, Writer
from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.k8s.access import Access, AccessSource, plain_access
from kaicore.k8s.client import KubeClient
from prometheus_client import CollectorRegistry

from tests.simulator.fleet.cluster import eventually

Answer = Callable[[str, bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def scripted_server(answer: Answer) -> AsyncIterator[str]:
    """Serve HTTP: `answer` gets the request line, the body and the connection."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                await answer(lines[0], body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


@asynccontextmanager
async def connected(url: str, source: AccessSource | None = None) -> AsyncIterator[WriteClient]:
    access = source or plain_access(url, token="t")
    async with KubeClient(access) as reader, WriteClient(access, reader) as client:
        yield client


def reply(status: str, body: bytes = b"{}", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def send(client: WriteClient, path: str = "/x") -> bytes:
    return await client.send("PATCH", path, b"{}", content_type="application/json")


async def test_connections_are_kept_and_answers_may_come_in_chunks() -> None:
    connections: set[object] = set()

    async def answer(_line: str, _body: bytes, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await writer.drain()
        writer.write(b"2\r\nde\r\n0\r\n\r\n")

    async with scripted_server(answer) as url, connected(url) as client:
        assert [await send(client) for _ in range(3)] == [b"abcde"] * 3
        assert len(connections) == 1
        await asyncio.gather(*(send(client) for _ in range(4)))
        assert len(connections) == 4


async def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    async def answer(_line: str, _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(reply("200 OK", b"{}", "Connection: close"))
        await writer.drain()
        writer.close()

    async with scripted_server(answer) as url, connected(url) as client:
        assert [await send(client) for _ in range(2)] == [b"{}", b"{}"]


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (reply("409 Conflict", b'{"reason":"Conflict","message":"no","code":409}'), ApiStatus, "Conflict"),
        (reply("422 Unprocessable", b"<html>"), ApiStatus, "<html>"),
        (reply("503 Unavailable"), ClusterUnavailable, "503"),
        (b"HTTP/1.1 2", ClusterUnavailable, "closed"),
        (b"SMTP ready\r\n\r\n", ClusterUnavailable, "HttpParser"),
        (b"", ClusterUnavailable, "closed"),
    ],
)
async def test_bad_answers_are_one_of_two_errors(answer: bytes, error: type[Exception], text: str) -> None:
    async def serve(_line: str, _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        if not answer.startswith(b"HTTP/1.1 4") and b"503" not in answer:
            writer.close()

    async with scripted_server(serve) as url, connected(url) as client:
        with pytest.raises(error, match=text):
            await send(client)


async def test_a_429_says_how_long_to_wait() -> None:
    async def answer(_line: str, _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(reply("429 Too Many Requests", b"{}", "Retry-After: 7"))

    async with scripted_server(answer) as url, connected(url) as client:
        with pytest.raises(ClusterUnavailable) as caught:
            await send(client)
        assert caught.value.retry_after_s == 7


async def test_nobody_there_is_an_error_too() -> None:
    async with connected("http://127.0.0.1:1") as client:
        with pytest.raises(ClusterUnavailable, match="PATCH /x"):
            await send(client)


async def test_refused_credentials_are_read_anew_once() -> None:
    tokens = iter(["old", "new", "newer"])
    seen: list[str] = []

    async def answer(_line: str, _body: bytes, writer: asyncio.StreamWriter) -> None:
        seen.append(_line)
        writer.write(reply("401 Unauthorized") if len(seen) == 1 else reply("200 OK", b"fine"))

    async with scripted_server(answer) as url:

        async def source() -> Access:
            token = next(tokens)

            async def headers() -> dict[str, str]:
                return {"Authorization": f"Bearer {token}"}

            return Access(url, headers)

        async with connected(url, source) as client:
            assert await send(client) == b"fine"
            assert next(tokens) == "newer"


async def test_with_a_proxy_the_reading_client_writes() -> None:
    lines: list[str] = []

    async def proxy(line: str, _body: bytes, writer: asyncio.StreamWriter) -> None:
        lines.append(line)
        writer.write(reply("200 OK", b"proxied"))

    async with scripted_server(proxy) as url:

        async def source() -> Access:
            async def headers() -> dict[str, str]:
                return {}

            return Access("http://cluster.invalid", headers, proxy=url)

        async with connected(url, source) as client:
            assert await client.send("POST", "/p", b"{}", content_type="application/json") == b"proxied"
            assert await client.send("DELETE", "/d", b"{}", content_type="application/json") == b"proxied"
            assert await send(client) == b"proxied"
    assert lines[0].startswith("POST http://cluster.invalid/p")


# --- the queue --------------------------------------------------------------------------------------------------------


async def test_writes_about_one_thing_stay_in_order_even_when_one_is_repeated() -> None:
    got: list[str] = []
    failures = 2

    async def answer(line: str, _body: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal failures
        path = line.split()[1]
        if path == "/a/0" and failures:
            failures -= 1
            writer.write(reply("500 Oops"))
            return
        got.append(path)
        writer.write(reply("200 OK"))

    async with scripted_server(answer) as url, connected(url) as client:
        writer = Writer(client, Metrics(CollectorRegistry()), limit=2)
        for number in range(3):
            for thing in "ab":
                writer.submit(Write(thing, "test", "PATCH", f"/{thing}/{number}", b"{}"))
        await writer.idle()
    assert [path for path in got if path[1] == "a"] == ["/a/0", "/a/1", "/a/2"]
    assert [path for path in got if path[1] == "b"] == ["/b/0", "/b/1", "/b/2"]
    assert got.index("/b/2") < got.index("/a/0"), "a write that waits for its next try holds up nobody else"


async def test_an_outcome_is_told_and_a_defect_in_who_is_told_is_contained() -> None:
    outcomes: list[bytes | ApiStatus] = []

    async def answer(line: str, _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(reply("404 Not Found", b'{"reason":"NotFound"}') if "gone" in line else reply("200 OK", b"ok"))

    def stumble(_: bytes | ApiStatus) -> None:
        raise RuntimeError("defect")

    async with scripted_server(answer) as url, connected(url) as client:
        writer = Writer(client, Metrics(CollectorRegistry()), limit=4)
        writer.submit(Write("a", "test", "PATCH", "/stumble", b"{}", done=stumble))
        writer.submit(Write("a", "test", "PATCH", "/gone", b"{}", done=outcomes.append))
        writer.submit(Write("a", "test", "PATCH", "/there", b"{}", done=outcomes.append))
        writer.submit(Write("b", "test", "PATCH", "/gone", b"{}"))
        await writer.idle()
        await writer.close()
    assert isinstance(outcomes[0], ApiStatus)
    assert outcomes[0].code == 404
    assert outcomes[1] == b"ok"


async def test_closing_gives_up_what_waits() -> None:
    async def answer(_line: str, _body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(reply("500 Oops"))

    async with scripted_server(answer) as url, connected(url) as client:
        metrics = Metrics(CollectorRegistry())
        writer = Writer(client, metrics, limit=1)
        for number in range(5):
            writer.submit(Write(str(number), "test", "PATCH", "/x", b"{}"))
        retries = ("kai_fleet_api_retries_total", {"kind": "test"})
        await eventually(lambda: metrics.registry.get_sample_value(*retries))
        await writer.close()
