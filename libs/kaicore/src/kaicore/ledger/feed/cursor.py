"""A reader's place in a cluster's log, and the test for the next event.

An event is next if its position is one more and its hash continues the chain. The test costs two microseconds, and
makes the event's origin irrelevant. A bus that garbles, that is left over from another log, or that was restored from
an old backup cannot bring in a wrong event. A client that forges events on purpose could, if it may publish.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from kaicore.errors import CorruptLog, EventsRetired
from kaicore.ledger.log.chain import GENESIS, continues
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events.envelope import Event


@dataclass(frozen=True, slots=True)
class Cursor:
    """The event that was read last; the default is before the first event.

    Attributes:
        position: the event's.
        hash: the event's; None when it is unknown, because the event has left the log with an old month.
    """

    position: int = 0
    hash: bytes | None = GENESIS

    def continued_by(self, event: Event) -> bool:
        """True if `event` is certainly the next one."""
        return event.position == self.position + 1 and self.hash is not None and continues(self.hash, event)

    def at(self, event: Event) -> Self:
        """Return the place of an event."""
        return type(self)(event.position, event.hash)

    def through(self, cluster: str, events: Sequence[Event]) -> Self:
        """Return the place after events that the log gave, having checked that they come next.

        Raises:
            CorruptLog: naming the first event that does not.
        """
        position, hash_ = self.position, self.hash
        for event in events:
            if event.position != position + 1 or not (hash_ is None or continues(hash_, event)):
                problem = (
                    "its hash does not continue the chain"
                    if event.position == position + 1
                    else f"should be event {position + 1}"
                )
                raise CorruptLog(f"cluster {cluster}: event {event.position} after {position}: {problem}")
            position, hash_ = event.position, event.hash
        return type(self)(position, hash_)


async def find_cursor(log: EventLog, cluster: str, position: int) -> Cursor | None:
    """Return the place of the event at `position`; None when the log has no such event.

    Raises:
        EventsRetired: the event has left the log, and the one after it, too.
        LogUnavailable: the log does not answer.
    """
    if position == 0:
        return Cursor()
    try:
        events = await log.read(cluster, after=position - 1, upto=position, limit=1)
    except EventsRetired as error:
        if error.position != position:
            raise
        head = await log.head(cluster)
        return Cursor(position, head.hash if head.position == position else None)
    return Cursor().at(events[0]) if events else None
