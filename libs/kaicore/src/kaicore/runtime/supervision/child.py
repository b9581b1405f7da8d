"""One run of a child process: wait until it is ready, wait for its end, stop it.

A process that has ended is never signalled, for its id may be another process's by then. It is a `subprocess.Popen` and
not one of asyncio's: a server may be started in one event loop and stopped in another.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

#: Seconds between two looks at something that only can be looked at.
_LOOK_S = 0.01
#: Seconds that a process that was killed has to be gone.
_KILLED_S = 20.0


class Child:
    """One run of a process, from its start to its end."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        inherit: Sequence[int] = (),
        start_new_session: bool = False,
    ) -> None:
        """Start it. Its standard input is empty.

        Args:
            command: program and arguments.
            environment: all of it; None for ours.
            stdout: where its standard output goes; None for where ours goes.
            stderr: likewise.
            inherit: descriptors that it gets besides.
            start_new_session: whether a Ctrl-C on our terminal is not for it.

        Raises:
            OSError: the program cannot be run.
        """
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            pass_fds=inherit,
            start_new_session=start_new_session,
        )

    @property
    def pid(self) -> int:
        """Its process id, also after its end."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.code is None

    def send(self, number: int) -> None:
        """Send it a signal; do nothing where it has ended."""
        if self.running:
            self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for its end; return its exit code."""
        with suppress(AttributeError, OSError):
            # Of this system or sandbox, which may have no such descriptors.
            descriptor = os.pidfd_open(self.pid) if self.running else -1
            try:
                if descriptor >= 0:
                    await _readable(descriptor)
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
        while (code := self.code) is None:  # noqa: ASYNC110  # the end of a process sets no event
            await asyncio.sleep(_LOOK_S)
        return code

    async def until_ready(self, is_ready: Callable[[], Awaitable[bool]], *, within_s: float) -> bool:
        """Wait until it is ready; return False if it ends first.

        Args:
            is_ready: asked again and again; answers soon.
            within_s: seconds that it has.

        Raises:
            TimeoutError: it is neither ready nor has it ended.
        """
        async with asyncio.timeout(within_s):
            while not await is_ready():
                if not self.running:
                    return False
                await asyncio.sleep(_LOOK_S)
        return True

    async def stop(
        self, number: int = signal.SIGTERM, *, patience_s: float, killing: Callable[[], None] | None = None
    ) -> int:
        """Ask it to end, kill it if it does not, and wait until it is gone; return its exit code.

        Args:
            number: the signal that asks it.
            patience_s: seconds that it has to end by itself.
            killing: called before it is killed.

        Raises:
            TimeoutError: it does not even end when it is killed.
        """
        self.send(number)
        with suppress(TimeoutError):
            return await asyncio.wait_for(self.ended(), patience_s)
        if self.running and killing is not None:
            killing()
        return await self.kill()

    async def kill(self) -> int:
        """Kill it and wait until it is gone; return its exit code.

        Raises:
            TimeoutError: it does not end.
        """
        self.send(signal.SIGKILL)
        return await asyncio.wait_for(self.ended(), _KILLED_S)

    def discard(self) -> None:
        """Kill it and wait until it is gone, without letting anything else run: for an end that is under way."""
        self._process.kill()
        self._process.wait()


async def _readable(descriptor: int) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
