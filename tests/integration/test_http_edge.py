"""The cost that a client without a token may cause: bytes, time and connections; and that of long questions."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest
from fastapi import FastAPI, Request
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.runtime.service import Health, http_server
from kaicore.runtime.service.health import with_health
from kaicore.runtime.service.http_errors import add_error_handlers
from kaicore.runtime.service.http_limits import CONNECTION, HttpLimits
from kaicore.runtime.service.http_server import HttpServer

from tests.given.processes.service_process import ready, service_process
from tests.given.processes.waiting import eventually
from tests.given.servers.http_app import served_app
from tests.integration.scheduling import Facts

PATIENCE_S = 60.0


class Raw:
    """A client that sends whatever it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, address: str) -> "Raw":
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def rest(self) -> bytes:
        """The server's answer until it ends the connection."""
        body = b""
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionResetError):
                while part := await self.reader.read(1 << 16):
                    body += part
        return body

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


async def answer(address: str, request: bytes) -> tuple[int, bytes]:
    """Send a request as it is; return the status, and all that was said."""
    client = await Raw.connect(address)
    try:
        with suppress(ConnectionError):
            await client.send(request)
        body = await client.rest()
        return int(body.split()[1]) if body else 0, body
    finally:
        await client.close()


async def get(address: str, path: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}") as response:
        return response.status


@asynccontextmanager
async def serving(limits: HttpLimits, app: Any = None) -> AsyncIterator[str]:
    async with served_app(app or with_health(Health()), limits=limits) as url:
        yield url.removeprefix("http://")


@asynccontextmanager
async def ingest_process(database_url: str, tmp_path: Path) -> AsyncIterator[str]:
    secret = tmp_path / "secret"
    secret.write_bytes(b"a secret of some length")
    environment = {
        "KAI_CLUSTER": "c1",
        "KAI_DATABASE_URL": database_url,
        "KAI_NODE_TOKEN_SECRET_FILE": str(secret),
        "KAI_MAX_BODY_BYTES": "100000",
    }
    async with service_process("kai_ingest.main", environment) as address:
        await ready(address)
        yield address


@asynccontextmanager
async def api_process(database_url: str, **settings: str) -> AsyncIterator[str]:
    async with service_process(
        "kai_api.main", {"KAI_DATABASE_URL": database_url, "KAI_ANONYMOUS": "anywhere", **settings}
    ) as address:
        await ready(address)
        yield address


