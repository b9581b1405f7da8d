"""Pages about devices by claim, and about pods that a shadow decides on."""

import pytest
from kai_api.pages.node import claim_lines, claimed, node_devices
from kai_api.pages.overview import cluster_figures, overview
from kai_api.pages.pods import shadow_page, waiting_line
from kaicore.rules.state.cluster_state import ClusterState

from tests.given.cluster.devices import add_slice, gpu, slice_document
from tests.given.logs.dashboard_fleet import device_fleet, shadowed_fleet
from tests.given.work.workloads import Workloads


@pytest.fixture(scope="module")
def devices() -> ClusterState:
    return device_fleet().state


@pytest.fixture(scope="module")
def shadowed() -> ClusterState:
    return shadowed_fleet().state


def test_a_node_names_its_devices_with_zones_and_who_has_them(devices: ClusterState) -> None:
    table = node_devices(devices, devices.columns.rows["d0"])
    assert table is not None
    assert (table.taken, table.total, table.problems) == (1, 4, ())
    assert [(one.name, one.zones, [use.key for use in one.uses]) for one in table.rows] == [
        ("gpu-0", "0", ["default/shared"]),
        ("gpu-1", "0", []),
        ("gpu-2", "1", []),
        ("gpu-3", "1", []),
    ]
    assert table.rows[0].uses[0].pods == (("default", "reader-0"), ("default", "reader-1"))
    assert table.rows[3].remarks == ("taint gpu.example.com/unhealthy:NoSchedule",)


def test_a_node_without_devices_has_no_table_and_a_pool_that_lacks_slices_says_so() -> None:
    made = Workloads().add_node("n0", cpu=8, memory=32)
    assert node_devices(made.state, 0) is None
    add_slice(made, slice_document("n0", gpu("gpu-0"), pool={"resourceSliceCount": 2}))
    table = node_devices(made.state, 0)
    assert table is not None
    assert table.problems == ("pool gpu.example.com/n0 has 1 of 2 slices",)


def test_a_pod_names_what_its_claims_ask_for_and_have(devices: ClusterState) -> None:
    pods = {entry.pod.name: entry.pod for entry in devices.pods.values()}
    (line,) = claim_lines(devices, pods["trainer"])
    assert (line.asks, line.devices) == ("2 gpu.example.com", ("gpu-0 of d1, NUMA 0", "gpu-1 of d1, NUMA 0"))
    assert line.standing == "decided, not yet in the claim's status"
    (waits,) = claim_lines(devices, pods["too-many"])
    assert (waits.devices, waits.standing) == ((), "has nothing yet")
    (row,) = waiting_line(devices).rows
    assert row.asks == "8 cpu, 4 gpu.example.com by claim"


def test_devices_of_claims_are_figures_of_their_cluster_only_where_there_are_any(devices: ClusterState) -> None:
    assert claimed(devices) == (3, 8)
    assert [bar.title for bar in overview(devices, ()).resources] == ["CPU", "Memory", "Devices"]
    assert cluster_figures(Workloads().state).devices == 0


def test_a_shadow_is_compared_with_what_the_other_scheduler_did(shadowed: ClusterState) -> None:
    model = shadow_page(shadowed)
    assert (model.schedulers, model.total) == (("default-scheduler",), 3)
    assert [(pod.name, pod.compared) for pod in model.pods] == [
        ("web-1", "another node"),
        ("huge", "waits"),
        ("web-0", "same node"),
    ]
    assert all(pod.text.startswith("a shadow would") for pod in model.pods)
    assert dict(model.counts) == {"another node": 1, "waits": 1, "not decided": 0, "same node": 1}


def test_the_waiting_line_says_whose_a_pod_is_that_a_shadow_decides_on(shadowed: ClusterState) -> None:
    line = waiting_line(shadowed)
    assert [reason.code for reason in line.reasons] == ["OtherScheduler"]
    assert line.rows[0].reason.startswith("waits for another scheduler: default-scheduler; a shadow would let it wait:")


def test_a_cluster_without_a_shadow_has_no_page_of_it() -> None:
    state = Workloads().state
    assert not state.shadows.evicted
    assert shadow_page(state).pods == ()
