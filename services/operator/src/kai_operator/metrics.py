"""Metrics of the operator."""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge


class OperatorMetrics:
    """Metrics of `kai-operator`."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.writes = Counter(
            "kai_operator_writes_total", "Operands made, restored or deleted", ["kind", "verb"], registry=registry
        )
        self.refused = Counter(
            "kai_operator_refused_total", "Writes of operands that the API server refused", ["kind"], registry=registry
        )
        self.degraded = Gauge(
            "kai_operator_degraded",
            "1 while a Config or SchedulingShard is Degraded",
            ["kind", "name"],
            registry=registry,
        )
