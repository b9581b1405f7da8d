"""Work that goes on beside a test, until a block ends."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any


@asynccontextmanager
async def going(work: Coroutine[Any, Any, object], *, until: asyncio.Event | None = None) -> AsyncIterator[None]:
    """Let it go on; in the end it is asked to stop by an event, or cancelled where it has none."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        if until is not None:
            until.set()
            await task
        else:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
