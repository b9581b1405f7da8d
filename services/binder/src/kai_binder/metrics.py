"""Metrics of a binder."""

from collections.abc import Callable
from functools import cache, partial

from kaicore.rules.events.quarantine import QUARANTINED
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class BinderMetrics:
    """The metrics of one cluster's binder."""

    def __init__(self, cluster: str, *, registry: CollectorRegistry = REGISTRY) -> None:

        def counter(name: str, text: str, *labels: str) -> Callable[..., None]:
            """A counter, as the function that counts one by its labels."""
            metric = Counter(f"kai_binder_{name}", text, ["cluster", *labels], registry=registry)
            counted = cache(partial(metric.labels, cluster))
            return lambda *values: counted(*values).inc()

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"kai_binder_{name}", text, ["cluster"], registry=registry).labels(cluster)

        self.bind = counter("binds", "Decisions carried out: bound, already, failed, gone, dropped", "outcome")
        self.eviction = counter("evictions", "Evictions: evicted, failed, gone, dropped", "outcome")
        self.provisioning = counter(
            "provisioning_requests", "ProvisioningRequests: created, removed, refused, dropped", "outcome"
        )
        self.retry = counter("retries", "Requests that were not answered, by status code", "code")
        self.side_write = counter(
            "side_writes",
            "Annotations, conditions, statuses and events: written, refused, given-up",
            "kind",
            "result",
        )
        self.disputed = counter("disputed_outcomes", "Outcomes of which the log has another one already")
        self.refused = counter("refused_decisions", "Decisions that no recorded cycle made; they are not carried out")
        self.quarantined = Gauge("kai_quarantined_events", QUARANTINED, registry=registry)
        self.waiting = gauge("open_decisions", "Decisions that are not carried out yet")
        self.left = Counter(
            "kai_binder_left_decisions",
            "Decisions left to another binder that has taken over their node",
            ["cluster"],
            registry=registry,
        ).labels(cluster)
        self.binders = gauge("live", "Binders that share the cluster's work, as this one sees it")
        self.pending = gauge("pending_outcomes", "Outcomes that the log may not have yet")
        self.delayed = gauge("waiting_side_writes", "Annotations, conditions, statuses and events that wait")
        self.seconds = Histogram(
            "kai_binder_bind_seconds",
            "From a decision's recording to its binding",
            ["cluster"],
            buckets=_BUCKETS,
            registry=registry,
        ).labels(cluster)