async def test_what_clients_without_a_token_send_is_refused_or_given_up_and_ingest_and_api_go_on_answering(
    database_url: str, superuser_url: str, tmp_path: Path
) -> None:
    async with (
        ingest_process(database_url, tmp_path) as ingest,
        api_process(database_url, KAI_LONG_ANSWER_S="0.5") as api,
    ):
        for address in (ingest, api):
            await _forty_megabytes_of_header(address)
            for path in (
                "/v1/clusters/%00",
                "/v1/clusters/c1/events?stream=%00",
                "/%ff",
                "/x?%80",
                "/%0d%0aSet-Cookie:x",
            ):
                status, body = await answer(address, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                assert (status, b"only UTF-8 without control characters" in body) == (400, True), path
        await _bodies_that_are_too_large(ingest)
        assert (await answer(api, b"GET /v1/\xff HTTP/1.1\r\nHost: x\r\n\r\n"))[0] == 400
        no_such = b"GET /v1/clusters/%C3%A4 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert (await answer(api, no_such))[0] == 404
        await _a_replay_that_takes_too_long(api, database_url, superuser_url)


async def _forty_megabytes_of_header(address: str) -> None:
    flood = await Raw.connect(address)
    taken = 0
    with suppress(ConnectionError):
        await flood.send(b"POST /v1/clusters/c1/nodes/n1/placements HTTP/1.1\r\nHost: x\r\nX-Long: ")
        while taken < 640:
            await flood.send(b"x" * 65536)
            await asyncio.sleep(0)
            taken += 1
    await flood.close()
    # Sockets of one machine hold some 10 MB that nobody has read yet.
    assert taken < 320, "it was cut off long before its 40 MB"
    status, body = await answer(address, b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 100_000)
    assert (status, b"header: has more than 32768 bytes" in body) == (431, True)
    many = b"".join(b"x-%d: 1\r\n" % number for number in range(101))
    assert (await answer(address, b"GET / HTTP/1.1\r\nHost: x\r\n" + many + b"\r\n"))[0] == 431
    assert await get(address, "/healthz") == 200


async def _bodies_that_are_too_large(ingest: str) -> None:
    """They are refused before it is asked who sends them."""
    path = b"POST /v1/clusters/c1/nodes/n1/placements HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    status, body = await answer(ingest, path + b"Content-Length: 100001\r\n\r\n")
    assert (status, b"body: has more than 100000 bytes" in body) == (413, True)
    chunks = b"c350\r\n" + b" " * 50_000 + b"\r\n"
    status, body = await answer(ingest, path + b"Transfer-Encoding: chunked\r\n\r\n" + chunks * 3)
    # The token is missed first if the application is as fast as the body.
    assert status in (401, 413)
    status, _ = await answer(ingest, path + b"Content-Length: 10\r\n\r\n" + b"0123456789")
    assert status == 401
    assert await get(ingest, "/readyz") == 200


async def _a_replay_that_takes_too_long(api: str, database_url: str, superuser_url: str) -> None:
    async with await PostgresLog.open(database_url) as log:
        await Facts(log, "c1").add_nodes(1)
    async with Locked(superuser_url):
        status, body = await answer(api, b"GET /v1/clusters/c1/replay HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert status == 504
        assert "took more than" in json.loads(body.partition(b"\r\n\r\n")[2])["error"]


async def test_a_trailer_or_chunk_extension_without_end_is_cut_off() -> None:
    async with serving(HttpLimits(header_bytes=4096)) as address:
        post = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        for endless in (b"0\r\nX-Trailer: ", b"5;extension="):
            client = await Raw.connect(address)
            await client.send(post + endless)
            with suppress(ConnectionError):
                for _ in range(8000):
                    await client.send(b"x" * 4096)
                    await asyncio.sleep(0)
                pytest.fail("32 MB were taken, and sockets of one machine hold some 10")
            await client.close()


async def test_half_open_requests_are_ended() -> None:
    async with serving(HttpLimits(header_s=0.2, body_s=0.2)) as address:
        assert (await answer(address, b"GET /healthz HTTP/1.1\r\nHost:"))[0] == 408
        assert (await answer(address, b""))[0] == 408, "who says nothing at all"
        kept = await Raw.connect(address)
        await kept.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await kept.reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        await kept.send(b"GET /healthz HTTP/1.1\r\n")
        assert b" 408 " in await kept.rest(), "the second request of a connection, too"
        await kept.close()


async def test_a_body_that_does_not_come_ends_the_request() -> None:
    ended = asyncio.Event()

    async def app(_: Any, receive: Any, send: Any) -> None:
        del send
        while (await receive())["type"] != "http.disconnect":
            pass
        ended.set()

    async with serving(HttpLimits(body_s=0.2), app) as address:
        post = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345"
        assert (await answer(address, post))[0] == 0
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()


async def test_a_long_answer_is_not_taken_for_a_slow_request() -> None:
    release = asyncio.Event()

    async def app(_: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"12345"
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async with serving(HttpLimits(header_s=0.1, body_s=0.1), app) as address:
        asking = asyncio.create_task(
            answer(address, b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 5\r\n\r\n12345")
        )
        asyncio.get_running_loop().call_later(2.0, release.set)
        assert (await asking)[0] == 200


async def test_more_half_open_connections_than_may_be_keep_no_request_out() -> None:
    async with serving(HttpLimits(connections=10)) as address:
        half_open = [await Raw.connect(address) for _ in range(50)]
        for client in half_open:
            with suppress(ConnectionError):
                await client.send(b"GET / HTTP/1.1\r\n")
        assert await get(address, "/healthz") == 200
        assert await half_open[0].rest() == b"", "those that we waited for longest made room"
        for client in half_open:
            await client.close()


async def test_when_all_connections_are_at_work_another_one_is_told_so() -> None:
    release, entered = asyncio.Event(), asyncio.Semaphore(0)

    async def app(_: Any, __: Any, send: Any) -> None:
        entered.release()
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async with serving(HttpLimits(connections=2), app) as address:
        request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        working = [asyncio.create_task(answer(address, request)) for _ in range(2)]
        for _ in working:
            await entered.acquire()
        assert b"too many connections" in (await answer(address, b""))[1]
        release.set()
        assert [status for status, _ in await asyncio.gather(*working)] == [200, 200]


async def test_a_client_that_reads_no_answer_is_given_up() -> None:
    left = asyncio.Event()

    async def app(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * (1 << 20), "more_body": True})
        left.set()

    async with serving(HttpLimits(send_s=1.0), app) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                await left.wait()


class Locked:
    """Keeps the log's events from being read."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> None:
        self._connection = await psycopg.AsyncConnection.connect(self._url)
        await self._connection.execute("LOCK TABLE event IN ACCESS EXCLUSIVE MODE")

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()


async def asking(database_url: str) -> int:
    """The number of processes that answer long questions."""
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        row = await (
            await connection.execute(
                "SELECT count(DISTINCT application_name || client_port) FROM pg_stat_activity "
                "WHERE application_name LIKE 'kai-api-%' AND datname = current_database()"
            )
        ).fetchone()
        assert row is not None
        return int(row[0])


async def test_replays_are_a_few_at_a_time_beside_the_event_loop_and_end_with_their_client(
    database_url: str, superuser_url: str
) -> None:
    async with await PostgresLog.open(database_url) as log:
        await Facts(log, "c1").add_nodes(1)
    replay = "/v1/clusters/c1/replay"
    async with api_process(database_url, KAI_LONG_ANSWERS="1") as api, aiohttp.ClientSession() as session:
        async with session.get(f"http://{api}{replay}") as response:
            assert (response.status, (await response.json())["differences"]) == (200, [])
        async with session.get(f"http://{api}/v1/clusters/c1/audit") as response:
            assert (response.status, (await response.json())["ok"]) == (200, True)
        async with Locked(superuser_url):
            client = await Raw.connect(api)
            await client.send(f"GET {replay} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await eventually(lambda: asking(database_url))
            async with session.get(f"http://{api}{replay}") as response:
                assert (response.status, response.headers["Retry-After"]) == (429, "10")
            assert await get(api, "/v1/clusters") == 200
            await client.close()
            await eventually(lambda: asking(database_url), lambda count: count == 0)
        await eventually(lambda: get(api, replay), lambda status: status == 200)


async def test_application_that_cuts_its_connection_gives_no_answer() -> None:
    async def cuts(scope: Any, receive: Any, send: Any) -> None:
        scope["extensions"][CONNECTION]["transport"].abort()
        while (await receive())["type"] != "http.disconnect":
            pass

    async with serving(HttpLimits(), cuts) as address:
        assert await answer(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") == (0, b"")


async def test_answers_do_not_wait_for_the_clients_acknowledgements() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        connection = scope["extensions"][CONNECTION]["transport"].get_extra_info("socket")
        at_once = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await send({"type": "http.response.start", "status": 200 if at_once else 500, "headers": []})
        await send({"type": "http.response.body"})

    async with serving(HttpLimits(), app) as address:
        assert await get(address, "/") == 200


async def test_a_client_that_leaves_with_its_request_is_no_failure_of_the_server() -> None:
    app = FastAPI()
    add_error_handlers(app)

    @app.post("/")
    async def taken(request: Request) -> int:
        return len(await request.body())

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    await app({"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}, receive, send)


async def test_any_target_reaches_an_application_that_takes_them() -> None:
    request = b"GET /healthz?a=%00%ff HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    for any_target, status in ((True, 200), (False, 400)):
        async with serving(HttpLimits(any_target=any_target)) as address:
            assert (await answer(address, request))[0] == status


async def test_request_that_does_not_end_is_cancelled_when_the_server_stops() -> None:
    begun, cancelled, stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    server = HttpServer(endless, host="127.0.0.1", port=0, stop_s=0.01)
    task = asyncio.create_task(server.run(stopping))
    client = await Raw.connect(server.address)
    await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        await begun.wait()
        stopping.set()
        await task
    assert cancelled.is_set()
    assert b"500 Internal Server Error" in await client.rest()
    await client.close()


async def test_a_server_without_clients_sleeps_and_dates_its_next_answer_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = 0
    original = http_server._Server.on_tick

    async def on_tick(server: http_server._Server, counter: int) -> bool:
        nonlocal ticks
        ticks += 1
        return await original(server, counter)

    monkeypatch.setattr(http_server._Server, "on_tick", on_tick)
    request = b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    # With such a limit it ticks each half second.
    async with serving(HttpLimits(header_s=1.0)) as address:
        await answer(address, request)
        await asyncio.sleep(0.6)
        asleep = ticks
        await asyncio.sleep(1.2)
        assert ticks == asleep
        _, said = await answer(address, request)
        date = re.search(rb"date: (.*)\r", said)
        assert date is not None
        assert (datetime.now(UTC) - parsedate_to_datetime(date[1].decode())).total_seconds() < 1.5
