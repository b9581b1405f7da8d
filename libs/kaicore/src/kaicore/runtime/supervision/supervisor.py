"""A supervisor: a process that always runs is restarted when it ends, after a pause that doubles with each failure."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from kaicore.backoff import backoff


@dataclass(frozen=True, slots=True)
class Pauses:
    """Pauses before restarts, seconds.

    Attributes:
        first: before the first restart.
        most: the longest.
        forgiven: a run that was so long was good health: failures before it are forgotten.
    """

    first: float = 0.5
    most: float = 30.0
    forgiven: float = 60.0


class Supervisor:
    """Runs something again and again until it is asked to stop or it is no use."""

    def __init__(
        self, run: Callable[[], Awaitable[None]], *, again: Callable[[float], bool], pauses: Pauses | None = None
    ) -> None:
        """Args:
        run: runs it once, from start to end; also returns when it cannot be started.
        again: called after each run with the seconds of the pause that follows; False gives it up.
        pauses: by default those of `Pauses`.
        """
        self._run = run
        self._again = again
        self._pauses = pauses or Pauses()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to run it."""
        self._task = asyncio.create_task(self._keep_running())

    def stop_restarting(self) -> None:
        """Let the present run be the last."""
        self._stopping.set()

    async def stop(self) -> None:
        """Run it no more; a run that is under way is cancelled."""
        self._stopping.set()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _keep_running(self) -> None:
        time, failures = asyncio.get_running_loop().time, 0
        while not self._stopping.is_set():
            began = time()
            await self._run()
            failures = 1 if time() - began > self._pauses.forgiven else failures + 1
            pause_s = backoff(failures, first=self._pauses.first, most=self._pauses.most)
            if self._stopping.is_set() or not self._again(pause_s):
                return
            await asyncio.sleep(pause_s)
