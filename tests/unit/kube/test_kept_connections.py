"""Kept connections, against a server that answers with prepared bytes."""

import asyncio
import gc
import ipaddress
import socket
import ssl
import warnings
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import pytest
from cryptography import x509
from kaicore.errors import ClusterUnavailable
from kaicore.kube.api.access import Access, plain_access
from kaicore.kube.api.client import KubeClient
from kaicore.runtime.access.certificates import make_server_certificate

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


#: In place of an answer: the connection is closed before, or after, a request is read.
CLOSED, UNANSWERED = b"closed", b"unanswered"


class Server:
    """Answers the requests of each connection in turn with prepared bytes, and then waits."""

    def __init__(self, *answers: list[bytes]) -> None:
        self._answers = iter(answers)
        self.requests: list[bytes] = []
        self._open, self._ended = 0, asyncio.Event()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            for answer in next(self._answers):
                if answer is CLOSED:
                    break
                self.requests.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
                if answer is UNANSWERED:
                    break
                writer.write(answer)
            else:
                await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self._open -= 1
        self._ended.set()

    async def ended(self) -> None:
        """Wait until all its connections are closed."""
        while self._open:
            self._ended.clear()
            await self._ended.wait()


@asynccontextmanager
async def client_of(*answers: list[bytes]) -> AsyncIterator[tuple[KubeClient, Server]]:
    server = Server(*answers)
    async with await asyncio.start_server(server.converse, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with KubeClient(plain_access(f"http://127.0.0.1:{port}"), timeout_s=5) as client:
            yield client, server
        await server.ended()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcde",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde",
    ],
)
async def test_answer_in_any_framing_is_read_as_a_whole(answer: bytes) -> None:
    async with client_of([answer, CLOSED]) as (client, _):
        assert await client.get("/x") == b"abcde"


async def test_connection_is_kept_for_the_next_request() -> None:
    async with client_of([OK, OK, OK]) as (client, server):
        for path in ("/a", "/b c", "/d?e=%3D"):
            await client.get(path)
    assert server.requests == [b"GET /a HTTP/1.1", b"GET /b%20c HTTP/1.1", b"GET /d?e=%3D HTTP/1.1"]


async def test_read_on_a_connection_that_the_server_has_closed_is_sent_again() -> None:
    async with client_of([OK, UNANSWERED], [OK]) as (client, server):
        await client.get("/a")
        assert await client.get("/b") == b"{}"
    assert server.requests[1:] == [b"GET /b HTTP/1.1"] * 2


async def test_write_without_an_answer_is_not_sent_again() -> None:
    async with client_of([OK, UNANSWERED], [OK]) as (client, server):
        await client.get("/a")
        with pytest.raises(ClusterUnavailable, match="ended without an answer"):
            await client.post("/b", {})
        assert await client.get("/c") == b"{}"
    assert server.requests == [b"GET /a HTTP/1.1", b"POST /b HTTP/1.1", b"GET /c HTTP/1.1"]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
)
async def test_answer_that_is_cut_off_or_no_http_is_an_error(answer: bytes) -> None:
    async with client_of([answer, CLOSED]) as (client, _):
        with pytest.raises(ClusterUnavailable):
            await client.get("/x")


async def test_bytes_that_nobody_asked_for_answer_no_later_request() -> None:
    async with client_of([OK + b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"], [OK]) as (client, _):
        assert await client.get("/a") == b"{}"
        assert await client.get("/b") == b"{}"


async def test_cancelled_request_leaves_no_connection_that_answers_the_next() -> None:
    async with client_of([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"], [OK]) as (client, _):
        asking = asyncio.ensure_future(client.get("/slow"))
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await client.get("/next") == b"{}"


def test_event_loop_may_end_as_soon_as_a_client_is_closed_though_the_server_answers_no_farewell(tmp_path: Path) -> None:
    asked, address = Event(), ipaddress.ip_address("127.0.0.1")
    made = make_server_certificate(
        [x509.IPAddress(address)], authority_name="a", server_name="s", now=datetime.now(UTC), life=timedelta(days=1)
    )
    (tmp_path / "server.pem").write_bytes(made.certificate + made.key)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(tmp_path / "server.pem")

    async def no_headers() -> dict[str, str]:
        return {}

    async def access() -> Access:
        tls = ssl.create_default_context(cadata=made.authority.decode())
        return Access(f"https://127.0.0.1:{listening.getsockname()[1]}", no_headers, tls)

    def serve() -> None:
        with serving.wrap_socket(listening.accept()[0], server_side=True) as connection:
            connection.recv(4096)
            connection.sendall(OK)
            asked.wait(60)

    async def ask() -> bytes:
        async with KubeClient(access) as client:
            return await client.get("/x")

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                assert asyncio.run(ask()) == b"{}"
                gc.collect()
            finally:
                asked.set()
        served.result()
    assert [str(one.message) for one in warned] == []
