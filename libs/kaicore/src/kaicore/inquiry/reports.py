"""Reports of replays and audits as answers."""

from kaicore.inquiry.spelling import spelled
from kaicore.log.audit import AuditReport
from kaicore.state.replay import ReplayReport


def replay_answer(report: ReplayReport) -> object:
    """Return a replay's report as it is sent and printed as JSON."""
    return spelled(report)


def audit_answer(report: AuditReport) -> object:
    """Return an audit's report as it is sent and printed as JSON: with `ok`, and `firstBroken` if it is not."""
    answer = spelled(report)
    assert isinstance(answer, dict)
    return {**answer, "ok": report.ok, "firstBroken": report.first_broken}
