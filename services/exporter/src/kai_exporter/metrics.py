"""Metrics of the exporter."""

from kaicore.runtime.agent.metrics import Counter, Gauge, Histogram, Registry

_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class ExporterMetrics:
    """The exporter's metrics; pods and nodes are those of all nodes it serves."""

    def __init__(self, *, registry: Registry) -> None:
        self.polls = Counter("kai_exporter_polls", "Answers of kubelets", ("result",), registry=registry)
        self.reports = Counter("kai_exporter_reports", "Nodes' reports sent", ("result",), registry=registry)
        self.pods = Counter("kai_exporter_pods", "Pods reported", ("result",), registry=registry)
        self.problems = Counter("kai_exporter_problems", "Pods that cannot be reported", registry=registry)
        self.file_problems = Counter(
            "kai_exporter_state_file_problems", "Reads of state files that were not usable", registry=registry
        )
        self.topologies = Counter(
            "kai_exporter_published_topologies",
            "Looks at what is to be published as NodeResourceTopology, by what became of it",
            ("result",),
            registry=registry,
        )
        self.nodes = Gauge("kai_exporter_nodes", "Nodes served", registry=registry)
        self.withheld = Gauge("kai_exporter_withheld_pods", "Pods that cannot be reported now", registry=registry)
        self.unaccepted = Gauge("kai_exporter_untold_pods", "Pods that ingest has still to accept", registry=registry)
        self.lag = Histogram(
            "kai_exporter_report_lag_seconds",
            "From when a change was first seen until ingest had accepted it",
            buckets=_BUCKETS,
            registry=registry,
        )
