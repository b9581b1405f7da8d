"""A Postgres that tests may kill, and processes that append to it."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator

import psycopg
import pytest
from kaicore.runtime.embedded import EmbeddedPostgres

from tests.given.processes.kai_commands import Spawned, spawned
from tests.given.servers.servers import lay_out_postgres, scratch_directory


class Appender:
    """A process of `tests.chaos.appender`.

    Attributes:
        acknowledged: position by event id, as the log answered.
    """

    def __init__(self, process: Spawned) -> None:
        self.process = process
        self.acknowledged: dict[str, int] = {}
        self._units = 0
        self._changed = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            _, first, first_position, second, second_position = line.decode().split()
            async with self._changed:
                self.acknowledged |= {first: int(first_position), second: int(second_position)}
                self._units += 1
                self._changed.notify_all()

    async def units(self, more: int) -> None:
        async with asyncio.timeout(60), self._changed:
            wanted = self._units + more
            await self._changed.wait_for(lambda: self._units >= wanted)

    async def stop(self) -> None:
        """Let it finish what it is at, and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert await self.process.wait() == 0
        await self._reading

    async def wait(self) -> int:
        """Wait until it has ended by itself; return its code."""
        code = await self.process.wait()
        await self._reading
        return code


Start = Callable[..., "asyncio.Future[Appender]"]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A durable server, because what a test of durability kills must write to the disk."""
    with scratch_directory() as directory:
        lay_out_postgres(directory)
        made = EmbeddedPostgres(directory)
        asyncio.run(made.start())
        yield made
        asyncio.run(made.kill())


@pytest.fixture
async def start(server: EmbeddedPostgres, cluster_name: str) -> AsyncIterator[Start]:
    """Starts appenders to the test's cluster; `start("a", "--workers", "3")`."""
    processes = []

    async def started(name: str, *options: str) -> Appender:
        process = await spawned(
            *("tests.chaos.appender", server.url_of("kai_append"), cluster_name, name, *options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        processes.append(process)
        return Appender(process)

    yield started
    for process in processes:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
async def admin(server: EmbeddedPostgres) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
    """A connection of the test's own."""
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        yield connection
