"""Real servers and services for measurements, each a process of its own, and the CPU time that each has used."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import aiohttp
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events.envelope import Event
from kaicore.runtime.embedded import EmbeddedNats, EmbeddedPostgres

from tests.given.processes.kai_commands import Spawned, spawned
from tests.given.processes.service_process import ready
from tests.given.servers.servers import scratch_directory

ROOT = Path(__file__).parents[4]

_LOOK_S = 0.05


class ServiceProcess:
    """A service that is measured, frozen or killed."""

    def __init__(self, module: str, environment: Mapping[str, str], *, forked: bool = False) -> None:
        """Args:
        module: of its entry point.
        environment: its settings, without the prefix `KAI_`.
        forked: whether it is a fork of what has imported it, and not measured.
        """
        self._module, self._forked = module, forked
        self._environment = {f"KAI_{name}": value for name, value in environment.items()}
        self._process: asyncio.subprocess.Process | Spawned | None = None
        self._listener: socket.socket | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def cpu_s(self) -> float:
        """CPU seconds that it has used so far."""
        return cpu_seconds(self.pid)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "not started"
        self._process.send_signal(number)

    @property
    def _address(self) -> str:
        assert self._listener is not None, "not started"
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    async def ready(self) -> None:
        await ready(self._address)

    async def metrics(self) -> dict[str, float]:
        """Return its counters by name, the sums over their labels."""
        async with aiohttp.ClientSession() as session, session.get(f"http://{self._address}/metrics") as response:
            text = await response.text()
        sums: dict[str, float] = {}
        for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE):
            sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    async def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._listener is not None:
            self._listener.close()

    async def ended(self) -> int:
        """Wait until it has ended by itself; return its exit code."""
        assert self._process is not None, "not started"
        return await self._process.wait()

    async def __aenter__(self) -> Self:
        self._listener = listener = socket.create_server(("127.0.0.1", 0))
        environment = {"KAI_LOG_LEVEL": "error", "KAI_HTTP_FD": str(listener.fileno())} | self._environment
        inherited = [listener.fileno()]
        self._process = await (
            spawned(self._module, environment=os.environ | environment, inherit=inherited)
            if self._forked
            else asyncio.create_subprocess_exec(
                *(sys.executable, "-m", self._module), cwd=ROOT, env=os.environ | environment, pass_fds=inherited
            )
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()


def cpu_seconds(pid: int) -> float:
    """CPU seconds that a process and its children, those that have ended too, have used so far."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # Behind the name, which may hold anything: state, parent, …, user and system time, and those of children.
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if pid in (int(path.parent.name), int(fields[1])):
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """A migrated log in Postgres, and NATS.

    Attributes:
        database_url: of the owner of the database.
        nats_url: of the bus.
        postgres_pid: the server's process, where it is ours to measure.
    """

    database_url: str
    nats_url: str
    postgres_pid: int | None = None

    def settings(self, cluster: str) -> dict[str, str]:
        return {
            "DATABASE_URL": self.database_url,
            "NATS_URL": self.nats_url,
            "CLUSTER": cluster,
            "CLUSTERS": cluster,
        }

    @property
    def postgres_cpu_s(self) -> float:
        """CPU seconds that Postgres has used so far; 0 where another scheduler placed it to measure."""
        return 0.0 if self.postgres_pid is None else cpu_seconds(self.postgres_pid)


@asynccontextmanager
async def durable_servers() -> AsyncIterator[Servers]:
    """Run both until the block ends."""
    with scratch_directory() as directory:
        postgres, nats = EmbeddedPostgres(directory / "postgres"), EmbeddedNats(directory / "nats")
        try:
            await asyncio.gather(postgres.start(), nats.start())
            await asyncio.to_thread(upgrade, postgres.url)
            yield Servers(database_url=postgres.url, nats_url=nats.url, postgres_pid=postgres.pid)
        finally:
            await asyncio.gather(nats.kill(), postgres.stop())


async def recorded(log: EventLog, cluster: str, *types: str, count: int, after: int = 0) -> list[Event]:
    events: list[Event] = []
    while len(events) < count:
        head = await log.head(cluster)
        page = await log.read(cluster, after=after, upto=head.position, limit=100_000, where=Filter(types=types))
        events += page
        after = head.position
        if len(events) < count:
            await log.wait_beyond(cluster, after, timeout_s=1.0)
            # A look at the log for each event in it would be a load of its own.
            await asyncio.sleep(_LOOK_S)
    return events
