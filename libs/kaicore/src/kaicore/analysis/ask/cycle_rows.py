"""Rows of recorded cycles, from a cluster's log."""

from kaicore.analysis.ask.answers import CycleRow, Row, RowSelection
from kaicore.analysis.json_spelling import time_text
from kaicore.analysis.replay.last_events import last_events
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import CycleCompleted

_CYCLES = Filter(types=(CycleCompleted.__name__,))


async def list_cycles(log: EventLog, cluster: str, wanted: RowSelection, *, head: int) -> list[Row]:
    """Return the last cycles up to a position, the last one first: one more than `limit`, or all that there are."""
    # One more than is shown tells that there are more; one of a name may be anywhere.
    enough = wanted.skip + wanted.limit + 1 if wanted.limit and not wanted.name else head
    events, _ = await last_events(log, cluster, _CYCLES, upto=head, enough=enough)
    decoded = ((event, decode_payload(event)) for event in reversed(events))
    rows = [_cycle(event, cycle) for event, cycle in decoded if isinstance(cycle, CycleCompleted)]
    return [row for row in rows if wanted.name in ("", row.cycle)]


def _cycle(event: Event, cycle: CycleCompleted) -> CycleRow:
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
