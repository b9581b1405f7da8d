"""Metrics of the hub."""

from collections.abc import Mapping

from kaicore.rules.events.quarantine import QUARANTINED
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram


class HubMetrics:
    """The hub's metrics."""

    def __init__(self, *, registry: CollectorRegistry = REGISTRY) -> None:
        """Args: registry: where the metrics are registered."""
        self._dispatches = Gauge("kai_hub_dispatches", "Dispatches by stage", ["stage"], registry=registry)
        self._decided = Counter("kai_hub_decisions", "Events appended, by type", ["type"], registry=registry)
        self._stale = Counter("kai_hub_stale", "Decisions that came too late", registry=registry)
        self._round = Histogram("kai_hub_round_seconds", "Time to choose clusters in one round", registry=registry)
        self._quarantined = Gauge(
            "kai_quarantined_events",
            QUARANTINED,
            registry=registry,
        )
        self._silent = Gauge("kai_hub_silent_seconds", "Time since a lease was renewed", ["cluster"], registry=registry)

    def stages(self, counts: Mapping[str, int]) -> None:
        """Set how many dispatches are at each stage."""
        for stage, count in counts.items():
            self._dispatches.labels(stage).set(count)

    def decided(self, event_type: str, *, stale: bool) -> None:
        """Count a decision that was appended, or came too late."""
        if stale:
            self._stale.inc()
        else:
            self._decided.labels(event_type).inc()

    def chose(self, seconds: float) -> None:
        """A round took so long."""
        self._round.observe(seconds)

    def quarantined(self, count: int) -> None:
        """Set how many events of the hub's log say nothing until they are set aside."""
        self._quarantined.set(count)

    def silent(self, cluster: str, seconds: float) -> None:
        """Set for how long nothing was heard of a cluster."""
        self._silent.labels(cluster).set(seconds)
