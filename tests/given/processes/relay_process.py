"""`kai-relay` as a process."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from kaicore.errors import BusUnavailable
from kaicore.ledger.bus import Bus, StreamState

from tests.given.processes.kai_commands import Spawned, spawned

#: Seconds that anything may take; nothing waits for them to pass.
PATIENCE_S = 60.0

_LOOK_S = 0.01


class RelayProcess:
    """A relay that can be killed."""

    def __init__(self, database_url: str, nats_url: str, *options: str) -> None:
        self._options = options
        self._environment = {"KAI_DATABASE_URL": database_url, "KAI_NATS_URL": nats_url}
        self._process: Spawned | None = None

    async def start(self) -> Self:
        self._process = await spawned("kai_relay.main", *self._options, environment=os.environ | self._environment)
        return self

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def stop(self) -> int:
        """In order; return the exit code."""
        self.signal(signal.SIGTERM)
        assert self._process is not None
        return await self._process.wait()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.kill()


async def until(bus: Bus, cluster: str, satisfied: Callable[[StreamState], bool]) -> None:
    """Wait until a cluster's stream has all events of the log, whatever happens to the bus meanwhile."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(BusUnavailable):
                state = await bus.stream(cluster)
                if state is not None and satisfied(state):
                    return
            await asyncio.sleep(_LOOK_S)


async def relayed(bus: Bus, cluster: str, position: int) -> None:
    await until(bus, cluster, lambda state: state.last >= position)
