"""The dashboard's models: what pages say, from states alone."""

from typing import Any

import pytest
from kai_api.pages.charts import chart_of_cluster, charts_of_hours, charts_of_reports, charts_of_rows, times_of
from kai_api.pages.cycles import cycle_page, cycle_steps, predictions, steps_of
from kai_api.pages.frame import search
from kai_api.pages.lists import Wanted, list_page
from kai_api.pages.node import node_page, zones_table
from kai_api.pages.overview import cluster_figures, domain_page, idle_segments, rows_within, topology_map
from kai_api.pages.pods import story, waiting_line
from kai_api.pages.problems import problems
from kai_api.pages.queues import queue_lines, queues_page
from kaicore.analysis.ask.explanations import why_owner
from kaicore.analysis.ask.projections.capacity import Gpus, gpu_columns
from kaicore.analysis.json_spelling import duration_text
from kaicore.errors import InvalidObject, UnknownSubject
from kaicore.rules.engine.config import Backfill, EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons.making_room import RoomPromised
from kaicore.rules.model.gpu_share import WHOLE
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.runtime.access.scopes import EVERYTHING, View

from tests.given.cluster.factory import amounts, node, pod
from tests.given.logs.dashboard_fleet import Fleet, FleetLog, SharingFleet, example_fleet
from tests.given.logs.projected import projected
from tests.given.work.workloads import OWNER, Workloads


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return example_fleet()


def test_gpus_of_a_cluster_add_up_to_all_there_are(fleet: Fleet) -> None:
    every = gpu_columns(fleet.state).sum()
    assert every.total == 16 * 8 * WHOLE == every.held + every.releasing + every.free + every.stranded + every.out
    assert every.used == WHOLE * sum(
        entry.requests.get("nvidia.com/gpu", 0) for entry in fleet.state.pods.values() if entry.charged
    )


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
    made = Workloads().add_node("n0", amounts(cpu=8, memory=32, gpu=2))
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
        made.record(f"node/n{number}", payloads.NodeObserved(node(f"n{number:02}", cpu=8, memory=32)))
    assert [cell.nodes for block in topology_map(made.state).blocks for cell in block.cells] == [32, 32, 6]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3725, "1 h 2 min"), (90_000, "1 d 1 h"), (-5, "0 s")],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_nodes_zones_say_who_holds_what(fleet: Fleet) -> None:
    made = node_page(fleet.state, "n004")
    assert [row.name for row in made.table.rows] == ["node-0", "node-1"]
    assert made.table.resources == ("nvidia.com/gpu", "cpu", "memory")
    (first, second) = made.table.rows
    assert [cell.text for cell in first.cells] == ["0 of 4", "30 of 32", "8Gi of 256Gi"]
    assert [part.label for part in first.cells[1].bar] == ["cpu of default/batch-cpu", "free"]
    assert second.cells[0].heat == 4
    assert {holding.name: holding.known_from for holding in made.holdings}["batch-cpu"] == "observed"
    assert made.places == (("Topology dc", (("block", "b0"), ("rack", "r01"))),)
    with pytest.raises(UnknownSubject, match="no node 'n04' at this moment; did you mean"):
        node_page(fleet.state, "n04")


def test_a_node_without_zones_is_shown_as_a_whole() -> None:
    table = zones_table(Workloads().add_node("n0", cpu=8, memory=32).state, 0)
    assert (table.rows, [cell.text for cell in table.whole.cells]) == ((), ["0 of 8", "0 of 32Gi"])


def test_a_domain_has_pages_of_nodes(fleet: Fleet) -> None:
    made = domain_page(fleet.state, topology="Topology dc", path="b1", number=7)
    assert (made.total, made.page, made.pages, made.gpus.total) == (8, 1, 1, 64 * WHOLE)
    with pytest.raises(UnknownSubject, match="no nodes in 'b1/r00'"):
        domain_page(fleet.state, topology="Topology dc", path="b1/r00")


