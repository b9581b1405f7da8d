"""The comparison of the state's indexes with its entries finds an index that is not what the entries make of it."""

from collections.abc import Callable

import pytest
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import event_types
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import Stage
from kaicore.rules.state.pods.transitions import TRANSITIONS, Trigger

from tests.given.cluster.factory import amounts, pod
from tests.given.logs.invariants import differences
from tests.given.work.workloads import Workloads


def busy() -> Workloads:
    """A pod that runs, one that was placed, and one that waits."""
    cluster = Workloads()
    zone = amounts(cpu=8, memory=32, gpu=2)
    cluster.add_node("n0", zone, zone)
    running = cluster.add_pod(pod("running", cpu=2, memory=4, gpu=1))
    cluster.cycle()
    cluster.run(running)
    cluster.add_pod(pod("placed", cpu=2, memory=4))
    cluster.cycle()
    cluster.add_pod(pod("waiting", cpu=64, memory=4))
    return cluster


def test_indexes_after_ordinary_events_are_what_the_entries_make_of_them() -> None:
    assert differences(busy().state) == []


def _forget_waiting(state: ClusterState) -> None:
    state.waiting.clear()


def _charge_twice(state: ClusterState) -> None:
    state.columns.charge(0, {"cpu": 1000})


def _move_zones(state: ClusterState) -> None:
    state.columns.zones.used[0, 0, state.columns.zones.resources["cpu"]] += 1000


def _forget_a_member(state: ClusterState) -> None:
    state.workload_index.forget(state.pods["uid-placed"], at=0)


def _stop_counting_usage(state: ClusterState) -> None:
    state.queue_registry.usages.clear()


def _release_nothing(state: ClusterState) -> None:
    state.pods["uid-running"].stage = Stage.FINISHED


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (_forget_waiting, "waiting: "),
        (_charge_twice, "used: "),
        (_move_zones, "zones: used: "),
        (_forget_a_member, "workloads: "),
        (_stop_counting_usage, "usage of "),
        (_release_nothing, "pods on nodes: "),
    ],
)
def test_spoiled_index_is_named(spoil: Callable[[ClusterState], None], name: str) -> None:
    state = busy().state
    spoil(state)
    assert any(text.startswith(name) for text in differences(state))


def test_event_that_the_table_does_not_have_for_a_stage_changes_nothing() -> None:
    cluster = busy()
    assert (Stage.BOUND, Trigger.PLACED) not in TRANSITIONS
    before = cluster.state.pods["uid-running"].node, cluster.state.pods["uid-running"].predicted
    placed = payloads.PodPlaced("uid-running", "default", "running", "n1", "c/9", "")
    cluster.record("pod/uid-running", placed)
    entry = cluster.state.pods["uid-running"]
    assert (entry.stage, entry.node, entry.predicted) == (Stage.BOUND, *before)


def test_stage_of_every_pod_event_is_the_one_of_the_table() -> None:
    leads = {trigger: {to.to for (_, one), to in TRANSITIONS.items() if one is trigger} for trigger in Trigger}
    assert leads[Trigger.DELETED] == {Stage.ABSENT}
    assert leads[Trigger.PLACED] == {Stage.PLACED}
    assert leads[Trigger.BIND_FAILED] == {Stage.WAITING}
    names = {trigger.value.partition(" ")[0] for trigger in Trigger}
    assert names <= set(event_types())
