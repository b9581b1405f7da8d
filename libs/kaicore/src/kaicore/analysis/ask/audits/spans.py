"""Parts of a log that a question is about, and the cycles that decided in each."""

from collections.abc import Iterable, Mapping

import msgspec

from kaicore.analysis.ask.audits.audit_answers import DecisionAnswer, Span, SpanAnswer
from kaicore.analysis.json_spelling import time_text
from kaicore.analysis.replay.log_states import events_of
from kaicore.analysis.replay.moments import Moment, parse_moment, range_of
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.snapshots import STATE_SNAPSHOT
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import CycleCompleted

#: How far before a decision its cycle's record is looked for at first, in events.
_BEFORE = 2000


async def span_of(log: EventLog, cluster: str, span: Span) -> SpanAnswer:
    """Return where a part of a log begins and ends.

    Raises:
        EventsRetired: it begins in a month that was retired.
        UnknownMoment: there is no such moment; the log is empty, or the part is.
    """
    since = parse_moment(span.since) if span.since else None
    until = parse_moment(span.until) if span.until else None
    retired = await log.retired(cluster)
    if retired and since is None:
        # A question begins at a state, and there is none before the one that was kept.
        kept = await log.kept_snapshots(cluster, name=STATE_SNAPSHOT)
        since = Moment(position=max([retired + 1, *(snapshot.position + 1 for snapshot in kept[-1:])]))
    there = await range_of(log, cluster, since=since, until=until)
    first, last = there.first, there.last
    ends = [await log.read(cluster, after=position - 1, limit=1) for position in (first, last)]
    times = [time_text(page[0].recorded_at) for page in ends if page] or [""]
    return SpanAnswer(first=first, last=last, from_time=times[0], to_time=times[-1], retired=retired)


def decision(event: Event) -> DecisionAnswer:
    """Return who decided an event; its cycle is looked up with others at once (`with_cycles`)."""
    return DecisionAnswer(
        position=event.position,
        recorded_at=time_text(event.recorded_at),
        id=str(event.id),
        cycle=event.correlation,
        actor=event.actor,
    )


class CycleBook:
    """Looks up the records of the cycles that decided something, some at once."""

    def __init__(self, log: EventLog, cluster: str) -> None:
        self._log = log
        self._cluster = cluster
        self._records: dict[str, tuple[Event, CycleCompleted]] = {}

    async def look_up(self, decided_at: Mapping[str, int]) -> None:
        """Find the records of cycles, of which a decision is at a position each.

        A cycle's record comes right before its decisions, in the same append.
        """
        wanted = {cycle: at for cycle, at in decided_at.items() if cycle and cycle not in self._records}
        before = _BEFORE
        while wanted:
            for after, upto in _stretches(wanted.values(), before):
                where = Filter(types=(CycleCompleted.__name__,))
                async for event in events_of(self._log, self._cluster, after=after, upto=upto, where=where):
                    if event.correlation in wanted:
                        payload = decode_payload(event)
                        if isinstance(payload, CycleCompleted):
                            self._records[event.correlation] = event, payload
            wanted = {cycle: at for cycle, at in wanted.items() if cycle not in self._records and at > before}
            before *= 8

    def of(self, decided: DecisionAnswer) -> DecisionAnswer:
        """Return a decision with its cycle's record; without a cycle where it was not appended with that record."""
        if decided.cycle not in self._records:
            return decided
        event, record = self._records[decided.cycle]
        if (event.actor, time_text(event.recorded_at)) != (decided.actor, decided.recorded_at):
            return msgspec.structs.replace(decided, cycle="")
        return msgspec.structs.replace(
            decided,
            cycle_position=event.position,
            input_position=record.input_position,
            config=record.config_digest,
            engine=record.engine_version,
        )


def _stretches(positions: Iterable[int], before: int) -> list[tuple[int, int]]:
    """Return the parts of a log that reach so far back from positions, those that overlap as one."""
    stretches: list[tuple[int, int]] = []
    for position in sorted(set(positions)):
        after = max(0, position - before)
        if stretches and after <= stretches[-1][1]:
            stretches[-1] = stretches[-1][0], position
        else:
            stretches.append((after, position))
    return stretches
