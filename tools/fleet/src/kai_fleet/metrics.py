"""Metrics of the fleet."""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """The fleet's metrics in one registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.registry = registry
        self.admissions = Counter("kai_fleet_admissions_total", "Pods that a kubelet admitted.", registry=registry)
        self.rejections = Counter(
            "kai_fleet_rejections_total", "Pods that a kubelet rejected.", ["reason"], registry=registry
        )
        self.active_pods = Gauge("kai_fleet_active_pods", "Pods that hold resources on a node.", registry=registry)
        self.nodes = Gauge("kai_fleet_nodes", "Nodes that are registered.", registry=registry)
        self.nrt_publishes = Counter(
            "kai_fleet_nrt_publishes_total",
            "NodeResourceTopologies written (sent), found unchanged (unchanged) or lost on purpose (lost).",
            ["result"],
            registry=registry,
        )
        self.nrt_lag = Histogram(
            "kai_fleet_nrt_lag_seconds",
            "From a change on a node until the API server has its NodeResourceTopology.",
            buckets=(0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120),
            registry=registry,
        )
        self.requests = Counter(
            "kai_fleet_api_requests_total", "Writes that the API server answered.", ["kind", "code"], registry=registry
        )
        self.retries = Counter(
            "kai_fleet_api_retries_total", "Writes that had to be sent again.", ["kind"], registry=registry
        )
        self.ignored = Counter(
            "kai_fleet_malformed_objects_total", "Objects that could not be read and were ignored.", registry=registry
        )
