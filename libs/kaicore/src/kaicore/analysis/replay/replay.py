"""Replay of a log, or of a range of it; and its audit: its hash chain, and whether any resource was promised twice.

Reports of audits become answers here.
"""

from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass

from kaicore.analysis.json_spelling import spelled, time_text
from kaicore.analysis.replay.log_states import events_of, first_state, pages_of
from kaicore.analysis.replay.moments import Range, state_at
from kaicore.errors import EventsRetired, UnfoldableEvent, UnknownMoment, UnknownSubject
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.seals.audit import AuditReport, verify
from kaicore.rules.deciding.cycle_run import left_out_of_cycles
from kaicore.rules.deciding.decide import cycle_stream
from kaicore.rules.deciding.replay import KNOWN_BEFOREHAND, Replay, ReplayReport
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import CycleCompleted, EventSetAside, ShadowDecided
from kaicore.rules.events.quarantine import QuarantinedEvent
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.promises import PromiseCheck, PromiseReport
from kaicore.spelling import did_you_mean

#: Of these one was decided on the earliest state: cycles of several shards overlap, but not many of them.
_FIRST_CYCLES = 50
#: Of a cycle's number.
_MOST_DIGITS = 18

_CYCLES, _CONFIGS = Filter(types=("CycleCompleted",)), Filter(types=("ConfigRecorded",))
_DECIDED = Filter(types=("CycleCompleted", "ShadowDecided"))


async def replay_log(
    log: EventLog,
    cluster: str,
    wanted: Range | None = None,
    *,
    progress: Callable[[int, int], None] = lambda _, __: None,
    policies: PolicyBook = NO_POLICIES,
) -> ReplayReport:
    """Fold a cluster's log again, run every cycle that is recorded in a range again, and compare.

    Where months have been retired, it goes on from the state that was kept with them.

    Args:
        wanted: the range; by default all that is left of the log, up to where it ends now.
        progress: called with how far it is, and how far it will go, in positions.
        policies: the code of the policies that cycles were decided with.

    Raises:
        EventsRetired: no sound state was kept.
        PolicyMismatch: a cycle was decided with policies of which the book has no code.
        UnreplayableCycle: a cycle was recorded without what it takes to run it again.
    """
    # One end for all passes: what is appended meanwhile is no part of it.
    head = (await log.head(cluster)).position
    wanted = wanted or Range((await log.retired(cluster)) + 1, head)
    while True:
        try:
            return await _replayed(log, cluster, wanted, head=head, progress=progress, policies=policies)
        except UnfoldableEvent:
            # Known from now on in this process, and quarantined.
            continue


async def _replayed(
    log: EventLog,
    cluster: str,
    wanted: Range,
    *,
    head: int,
    progress: Callable[[int, int], None],
    policies: PolicyBook,
) -> ReplayReport:
    state = await _beginning(log, cluster, wanted)
    known = await _known_beforehand(log, cluster, after=state.position, upto=wanted.last)
    # Cycles that were decided on what is before the state that is left cannot be run again.
    replay = Replay(state, known, first=wanted.first, policies=policies)
    begin = state.position
    async for page in pages_of(log, cluster, after=begin, upto=wanted.last):
        for event in page:
            replay.take(event)
        progress(page[-1].position - begin, wanted.last - begin)
    async with aclosing(events_of(log, cluster, after=state.position, upto=head)) as rest:
        async for event in rest:
            if not replay.goes_on(event):
                break
            replay.take(event)
    return replay.finish()


async def _known_beforehand(log: EventLog, cluster: str, *, after: int, upto: int) -> list[Event]:
    where = Filter(types=KNOWN_BEFOREHAND)
    known = [event async for event in events_of(log, cluster, after=after, upto=upto, where=where)]
    # The last cycle's configuration may be recorded right behind it.
    return [*known, *await log.read(cluster, after=upto, limit=1, where=_CONFIGS)]


async def _beginning(log: EventLog, cluster: str, wanted: Range) -> ClusterState:
    """Return the state that the first cycle of a range was decided on, or the first one that is left behind that."""
    begin = wanted.first - 1
    for event in await log.read(cluster, after=begin, upto=wanted.last, limit=_FIRST_CYCLES, where=_DECIDED):
        recorded = decode_payload(event)
        if isinstance(recorded, CycleCompleted | ShadowDecided):
            begin = min(begin, recorded.input_position)
    try:
        return await state_at(log, cluster, begin)
    except EventsRetired:
        state = await first_state(log, cluster)
        if state.position > wanted.last:
            raise
        return state


