"""Metric of the log position that each kept state has reached."""

from collections.abc import Iterator

from kaicore.analysis.inquiry.queries import Inquiry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class KeptStates(Collector):
    """`kai_api_position` by cluster."""

    def __init__(self, inquiry: Inquiry) -> None:
        """Args: inquiry: it reads the states."""
        self._inquiry = inquiry

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the metric as of now."""
        family = GaugeMetricFamily("kai_api_position", "Position that the kept state has reached", labels=["cluster"])
        for state in self._inquiry.states:
            family.add_metric([state.cluster], state.position)
        yield family
