"""Likely starts of waiting work, on clusters with known lifetimes of pods."""

import random
from typing import Any

import pytest
from kaicore.rules.deciding.forecast.runs import RunHistory
from kaicore.rules.deciding.forecast.start import ForecastLimits, NoForecast, StartForecast, forecast_starts
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.state.indexes.past_runs import Basis

from tests.given.cluster.factory import GPU, amounts, pod
from tests.given.work.groups import job
from tests.given.work.past_runs import SECOND, PastRuns

CONFIG = EngineConfig()
_WHOLE: dict[str, Any] = {"cpu": 16, "memory": 64, "gpu": 4}


def full_cluster(
    count: int, lengths: list[float], *, of_others: int = 0, job_spec: dict[str, Any] | None = None, **spec: Any
) -> PastRuns:
    """Nodes that one pod each has filled for 60 s, of jobs of which some ran for so many seconds before."""
    cluster = PastRuns()
    cluster.have_run("other", [7200.0] * of_others, **_WHOLE)
    cluster.have_run("train", lengths, **_WHOLE)
    cluster.add_nodes(count, amounts(cpu=16, memory=64, gpu=4))
    now = cluster.now // SECOND
    for number in range(count):
        name = f"train-{1000 + number}"
        of = job(cluster, name, spec=job_spec)
        cluster.add_pod(pod(name, owner=of, created_at=now, **(_WHOLE | spec)))
    for decision in cluster.cycle().placements:
        cluster.see(cluster.state.pods[decision.uid].pod, node_name=decision.node, phase="Running", start_time=now)
    cluster.after(60)
    return cluster


def forecast(
    cluster: PastRuns, group: str, *, history: RunHistory | None = None, **limits: Any
) -> StartForecast | NoForecast:
    key = next(key for key in cluster.state.groups if key.endswith(f"/{group}"))
    starts = forecast_starts(
        cluster.state, CONFIG, history or cluster.history(), [key], now=cluster.now, limits=ForecastLimits(**limits)
    )
    return starts[key]


def seconds(cluster: PastRuns, group: str, **limits: Any) -> tuple[int | None, int | None]:
    answer = forecast(cluster, group, **limits)
    assert isinstance(answer, StartForecast), answer
    return tuple(None if time is None else round(time / SECOND) for time in (answer.p50_us, answer.p90_us))  # type: ignore[return-value]


def test_a_pod_starts_when_the_first_of_those_before_it_ends() -> None:
    cluster = full_cluster(1, [300.0] * 20)
    cluster.add_pod(pod("next", **_WHOLE))
    p50, p90 = seconds(cluster, "next")
    assert p50 == p90 == pytest.approx(240, abs=12)


def test_what_is_free_is_there_at_once() -> None:
    cluster = full_cluster(1, [300.0] * 20)
    cluster.add_node("spare", amounts(cpu=16, memory=64, gpu=4))
    cluster.add_pod(pod("next", **_WHOLE))
    assert seconds(cluster, "next") == (0, 0)


def test_who_waits_before_it_starts_before_it() -> None:
    cluster = full_cluster(1, [300.0] * 20)
    cluster.add_pod(pod("first", owner=job(cluster, "train-8"), created_at=1, **_WHOLE))
    cluster.add_pod(pod("next", created_at=2, **_WHOLE))
    answer = forecast(cluster, "next")
    assert isinstance(answer, StartForecast)
    assert answer.ahead == 1
    assert answer.p50_us == pytest.approx(540 * SECOND, rel=0.08)


def test_a_gang_waits_until_all_of_its_room_is_free() -> None:
    spread = [float(length) for length in range(100, 700, 10)]
    cluster = full_cluster(4, spread)
    alone = seconds(cluster, cluster.add_pod(pod("next", **_WHOLE)).name)
    cluster.delete_pod(cluster.state.pods["uid-next"].pod)
    cluster.gang("all", 4, **_WHOLE)
    together = seconds(cluster, "all")
    assert alone[0] is not None
    assert alone[1] is not None
    assert together[0] is not None
    assert together[0] > alone[1]


def test_a_deadline_bounds_how_long_is_waited() -> None:
    cluster = full_cluster(1, [3600.0] * 20, active_deadline_s=120)
    cluster.add_pod(pod("next", **_WHOLE))
    answer = forecast(cluster, "next")
    assert isinstance(answer, StartForecast)
    assert answer.deadlines == 1
    assert answer.p90_us == pytest.approx(60 * SECOND, abs=3 * SECOND)


