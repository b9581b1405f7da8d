"""An event loop without a clock, a socket or a thread: when nothing is left to do, its time jumps to the next timer.

What runs on it belongs to processes. A process can be killed at any await: nothing of it ever runs again, not even what
its code would do on its way out. It can stand still for a while, and its time of day can be wrong.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from heapq import heappop
from typing import Any, TypeVar

T = TypeVar("T")

#: What rounding leaves of a deadline is over, too.
_TICK_S = 1e-7

#: The time of day at which every run begins: 2027-01-15 08:00 UTC.
EPOCH_S = 1_800_000_000

#: Tasks of a process that are kept in mind before those that are done are forgotten.
_MANY = 2000

#: Turns of the loop within a second of the simulation at most: more is code that goes round in circles.
_MOST_TURNS = 50_000

#: Looks at the clock within a turn at most, likewise.
_MOST_LOOKS = 200_000


class Stuck(AssertionError):
    """Every task waits, and nothing will ever happen; or it happens for ever at the same time."""


class Process:
    """The unit of kills, pauses and deceptions.

    Attributes:
        name: unlike any other's, also after a restart: `scheduler-0.2` is the second of its name.
        offset_s: how far its time of day is ahead.
        boot_rate: how fast its other clock goes, which is never set.
        steps: how many callbacks of it have run, which is one more than the awaits that have ended.
    """

    def __init__(self, loop: "SimulatedLoop", name: str) -> None:
        self.name = name
        self.offset_s = 0.0
        self.boot_rate = 1.0
        self.dead = False
        self.paused = False
        self.steps = 0
        self.tasks: list[asyncio.Task[Any]] = []
        self._loop = loop
        self._held: list[asyncio.Handle] = []
        #: Is killed as it begins this step; 0 for never.
        self.dies_at_step = 0
        self.on_death: Callable[[], None] = lambda: None
        self.context: Context = copy_context()
        self.context.run(_PROCESS.set, self)

    @property
    def role(self) -> str:
        """The name without the number of the start."""
        return self.name.partition(".")[0]

    def clock(self) -> int:
        """Its time of day, microseconds since the epoch."""
        return int((EPOCH_S + self._loop.time() + self.offset_s) * 1e6)

    def boot_us(self) -> int:
        """Microseconds of its clock that is never set, and is only a little too fast or too slow."""
        return int((1e4 + self._loop.time()) * self.boot_rate * 1e6)

    def start(self, body: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run something as a part of it."""
        return self._loop.create_task(body, context=self.context)

    def kill(self) -> None:
        """Never run anything of it again."""
        if not self.dead:
            self.dead = True
            self._held.clear()
            self.on_death()

    def pause(self) -> None:
        """Run nothing of it until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Go on, with everything that has come due meanwhile."""
        self.paused = False
        self._loop.take_back(self._held)
        self._held = []

    def admits(self, handle: asyncio.Handle) -> bool:
        """True if a callback of it may run now."""
        if self.dead:
            return False
        if self.paused:
            self._held.append(handle)
            return False
        self.steps += 1
        if self.steps == self.dies_at_step:
            self.kill()
            return False
        return True


_PROCESS: ContextVar[Process] = ContextVar("process")


def boot_us_here() -> int:
    """Return what the process that runs now reads from its clock that is never set."""
    return _PROCESS.get().boot_us()


def clock_here() -> int:
    """Return the time of day of the process that runs now, nanoseconds since the epoch."""
    return _PROCESS.get().clock() * 1000


class SimulatedLoop(asyncio.BaseEventLoop):
    _ready: Any
    _scheduled: Any

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._turns = self._looks = 0
        self.defects: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.defects.append(context))
        self.set_task_factory(_registered)

    def time(self) -> float:
        """Seconds that have passed in the simulation."""
        self._looks += 1
        if self._looks > _MOST_LOOKS:
            # On a real clock this would end some day, with nothing else done until then.
            raise Stuck(f"at {self._now:.3f} s a task goes round in circles and lets no other one run")
        return self._now

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        """Have a thread do something: here it is done at once, and its outcome comes with the next turn."""
        del executor
        outcome: asyncio.Future[T] = self.create_future()
        try:
            outcome.set_result(func(*args))
        except Exception as error:
            outcome.set_exception(error)
        return outcome

    def take_back(self, handles: list[asyncio.Handle]) -> None:
        """Have callbacks run that were kept from it."""
        self._ready.extend(handles)

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        if not ready:
            self._jump()
        self._looks = 0
        self._turns += 1
        if self._turns > _MOST_TURNS:
            raise Stuck(f"at {self._now:.3f} s something goes round in circles: {(ready or scheduled)[0]!r}")
        now = self._now
        while scheduled and scheduled[0]._when <= now:
            self._due()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_PROCESS)
            if process is None or process.admits(handle):
                handle._run()

    def _jump(self) -> None:
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            self._due()
        if not scheduled:
            raise Stuck("every task waits, and nothing will ever happen")
        before, self._now = self._now, max(self._now, scheduled[0]._when + _TICK_S)
        if int(before) != int(self._now):
            self._turns = 0

    def _due(self) -> None:
        handle = heappop(self._scheduled)
        handle._scheduled = False
        if not handle._cancelled:
            self._ready.append(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers go when they come due."""

    def _check_closed(self) -> None:
        """Remains of killed processes may still try to do something on their way out."""

    def _write_to_self(self) -> None:
        """Nobody else is there who could wake the loop."""


def at_once(body: Coroutine[Any, Any, T]) -> T:
    """Return what something comes to that waits for nothing."""
    try:
        body.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    body.close()
    raise AssertionError("it waits")


def _registered(loop: asyncio.AbstractEventLoop, body: Coroutine[Any, Any, T], **kwargs: Any) -> "asyncio.Task[T]":
    task = asyncio.Task(body, loop=loop, **kwargs)
    context = kwargs.get("context")
    process = _PROCESS.get(None) if context is None else context.get(_PROCESS)
    if process is not None:
        process.tasks.append(task)
        if len(process.tasks) > _MANY:
            process.tasks = [task for task in process.tasks if not task.done()]
    return task


def bury(process: Process) -> None:
    """End what is left of a process's tasks, after the run."""
    for task in process.tasks:
        if not task.done():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            body = task.get_coro()
            with suppress(BaseException):
                body.close()  # type: ignore[union-attr]
