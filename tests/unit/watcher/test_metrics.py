"""How old the nodes' topologies are."""

from kai_watcher.metrics import WatcherMetrics
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest


def test_the_ages_of_topologies_are_told_over_all_nodes() -> None:
    registry, now = CollectorRegistry(), 1000.0
    metrics = WatcherMetrics("c", registry=registry, clock=lambda: now)

    def age(quantile: str) -> float | None:
        name = "kai_watcher_topology_age_seconds"
        return registry.get_sample_value(name, {"cluster": "c", "quantile": quantile})

    assert age("1.0") is None
    for number in range(10):
        metrics.topology_ages.published(f"n{number}", 1000.0 - number)
    assert (age("0.5"), age("0.9"), age("1.0")) == (5.0, 9.0, 9.0)
    metrics.topology_ages.published("n9", 1001.0)
    metrics.topology_ages.gone("n8")
    metrics.topology_ages.gone("unknown")
    assert age("1.0") == 7.0
    now = 1100.0
    assert age("1.0") == 107.0


def test_everything_is_exposed() -> None:
    registry = CollectorRegistry()
    metrics = WatcherMetrics("c", registry=registry)
    metrics.fact("NodeObserved")
    metrics.rejection("OutOfcpu")
    metrics.objects("Pod", lambda: 7)
    text = generate_latest(registry).decode()
    assert 'kai_watcher_facts_total{cluster="c",type="NodeObserved"} 1.0' in text
    assert 'kai_watcher_kubelet_rejections_total{cluster="c",reason="OutOfcpu"} 1.0' in text
    assert 'kai_watcher_objects{cluster="c",kind="Pod"} 7.0' in text