def test_the_deadline_of_a_job_bounds_its_pods() -> None:
    cluster = full_cluster(1, [3600.0] * 20, job_spec={"activeDeadlineSeconds": 120})
    cluster.add_pod(pod("next", **_WHOLE))
    assert seconds(cluster, "next") == (60, 60)


def test_beyond_the_horizon_nothing_is_claimed() -> None:
    cluster = full_cluster(1, [300.0] * 20)
    cluster.add_pod(pod("next", **_WHOLE))
    assert seconds(cluster, "next", horizon_us=100 * SECOND) == (None, None)


def test_with_too_little_history_no_time_is_given() -> None:
    cluster = full_cluster(1, [300.0] * 19)
    cluster.add_pod(pod("next", **_WHOLE))
    answer = forecast(cluster, "next")
    assert answer == NoForecast("too little history: 19 runs have ended so far, and it takes 20")


def test_a_gang_of_which_pods_are_missing_is_not_foretold() -> None:
    cluster = full_cluster(1, [300.0] * 20)
    cluster.gang("half", 2, least=4, **_WHOLE)
    assert isinstance(forecast(cluster, "half"), NoForecast)


def test_pods_that_outlived_all_runs_are_taken_to_go_on() -> None:
    cluster = full_cluster(1, [30.0] * 40)
    cluster.add_pod(pod("next", **_WHOLE))
    answer = forecast(cluster, "next")
    assert isinstance(answer, StartForecast)
    assert (answer.p50_us, answer.unknown, answer.within) == (None, 1, 0)


def test_the_closest_runs_of_which_there_are_enough_tell_how_long_a_pod_goes_on() -> None:
    for few, basis in ((4, Basis.CLASS), (5, Basis.OWNER)):
        cluster = full_cluster(1, [300.0] * few, of_others=30)
        cluster.add_pod(pod("next", **_WHOLE))
        answer = forecast(cluster, "next")
        assert isinstance(answer, StartForecast)
        assert answer.bases == {basis: 1}


def test_too_much_work_gives_fewer_scenarios_and_says_so_or_none() -> None:
    cluster = full_cluster(8, [float(length) for length in range(100, 700, 10)])
    cluster.gang("all", 8, **_WHOLE)
    whole = forecast(cluster, "all")
    assert isinstance(whole, StartForecast)
    assert whole.scenarios == whole.asked_scenarios == 31
    part = forecast(cluster, "all", work=200)
    assert isinstance(part, StartForecast)
    assert 7 <= part.scenarios < 31
    assert isinstance(forecast(cluster, "all", work=20), NoForecast)


def test_starts_of_a_cluster_with_known_lifetimes_come_true_as_often_as_is_said() -> None:
    """Eight pods of lengths that are exponential: the time until three have ended is known, and can be drawn."""
    chance, mean, nodes, wanted = random.Random(7), 1800.0, 8, 3
    cluster = full_cluster(nodes, [chance.expovariate(1 / mean) for _ in range(400)])
    cluster.gang("three", wanted, **_WHOLE)
    p50, p90 = seconds(cluster, "three")
    truths = [sorted(chance.expovariate(1 / mean) for _ in range(nodes))[wanted - 1] for _ in range(2000)]
    assert p50 is not None
    assert p90 is not None
    # 31 scenarios: the share below their median lies within three standard errors of a half, 0.23 to 0.77.
    assert 0.23 < sum(truth <= p50 for truth in truths) / len(truths) < 0.77
    assert 0.74 < sum(truth <= p90 for truth in truths) / len(truths) <= 1
    # Over many seeds the errors cancel: the seed is the state's position.
    before = []
    history = cluster.history()
    for _ in range(8):
        cluster.add_pod(pod("other", scheduler_name="other", cpu=1))
        p50, p90 = (
            (answer.p50_us, answer.p90_us)
            if isinstance(answer := forecast(cluster, "three", history=history), StartForecast)
            else (0, 0)
        )
        before.append([sum(truth * SECOND <= (limit or 0) for truth in truths) / len(truths) for limit in (p50, p90)])
    means = [sum(column) / len(column) for column in zip(*before, strict=True)]
    assert means == [pytest.approx(0.5, abs=0.1), pytest.approx(0.9, abs=0.06)]


def test_the_same_question_has_one_answer_and_changes_nothing() -> None:
    cluster = full_cluster(4, [float(length) for length in range(100, 700, 10)])
    cluster.gang("all", 4, **_WHOLE)
    used = cluster.state.columns.used.copy()
    assert forecast(cluster, "all") == forecast(cluster, "all")
    assert (cluster.state.columns.used == used).all()
    assert GPU in cluster.state.pods["uid-all-0"].requests
