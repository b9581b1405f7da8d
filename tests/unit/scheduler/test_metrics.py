"""The metrics of predictions from a scheduler's state."""

from kai_scheduler.metrics import SchedulerMetrics
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from prometheus_client import CollectorRegistry

from tests.given.cluster.factory import Cluster, amounts, node, pod
from tests.given.cluster.sharing_cluster import ON, SharingCluster


def test_missed_predictions_by_node_policy_and_cause_and_incomplete_histories() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=4), policy="restricted")
    registry = CollectorRegistry()
    SchedulerMetrics(registry).watch(cluster.state, EngineConfig(), lambda: 0)
    for name, cause in (("a", "zones"), ("b", "zones"), ("c", "TopologyAffinityError")):
        missed = payloads.PredictionMissed(f"uid-{name}", "default", name, "n1", "restricted", cause)
        cluster.record(f"pod/uid-{name}", missed)
    cluster.add_pod(pod("foreign", cpu=1, node_name="n1", phase="Running", scheduler_name="other"))

    def missed_by(cause: str) -> float | None:
        labels = {"node": "n1", "policy": "restricted", "cause": cause}
        return registry.get_sample_value("kai_predictions_missed_total", labels)

    assert (missed_by("zones"), missed_by("TopologyAffinityError")) == (2, 1)
    assert registry.get_sample_value("kai_nodes_history_incomplete") == 1
    gone = node("n1")
    cluster.record("node/n1", payloads.NodeDeleted(gone.uid, gone.name))
    assert missed_by("zones") is None, "series of nodes that are gone end"


def test_how_long_our_pods_have_waited_by_quantiles() -> None:
    cluster = Cluster()
    registry = CollectorRegistry()
    SchedulerMetrics(registry).watch(cluster.state, EngineConfig(), lambda: 1_000_000_000)

    def waited(quantile: str) -> float | None:
        return registry.get_sample_value("kai_waiting_seconds", {"quantile": quantile})

    assert waited("1.0") is None, "nothing waits"
    for name, created_at in (("a", 400), ("b", 900), ("c", 990)):
        cluster.add_pod(pod(name, cpu=1, created_at=created_at))
    cluster.add_pod(pod("foreign", cpu=1, created_at=1, scheduler_name="other"))
    assert (waited("0.5"), waited("1.0")) == (100, 600)


def test_opened_gpus_and_their_parts_are_counted_where_gpus_are_shared() -> None:
    made = SharingCluster()
    for number, milli in enumerate((700, 200, 400)):
        made.share(f"p{number}", milli, created_at=number)
    made.turn()
    on, off = CollectorRegistry(), CollectorRegistry()
    SchedulerMetrics(on).watch(made.state, ON, lambda: 0)
    SchedulerMetrics(off).watch(made.state, EngineConfig(), lambda: 0)
    parts = [on.get_sample_value("kai_gpu_parts", {"use": use}) for use in ("held", "free")]
    assert (on.get_sample_value("kai_gpus_opened"), parts) == (2, [1.3, 0.7])
    assert off.get_sample_value("kai_gpus_opened") is None
