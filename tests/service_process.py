"""Services as processes of their own."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp


@asynccontextmanager
async def service_process(module: str, environment: Mapping[str, str], *arguments: str) -> AsyncIterator[str]:
    """Run a service until the block ends; yield the address that it serves HTTP on."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        env={**os.environ, **environment},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        line = b""
        while (match := re.search(rb'"address": "[^0-9]*([0-9.]+)[^0-9]+([0-9]+)', line)) is None:
            line = await process.stderr.readline()
            assert line, f"{module} ended with {await process.wait()}"
        yield f"{match[1].decode()}:{match[2].decode()}"
        process.send_signal(signal.SIGTERM)
        rest = (await process.stderr.read()).decode()
        assert (await process.wait(), "Traceback" in rest) == (0, False), rest
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ready(address: str) -> None:
    """Wait until a service says that it is ready; it serves HTTP before it has what it needs."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            async with session.get(f"http://{address}/readyz") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.05)
