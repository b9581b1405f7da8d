"""A log in memory that counts what is read of it."""

from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import Filter
from kaicore.rules.events.envelope import Event


class CountingLog(MemoryLog):
    """It has the number of events that were read in `read_events`."""

    read_events = 0

    async def read(
        self, cluster: str, *, after: int = 0, upto: int | None = None, limit: int = 1000, where: Filter | None = None
    ) -> list[Event]:
        events = await super().read(cluster, after=after, upto=upto, limit=limit, where=where)
        self.read_events += len(events)
        return events
