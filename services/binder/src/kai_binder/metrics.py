"""What a binder counts."""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from kai_binder.binding import Bound, Refused

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class BinderMetrics:
    """The metrics of one binder process."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._latency = Histogram(
            "kai_bind_seconds", "From a decision's recording to its binding", buckets=_BUCKETS, registry=registry
        )
        self._append = Histogram(
            "kai_binder_append_seconds", "How long appends of outcomes took", buckets=_BUCKETS, registry=registry
        )
        self._outcomes = Counter("kai_binds", "Outcomes of decisions", ["outcome"], registry=registry)
        self.retries = Counter("kai_bind_retries", "Bindings tried again", registry=registry)
        self.annotations = Counter("kai_observed_annotations", "Observed placements written on pods", registry=registry)

    def outcome(self, outcome: Bound | Refused, *, waited_us: int) -> None:
        """Count a decision's outcome."""
        if isinstance(outcome, Bound):
            self._latency.observe(max(waited_us, 0) / 1e6)
            self._outcomes.labels("bound").inc()
        else:
            self._outcomes.labels("gone" if outcome.gone else outcome.reason).inc()

    def appended(self, seconds: float) -> None:
        """Record how long an append took."""
        self._append.observe(seconds)
