"""Metrics of a watcher, and the lag of NodeResourceTopologies behind the pods of their nodes.

An object that does not change says nothing about its exporter: on an idle node there is nothing to publish, and an API
server reports no write that changes nothing. So the measured time is this: pods that must show in a node's zones have
come or gone, and no new version of its object has come.

An object may be seen before the end of the pods that it no longer counts: a kubelet frees what a pod held before the
API reports the pod's end. So an object is not late either where pods only have gone and its used amounts are those of
the remaining pods.
"""

import collections
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial

from kaicore.rules.model.pod import Pod, QosClass
from kaicore.rules.model.quantity import CPU
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

#: Millicores.
_WHOLE_CPU = 1000


class TopologyLag:
    """Follows pods and topologies of one cluster, as they are seen."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Args: clock: seconds since the epoch."""
        self._clock = clock
        #: What is used of the resources of each published node's zones; None where its object cannot be read.
        self._zones: dict[str, Mapping[str, int | None]] = {}
        self._node_of: dict[str, str] = {}
        #: What pods hold for themselves alone, by node and uid.
        self._holding: dict[str, dict[str, Mapping[str, int]]] = {}
        #: The pods that showed in a node's zones when its object was last written.
        self._published: dict[str, set[str]] = {}
        self._behind_since: dict[str, float] = {}

    def begin(self) -> None:
        """Everything has been listed: what is there now counts as published."""
        self._published = {node: self._showing(node) for node in self._zones}
        self._behind_since.clear()

    def written(self, node: str, used: Mapping[str, int | None]) -> None:
        """Take note of a version of a node's object, and of what is used of the resources that its zones report."""
        self._zones[node] = used
        self._published[node] = self._showing(node)
        self._behind_since.pop(node, None)

    def gone(self, node: str) -> None:
        """Forget a node's object."""
        for by_node in (self._zones, self._published, self._behind_since):
            by_node.pop(node, None)

    def pod(self, pod: Pod) -> None:
        """Take note of a pod as it is now."""
        held = {} if pod.finished or not pod.node_name else _exclusive(pod)
        if not held:
            self.pod_gone(pod.uid)
            return
        self._node_of[pod.uid] = pod.node_name
        self._holding.setdefault(pod.node_name, {})[pod.uid] = held
        self._compare(pod.node_name)

    def pod_gone(self, uid: str) -> None:
        """Take note of a pod that holds nothing any more."""
        node = self._node_of.pop(uid, None)
        if node is not None:
            del self._holding[node][uid]
            self._compare(node)

    def seconds(self) -> list[float]:
        """For how long each published node's object is behind, in ascending order; 0 where it is not."""
        now = self._clock()
        return sorted(max(0.0, now - self._behind_since.get(node, now)) for node in self._zones)

    def _showing(self, node: str) -> set[str]:
        zones = self._zones[node].keys()
        return {uid for uid, held in self._holding.get(node, {}).items() if held.keys() & zones}

    def _compare(self, node: str) -> None:
        if node not in self._zones:
            return
        showing, published = self._showing(node), self._published[node]
        if showing == published or (showing < published and self._is_all_that_is_used(node)):
            self._behind_since.pop(node, None)
        else:
            self._behind_since.setdefault(node, self._clock())

    def _is_all_that_is_used(self, node: str) -> bool:
        """Tell whether a node's object says that just what its pods hold is used."""
        held: collections.Counter[str] = collections.Counter()
        for one in self._holding.get(node, {}).values():
            held.update(one)
        return all(used == held[name] for name, used in self._zones[node].items() if _is_counted(name))


def _is_counted(resource: str) -> bool:
    return resource == CPU or "/" in resource


def _exclusive(pod: Pod) -> Mapping[str, int]:
    """A pod's exclusive amounts that every exporter counts: whole CPUs and devices of Guaranteed pods."""
    if pod.qos is not QosClass.GUARANTEED:
        return {}
    held: collections.Counter[str] = collections.Counter()
    for container in pod.containers:
        for resource, amount in container.requests.items():
            if amount and ("/" in resource or (resource == CPU and amount % _WHOLE_CPU == 0)):
                held[resource] += amount
    return held


