"""Connecting to a server that does not let us in: it goes on, and ends when it is to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from kaicore.ledger.bus import NatsBus

_INFO = b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576,"headers":true,"%b":true}\r\n'

Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(asks_for: bytes, answer: Answering) -> AsyncIterator[str]:
    """Serve clients that hear first that something is required; give the place."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_INFO % asks_for)
        await answer(reader, writer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def test_a_tls_handshake_that_failed_is_tried_again() -> None:
    attempts: asyncio.Queue[bytes] = asyncio.Queue()

    async def leaves(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await attempts.put(await reader.read(1))

    async with server(b"tls_required", leaves) as place:
        bus = await NatsBus.open(f"tls://{place}", name="test")
        async with asyncio.timeout(20):
            first, second = await attempts.get(), await attempts.get()
        await bus.close()
    assert first == second == b"\x16", "a handshake begins so"


async def test_connecting_that_is_refused_as_the_bus_is_closed_ends() -> None:
    """Within a few turns of the event loop of the answer, Python 3.11's `wait_for` swallows a cancellation."""
    refused = asyncio.Event()

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"PING\r\n")
        writer.write(b"-ERR 'Authorization Violation'\r\n")
        refused.set()
        await reader.read()

    async with server(b"auth_required", refuses) as place:
        for turns in range(6):
            refused.clear()
            bus = await NatsBus.open(f"nats://user:wrong@{place}", name="test")
            await refused.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            async with asyncio.timeout(20):
                await bus.close()
