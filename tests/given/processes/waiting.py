"""Waiting for what comes about beside a test; a minute is long enough for any machine, and only what fails takes it."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event

#: Seconds.
PATIENCE_S = 60


async def eventually(look: Callable[[], Any], holds: Callable[[Any], object] = bool, *, every_s: float = 0.01) -> Any:
    """Look again and again at what tells nobody of its changes, until something holds; return what was seen."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            seen = look()
            if inspect.isawaitable(seen):
                seen = await seen
            if holds(seen):
                return seen
            await asyncio.sleep(every_s)


async def until_events(
    log: EventLog, cluster: str, *types: str, holds: Callable[[list[Event]], object] = bool
) -> list[Event]:
    """Wait until something holds for a log's events of some types, by default until there are any; return them."""
    async with asyncio.timeout(PATIENCE_S):
        head = 0
        while True:
            events = await log.read(cluster, limit=100_000, where=Filter(types=types))
            if holds(events):
                return events
            head = await log.wait_beyond(cluster, head, timeout_s=5)


async def until_payloads(
    log: EventLog, cluster: str, *types: str, holds: Callable[[list[Any]], object] = bool
) -> list[Any]:
    """As `until_events`, of what the events say."""

    def decoded(events: list[Event]) -> list[Any]:
        return [decode_payload(event) for event in events]

    return decoded(await until_events(log, cluster, *types, holds=lambda events: holds(decoded(events))))
