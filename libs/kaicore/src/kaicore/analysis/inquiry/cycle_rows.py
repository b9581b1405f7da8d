"""Rows of recorded cycles, from a cluster's log."""

from kaicore.analysis.inquiry.answers import CycleRow, Row, RowSelection
from kaicore.analysis.inquiry.json_spelling import time_text
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import CycleCompleted

#: How far back cycles are looked for at first, in events; doubled until there are enough.
_WINDOW = 4000


async def list_cycles(log: EventLog, cluster: str, wanted: RowSelection, *, head: int) -> list[Row]:
    """Return the last cycles up to a position, `limit` at most, the last one first."""
    window = _WINDOW
    while True:
        after = max(0, head - window)
        events = list[Event]()
        while True:
            start = events[-1].position if events else after
            page = await log.read(cluster, after=start, upto=head, where=Filter(types=(CycleCompleted.__name__,)))
            if not page:
                break
            events += page
        rows = [row for row in map(_cycle, reversed(events)) if wanted.name in ("", row.cycle)]
        if after == 0 or (wanted.limit and len(rows) > wanted.skip + wanted.limit):
            return list[Row](rows)
        window *= 2


def _cycle(event: Event) -> CycleRow:
    cycle = decode_payload(event)
    assert isinstance(cycle, CycleCompleted)
    return CycleRow(
        cycle=cycle.cycle,
        shard=cycle.shard,
        position=event.position,
        input_position=cycle.input_position,
        recorded_at=time_text(event.recorded_at),
        engine=cycle.engine_version,
        config=cycle.config_digest,
        pods=cycle.pods,
        placed=cycle.placed,
        nominated=cycle.nominated,
        evicted=cycle.evicted,
    )
