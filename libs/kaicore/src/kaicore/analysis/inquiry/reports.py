"""Reports of replays and audits as answers."""

from kaicore.analysis.inquiry.spelling import spelled, time_text
from kaicore.ledger.log.audit import AuditReport
from kaicore.rules.state.replay import ReplayReport

#: Of the log's end and of seals.
_TIMES = frozenset({"recordedAt", "sealedAt"})


def replay_answer(report: ReplayReport) -> object:
    """Return a replay's report as it is sent and printed as JSON."""
    return spelled(report)


def audit_answer(report: AuditReport) -> object:
    """Return an audit's report as it is sent and printed as JSON: with `ok`, and `firstBroken` if it is not."""
    answer = spelled(report)
    assert isinstance(answer, dict)
    for place in (answer["head"], *answer["seals"]):
        place.update({name: time_text(value) for name, value in place.items() if name in _TIMES})
    return {**answer, "ok": report.ok, "firstBroken": report.first_broken}
