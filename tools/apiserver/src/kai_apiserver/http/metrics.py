"""Metrics of the API server, under the real one's names where the meaning is the same."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from kai_apiserver.http.request_path import RequestPath
from kai_apiserver.rest.backend import Backend
from kai_apiserver.rest.watch_stream import Watches

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts requests, and reads the rest from the backend when asked."""

    def __init__(self, registry: CollectorRegistry, backend: Backend, watches: Watches) -> None:
        self._backend = backend
        self._watches = watches
        self._requests = Counter(
            "apiserver_request",
            "Requests by verb, resource and HTTP code.",
            ["verb", "group", "resource", "subresource", "code"],
            registry=registry,
        )
        self._durations = Histogram(
            "apiserver_request_duration_seconds",
            "Time to answer, watches excepted.",
            ["verb", "resource"],
            buckets=_BUCKETS,
            registry=registry,
        )
        registry.register(self)

    def observe(self, request: RequestPath, code: int, seconds: float) -> None:
        """Count one answered request."""
        self._requests.labels(request.verb, request.group, request.plural, request.subresource, str(code)).inc()
        if request.verb != "watch":
            self._durations.labels(request.verb, request.plural).observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """Gauges that are read when asked for."""
        objects = GaugeMetricFamily("apiserver_resource_objects", "Objects held, by resource.", labels=["resource"])
        for collection in self._backend.store.collections:
            objects.add_metric([collection.resource.storage], len(collection))
        yield objects
        watches = GaugeMetricFamily(
            "apiserver_longrunning_requests", "Watches in progress, by resource.", labels=["resource"]
        )
        counts: dict[str, int] = {}
        for watch in self._watches.open:
            counts[watch.subject.resource] = counts.get(watch.subject.resource, 0) + 1
        for resource, count in counts.items():
            watches.add_metric([resource], count)
        yield watches
        yield GaugeMetricFamily(
            "kai_simulator_resource_version", "The last resourceVersion given out.", value=self._backend.store.rv
        )
