"""A Postgres that is not there, says nothing, or has no room: services wait, say so, and lose nothing."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import psycopg
import pytest
from kaicore.analysis.replay import log_states
from kaicore.errors import LogUnavailable
from kaicore.ledger import connections
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events import payloads
from kaicore.runtime.embedded import EmbeddedPostgres
from kaicore.runtime.process_context import Health
from kaicore.runtime.service import ServiceContext
from kaicore.runtime.service.log_access import LOG, open_log
from kaicore.runtime.service.logs import get_logger

from tests.given.logs.new_events import new_event, unit
from tests.given.processes.service_process import service_process
from tests.given.servers.kube import simulated
from tests.given.servers.servers import lay_out_postgres, scratch_directory

PATIENCE_S = 120.0

SERVICES = (
    "kai_relay.main",
    "kai_scheduler.main",
    "kai_ingest.main",
    "kai_api.main",
    "kai_projector.main",
    "kai_watcher.main",
    "kai_binder.main",
)
#: Seconds in which `/readyz` tells that the log does not answer.
TOLD_IN_S = 5.0


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedPostgres]:
    """A Postgres of the test's own, which runs and has a log in it."""
    with scratch_directory() as directory:
        await asyncio.to_thread(lay_out_postgres, directory / "postgres")
        async with EmbeddedPostgres(directory / "postgres", durable=False) as running:
            yield running


@asynccontextmanager
async def services(database_url: str, nats_url: str, directory: Path) -> AsyncIterator[dict[str, str]]:
    """Every service that needs the log, those that need a cluster on a simulated one; yields their addresses."""
    secret, kubeconfig = directory / "secret", directory / "kubeconfig"
    secret.write_bytes(b"a secret of some length")
    environment = {
        "KAI_CLUSTER": "c1",
        "KAI_CLUSTERS": "c1",
        "KAI_DATABASE_URL": database_url,
        "KAI_NATS_URL": nats_url,
        "KAI_ANONYMOUS": "loopback",
        "KAI_NODE_TOKEN_SECRET_FILE": str(secret),
        "KAI_KUBECONFIG": str(kubeconfig),
    }
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(simulated())
        api.server.write_http_kubeconfig(kubeconfig)
        yield {service: await stack.enter_async_context(service_process(service, environment)) for service in SERVICES}


class Client:
    """Asks services how they are."""

    def __init__(self, session: aiohttp.ClientSession, addresses: dict[str, str]) -> None:
        self._session, self._addresses = session, addresses

    async def get(self, service: str, path: str) -> tuple[int, str]:
        async with self._session.get(f"http://{self._addresses[service]}{path}") as response:
            return response.status, await response.text()

    async def until(self, status: int, *, saying: str = "") -> dict[str, str]:
        """Wait until `/readyz` of each has a status, and says something with it; return what they say."""

        async def one(service: str) -> str:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    status_now, problem = await self.get(service, "/readyz")
                    if status_now == status and saying in problem:
                        return problem
                    await asyncio.sleep(0.05)

        problem = await asyncio.gather(*map(one, self._addresses))
        return dict(zip(self._addresses, problem, strict=True))

    async def alive(self) -> None:
        """Each lives, and is not to be started again."""
        for service in self._addresses:
            assert (await self.get(service, "/healthz"))[0] == 200, service


@asynccontextmanager
async def asking(addresses: dict[str, str]) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as session:
        yield Client(session, addresses)


async def test_services_wait_until_postgres_speaks_is_there_and_is_migrated_and_tell_when_it_falls_silent(
    server: EmbeddedPostgres, nats_url: str, tmp_path: Path
) -> None:
    """One start of all services for every way in which a Postgres is not there: a start of each takes seconds."""
    url = await _unmigrated(server)
    await server.stop()
    port = urlsplit(url).port
    assert port is not None
    async with silent_on(port) as hang_up, services(url, nats_url, tmp_path) as addresses, asking(addresses) as client:
        await client.until(503, saying="[-]log failed: Postgres does not answer: no answer in 2.5 s")
        await client.alive()
        hang_up()
        await client.until(503, saying="[-]log failed: cannot connect to Postgres")
        await client.alive()
        assert (await client.get("kai_api.main", "/v1/clusters"))[0] == 503
        await server.start()
        await client.until(503, saying="no log of this version, migrate it")
        await asyncio.to_thread(upgrade, url)
        await client.until(200)
        assert (await client.get("kai_api.main", "/v1/clusters"))[0] == 200
        took_s = []
        # A machine that is busy may take longer once; a service without a deadline takes longer each time.
        while not took_s or (took_s[-1] > TOLD_IN_S and len(took_s) < 3):
            with stopped(server):
                began = asyncio.get_running_loop().time()
                # A watcher that has just begun to lead is not ready either: what it says tells the two apart.
                await client.until(503, saying="[-]log failed: ")
                took_s.append(asyncio.get_running_loop().time() - began)
                await client.alive()
            await client.until(200)
        assert took_s[-1] <= TOLD_IN_S


async def _unmigrated(server: EmbeddedPostgres) -> str:
    """Make a database without a log; its url."""
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        await connection.execute("CREATE DATABASE unmigrated")
    return urlunsplit(urlsplit(server.url)._replace(path="/unmigrated"))


