"""Audit of a whole log: its hash chain, and whether any resource was promised twice."""

from collections.abc import Mapping
from dataclasses import dataclass

from kaicore.analysis.inquiry.promises import promises_of
from kaicore.ledger.log.audit import AuditReport, verify
from kaicore.ledger.log.port import EventLog
from kaicore.rules.state.promises import PromiseReport


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found of one cluster.

    Attributes:
        report: of the hash chain.
        promises: of the decisions; None where the chain is broken, or where they were not to be looked at.
    """

    report: AuditReport
    promises: PromiseReport | None

    @property
    def ok(self) -> bool:
        """Whether nothing is broken, and nothing was promised twice."""
        return self.report.ok and (self.promises is None or self.promises.ok)


async def audit_log(
    log: EventLog, cluster: str, *, anchors: Mapping[int, bytes] | None = None, chain_only: bool = False
) -> Audit:
    """Verify a cluster's log, and check every decision in it.

    Args:
        log: to audit.
        cluster: whose log.
        anchors: hashes that must be in it, by position.
        chain_only: leave the decisions out, which takes folding the whole log.

    Raises:
        EventsRetired: months have been retired, and no sound state was kept with them.
    """
    report = await verify(log, cluster, anchors=anchors or {})
    promises = None
    if report.ok and not chain_only:
        promises = await promises_of(log, cluster, upto=report.head.position)
    return Audit(report, promises)
