"""Shares of GPUs in answers: lists, explanations, differences, audits."""

from typing import Any

import msgspec
import pytest
from kai_api.pages.charts import charts_of_hours, times_of
from kai_api.pages.queues import queue_lines
from kai_cli.asking.questions import print_changes
from kai_cli.asking.why_page import why_text
from kai_cli.history.audit import node_text
from kai_cli.output import rows_text
from kaicore.analysis.ask.answers import DiffQuestion, NodeRow, PodRow, QueueRow, RowSelection, Why
from kaicore.analysis.ask.audits.audit_answers import Span
from kaicore.analysis.ask.listing import list_rows
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.life.pod_stories import PodStories
from kaicore.rules.events import payloads
from kaicore.rules.queues.division import HOUR_US

from tests.given.cluster.factory import GPU, amounts, pod
from tests.given.cluster.hierarchy import queue
from tests.given.cluster.sharing_cluster import ON, SharingCluster
from tests.given.logs.stored import stored


def rows(made: SharingCluster, kind: str) -> list[Any]:
    return list_rows(made.state, kind, RowSelection())


async def why(made: SharingCluster, name: str, kind: str = "Pod") -> Why:
    namespace = "default" if kind == "Pod" else ""
    return await Inquiry(await stored(made)).why("c", kind, namespace, name)


@pytest.fixture
def shared() -> SharingCluster:
    """Of a node's four GPUs two pods share one, a pod has a whole one."""
    made = SharingCluster()
    made.share("a", 300)
    made.share("b", 500, created_at=1)
    made.add_pod(pod("whole", cpu=1, gpu=1, created_at=2))
    made.turn()
    return made


def test_lists_name_the_part_of_each_pod_and_what_is_free_of_each_gpu(shared: SharingCluster) -> None:
    pods = {row.name: row for row in rows(shared, "pods") if isinstance(row, PodRow)}
    assert [part.text for part in pods["a"].gpus] == ["0.3 of GPU 2"]
    assert not pods["whole"].gpus
    (node,) = rows(shared, "nodes")
    assert isinstance(node, NodeRow)
    (gpu,) = node.gpus
    assert (gpu.gpu, gpu.free, {one.pod: one.part for one in gpu.held_by}) == (
        "2",
        "0.2",
        {"default/a": "0.3", "default/b": "0.5"},
    )
    assert "4: 2 free, 1 held whole, GPU 2 0.2 free" in rows_text("nodes", [node])


async def test_placed_share_is_explained_with_its_gpu_the_others_on_it_and_its_reservation_pod(
    shared: SharingCluster,
) -> None:
    answer = await why(shared, "a")
    assert answer.placement is not None
    (gpu,) = answer.placement.gpus
    assert gpu.reservation.startswith("kai-resource-reservation/gpu-reservation-n0-")
    line = f"holds 0.3 of GPU 2, shared with default/b 0.5; 0.2 free; reserved by {gpu.reservation}"
    assert line in why_text(answer)
    node = await why(shared, "n0", "Node")
    assert "GPU 2: held by default/a 0.3, default/b 0.5; 0.2 free" in why_text(node)
    assert "reserves GPU 2" in rows_text("pods", node.pods)


async def test_waiting_share_is_explained_by_the_largest_free_part_and_no_reservation_pod_is_in_its_way(
    shared: SharingCluster,
) -> None:
    shared.add_pod(pod("others", cpu=1, gpu=2, created_at=3))
    shared.share("c", 400, created_at=4)
    shared.turn()
    answer = await why(shared, "c")
    text = why_text(answer)
    assert "0.4 of a GPU needed; largest free part 0.2 on n0" in text
    assert "default/c asks for 1 cpu, 0.4 of a GPU" in text
    blockers = {one.group: one.frees for one in answer.blockers}
    assert blockers["Pod default/a"] == "1 cpu, 0.3 of GPUs"
    assert blockers["Pod default/whole"] == f"1 cpu, 1 {GPU}"
    assert not [group for group in blockers if "reservation" in group]
    assert answer.starts_if is not None
    assert "request 0.2 of a GPU in default/c" in [one.message for one in answer.starts_if.remedies]


async def test_gpu_that_is_not_known_yet_is_named_by_its_group() -> None:
    made = SharingCluster()
    made.share("a", 250)
    made.cycle(ON)
    (group,) = made.state.shared_gpus.groups
    # The reservation pod is planned: nobody can ask for it yet.
    (row,) = rows(made, "pods")
    assert [part.text for part in row.gpus] == [f"0.25 of GPU group {group[:8]}"]
    (node,) = rows(made, "nodes")
    assert f"GPU group {group[:8]} 0.75 free (its reservation pod is not there yet)" in rows_text("nodes", [node])


async def test_difference_of_two_moments_names_parts_by_their_group(shared: SharingCluster) -> None:
    before = shared.events[-1].position
    shared.share("c", 200, created_at=5)
    shared.turn()
    (group,) = shared.state.shared_gpus.groups
    answer = await Inquiry(await stored(shared)).diff("c", str(before), "", DiffQuestion(kind="nodes"))
    (change,) = answer.changes
    assert (f"gpus.{group}.free", "0.2", "0") in [(one.field, one.before, one.after) for one in change.fields]


