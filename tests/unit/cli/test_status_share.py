"""The words of `kai status` about work that several share, and about reserved starts."""

import pytest
from kai_cli.asking.status import promises_of, share_of
from kai_scheduler.metrics import SchedulerMetrics
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.state.cluster_state import ClusterState
from prometheus_client import CollectorRegistry, generate_latest


@pytest.mark.parametrize(
    ("metrics", "share"),
    [
        ('kai_pending_pods{shard="default"} 3.0\n', ""),
        ('kai_binder_live{cluster="a"} 1.0\n', ""),
        ('kai_binder_live{cluster="a"} 3.0\n', "of 3 binders"),
        (
            'kai_pending_pods{shard="default/r0"} 7.0\nkai_shard_replicas{shard="default/r0"} 2.0\n',
            "default/r0, of 2 replicas; its last cycle left 7 pods",
        ),
    ],
)
def test_a_service_tells_its_part_of_the_work(metrics: str, share: str) -> None:
    assert share_of(metrics) == share


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({}, ""),
        ({"made": 2, "untimed": 1}, "reserved starts: 2 promised, none with a time has come to its start, 0 given up"),
        (
            {"made": 9, "kept": 5, "late": 1, "given up/nodes are gone": 1, "given up/queue": 1},
            "reserved starts: 9 promised, 5 of 6 started in time, 2 given up",
        ),
    ],
)
def test_reserved_starts_are_summed_up_from_what_a_scheduler_exports(counts: dict[str, int], text: str) -> None:
    state = ClusterState("test")
    state.counters.promises.update(counts)
    registry = CollectorRegistry()
    SchedulerMetrics(registry).watch(state, EngineConfig(), lambda: 0)
    assert promises_of(generate_latest(registry).decode()) == text
