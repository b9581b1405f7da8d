"""The start of any process of ours, what its body gets, how it interacts with its operating system, and its health.

A process is ready when it meets its conditions.
"""

import asyncio
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from kaicore.errors import ConfigurationError, KaiError
from kaicore.interpreter import end, version


class Health:
    """Named conditions that a service must meet to be ready.

    A service is alive while it answers at all, and ready when every condition that it declared is met.
    """

    def __init__(self, *conditions: str) -> None:
        self._conditions: dict[str, str | None] = dict.fromkeys(conditions, "not yet")
        # Those that count while the service stands by; None while it does not.
        self._needed: frozenset[str] | None = None
        self._warnings: dict[str, str] = {}

    def warn(self, about: str, text: str) -> None:
        """Have the report say something that somebody has to look at, though the service goes on; empty: no more."""
        self._warnings[about] = text

    def met(self, condition: str) -> None:
        """Mark a condition as met."""
        self._conditions[condition] = None

    def unmet(self, condition: str, why: str) -> None:
        """Mark a condition as not met, and say why."""
        self._conditions[condition] = why

    def stand_by(self, *needed: str) -> None:
        """Take note that another instance leads; until `lead`, only these conditions count."""
        self._needed = frozenset(needed)
        for condition in self._conditions.keys() - self._needed:
            self._conditions[condition] = "not yet"

    def lead(self) -> None:
        """Take note that this instance leads: every condition counts."""
        self._needed = None

    @property
    def conditions(self) -> Mapping[str, str | None]:
        """Each condition with the reason why it is not met, or None."""
        return MappingProxyType(self._conditions)

    @property
    def ready(self) -> bool:
        """True if every condition that counts is met."""
        return not any(why for name, why in self._conditions.items() if self._counts(name))

    def report(self) -> str:
        """One line per condition, in the style of `/readyz?verbose` of a Kubernetes API server."""
        lines = [self._line(name, why) for name, why in self._conditions.items()]
        lines += [f"[!]{about}: {text}" for about, text in self._warnings.items() if text]
        return "\n".join([*lines, "ready" if self.ready else "not ready", ""])

    def _counts(self, condition: str) -> bool:
        return self._needed is None or condition in self._needed

    def _line(self, condition: str, why: str | None) -> str:
        if not self._counts(condition):
            return f"[+]{condition} not needed: stands by"
        return f"[-]{condition} failed: {why}" if why else f"[+]{condition} ok"


#: Seconds that a process's body has to end by itself after it was asked to.
STOP_GRACE_S = 10.0

#: `prctl(2)`: the signal to get when the parent dies.
_PR_SET_PDEATHSIG = 1

_LogT = TypeVar("_LogT")
_SettingsT = TypeVar("_SettingsT")


@dataclass(slots=True)
class ProcessContext(Generic[_LogT]):
    """The inputs of a process's body: its health, its logger, and the wish that it stop."""

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


def start(name: str, *, read: Callable[[], _SettingsT], run: Callable[[_SettingsT], int]) -> int:
    """Start a process; return the exit code: 2 for settings that cannot work, 1 where its supervisor is dead already.

    Otherwise it is what `run` returns, which ends as `served` does. `--version` only says it.

    Args:
        read: reads the settings before anything starts; raises ConfigurationError.
    """
    if "--version" in sys.argv[1:]:
        sys.stdout.write(f"kai-{name} {version()}\n")
        return 0
    try:
        settings = read()
    except ConfigurationError as error:
        sys.stderr.write(f"kai-{name}: {error}\n")
        return 2
    if not bound_to_parent():
        return 1
    allow_open_files()
    return run(settings)


async def served(context: ProcessContext[Any], body: Awaitable[None]) -> int:
    """Run a process's body to its end; return the exit code: 0 after a clean end, else as for settings or 1."""
    try:
        await body
    except KaiError as error:
        context.log.error("service failed", error=str(error), kind=type(error).__name__)
        # A supervisor need not try again while the settings are the same.
        return 2 if isinstance(error, ConfigurationError) else 1
    return 0


async def end_all(tasks: "Iterable[asyncio.Future[Any]]") -> None:
    """Cancel tasks and wait until all have ended, however they end."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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
        await end_all((*tasks, stop))
    for task in failed:
        task.result()


@asynccontextmanager
async def beside(*works: Awaitable[object]) -> AsyncIterator[None]:
    """Run works beside what is done in the context; what has not ended by then is cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield
    finally:
        await end_all(tasks)


async def run_until_stopped(context: ProcessContext[Any], body: Awaitable[None]) -> None:
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
            await end(task)
        with suppress(asyncio.CancelledError):
            await task
    finally:
        stopping.cancel()