def test_rows_say_nothing_of_gpus_where_none_is_shared() -> None:
    made = SharingCluster()
    made.full(made.add_pod(pod("whole", cpu=1, gpu=1)))
    for kind in ("pods", "nodes"):
        encoded = msgspec.to_builtins(rows(made, kind))
        assert not any("gpus" in row for row in encoded)
        assert "GPUS" not in rows_text(kind, rows(made, kind))


def test_watched_list_has_a_new_head_with_the_first_row_that_has_gpus(
    shared: SharingCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    by_name = {row.name: row for row in rows(shared, "pods")}
    columns: list[str] = []
    for name in ("whole", "a", "b", "whole"):
        columns = print_changes("pods", [by_name[name]], [], output="table", columns=columns)
    heads = ["GPUS" in line for line in capsys.readouterr().out.splitlines() if line.startswith("NAMESPACE")]
    assert heads == [False, True, False]


async def test_audit_of_a_gpu_names_who_held_parts_of_it_and_who_may_have_had_it_whole(shared: SharingCluster) -> None:
    gone, began = shared.state.pods["uid-a"].pod, shared.events[-1].position
    shared.delete_pod(gone)
    shared.share("c", 600, created_at=5)
    shared.share("d", 900, created_at=6)
    shared.turn()
    inquiry = Inquiry(await stored(shared))
    audit = await inquiry.audit_node("c", "n0", Span(), gpu="2")
    (first, *_) = shared.state.shared_gpus.groups
    held = {one.pod.partition("/")[2]: (one.gpus[0].text, one.ended) for one in audit.holdings}
    assert held == {
        f"gpu-reservation-n0-{first[:8]}": ("reserves GPU 2", ""),
        "a": ("0.3 of GPU 2", "deleted"),
        "b": ("0.5 of GPU 2", ""),
        "whole": ("1 whole GPU, not known which", ""),
    }
    assert "default/b" in node_text(audit)
    assert node_text(audit).startswith("GPU 2 of node n0, ")
    assert "4 pods held it or may have" in node_text(audit)
    # What was opened before the part of the log that is asked about is known from the state at its beginning.
    later = await inquiry.audit_node("c", "n0", Span(since=str(began + 1)), gpu="2")
    assert {one.pod: one.gpus for one in later.holdings} == {one.pod: one.gpus for one in audit.holdings}
    other = await inquiry.audit_node("c", "n0", Span(), gpu="3")
    assert [one.pod for one in other.holdings if one.gpus[0].gpu] == ["default/c", other.holdings[-1].pod]


async def test_audit_takes_a_gpu_as_lists_name_it_and_says_so_when_no_record_names_it(shared: SharingCluster) -> None:
    inquiry = Inquiry(await stored(shared))
    by_index = await inquiry.audit_node("c", "n0", Span(), gpu="2")
    assert await inquiry.audit_node("c", "n0", Span(), gpu="GPU 2") == by_index
    (group,) = shared.state.shared_gpus.groups
    by_group = await inquiry.audit_node("c", "n0", Span(), gpu=f"GPU group {group[:8]}")
    assert by_group.holdings == by_index.holdings
    assert "no record names" not in node_text(by_index) + node_text(by_group)
    unknown = node_text(await inquiry.audit_node("c", "n0", Span(), gpu="7"))
    assert "no record names GPU 7 of n0; `kai get nodes` names those that are shared" in unknown
    assert "1 whole GPU, not known which" in unknown


def test_queues_count_parts_in_lists_and_on_the_dashboard() -> None:
    made = SharingCluster()
    made.record("queue/default", payloads.QueueObserved(queue("default", quota=1)))
    made.share("a", 300)
    made.add_pod(pod("whole", cpu=1, gpu=2))
    made.turn()
    made.now += 2 * HOUR_US
    made.share("c", 850)
    (row,) = list_rows(made.state, "queues", RowSelection())
    assert isinstance(row, QueueRow)
    (gpu,) = (one for one in row.resources if one.resource == "gpu")
    assert (gpu.quota, gpu.allocated, gpu.requested) == ("1", "2.3", "3.15")
    (line,) = queue_lines(made.state, "gpu")
    assert (line.quota, line.allocated, line.requested, line.allocated_share) == ("1", "2.3", "3.15", 57.5)
    (chart,) = charts_of_hours(made.state, ["default"], "gpu", times_of("1d", made.state.recorded_at))
    assert chart.lines[0].values[-7] == "2.3", "of the hour before"


def test_what_if_over_history_counts_the_parts_of_pods() -> None:
    made = SharingCluster()
    made.share("a", 300)
    made.turn()
    assert PodStories(made.state).by_uid["uid-a"].gpus == 0.3


async def test_why_says_that_all_pods_of_a_gpu_end_where_none_alone_makes_room() -> None:
    made = SharingCluster(nodes=0)
    made.add_node("n0", amounts(cpu=16, memory=64, gpu=1))
    made.share("a", 300)
    made.share("b", 500, created_at=1)
    made.turn()
    made.add_pod(pod("late", cpu=1, gpu=1, created_at=2))
    made.cycle(ON)
    answer = await why(made, "late")
    assert answer.starts_if is not None
    ends = [one.message for one in answer.starts_if.remedies if one.kind == "end-work"]
    assert ends[0] == "end Pod default/a, Pod default/b (on n0, 2 pods), which frees 2 cpu, 1 nvidia.com/gpu"