_APPEND_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

_QUANTILES = (0.5, 0.9, 0.99, 1.0)


class WatcherMetrics:
    """The metrics of one cluster's watcher."""

    def __init__(
        self, cluster: str, *, registry: CollectorRegistry = REGISTRY, clock: Callable[[], float] = time.time
    ) -> None:
        """Args:
        clock: seconds since the epoch.
        """

        def counter(name: str, text: str, *labels: str) -> Callable[..., None]:
            """A counter, as the function that counts one by its labels."""
            metric = Counter(f"kai_watcher_{name}", text, ["cluster", *labels], registry=registry)
            counted = cache(partial(metric.labels, cluster))
            return lambda *values: counted(*values).inc()

        self.fact = counter("facts", "Facts appended to the log", "type")
        self.refused = counter("refused_objects", "Versions of objects that say something impossible", "kind")
        self.lost_part = counter(
            "lost_parts", "Parts of objects that say nothing that there is, and were left out", "kind"
        )
        self.malformed = counter("malformed_annotations", "Pods with NUMA annotations that make no sense", "annotation")
        self.rejection = counter("kubelet_rejections", "Pods refused by a kubelet", "reason")
        self.listed = counter("lists", "Lists taken to their end", "kind", "why")
        self.watching = counter("watches", "Watches begun", "kind")
        self.api_failed = counter("api_failures", "Requests that failed and watches that broke", "kind")
        self.dropped = counter("dropped_facts", "Facts that no log could take")
        self.appends = Histogram(
            "kai_watcher_append_seconds",
            "How long appends took",
            ["cluster"],
            buckets=_APPEND_BUCKETS,
            registry=registry,
        ).labels(cluster)
        self.objects = Gauge(
            "kai_watcher_objects", "Objects that are there and were not refused", ["cluster", "kind"], registry=registry
        )
        self.pending = Gauge(
            "kai_watcher_pending_facts", "Facts that the log may not have yet", ["cluster"], registry=registry
        ).labels(cluster)
        self.topology_ages = TopologyAges(cluster, clock)
        self.topology_lag = self.topology_ages.lag
        registry.register(self.topology_ages)


class TopologyAges(Collector):
    """The age of nodes' topologies, and their lag behind their nodes' pods, over all nodes.

    Computed when it is asked for, for ages grow by themselves.
    """

    def __init__(self, cluster: str, clock: Callable[[], float]) -> None:
        self.lag = TopologyLag(clock)
        self._cluster = cluster
        self._clock = clock
        self._changed: dict[str, float] = {}

    def changed(self, node: str, at: float, used: Mapping[str, int | None]) -> None:
        """Take note of a new version, written at seconds since the epoch, and what is used of its zones' resources."""
        self._changed[node] = at
        self.lag.written(node, used)

    def gone(self, node: str) -> None:
        """Forget a node."""
        self._changed.pop(node, None)
        self.lag.gone(node)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See `Collector.collect`."""
        yield self._family(
            "kai_watcher_topology_age_seconds",
            "Time since nodes' NodeResourceTopologies last changed, quantiles over nodes; 1.0 is the oldest",
            sorted(max(0.0, self._clock() - at) for at in self._changed.values()),
        )
        yield self._family(
            "kai_watcher_topology_lag_seconds",
            "For how long pods came or went without a new version of their node's NodeResourceTopology, quantiles",
            self.lag.seconds(),
        )

    def _family(self, name: str, text: str, seconds: list[float]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=["cluster", "quantile"])
        for quantile in _QUANTILES if seconds else ():
            place = min(int(quantile * len(seconds)), len(seconds) - 1)
            family.add_metric([self._cluster, str(quantile)], seconds[place])
        return family
