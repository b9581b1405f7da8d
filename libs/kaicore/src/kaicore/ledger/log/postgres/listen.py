"""Waking readers: one connection that listens for the log's notifications, for all waiters of the process.

A notification is only a hint. A waiting reader looks at the log itself, after each hint, when the connection has come
back, and at least once a second; so a lost notification costs a moment and never an event.
"""

import asyncio
from collections import defaultdict
from contextlib import suppress

import psycopg

from kaicore.errors import KaiError
from kaicore.ledger.log.postgres.append import CHANNEL
from kaicore.ledger.log.postgres.connections import Connections, end

#: Seconds between attempts to listen again.
_RETRY_S = 0.2


class Listener:
    """Tells waiters that a cluster's log may have grown."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._hints: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._task: asyncio.Task[None] | None = None

    def hint(self, cluster: str) -> asyncio.Event:
        """Return an event that will be set when the log may have grown; ask for it before looking at the log."""
        if self._task is None:
            self._task = asyncio.create_task(self._listen())
        return self._hints[cluster]

    async def close(self) -> None:
        """Stop listening and wake all that wait."""
        if self._task is not None:
            await end(self._task)
        self._wake_all()

    async def _listen(self) -> None:
        while True:
            with suppress(psycopg.Error, KaiError, OSError):
                connection = await self._connections.connect()
                try:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    # What was appended before is known by looking, and only now can nothing be missed.
                    self._wake_all()
                    async for notification in connection.notifies():
                        self._wake(notification.payload)
                finally:
                    await connection.close()
            await asyncio.sleep(_RETRY_S)

    def _wake(self, cluster: str) -> None:
        hint = self._hints.pop(cluster, None)
        if hint is not None:
            hint.set()

    def _wake_all(self) -> None:
        for cluster in list(self._hints):
            self._wake(cluster)
