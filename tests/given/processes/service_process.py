"""Services as processes of their own."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp

from tests.given.processes.kai_commands import forked

#: Seconds that an end may take.
PATIENCE_S = 60


@asynccontextmanager
async def service_process(module: str, environment: Mapping[str, str], *arguments: str) -> AsyncIterator[str]:
    """Run a service until the block ends; yield the address that it serves HTTP on."""
    reading, writing = os.pipe()
    with Path(os.devnull).open("rb") as empty, os.fdopen(writing, "wb") as said:  # noqa: ASYNC230
        streams = (empty.fileno(), 1, said.fileno())
        process = await asyncio.to_thread(
            forked, module, *arguments, streams=streams, environment={**os.environ, **environment}
        )
    errors = asyncio.StreamReader()
    with os.fdopen(reading, "rb") as pipe:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(errors), pipe
        )
        try:
            line = b""
            while (match := re.search(rb'"address": "[^0-9]*([0-9.]+)[^0-9]+([0-9]+)', line)) is None:
                line = await errors.readline()
                assert line, f"{module} ended with {process.wait(PATIENCE_S)}"
            yield f"{match[1].decode()}:{match[2].decode()}"
            process.send_signal(signal.SIGTERM)
            rest = (await errors.read()).decode()
            assert (process.wait(PATIENCE_S), "Traceback" in rest) == (0, False), rest
        finally:
            process.kill()
            process.wait(PATIENCE_S)
            transport.close()


async def ready(address: str) -> None:
    """Wait until a service says that it is ready; it serves HTTP before it has what it needs."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            async with session.get(f"http://{address}/readyz") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.05)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Let a process stand still until the block ends."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
