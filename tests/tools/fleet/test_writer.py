"""The queue of writes, against a server that does what servers do to clients."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from kai_fleet.writer import Metrics, Write, Writer
from kaicore.errors import ApiStatus
from kaicore.kube.api.access import plain_access
from kaicore.kube.api.client import KubeClient
from prometheus_client import CollectorRegistry

from tests.tools.fleet.cluster import eventually

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
async def connected(url: str) -> AsyncIterator[KubeClient]:
    async with KubeClient(plain_access(url, token="t")) as client:
        yield client


def reply(status: str, body: bytes = b"{}", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


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
    assert got.index("/b/2") < got.index("/a/0"), "a write that waits for its next try holds up no other"


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


async def test_conflict_that_lasts_ends_a_patch_and_no_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kai_fleet.writer._FIRST_RETRY_S", 0.001)
    tries: Counter[str] = Counter()

    async def answer(line: str, _body: bytes, writer: asyncio.StreamWriter) -> None:
        method = line.split(maxsplit=1)[0]
        tries[method] += 1
        conflict = reply("409 Conflict", b'{"reason":"Conflict","message":"the object has been modified"}')
        writer.write(reply("200 OK") if tries[method] > 7 else conflict)

    async with scripted_server(answer) as url, connected(url) as client:
        writer = Writer(client, Metrics(CollectorRegistry()), limit=2)
        writer.submit(Write("a", "test", "PATCH", "/a", b"{}"))
        writer.submit(Write("b", "test", "DELETE", "/b", b"{}"))
        await writer.idle()
    assert tries == {"PATCH": 5, "DELETE": 8}
