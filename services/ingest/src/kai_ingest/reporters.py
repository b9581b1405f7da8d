"""The exporter of each node, and its last report: so that an old report does not undo a newer one."""

from dataclasses import dataclass, field

from kai_ingest.reports import Report

#: Former exporters of a node that are remembered.
_FORMER = 8


@dataclass(slots=True)
class _Reporter:
    instance: str
    sequence: int = 0
    at: int = 0
    former: list[str] = field(default_factory=list)


class Reporters:
    """The exporters of a cluster, by node."""

    def __init__(self) -> None:
        self._by_node: dict[str, _Reporter] = {}

    def __len__(self) -> int:
        return len(self._by_node)

    def superseded(self, report: Report, *, now: int) -> str:
        """Note a report; return why it comes too late, or nothing.

        A report may be sent again as long as its exporter has sent no other. An exporter that another one has replaced
        on its node is not heard again.

        Args:
            report: what came.
            now: microseconds since the epoch.
        """
        reporter = self._by_node.setdefault(report.node, _Reporter(report.instance))
        if report.instance != reporter.instance:
            if report.instance in reporter.former:
                return f"Node {report.node}: instance: another exporter has reported since: {report.instance!r}"
            reporter.former = [*reporter.former, reporter.instance][-_FORMER:]
            reporter.instance, reporter.sequence = report.instance, 0
        elif report.sequence < reporter.sequence:
            return f"Node {report.node}: sequence: {reporter.sequence} was reported before: {report.sequence!r}"
        reporter.sequence, reporter.at = report.sequence, now
        return ""

    def oldest_age_us(self, *, now: int) -> int:
        """Return how long the most silent node has been silent, microseconds; 0 without any."""
        return max((now - reporter.at for reporter in self._by_node.values()), default=0)

    def forget(self, node: str) -> None:
        """Forget a node that is gone."""
        self._by_node.pop(node, None)
