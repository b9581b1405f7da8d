"""Several endless bodies of a service that stand and fall together."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_together(stopping: asyncio.Event, *bodies: Coroutine[Any, Any, None]) -> None:
    """Run bodies until one of them ends or `stopping` is set; then cancel the others and wait for them.

    Raises whatever the first one that failed raised.
    """
    tasks = [asyncio.ensure_future(body) for body in bodies]
    stop = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
    finally:
        failed = [task for task in tasks if task.done() and not task.cancelled() and task.exception() is not None]
        for task in (*tasks, stop):
            task.cancel()
        await asyncio.gather(*tasks, stop, return_exceptions=True)
    for task in failed:
        task.result()
