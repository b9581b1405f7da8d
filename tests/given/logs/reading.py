"""Reading a whole log."""

from kaicore.ledger.log.port import EventLog
from kaicore.rules.events.envelope import Event


async def everything(log: EventLog, cluster: str) -> list[Event]:
    return await log.read(cluster, limit=100_000)


# Appending and reading
