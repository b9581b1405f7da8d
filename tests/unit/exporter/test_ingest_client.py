"""The ingest that a report goes to, and the one besides, on real connections."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import msgspec
import pytest
from kai_exporter.ingest_client import IngestClient, IngestUnavailable
from kai_exporter.node_pods import Outgoing
from kaicore.rules.objects.reports import ReportAnswer

_REPORT = Outgoing("n1", sequence=1, observed_at=1, full=True, pods=(), versions={})


class Ingests:
    """Servers that answer each request, or refuse it, or stand still with its connection open."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.asked: list[str] = []

    async def start(self, name: str, *ways: str) -> str:
        """Return the URL of a server that does so with its first connections, and as the last with all others."""
        left = iter(ways)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            way = next(left, ways[-1])
            with _closing(writer):
                while await reader.readline():
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                    await reader.readexactly(int(length.partition(b":")[2]))
                    self.asked.append(name)
                    if way == "silent":
                        await reader.read()
                        return
                    writer.write(_answer(503 if way == "refuses" else 200, name))

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        await self._stack.enter_async_context(server)
        host, port = server.sockets[0].getsockname()
        return f"http://{host}:{port}"


@contextmanager
def _closing(writer: asyncio.StreamWriter) -> Iterator[None]:
    try:
        yield
    finally:
        writer.close()


def _answer(status: int, name: str) -> bytes:
    body = msgspec.json.encode(ReportAnswer("n1", "taken", detail=name))
    return b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@pytest.fixture
async def ingests() -> AsyncIterator[Ingests]:
    async with AsyncExitStack() as stack:
        yield Ingests(stack)


@asynccontextmanager
async def _client(*urls: str, another_after_s: float = 0.01) -> AsyncIterator[IngestClient]:
    client = IngestClient(
        ",".join(urls),
        cluster="c",
        token=lambda: "t",
        node="n1",
        timeout_s=3600,
        another_after_s=another_after_s,
    )
    try:
        yield client
    finally:
        await client.close()


async def _taken_by(client: IngestClient) -> str:
    (answer,) = await client.send([_REPORT])
    return answer.detail


async def test_an_ingest_that_stands_still_is_passed_by_and_asked_no_more(ingests: Ingests) -> None:
    frozen, other = await ingests.start("frozen", "silent"), await ingests.start("other", "answers")
    async with _client(frozen, other) as client:
        assert [await _taken_by(client) for _ in range(3)] == ["other"] * 3
    assert ingests.asked == ["frozen", "other", "other", "other"]


async def test_behind_one_address_another_ingest_is_found_by_a_new_connection(ingests: Ingests) -> None:
    async with _client(await ingests.start("service", "silent", "answers")) as client:
        assert [await _taken_by(client) for _ in range(2)] == ["service"] * 2
    assert ingests.asked == ["service"] * 3


async def test_ingests_that_refuse_are_each_asked_once(ingests: Ingests) -> None:
    urls = [await ingests.start(name, "refuses") for name in ("one", "two")]
    async with _client(*urls, another_after_s=3600) as client:
        with pytest.raises(IngestUnavailable, match=f"{urls[1]}.*HTTP 503"):
            await client.send([_REPORT])
    assert ingests.asked == ["one", "two"]


async def test_an_only_ingest_that_refuses_is_left_alone(ingests: Ingests) -> None:
    async with _client(await ingests.start("one", "refuses"), another_after_s=3600) as client:
        with pytest.raises(IngestUnavailable, match="HTTP 503"):
            await client.send([_REPORT])
    assert ingests.asked == ["one"]
