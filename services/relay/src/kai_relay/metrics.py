"""Metrics of a relay."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


class RelayMetrics:
    """The metrics of all clusters that a process relays."""

    def __init__(self, *, registry: CollectorRegistry = REGISTRY, clock: Callable[[], float] = time.time) -> None:
        """Args:
        registry: where the metrics are registered.
        clock: seconds since the epoch.
        """

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"kai_relay_{name}", text, ["cluster"], registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"kai_relay_{name}", text, ["cluster", *labels], registry=registry)

        self._clock = clock
        self._active = gauge("active", "1 if this relay publishes, 0 if it stands by")
        self._position = gauge("position", "Position of the event published last, by any relay")
        self._lag_events = gauge("lag_events", "Events in the log that are not on the bus")
        self._lag_microseconds = gauge("lag_microseconds", "Age of the oldest event that is not on the bus")
        self._published = counter("published_events", "Events published")
        self._fenced = counter("fenced", "Times that another relay was found to be ahead")
        self._rebuilds = counter("rebuilds", "Streams made, by why there was none that would do", "reason")
        self._latency = Histogram(
            "kai_relay_publish_latency_seconds",
            "From an event's recording in the log to its confirmation by the bus, of the oldest event of each batch",
            ["cluster"],
            buckets=_BUCKETS,
            registry=registry,
        )

    @contextmanager
    def publishing(self, cluster: str) -> Iterator[None]:
        """Show that we publish, while inside."""
        active = self._active.labels(cluster)
        active.set(1)
        try:
            yield
        finally:
            active.set(0)

    def published(self, cluster: str, *, count: int, position: int, recorded_at: int) -> None:
        """Count a batch whose oldest event was recorded then, microseconds since the epoch."""
        self._published.labels(cluster).inc(count)
        self._position.labels(cluster).set(position)
        self._latency.labels(cluster).observe(self._age_us(recorded_at) / 1e6)

    def lag(self, cluster: str, *, position: int, head: int, oldest: int | None) -> None:
        """Set how far the bus is behind the log; `oldest` is when the oldest missing event was recorded."""
        self._position.labels(cluster).set(position)
        self._lag_events.labels(cluster).set(max(0, head - position))
        self._lag_microseconds.labels(cluster).set(0 if oldest is None else self._age_us(oldest))

    def fenced(self, cluster: str) -> None:
        """Count that another relay was ahead."""
        self._fenced.labels(cluster).inc()

    def rebuilt(self, cluster: str, reason: str) -> None:
        """Count a stream that was made."""
        self._rebuilds.labels(cluster, reason).inc()

    def _age_us(self, recorded_at: int) -> int:
        return max(0, int(self._clock() * 1e6) - recorded_at)