def halves(wanted: Range, count: int) -> list[Range]:
    """Divide a range into so many of about the same number of events, or fewer."""
    size = max(-(-(wanted.last - wanted.first + 1) // count), 1)
    return [Range(first, min(first + size - 1, wanted.last)) for first in range(wanted.first, wanted.last + 1, size)]


async def cycle_range(log: EventLog, cluster: str, name: str) -> Range:
    """Return where a cycle is recorded, as a range of one event.

    Args:
        name: `<shard>/<number>`, or the number where there is but one shard.

    Raises:
        UnknownMoment: it is no name of a cycle, or there are several shards.
        UnknownSubject: there is no such cycle.
    """
    shard, _, number = name.rpartition("/")
    if not number.isascii() or not number.isdigit() or len(number) > _MOST_DIGITS:
        raise UnknownMoment(f"cycle {name[:100]!r}: no number, and no SHARD/NUMBER such as default/17")
    there_are = await _shards(log, cluster)
    if not shard and len(there_are) > 1:
        raise UnknownMoment(f"cycle {name}: of which shard? There are {', '.join(there_are)}: name SHARD/{name}")
    shard = shard or "".join(there_are)
    position, last = await _position_of(log, cluster, cycle_stream(shard), int(number))
    if position:
        return Range(position, position)
    close = "" if shard in there_are else did_you_mean(shard, there_are)
    raise UnknownSubject(f"cluster {cluster}: there is no cycle {shard}/{int(number)}{close}; {last}")


async def cycle_with_input(log: EventLog, cluster: str, name: str) -> Range:
    """Return the events from right behind what a cycle was decided on to its last decision; see `cycle_range`."""
    position = (await cycle_range(log, cluster, name)).first
    (event,) = await log.read(cluster, after=position - 1, upto=position, limit=1)
    recorded = decode_payload(event)
    last = position
    async with aclosing(events_of(log, cluster, after=position)) as events:
        async for one in events:
            if (one.correlation, one.actor) != (event.correlation, event.actor):
                break
            last = one.position
    return Range(recorded.input_position + 1 if isinstance(recorded, CycleCompleted) else position, last)


async def _shards(log: EventLog, cluster: str) -> list[str]:
    """Return the shards that recorded cycles in what is left of the log; each records its configuration first."""
    configs = [event.subject async for event in events_of(log, cluster, where=_CONFIGS)]
    first = [event.subject for event in await log.read(cluster, limit=1, where=_CYCLES)]
    return sorted({*configs, *first})


async def _position_of(log: EventLog, cluster: str, stream: str, number: int) -> tuple[int, str]:
    """Return the position of an event by its version, and the valid versions; versions grow with positions."""
    low, high, last = await log.retired(cluster), (await log.head(cluster)).position, 0
    where = Filter(streams=(stream,))
    while low < high:
        middle = (low + high) // 2
        events = await log.read(cluster, after=middle, upto=high, limit=1, where=where)
        if events and events[0].version == number:
            return events[0].position, ""
        if events and events[0].version < number:
            low, last = events[0].position, events[0].version
        else:
            high = middle
    return 0, f"the one before it is {last}" if last else "there is none before it"


async def checked_promises(log: EventLog, cluster: str, *, upto: int) -> PromiseCheck:
    """Check every decision of a cluster's log up to a position; where months have been retired, of what is left.

    Raises EventsRetired: months have been retired, and no sound state was kept with them.
    """
    while True:
        check = PromiseCheck(await first_state(log, cluster))
        with suppress(UnfoldableEvent):
            async for event in events_of(log, cluster, after=check.state.position, upto=upto):
                check.take(event)
            return check


@dataclass(frozen=True, slots=True)
class Audit:
    """The findings about one cluster.

    Attributes:
        report: of the hash chain.
        promises: of the decisions; None where the chain is broken, or where they were not to be looked at.
        quarantined: events that cannot be decoded or folded and were not set aside, by position; none where the
            decisions were not looked at.
        set_aside: records of events that the log's owner set aside, in order.
        left_out: the groups and nodes that the last cycles left out, and why (`kaicore.rules.deciding.cycle_run`).
    """

    report: AuditReport
    promises: PromiseReport | None
    quarantined: tuple[QuarantinedEvent, ...] = ()
    set_aside: tuple[EventSetAside, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if nothing is broken and nothing was promised twice."""
        return self.report.ok and (self.promises is None or self.promises.ok)


async def audit_log(
    log: EventLog, cluster: str, *, anchors: Mapping[int, bytes] | None = None, chain_only: bool = False
) -> Audit:
    """Verify a cluster's log, and check every decision in it.

    Raises EventsRetired: months have been retired, and no sound state was kept with them.

    Args:
        anchors: hashes that must be in it, by position.
        chain_only: leave the decisions out, which takes folding the whole log.
    """
    report = await verify(log, cluster, anchors=anchors or {})
    records = events_of(log, cluster, upto=report.head.position, where=Filter(types=(EventSetAside.__name__,)))
    decoded = [decode_payload(event) async for event in records]
    set_aside = tuple(record for record in decoded if isinstance(record, EventSetAside))
    if chain_only or not report.ok:
        return Audit(report, None, set_aside=set_aside)
    check = await checked_promises(log, cluster, upto=report.head.position)
    quarantined, left_out = tuple(check.state.quarantined.values()), tuple(left_out_of_cycles(check.state))
    return Audit(report, check.report, quarantined, set_aside, left_out)


#: Of the log's end and of seals.
_TIMES = frozenset({"recordedAt", "sealedAt"})


def audit_answer(audit: Audit) -> object:
    """Return an audit as it is sent and printed as JSON: the chain's report, `promises`, `ok` and `firstBroken`."""
    report = audit.report
    answer = spelled(report)
    assert isinstance(answer, dict)
    for place in (answer["head"], *answer["seals"]):
        place.update({name: time_text(value) for name, value in place.items() if name in _TIMES})
    return {
        **answer,
        "firstBroken": report.first_broken,
        "promises": spelled(audit.promises),
        "quarantined": spelled(audit.quarantined),
        "setAside": spelled(audit.set_aside),
        "leftOut": list(audit.left_out),
        "ok": audit.ok,
    }
