"""Metrics of ingest."""

from kaicore.rules.events.quarantine import QUARANTINED
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300)


class IngestMetrics:
    """Ingest's metrics; reasons are few and fixed, and no metric has a label per node or pod."""

    def __init__(self, *, registry: CollectorRegistry = REGISTRY) -> None:
        """Args: registry: where the metrics are registered."""
        self.requests = Counter("kai_ingest_requests", "HTTP requests by status", ["status"], registry=registry)
        self.reports = Counter("kai_ingest_reports", "Nodes' reports", ["result"], registry=registry)
        self.refused = Counter("kai_ingest_refused", "What was refused, by reason", ["reason"], registry=registry)
        self.observations = Counter(
            "kai_ingest_observations", "Observations recorded, by source", ["source"], registry=registry
        )
        self.charges = Counter(
            "kai_ingest_node_charges",
            "Observations that changed what their node is accounted to hold (account), or may have (late)",
            ["why"],
            registry=registry,
        )
        self.missed = Counter(
            "kai_ingest_missed_predictions",
            "Kubelets did otherwise than was predicted",
            ["policy", "cause"],
            registry=registry,
        )
        self.unchanged = Counter(
            "kai_ingest_unchanged_pods", "Reported pods of which nothing new was said", registry=registry
        )
        self.lag = Histogram(
            "kai_ingest_observation_lag_seconds",
            "From the record of a pod's binding to that of its first observation",
            buckets=_BUCKETS,
            registry=registry,
        )
        self.quarantined = Gauge("kai_quarantined_events", QUARANTINED, registry=registry)
        self.position = Gauge("kai_ingest_position", "Position that the projection has reached", registry=registry)
        self.pods = Gauge("kai_ingest_projection_pods", "Pods with a node that are known", registry=registry)
        self.unobserved = Gauge(
            "kai_ingest_unobserved_pods",
            "Pods with predicted zones, bound for a minute or more, that no exporter has reported",
            registry=registry,
        )
        self.nodes = Gauge("kai_ingest_reporting_nodes", "Nodes that have reported since the start", registry=registry)
        self.oldest_report = Gauge(
            "kai_ingest_oldest_report_age_seconds",
            "Age of the last report of the node that has been silent for longest",
            registry=registry,
        )
