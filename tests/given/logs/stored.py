"""A ledger's events in a log, as they were recorded."""

from kaicore.ledger.log.memory import MemoryLog
from kaicore.rules.events.envelope import Unit

from tests.given.logs.ledger import Ledger
from tests.given.logs.new_events import as_new


async def stored(made: Ledger) -> MemoryLog:
    """A log with all events of a ledger; those of one append have one recorded time there."""
    now = 0
    log = MemoryLog(lambda: now)
    for event in made.events:
        now = made.appended_at.get(event.position, event.recorded_at)
        await log.append(made.cluster, [Unit((as_new(event),))])
    return log