@asynccontextmanager
async def silent_on(port: int) -> AsyncIterator[Callable[[], None]]:
    """Take connections and say nothing; yields what ends all of it, after which connections are refused."""
    kept: list[asyncio.StreamWriter] = []

    def keep(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept.append(writer)

    silent = await asyncio.start_server(keep, "127.0.0.1", port)

    def hang_up() -> None:
        silent.close()
        for writer in kept:
            writer.close()

    try:
        yield hang_up
    finally:
        hang_up()


async def test_what_waits_for_a_server_that_says_nothing_is_ended(server: EmbeddedPostgres) -> None:
    async with await PostgresLog.open(server.url, patience_s=1) as log:
        await log.append("c1", [unit(new_event("stream/a"))])
        await log.ping(timeout_s=30)
        with stopped(server):
            with pytest.raises(LogUnavailable, match=r"does not answer: no answer in 0\.5 s"):
                await log.ping(timeout_s=0.5)
            with pytest.raises(LogUnavailable):
                await log.append("c1", [unit(new_event("stream/a"))])
        await eventually(lambda: log.ping(timeout_s=5))
        assert (await log.head("c1")).position >= 1


async def test_an_answer_that_comes_while_the_process_computes_is_not_taken_for_silence(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay reads the next page while it runs the cycles of this one, which may take longer than an answer may."""
    # More than waits in a socket: what is hung up on loses the rest.
    large = payloads.EvictionFailed("u", "default", "p", "n1", 429, "TooManyRequests", "x" * (7 << 20))
    async with await PostgresLog.open(server.url) as log:
        await log.append("c1", [unit(new_event("stream/a", payload=large)) for _ in range(2)])
    answer_s = 3.0
    monkeypatch.setattr(connections, "_LEAST_ANSWER_S", answer_s)
    monkeypatch.setattr(log_states, "_PAGE", 1)
    async with await PostgresLog.open(server.url, patience_s=answer_s) as log:
        seen = []
        async with aclosing(log_states.events_of(log, "c1", upto=2)) as events:
            async for event in events:
                seen.append(event.position)
                if len(seen) == 1:
                    time.sleep(2 * answer_s)  # noqa: ASYNC251  # for the loop it is the same as computing
        assert seen == [1, 2]


async def test_a_service_that_is_to_stop_waits_no_longer_for_a_server_that_is_gone(server: EmbeddedPostgres) -> None:
    context = ServiceContext(name="test", health=Health(LOG), log=get_logger())
    async with open_log(context, server.url, patience_s=3600) as log:
        assert log is not None
        await server.stop()
        under_way = asyncio.create_task(log.head("c1"))
        with suppress(LogUnavailable):
            await log.ping(timeout_s=2)
        assert not under_way.done(), "it has an hour's patience"
        context.stopping.set()
        with pytest.raises(LogUnavailable):
            await under_way
        with pytest.raises(LogUnavailable):
            await log.append("c1", [unit(new_event("stream/a"))])


@contextmanager
def stopped(server: EmbeddedPostgres) -> Iterator[None]:
    """Stop every process of a server where it stands; its sockets stay open."""
    assert server.pid is not None
    sessions = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _child(path, server.pid)]
    for process in (server.pid, *sessions):
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in (server.pid, *sessions):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def _child(process: Path, parent: int) -> bool:
    with suppress(OSError):
        return int((process / "stat").read_text().rpartition(")")[2].split()[1]) == parent
    return False


async def eventually(attempt: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(LogUnavailable):
                await attempt()
                return
            await asyncio.sleep(0.1)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk of 160 MB of its own."""
    with scratch_directory() as directory:
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=160m,mode=755", "none", str(directory)],
            check=False,
            capture_output=True,
        ).returncode:
            pytest.skip("a disk can be mounted by root only")
        try:
            yield directory
        finally:
            subprocess.run(["umount", "-l", str(directory)], check=True)


async def append_for_ever(log: PostgresLog, acknowledged: list[int]) -> None:
    while True:
        units = [unit(new_event(f"stream/{'x' * 100}{number}")) for number in range(100)]
        await log.append("c1", units)
        acknowledged.append(len(units))


async def test_a_full_disk_loses_nothing_acknowledged_and_readiness_says_so(small_disk: Path) -> None:
    async with EmbeddedPostgres(small_disk / "postgres") as server:
        await asyncio.to_thread(upgrade, server.url)
        async with await PostgresLog.open(server.url, patience_s=2) as log:
            await log.append("c1", [unit(new_event("stream/a"))])
            filler = small_disk / "filler"
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
            acknowledged = [1]
            with pytest.raises(LogUnavailable):
                await append_for_ever(log, acknowledged)
            with pytest.raises(LogUnavailable, match=r"No space left on device|does not answer|cannot connect"):
                await log.ping(timeout_s=5)
            filler.unlink()
            await server.start()
            await eventually(lambda: log.append("c1", [unit(new_event("stream/b"))]))
            await log.ping(timeout_s=5)
            head = await log.head("c1")
            assert head.position > sum(acknowledged)
            assert len(await log.read("c1", limit=1_000_000)) == head.position