def test_idle_segments_are_counted_by_level_and_size(fleet: Fleet) -> None:
    (topology,) = idle_segments(fleet.state, sizes="2,4")
    cells = {level.name: [(cell.count, cell.most) for cell in level.cells] for level in topology.levels}
    assert cells["rack"] == [(2, 8), (1, 4)]
    assert (topology.domains[0].path, topology.domains[0].idle) == ("b1/r03", 4)
    with pytest.raises(InvalidObject):
        idle_segments(fleet.state, sizes="two")


def test_predictions_count_what_was_observed(fleet: Fleet) -> None:
    made = predictions(fleet.state)
    assert (made.observed, made.rate) == (37, 100.0)
    assert made.causes == ()
    assert predictions(Workloads().state).rate is None


def test_a_cycle_is_stepped_through_decision_by_decision(fleet: Fleet) -> None:
    first = next(event for event in fleet.events if event.type == "CycleCompleted")
    of_cycle = [event for event in fleet.events if event.correlation == first.correlation]
    steps = steps_of(of_cycle)
    assert [step.verb for step in steps.steps] == ["input", *["place"] * 6, "end"]
    assert steps.steps[0].position == steps.cycle.input_position
    assert steps.step(99).text == "0 pods are left waiting"
    assert steps.step_at(steps.steps[2].position).number == 2
    state = ClusterState(fleet.cluster).fold_all(fleet.events[: steps.steps[1].position])
    made = cycle_page(steps, 1, state)
    assert made.node is not None
    assert made.node.rows[0].cells[0].text == "4 of 4"
    assert made.waiting is None


async def test_a_cycle_is_found_by_its_own_position_and_by_a_decisions(fleet: Fleet) -> None:
    logs = FleetLog(fleet)
    await logs.store()
    first = next(event.position for event in fleet.events if event.type == "CycleCompleted")
    by_record = await cycle_steps(logs.log, fleet.cluster, first)
    assert await cycle_steps(logs.log, fleet.cluster, by_record.steps[3].position) == by_record
    with pytest.raises(UnknownSubject, match="no cycle is recorded at position 1"):
        await cycle_steps(logs.log, fleet.cluster, 1)


def test_charts_of_queues_step_from_report_to_report(fleet: Fleet) -> None:
    times = times_of("6h", fleet.state.recorded_at)
    reports = [event for event in fleet.events if event.type == "QueuesReported"]
    made = charts_of_reports(reports, ["language", "vision"], "gpu", times)
    assert [(chart.name, chart.top) for chart in made] == [("language", "88"), ("vision", "88")]
    held, fair = made[0].lines
    assert (held.values[0], held.most, held.last, fair.kind) == ("0", "24", "20", "owed")
    assert held.path.startswith("M0 160H")
    a_day = times_of("1d", fleet.state.recorded_at)
    assert charts_of_hours(fleet.state, ["language"], "gpu", a_day)[0].lines[0].values[-9] == "24"
    assert charts_of_hours(fleet.state, ["language"], "memory", a_day)[0].lines[0].values[-9] == "1.5Ti"
    assert charts_of_reports([], ["language"], "gpu", times)[0].lines[0].path == ""


def test_charts_of_read_models_have_the_kinds_of_gpus_upon_each_other_and_means_of_hours(fleet: Fleet) -> None:
    tables = projected(fleet.events)
    times = times_of("6h", fleet.state.recorded_at)
    chart = chart_of_cluster(list(tables.occupancy.values()), times)
    assert chart is not None
    assert (chart.top, {line.label: line.last for line in chart.lines}) == (
        "128",
        {
            "held": "82",
            "releasing": "4",
            "stranded": "4",
            "free": "38",
            "out of service": "0",
            "waiting pods ask for": "73",
        },
    )
    assert chart_of_cluster([], times) is None
    hours = [row for row in tables.queues.values() if row.resource == "gpu"]
    (language,) = charts_of_rows(hours, ["language"], "gpu", times_of("30d", fleet.state.recorded_at))
    assert language.lines[0].values[-1] == "23.875"


