"""A ledger's events in a log, as they were recorded."""

from kaicore.ledger.log.memory import MemoryLog
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import NewEvent, Unit

from tests.ledger import Ledger


async def stored(made: Ledger) -> MemoryLog:
    """A log with all events of a ledger."""
    now = 0
    log = MemoryLog(lambda: now)
    for event in made.events:
        now = event.recorded_at
        new = NewEvent(
            id=event.id,
            stream=event.stream,
            payload=decode_payload(event),
            actor=event.actor,
            occurred_at=event.occurred_at,
            subject=event.subject,
            cause=event.cause,
            correlation=event.correlation,
        )
        await log.append(made.cluster, [Unit((new,))])
    return log
