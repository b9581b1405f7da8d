"""The process context: the interaction of any process with its operating system, and the objects that its body gets."""

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from kaicore.runtime.health import Health

#: Seconds that a process's body has to end by itself after it was asked to.
STOP_GRACE_S = 10.0

#: `prctl(2)`: the signal to get when the parent dies.
_PR_SET_PDEATHSIG = 1

_LogT = TypeVar("_LogT")


@dataclass(slots=True)
class ProcessContext(Generic[_LogT]):
    """What a process's body gets: its health, its logger, and the wish that it stop."""

    name: str
    health: Health
    log: _LogT
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def sleep(self, seconds: float) -> bool:
        """Sleep, but wake at once when the process is to stop; return whether it is to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
        return self.stopping.is_set()


def allow_open_files() -> None:
    """Raise the limit of open files as far as is allowed, as Go programs do: the usual 1024 are for `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def bound_to_parent() -> bool:
    """Ask for SIGTERM when the supervisor (`KAI_PARENT_PID`) dies; return False if it is dead already."""
    supervisor = os.environ.get("KAI_PARENT_PID")
    if supervisor is None:
        return True
    if sys.platform == "linux":
        # Only here: it takes 0.3 MB, and no supervisor runs an exporter on a node.
        import ctypes  # noqa: PLC0415

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return str(os.getppid()) == supervisor


async def run_until_told(context: ProcessContext[Any], body: Awaitable[None]) -> None:
    """Run a process's body until it returns, or SIGTERM or SIGINT ends it.

    Args:
        context: its `stopping` is set by the signals.
        body: is cancelled `STOP_GRACE_S` seconds after that.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, context.stopping.set)
    task = asyncio.ensure_future(body)
    stopping = asyncio.ensure_future(context.stopping.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await asyncio.wait({task}, timeout=STOP_GRACE_S)
        if not task.done():
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    finally:
        stopping.cancel()