def test_problems_are_of_the_log_alone_and_each_names_its_list(fleet: Fleet) -> None:
    assert problems(fleet.state) == ()
    made = Fleet("ill", nodes=2)
    made.record("node/n000", payloads.NodeObserved(node("n000", cpu=8, memory=32, ready=False)))
    placed = made.job("train", 1, "vision", cpu=1, memory=1, gpu=1)
    made.cycle()
    made.job("next", 1, "vision", cpu=1, memory=1, gpu=1)
    made.later(70)
    made.record("namespace/later", payloads.NamespaceDeleted(uid="u", name="later"))
    assert [(one.text, one.parts, dict(one.query)["state"]) for one in problems(made.state)] == [
        ("1 node is not ready: n000", ("nodes",), "not ready"),
        ("1 pod waits for its first cycle: default/next-0", ("pods",), "Pending"),
        (f"1 pod waits for its binding: {placed[0].subject}", ("pods",), "Placed"),
        ("1 group starves: default/next", ("jobs",), "starving"),
    ]
    for one in problems(made.state):
        (kind,) = one.parts
        assert list_page(made.state, kind, Wanted(state=one.query[0][1]), EVERYTHING).total == 1, one
    assert node_page(made.state, "n000").problems == ("node is not ready",)
    assert queues_page(made.state, resource="gpu").starving == {"vision": 1}


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", ""], ids=["by their kubelet", "before they ran"])
def test_nodes_that_end_pods_at_once_or_observe_none_say_so_on_their_pages(reason: str) -> None:
    made = Fleet("ill", nodes=2)
    (runs,) = made.job("train", 1, "vision", cpu=4, memory=8, gpu=1)
    (decision,) = made.cycle().placements
    made.see(runs, node_name=decision.node, phase="Running")
    other = "n001" if decision.node == "n000" else "n000"
    for number in range(3):
        assert node_page(made.state, other).problems == ()
        made.add_pod(pod(f"dies-{number}", node_name=other, phase="Failed", reason=reason, cpu=4, gpu=1))
    assert node_page(made.state, decision.node).problems == ()
    made.later(3)
    made.record("namespace/later", payloads.NamespaceDeleted(uid="u", name="later"))
    assert node_page(made.state, decision.node).problems == ("node has a silent exporter",)
    assert node_page(made.state, other).problems == ("node ends pod after pod at once",)


def test_the_waiting_line_says_from_when_to_when_a_promised_start_was_moved() -> None:
    made = Fleet("full", nodes=1)
    made.job("large", 2, "vision", cpu=4, memory=8, gpu=8)
    made.cycle()
    assert waiting_line(made.state).rows[0].moved == ""
    promise = RoomPromised(starts_at=7_200_000_000, first_starts_at=3_600_000_000, moved="a node is gone")
    (key,) = made.state.groups
    made.state.reasons.by_group[key] = {"": payloads.GroupPending(group=key, pods=2, reasons=(promise,))}
    (row,) = waiting_line(made.state).rows
    assert row.moved == "1970-01-01 01:00:00 UTC to 1970-01-01 02:00:00 UTC"


@pytest.mark.parametrize(("hours", "outcome", "in_time"), [(1, "kept", 1), (3, "late", 0)])
def test_a_reserved_start_is_counted_on_both_pages_by_whether_it_came_in_time(
    hours: int, outcome: str, in_time: int
) -> None:
    made, config = Workloads(), EngineConfig(backfill=Backfill.EASY, hold_after_us=0)
    made.add_node("n0", cpu=64, memory=256, gpu=8)
    runs = made.add_pod(pod("runs", owner=OWNER, gpu=8, active_deadline_s=2 * 3_600))
    made.cycle(config)
    made.gang("gang", 2, gpu=4)
    made.cycle(config)
    assert (predictions(made.state).promises, predictions(made.state).kept) == ((("made", 1),), None)
    made.now += hours * 3_600 * 1_000_000
    made.delete_pod(runs)
    made.cycle(config)
    shown, line = predictions(made.state), waiting_line(made.state)
    assert (shown.promises, shown.kept) == (tuple(sorted([("made", 1), (outcome, 1)])), 100.0 * in_time)
    assert (line.promised, line.kept) == (1, in_time)


