"""Audit of a whole log: its hash chain, and whether any resource was promised twice.

Reports of replays and of audits become answers here.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from kaicore.analysis.json_spelling import spelled, time_text
from kaicore.analysis.replay.log_states import events_of, first_state
from kaicore.errors import UnfoldableEvent
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.seals.audit import AuditReport, verify
from kaicore.rules.deciding.cycle_run import left_out_of_cycles
from kaicore.rules.deciding.replay import ReplayReport
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import EventSetAside
from kaicore.rules.events.quarantine import QuarantinedEvent
from kaicore.rules.state.promises import PromiseCheck, PromiseReport


async def promises_of(log: EventLog, cluster: str, *, upto: int) -> PromiseReport:
    """Check every decision of a cluster's log up to a position; where months have been retired, of what is left.

    Raises:
        EventsRetired: months have been retired, and no sound state was kept with them.
    """
    return (await _checked(log, cluster, upto=upto)).report


async def _checked(log: EventLog, cluster: str, *, upto: int) -> PromiseCheck:
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

    Args:
        log: to audit.
        cluster: the name of the cluster.
        anchors: hashes that must be in it, by position.
        chain_only: leave the decisions out, which takes folding the whole log.

    Raises:
        EventsRetired: months have been retired, and no sound state was kept with them.
    """
    report = await verify(log, cluster, anchors=anchors or {})
    records = events_of(log, cluster, upto=report.head.position, where=Filter(types=(EventSetAside.__name__,)))
    decoded = [decode_payload(event) async for event in records]
    set_aside = tuple(record for record in decoded if isinstance(record, EventSetAside))
    if chain_only or not report.ok:
        return Audit(report, None, set_aside=set_aside)
    check = await _checked(log, cluster, upto=report.head.position)
    quarantined, left_out = tuple(check.state.quarantined.values()), tuple(left_out_of_cycles(check.state))
    return Audit(report, check.report, quarantined, set_aside, left_out)


#: Of the log's end and of seals.
_TIMES = frozenset({"recordedAt", "sealedAt"})


def replay_answer(report: ReplayReport) -> object:
    """Return a replay's report as it is sent and printed as JSON."""
    return spelled(report)


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
