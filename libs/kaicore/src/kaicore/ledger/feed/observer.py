"""The observer of a feed: the reports that a feed makes while it works.

A feed's observer that counts for Prometheus.
"""

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from kaicore.rules.events.envelope import Event


class EventSource(StrEnum):
    """The source of events."""

    LOG = "log"
    BUS = "bus"


class Fallback(StrEnum):
    """A reason why a feed went back from the bus to the log.

    Attributes:
        GAP: a message is missing.
        FOREIGN: a message does not continue what the log says, or the bus says more than the log.
        LARGE: an event is too large for the bus.
        LAG: an event has been in the log for a while, and the bus does not bring it.
        ENDED: the connection broke, or the stream was deleted.
    """

    GAP = "gap"
    FOREIGN = "foreign"
    LARGE = "large"
    LAG = "lag"
    ENDED = "ended"


class FeedObserver(Protocol):
    """Is called with what happens; must be quick and must not raise."""

    def delivered(self, source: EventSource, events: Sequence[Event]) -> None:
        """Events are about to be handed to the reader."""
        ...

    def fell_back(self, reason: Fallback) -> None:
        """The feed reads from the log again."""
        ...


_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


class FeedMetrics:
    """The metrics of all feeds of a process; `of` gives the observer of one feed."""

    def __init__(self, *, registry: CollectorRegistry = REGISTRY, clock: Callable[[], float] = time.time) -> None:
        """Args:
        registry: where the metrics are registered.
        clock: seconds since the epoch.
        """
        self._clock = clock
        self._events = Counter("kai_feed_events", "Events read", ["cluster", "source"], registry=registry)
        self._position = Gauge("kai_feed_position", "Position of the event read last", ["cluster"], registry=registry)
        self._delay = Histogram(
            "kai_feed_delay_seconds",
            "From an event's recording to its delivery, of the newest event of each batch",
            ["cluster"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._fallbacks = Counter(
            "kai_feed_fallbacks", "Returns from the bus to the log", ["cluster", "reason"], registry=registry
        )

    def of(self, cluster: str) -> "ClusterFeedMetrics":
        """Return the observer of one cluster's feed."""
        return ClusterFeedMetrics(self, cluster)

    def delivered(self, cluster: str, source: EventSource, events: Sequence[Event]) -> None:
        """Count events that a feed has delivered."""
        self._events.labels(cluster, source.value).inc(len(events))
        self._position.labels(cluster).set(events[-1].position)
        self._delay.labels(cluster).observe(max(0.0, self._clock() - events[-1].recorded_at / 1e6))

    def fell_back(self, cluster: str, reason: Fallback) -> None:
        """Count a return to the log."""
        self._fallbacks.labels(cluster, reason.value).inc()


class ClusterFeedMetrics:
    """The metrics of one cluster's feed; see `kaicore.ledger.feed.observer.FeedObserver`."""

    def __init__(self, metrics: FeedMetrics, cluster: str) -> None:
        self._metrics = metrics
        self._cluster = cluster

    def delivered(self, source: EventSource, events: Sequence[Event]) -> None:
        """See `FeedObserver.delivered`."""
        self._metrics.delivered(self._cluster, source, events)

    def fell_back(self, reason: Fallback) -> None:
        """See `FeedObserver.fell_back`."""
        self._metrics.fell_back(self._cluster, reason)