def test_lists_are_filtered_ordered_and_cut_into_pages(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def names(kind: str, view: View = EVERYTHING, **wanted: Any) -> list[str]:
        return [row[0].text for row in list_page(fleet.state, kind, Wanted(**wanted), view).rows]

    assert names("jobs", state="waiting") == ["default/pretrain", "default/too-large"]
    assert names("jobs", queue="vision", order="most GPUs")[0] == "default/sweep"
    assert names("jobs", name="llm") == ["default/llm-70b"]
    assert names("pods", node="n003", name="notebook", order="oldest")[:2] == [
        "default/notebook-0",
        "default/notebook-1",
    ]
    assert names("nodes", state="idle") == ["n012", "n013", "n014", "n015"]
    assert names("pods", View(whole=False, namespaces=frozenset({"other"}))) == []
    monkeypatch.setattr("kai_api.pages.lists.PAGE_ROWS", 5)
    made = list_page(fleet.state, "nodes", Wanted(number=99), EVERYTHING)
    assert (made.page, made.pages, [row[0].text for row in made.rows]) == (4, 4, ["n015"])
    with pytest.raises(InvalidObject, match="none of name, oldest, newest, most GPUs"):
        names("jobs", order="best")


def test_a_map_has_the_colours_of_the_largest_holders_and_ages(fleet: Fleet) -> None:
    cells = {cell.name: cell for block in topology_map(fleet.state, colour="queue").blocks for cell in block.cells}
    assert [(part.kind, part.label, part.amount) for part in cells["r02"].bar] == [
        ("c1", "of vision", "22"),
        ("c0", "of production", "4"),
        ("free", "free", "6"),
    ]
    assert cells["r02"].who == "vision"
    nodes = topology_map(fleet.state, level="kubernetes.io/hostname", colour="job")
    assert dict(nodes.legend)["c0"] == "default/ranker"
    assert {cell.is_node for block in nodes.blocks for cell in block.cells} == {True}
    (block,) = domain_page(fleet.state, topology="Topology dc", path="b1/r02", colour="age").map.blocks
    assert {part.kind for part in block.cells[0].bar} == {"a0", "a1"}


def test_search_names_what_is_equal_first(fleet: Fleet) -> None:
    assert [hit.kind for hit in search(fleet.state, "n003")] == ["Node"]
    hits = search(fleet.state, "sweep")
    assert (hits[0].kind, hits[0].name, len(hits)) == ("PodGroup", "default/sweep", 13)
    assert search(fleet.state, " ") == ()


def test_a_storys_lane_follows_what_the_log_tells(fleet: Fleet) -> None:
    why = why_owner(fleet.state, "PodGroup", "default", "llm-70b")
    assert why is not None
    made = story(why, fleet.events, now=fleet.state.recorded_at)
    lane = next(lane for lane in made.lanes if lane.name == "llm-70b-0")
    assert [span.kind for span in lane.spans] == ["waiting", "placed", "bound", "running", "leaving"]
    assert abs(sum(span.width for span in lane.spans) - 100) < 0.1


def test_node_where_gpus_are_shared_shows_each_as_a_bar_of_its_parts(fleet: Fleet) -> None:
    bars = node_page(SharingFleet().state, "s0").gpus
    assert [[(part.kind, part.amount, part.label) for part in bar.bar] for bar in bars] == [
        [
            ("releasing", "0.2", "of default/leaving"),
            ("held", "0.3", "of default/notebook-0"),
            ("held", "0.25", "of default/notebook-1"),
            ("held", "0.2", "of default/notebook-2"),
            ("free", "0.05", "free"),
        ],
        [("held", "0.6", "of default/inference"), ("free", "0.4", "free")],
        [("held", "0.9", "of default/starting"), ("free", "0.1", "free")],
        [("held", "1", "of default/trainer")],
        [("held", "1", "of default/trainer")],
        [("free", "1", "free")],
    ]
    assert [bar.name for bar in bars[:2]] == ["GPU 2", "GPU 3"]
    assert [bar.name for bar in node_page(fleet.state, "n000").gpus] == ["whole GPU"] * 8
