"""Metrics of the projector."""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge


class ProjectorMetrics:
    """The metrics of all clusters."""

    def __init__(self, *, registry: CollectorRegistry = REGISTRY) -> None:
        """Args: registry: where the metrics are registered."""
        self._position = Gauge(
            "kai_projector_position", "Position up to which the read models are made", ["cluster"], registry=registry
        )
        self._lag = Gauge(
            "kai_projector_lag_events",
            "Events in the log that are not in the read models",
            ["cluster"],
            registry=registry,
        )
        self._events = Counter("kai_projector_events", "Events taken in", ["cluster"], registry=registry)

        self.sent_spans = Counter(
            "kai_projector_spans_sent", "Spans that the receiver of traces took", registry=registry
        )
        self.dropped_spans = Counter(
            "kai_projector_spans_dropped",
            "Spans that were not sent: the receiver refused them, or was away for too long",
            registry=registry,
        )
        self.notices = Counter(
            "kai_projector_notices",
            "Notices that a target took, and that it refused for good",
            ["target", "result"],
            registry=registry,
        )
        self.oldest_notice = Gauge(
            "kai_projector_notice_waiting_seconds",
            "Age of the notice that a target did not take when it was sent last; 0 once it took all",
            ["target"],
            registry=registry,
        )

    def took(self, cluster: str, count: int) -> None:
        """Count events."""
        self._events.labels(cluster).inc(count)

    def reached(self, cluster: str, *, position: int, head: int) -> None:
        """Set how far the read models are."""
        self._position.labels(cluster).set(position)
        self._lag.labels(cluster).set(max(0, head - position))
