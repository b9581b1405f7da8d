"""Read models tell of pods, of how full a cluster was, and of queues, however often reading restarts."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from kai_api.pages.overview import cluster_figures
from kai_api.pages.pods import waiting_line
from kaicore.analysis.ask.answers import PodRow, RowSelection
from kaicore.analysis.ask.listing import list_rows
from kaicore.analysis.ask.projections.projection import HOUR_US, MINUTE_US, occupancy
from kaicore.analysis.trial.history.reading import Sampler
from kaicore.rules.events import payloads
from kaicore.rules.model.gpu_share import GPU_MEMORY_LABEL, GpuShare
from kaicore.rules.model.group import GroupSource
from kaicore.rules.model.pod import Owner

from tests.given.cluster.factory import Cluster, amounts, pod
from tests.given.cluster.hierarchy import queue
from tests.given.cluster.sharing_cluster import ZONE, SharingCluster
from tests.given.examples import examples
from tests.given.logs.projected import projected, story

EVENTS = story()
WHOLE = projected(EVENTS)


def test_a_pods_history_has_every_step_and_stays_when_the_pod_is_gone() -> None:
    pods = {row.name: row for row in WHOLE.pods.values()}
    ended, rejected, never = pods["a"], pods["c"], pods["never"]
    steps = (ended.created_at, ended.seen_at, ended.decided_at, ended.bound_at, ended.started_at, ended.finished_at)
    assert list(steps) == sorted(steps)
    assert (ended.node, ended.outcome, ended.placements, ended.gpus) == ("n0", "Succeeded", 1, 1000)
    assert ended.gone_at >= ended.finished_at
    assert (rejected.outcome, rejected.rejections, rejected.started_at) == ("Rejected", 1, 0)
    assert (never.decided_at, never.node, never.outcome) == (0, "", "Pending")
    assert never.tried_at > 0


def test_a_pod_that_ends_after_its_owner_is_gone_keeps_its_group_and_queue() -> None:
    cluster = Cluster("c1").add_node("n0", amounts(cpu=8, memory=8, gpu=2))
    for name in ("default", "team"):
        cluster.record(f"queue/{name}", payloads.QueueObserved(queue(name, quota=4)))
    job = GroupSource("Job.batch", "uid-job", "default", "job", "1", queue="team")
    cluster.record("group/job", payloads.GroupSourceObserved(job))
    one = pod("a", cpu=1, gpu=1, owner=Owner("Job", "job", "uid-job", "batch/v1"))
    cluster.add_pod(msgspec.structs.replace(one, node_name="n0", phase="Running"))
    cluster.record("group/job", payloads.GroupSourceDeleted("Job.batch", "uid-job", "default", "job"))
    cluster.add_pod(msgspec.structs.replace(one, node_name="n0", phase="Running", deletion_at=1))
    (row,) = projected(cluster.events).pods.values()
    assert (row.group, row.queue) == ("Job.batch/default/job", "team")


def test_occupancy_has_a_row_for_each_minute_with_events_and_its_gpus_add_up() -> None:
    rows = list(WHOLE.occupancy.values())
    assert [row.at % MINUTE_US for row in rows] == [0] * len(rows)
    assert all(
        row.gpus == row.gpus_held + row.gpus_releasing + row.gpus_free + row.gpus_stranded + row.gpus_out
        for row in rows
    )
    assert {row.gpus for row in rows if row.nodes} == {4000}
    assert max(row.gpus_held for row in rows) == 3000
    assert {row.gpus_waiting for row in rows if row.pods_waiting == 1} == {9000}


def test_a_queues_use_is_counted_through_hours_in_which_nothing_was_recorded() -> None:
    use = {(at // HOUR_US, row.resource): row for (at, _, _), row in WHOLE.queues.items()}
    hours = sorted({hour for hour, resource in use if resource == "gpu"})
    quiet = use[hours[2], "gpu"]
    assert quiet.seconds == 3600
    assert quiet.allocated == 2000 * 3600, "two pods hold one GPU each, and the rejected one none"


def test_after_a_clock_that_jumped_ten_years_a_queue_has_the_hours_of_the_last_hundred_days() -> None:
    cluster = SharingCluster(nodes=0)
    cluster.add_node("n0", ZONE, ZONE, labels={GPU_MEMORY_LABEL: "40000"})
    cluster.record("queue/default", payloads.QueueObserved(queue("default", quota=4)))
    cluster.share("a", 300)
    cluster.turn()
    cluster.now += 3653 * 24 * HOUR_US
    cluster.share("b", 300)
    queues = projected(cluster.events).queues
    hours = {at for at, _, resource in queues if resource == "gpu"}
    assert 2400 <= len(hours) <= 2402
    assert max(hours) == (cluster.now - 1) // HOUR_US * HOUR_US
    assert {row.allocated for row in queues.values() if row.resource == "gpu" and row.seconds == 3600} == {300 * 3600}


def test_decisions_are_counted_by_the_hour() -> None:
    sums = [sum(getattr(row, name) for row in WHOLE.decisions.values()) for name in ("placed", "bound", "rejected")]
    assert sums == [3, 3, 1]


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(0, len(EVENTS)), max_size=4))
def test_rows_are_the_same_wherever_reading_was_broken_off(restarts: list[int]) -> None:
    assert vars(projected(EVENTS, restarts)) == vars(WHOLE)


def test_a_pod_that_is_deleted_before_it_was_placed_waits_in_no_figure() -> None:
    cluster = Cluster("c1").add_node("n0", amounts(cpu=8, memory=8, gpu=2))
    cluster.add_pod(pod("waits", cpu=1, gpu=1))
    cluster.add_pod(pod("leaves", cpu=1, gpu=1, deletion_at=cluster.now // 1_000_000))
    row, sampler = occupancy(cluster.state), Sampler(cluster.state, begin=0, end=cluster.now)
    sampler.take(at=cluster.now)
    assert (row.pods_waiting, row.gpus_waiting) == (1, 1000)
    assert sampler.samples[0].waiting == 1
    assert cluster_figures(cluster.state).waiting == waiting_line(cluster.state).pods == 1
    listed = list_rows(cluster.state, "pods", RowSelection(pending=True))
    assert [row.name for row in listed if isinstance(row, PodRow)] == ["waits"]


def test_parts_of_gpus_are_counted_in_thousandths_of_pods_queues_and_over_time() -> None:
    cluster = SharingCluster(nodes=0)
    cluster.add_node("n0", ZONE, ZONE, labels={GPU_MEMORY_LABEL: "40000"})
    cluster.record("queue/default", payloads.QueueObserved(queue("default", quota=4)))
    cluster.share("a", 300)
    cluster.add_pod(pod("b", cpu=1, gpu_share=GpuShare(mib=10_000, devices=2)))
    cluster.add_pod(pod("whole", cpu=1, gpu=1))
    waiting = occupancy(cluster.state)
    cluster.turn()
    cluster.now += MINUTE_US
    cluster.share("too-late", 300)
    tables = projected(cluster.events)
    assert waiting.gpus_waiting == 300 + 2000 + 1000, "memory of a GPU counts as the whole one"
    assert {row.name: row.gpus for row in tables.pods.values() if row.namespace == "default"} == {
        "a": 300,
        "b": 500,
        "whole": 1000,
        "too-late": 300,
    }
    last = occupancy(cluster.state)
    assert (last.gpus, last.gpus_held, last.gpus_free, last.gpus_waiting) == (4000, 1800, 2200, 300)
    used = {use.allocated // use.seconds for use in tables.queues.values() if use.resource == "gpu"}
    assert used == {1800}
