"""Reports of replays and audits as answers."""

from kaicore.analysis.inquiry.audit import Audit
from kaicore.analysis.inquiry.json_spelling import spelled, time_text
from kaicore.rules.state.replay_report import ReplayReport

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
    return {**answer, "firstBroken": report.first_broken, "promises": spelled(audit.promises), "ok": audit.ok}
