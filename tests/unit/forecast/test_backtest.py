"""The accuracy of forecasts, measured on logs with a known truth."""

from kaicore.rules.deciding.forecast.backtest import Backtest, Calibration, PastWaits, Wait, sample
from kaicore.rules.deciding.forecast.runs import RunHistory
from kaicore.rules.events import payloads
from kaicore.rules.state.cluster_state import ClusterState

from tests.given.cluster.factory import amounts, pod
from tests.given.work.groups import job
from tests.given.work.past_runs import SECOND, PastRuns, busy_cluster


def waits_of(cluster: PastRuns) -> list[Wait]:
    waits = PastWaits()
    for event in cluster.events:
        waits.take(event)
    return waits.waits()


def calibration_of(cluster: PastRuns, *, most: int, after: int = 0) -> Calibration:
    chosen = sample([wait for wait in waits_of(cluster) if wait.position > after], most=most)
    backtest = Backtest(ClusterState(cluster.cluster), RunHistory(), chosen, ended_at=cluster.events[-1].recorded_at)
    for event in cluster.events:
        if event.position <= backtest.upto:
            backtest.take(event)
    return backtest.finish()


def test_forecasts_of_a_cluster_whose_work_comes_in_order_come_true_as_often_as_they_say() -> None:
    cluster = busy_cluster(nodes=4, jobs=110, mean_s=1800, load=0.95, seed=3)
    calibration = calibration_of(cluster, most=36, after=len(cluster.events) // 4)
    assert calibration.suffices
    assert calibration.p50_groups >= 30
    # Waits of one queue depend on each other, so that the bounds are wide.
    assert 0.35 < calibration.before_p50 / calibration.p50_groups < 0.65
    assert 0.8 < calibration.before_p90 / calibration.p90_groups < 0.99
    assert calibration.median_error_us is not None
    assert 0 < calibration.median_error_us < 1800 * SECOND


def test_what_was_not_known_then_does_not_count() -> None:
    cluster = busy_cluster(nodes=2, jobs=15, mean_s=600, load=2, seed=1)
    calibration = calibration_of(cluster, most=100)
    assert calibration.groups == 0
    assert not calibration.suffices


def test_groups_that_wait_still_are_undecided_until_their_time_is_over() -> None:
    cluster = PastRuns()
    cluster.have_run("train", [300.0] * 30)
    cluster.add_node("n", amounts(cpu=16, memory=64, gpu=4))
    one = cluster.add_pod(pod("train-99", cpu=16, memory=64, gpu=4, owner=job(cluster, "train-99")))
    for decision in cluster.cycle().placements:
        cluster.see(one, node_name=decision.node, phase="Running", start_time=cluster.now // SECOND)
    cluster.after(60)
    cluster.add_pod(pod("next", cpu=16, memory=64, gpu=4))
    cluster.cycle()
    cluster.after(60)
    cluster.cycle()
    early = calibration_of(cluster, most=10)
    assert (early.groups, early.undecided) == (0, 1)
    cluster.after(600)
    cluster.add_node("other", amounts(cpu=1))
    late = calibration_of(cluster, most=10)
    assert (late.groups, late.p50_groups, late.before_p50) == (1, 1, 0)


def test_a_group_waits_from_when_it_is_complete_until_its_first_pod_is_placed() -> None:
    cluster = PastRuns()
    cluster.gang("gang", 2, least=2, cpu=1)
    cluster.cycle()
    first = len(cluster.events)
    cluster.after(3)
    cluster.members("gang", [2], cpu=1)
    cluster.cycle()
    (wait,) = waits_of(cluster)
    assert wait.position > first
    cluster.after(60)
    cluster.add_node("n", amounts(cpu=16, memory=64))
    cluster.cycle()
    (wait,) = waits_of(cluster)
    assert 55 < (wait.started_at - wait.since) / SECOND < 65


def test_a_group_that_is_withdrawn_before_it_starts_tells_nothing() -> None:
    cluster = PastRuns()
    gone = cluster.add_pod(pod("gone", cpu=1))
    cluster.cycle()
    cluster.delete_pod(gone)
    assert waits_of(cluster) == []
    assert any(isinstance(cluster.decoded(event), payloads.PodsLeftWaiting) for event in cluster.events)


def test_a_sample_is_taken_at_equal_distances() -> None:
    waits = [Wait(str(number), number, 0) for number in range(10)]
    assert [wait.position for wait in sample(waits, most=5)] == [0, 2, 4, 6, 8]
    assert sample(waits, most=10) == waits
