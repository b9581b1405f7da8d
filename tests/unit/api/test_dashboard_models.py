"""The dashboard's models: what pages say, from states alone."""

import pytest
from kai_api.pages.capacity import Gpus, gpu_columns, use_per_gpu
from kai_api.pages.frame import duration
from kai_api.pages.overview import cluster_figures
from kai_api.pages.queue_tree import queue_lines
from kai_api.pages.topology_map import rows_within, topology_map
from kai_api.pages.waiting import waiting_line
from kaicore.rules.events import payloads
from kaicore.rules.model.node import Node

from tests.dashboard_fleet import Fleet, example_fleet
from tests.factory import GI, amounts, node
from tests.workloads import Workloads


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return example_fleet()


def test_gpus_of_a_cluster_add_up_to_all_there_are(fleet: Fleet) -> None:
    columns = gpu_columns(fleet.state)
    every = columns.sum()
    assert every.total == 16 * 8 == every.held + every.releasing + every.free + every.stranded + every.out
    assert every.used == sum(
        entry.requests.get("nvidia.com/gpu", 0) for entry in fleet.state.pods.values() if entry.charged
    )


def test_a_free_gpu_without_cpu_in_its_zone_is_stranded_and_one_on_a_cordoned_node_is_out() -> None:
    made = Workloads()
    zone = amounts(cpu=32, memory=256, gpu=4)
    made.add_node("n0", zone, zone)
    made.add_node("n1", zone, zone, unschedulable=True)
    made.full(made.gang("train", 1, cpu=4, memory=32, gpu=1))
    made.full(made.gang("numbers", 1, cpu=27, memory=8))
    assert use_per_gpu(made.state) == {"cpu": 4000, "memory": 32 * GI}
    # One zone has 4 GPUs and all CPUs, the other one 3 or 4 GPUs and 1 or 5 CPUs.
    of_node = gpu_columns(made.state).sum(slice(0, 1))
    assert (of_node.held, of_node.out) == (1, 0)
    assert of_node.stranded == 3
    assert gpu_columns(made.state).sum(slice(1, 2)) == Gpus(total=8, out=8)


def test_a_cluster_without_gpus_or_nodes_has_figures_too() -> None:
    made = Workloads()
    assert cluster_figures(made.state).gpus == Gpus()
    assert topology_map(made.state).blocks == ()
    made.add_node("n0", cpu=8, memory=32)
    assert cluster_figures(made.state).nodes == 1
    assert topology_map(made.state).blocks[0].cells[0].bar == ()


def test_the_waiting_line_has_groups_in_one_row_and_the_longest_wait_first(fleet: Fleet) -> None:
    line = waiting_line(fleet.state)
    assert [(row.name, row.waiting, row.kind) for row in line.rows] == [
        ("pretrain", 16, "PodGroup"),
        ("too-large", 1, "Pod"),
    ]
    assert line.pods == 17 == sum(reason.pods for reason in line.reasons)
    assert "nvidia.com/gpu" in line.rows[1].reason
    assert line.rows[1].asks == "9 gpu, 4 cpu, 16Gi memory"
    assert [row.name for row in waiting_line(fleet.state, queue="vision").rows] == ["too-large"]


def test_a_page_beyond_the_last_one_is_the_last_one(fleet: Fleet) -> None:
    line = waiting_line(fleet.state, number=99, limit=1)
    assert (line.page, line.pages, [row.name for row in line.rows]) == (2, 2, ["too-large"])


def test_queues_are_listed_below_their_parents_with_what_they_hold_and_deserve(fleet: Fleet) -> None:
    lines = {line.name: line for line in queue_lines(fleet.state, "gpu")}
    assert [(line.name, line.depth) for line in lines.values()] == [
        ("production", 0),
        ("research", 0),
        ("language", 1),
        ("vision", 1),
    ]
    assert lines["production"].allocated == "32"
    assert lines["research"].waiting == 17
    assert lines["vision"].running == 18


def test_without_queues_all_work_is_in_one() -> None:
    made = Workloads()
    made.add_node("n0", amounts(cpu=8, memory=32, gpu=2))
    made.full(made.gang("train", 1, cpu=1, memory=1, gpu=1))
    (line,) = queue_lines(made.state, "gpu")
    assert (line.name, line.allocated, line.deserved, line.running) == ("default", "1", "2", 1)


def test_the_map_shows_racks_and_falls_back_to_names(fleet: Fleet) -> None:
    racks = topology_map(fleet.state)
    assert (racks.level, [block.name for block in racks.blocks]) == ("rack", ["b0", "b1"])
    assert [cell.name for cell in racks.blocks[0].cells] == ["r00", "r01"]
    assert [cell.name for block in topology_map(fleet.state, level="block").blocks for cell in block.cells] == [
        "b0",
        "b1",
    ]
    assert [fleet.state.columns.names[row] for row in rows_within(fleet.state, racks.topology, ("b0", "r01"))] == [
        "n004",
        "n005",
        "n006",
        "n007",
    ]
    assert len(rows_within(fleet.state, racks.topology, ("nowhere",))) == 0
    made = Workloads()
    for number in range(70):
        made.record(f"node/n{number}", payloads.NodeObserved(_plain(number)))
    assert [cell.nodes for block in topology_map(made.state).blocks for cell in block.cells] == [32, 32, 6]


def _plain(number: int) -> Node:
    return node(f"n{number:02}", cpu=8, memory=32)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3725, "1 h 2 min"), (90_000, "1 d 1 h"), (-5, "0 s")],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text
