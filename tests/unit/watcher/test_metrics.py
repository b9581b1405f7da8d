"""The ages of the nodes' topologies."""

import msgspec
import pytest
from kai_watcher.metrics import TopologyLag, WatcherMetrics
from kaicore.rules.model.pod import Pod, QosClass
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from tests.given.cluster.factory import container, pod

GPU = "nvidia.com/gpu"


def test_the_ages_of_topologies_are_told_over_all_nodes() -> None:
    registry, now = CollectorRegistry(), 1000.0
    metrics = WatcherMetrics("c", registry=registry, clock=lambda: now)

    def age(quantile: str) -> float | None:
        name = "kai_watcher_topology_age_seconds"
        return registry.get_sample_value(name, {"cluster": "c", "quantile": quantile})

    assert age("1.0") is None
    for number in range(10):
        metrics.topology_ages.changed(f"n{number}", 1000.0 - number, {})
    assert (age("0.5"), age("0.9"), age("1.0")) == (5.0, 9.0, 9.0)
    metrics.topology_ages.changed("n9", 1001.0, {})
    metrics.topology_ages.gone("n8")
    metrics.topology_ages.gone("unknown")
    assert age("1.0") == 7.0
    now = 1100.0
    assert age("1.0") == 107.0


def test_topologies_are_behind_from_a_pods_coming_or_going_until_their_next_version() -> None:
    now = 1000.0
    lag = TopologyLag(lambda: now)
    lag.written("n", {"cpu": 0, "memory": 0})
    lag.written("idle", {"cpu": 0})
    pods = [
        pod(name, container(cpu=2), node_name=node, phase=phase)
        for name, node, phase in (("p", "n", "Pending"), ("done", "n", "Succeeded"), ("waits", "", "Pending"))
    ]
    for one in pods:
        lag.pod(one)
    now = 1007.0
    lag.pod(msgspec.structs.replace(pods[0], phase="Running"))
    assert lag.seconds() == [0.0, 7.0], "an idle node's object is not behind, however old"
    lag.written("n", {"cpu": 2000, "memory": 0})
    assert lag.seconds() == [0.0, 0.0]
    lag.pod(msgspec.structs.replace(pods[0], phase="Succeeded"))
    now = 1010.0
    lag.pod_gone(pods[0].uid)
    assert lag.seconds() == [0.0, 3.0]
    lag.gone("n")
    assert lag.seconds() == [0.0]


def test_an_object_that_was_seen_before_the_end_of_its_pods_is_not_behind() -> None:
    now = 1000.0
    lag = TopologyLag(lambda: now)
    lag.written("n", {"cpu": 0})
    stays, ends = (pod(name, container(cpu=cpu), node_name="n") for name, cpu in (("stays", 4), ("ends", 2)))
    lag.pod(stays)
    lag.pod(ends)
    lag.written("n", {"cpu": 4000})
    lag.pod(msgspec.structs.replace(ends, phase="Succeeded"))
    now = 1100.0
    assert lag.seconds() == [0.0]
    lag.pod_gone(stays.uid)
    now = 1103.0
    assert lag.seconds() == [3.0]
    unreadable = {"cpu": None}
    lag.pod(stays)
    lag.written("n", unreadable)
    lag.pod_gone(stays.uid)
    now = 1105.0
    assert lag.seconds() == [2.0]


@pytest.mark.parametrize(
    "one",
    [
        pod("burstable", container(cpu=2, gpu=1), node_name="n", qos=QosClass.BURSTABLE),
        pod("parts", container(cpu=1.5), node_name="n"),
        pod("unreported", container(**{"example.com/fpga": 1}), node_name="n"),
        pod("elsewhere", container(cpu=2), node_name="unpublished"),
    ],
)
def test_what_need_not_show_in_zones_is_not_waited_for(one: Pod) -> None:
    now = 1000.0
    lag = TopologyLag(lambda: now)
    lag.written("n", {"cpu": 0, GPU: 0})
    lag.pod(one)
    now = 1100.0
    assert lag.seconds() == [0.0]


def test_a_pod_that_a_kubelet_refused_leaves_nothing_to_publish() -> None:
    now = 1000.0
    lag = TopologyLag(lambda: now)
    lag.written("n", {GPU: 0})
    refused = pod("p", container(gpu=1), node_name="n")
    lag.pod(refused)
    lag.pod(msgspec.structs.replace(refused, phase="Failed"))
    now = 1100.0
    assert lag.seconds() == [0.0]


def test_what_was_there_at_first_counts_as_published() -> None:
    now = 1000.0
    lag = TopologyLag(lambda: now)
    lag.written("n", {"cpu": 0})
    lag.pod(pod("p", container(cpu=1), node_name="n"))
    lag.begin()
    now = 1100.0
    assert lag.seconds() == [0.0]


def test_metrics_of_the_watcher_are_exposed() -> None:
    registry = CollectorRegistry()
    metrics = WatcherMetrics("c", registry=registry)
    metrics.fact("NodeObserved")
    metrics.rejection("OutOfcpu")
    metrics.objects.labels("c", "Pod").set_function(lambda: 7)
    text = generate_latest(registry).decode()
    assert 'kai_watcher_facts_total{cluster="c",type="NodeObserved"} 1.0' in text
    assert 'kai_watcher_kubelet_rejections_total{cluster="c",reason="OutOfcpu"} 1.0' in text
    assert 'kai_watcher_objects{cluster="c",kind="Pod"} 7.0' in text
