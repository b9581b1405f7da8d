"""Questions before submitting, asked of a log, and the likely starts of work that waits already."""

import asyncio

import pytest
from kai_cli.asking.why_page import why_text
from kaicore.analysis.ask.answers import CalibrationAnswer, RowSelection
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.trial.simulation import Located
from kaicore.analysis.trial.submission.start_forecasts import MOST_WAITING, StartForecasts, waiting_starts
from kaicore.analysis.trial.submission.submit import Submissions
from kaicore.errors import InvalidObject, TooManyQuestions, UnknownSubject
from kaicore.rules.state.fork import fork

from tests.given.cluster.factory import amounts, pod
from tests.given.logs.stored import stored
from tests.given.work.groups import job
from tests.given.work.past_runs import SECOND, PastRuns, busy_cluster

_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "asked"},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]},
}


@pytest.fixture
async def asked() -> Submissions:
    made = busy_cluster(nodes=2, jobs=20, mean_s=600, load=1, seed=1)
    return Submissions(Inquiry(await stored(made)), clock=lambda: 2e9)


async def test_questions_about_one_cluster_wait_for_each_other_and_too_many_are_refused(asked: Submissions) -> None:
    questions = [asked.submit("test", [Located("m", _POD)]) for _ in range(MOST_WAITING + 2)]
    answers = await asyncio.gather(*questions, return_exceptions=True)
    assert [type(answer) for answer in answers].count(TooManyQuestions) == 2
    shown = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert len(shown) == MOST_WAITING
    assert all(answer == shown[0] for answer in shown)
    assert (await asked.submit("test", [Located("m", _POD)])) == shown[0]


async def test_a_question_about_the_past_knows_only_what_was_then(asked: Submissions) -> None:
    now = await asked.submit("test", [Located("m", _POD)])
    then = await asked.submit("test", [Located("m", _POD)], at="5")
    assert (then.position, now.position > 5) == (5, True)
    assert then.now == then.recorded_at
    assert now.now > now.recorded_at
    assert await asked.submit("test", [Located("m", _POD)]) == now


async def test_no_objects_and_too_many_are_refused(asked: Submissions) -> None:
    for count in (0, 1001):
        with pytest.raises(InvalidObject, match="must be from 1 to 1000"):
            await asked.submit("test", [Located("m", _POD)] * count)


async def true_to(cluster: str) -> CalibrationAnswer:
    return _calibration(cluster, p50=0.5, p90=0.9)


def _calibration(cluster: str, *, groups: int = 40, p50: float | None, p90: float | None) -> CalibrationAnswer:
    return CalibrationAnswer(
        cluster=cluster,
        position=1,
        groups=groups,
        undecided=0,
        started_before_p50=p50,
        started_before_p90=p90,
        median_error_seconds=None,
        from_position=1,
        to_position=1,
        left_out=0,
        text="",
    )


@pytest.mark.parametrize(
    ("p50", "p90", "missing"),
    [
        (0.5, 0.9, ""),
        (0.95, 1.0, "past ones did not come true: 95% started before p50"),
        (0.5, 0.6, "60% before p90"),
        (0.5, None, "40 past forecasts could be checked"),
    ],
)
async def test_only_where_past_forecasts_came_true_a_start_is_given_as_a_forecast(
    p50: float, p90: float | None, missing: str
) -> None:
    async def measured(cluster: str) -> CalibrationAnswer:
        return _calibration(cluster, p50=p50, p90=p90)

    made = waiting_for_a_node(known=True)
    asked = StartForecasts(Inquiry(await stored(made)), calibration=measured, clock=lambda: made.now / 1e6)
    (group,) = (await asked.starts("test", "Pod", "default", "train-1-x")).groups
    assert group.start is not None
    assert group.start.calibrated is (not missing)
    assert ("likely to start" in group.text, "may start in" in group.text) == (not missing, bool(missing))
    assert missing in " ".join(group.start.missing)


async def test_a_start_after_pods_of_which_no_run_time_is_known_may_come_at_any_time() -> None:
    made = waiting_for_a_node(known=False)
    asked = StartForecasts(Inquiry(await stored(made)), calibration=true_to, clock=lambda: made.now / 1e6)
    (group,) = (await asked.starts("test", "Pod", "default", "train-1-x")).groups
    assert group.start is not None
    assert (group.start.calibrated, group.start.unknown) == (False, 1)
    assert group.start.missing == ["no run times are known of 1 of 1 running pods"]
    assert group.text.startswith("may start at any time, or not within 1 d; this is no forecast")


def waiting_for_a_node(*, known: bool, jobs: int = 2) -> PastRuns:
    """A job that waits for the one node; that the one there has outlived all runs there were makes it unknown."""
    made = PastRuns()
    made.have_run("train", [300.0] * 20)
    made.add_node("n", amounts(cpu=16, memory=64, gpu=4))
    for number in range(jobs):
        one = pod(f"train-{number}-x", cpu=16, memory=64, gpu=4, owner=job(made, f"train-{number}"), created_at=number)
        made.add_pod(one)
        for decision in made.cycle().placements:
            made.see(one, node_name=decision.node, phase="Running", start_time=made.now // SECOND)
    if not known:
        made.after(3600)
        made.cycle()
    return made


async def test_why_of_what_waits_says_when_it_is_likely_to_start_and_of_what_runs_nothing() -> None:
    made = waiting_for_a_node(known=True)
    forecasts = StartForecasts(Inquiry(await stored(made)), calibration=true_to, clock=lambda: made.now / 1e6)
    for kind, name in (("Pod", "train-1-x"), ("Job", "train-1")):
        why = await forecasts.why("test", kind, "default", name)
        assert why.start is not None
        assert why.start.start is not None
        assert why.start.start.p50_seconds == pytest.approx(300, abs=20)
        assert "forecast: likely to start within 5 min" in why_text(why)
    assert (await forecasts.why("test", "Pod", "default", "train-0-x")).start is None


async def test_a_list_of_groups_says_when_those_that_wait_are_expected_to_start_as_far_as_that_is_known() -> None:
    for known, calibration in ((True, true_to), (True, None), (False, true_to)):
        made = waiting_for_a_node(known=known)
        asked = StartForecasts(
            Inquiry(await stored(made)), calibration=calibration, clock=lambda made=made: made.now / 1e6
        )
        for _ in range(2):
            rows = {row.name: row for row in (await asked.listing("test", "groups", RowSelection())).rows}
            assert rows["train-0"].expected_start == ""
            is_known = known and calibration is not None
            assert rows["train-1"].expected_from == ("forecast" if is_known else "")
            assert bool(rows["train-1"].expected_start) is is_known


async def test_a_list_of_other_groups_half_a_minute_ago_takes_no_expected_start_away() -> None:
    made = waiting_for_a_node(known=True, jobs=3)
    asked = StartForecasts(Inquiry(await stored(made)), calibration=true_to, clock=lambda: made.now / 1e6)
    for wanted in (RowSelection(name="train-1"), RowSelection()):
        rows = {row.name: row for row in (await asked.listing("test", "groups", wanted)).rows}
    assert rows["train-1"].expected_start
    assert rows["train-2"].expected_start


def seconds(cluster: PastRuns, kind: str, name: str) -> list[int | None]:
    answer = waiting_starts(fork(cluster.state), kind, "default", name, cluster.history(), now=cluster.now)
    return [None if group.start is None else group.start.p50_seconds for group in answer.groups]


def test_a_pod_and_its_owner_are_foretold_alike_and_later_than_who_waits_before_them() -> None:
    cluster = waiting_for_a_node(known=True, jobs=3)
    (first,) = seconds(cluster, "Job", "train-1")
    assert first == pytest.approx(300, abs=20)
    assert seconds(cluster, "Pod", "train-1-x") == [first]
    assert seconds(cluster, "Job", "train-2") == [pytest.approx(600, abs=60)]
    assert seconds(cluster, "Job", "train-0") == [], "it runs"


def test_a_name_that_is_not_there_is_named_with_one_that_is_close() -> None:
    cluster = waiting_for_a_node(known=True, jobs=3)
    with pytest.raises(UnknownSubject, match="no pods of Job default/train-11; did you mean 'train-1'"):
        seconds(cluster, "Job", "train-11")


def test_work_that_no_node_can_ever_take_has_no_forecast() -> None:
    cluster = waiting_for_a_node(known=True, jobs=3)
    large, odd = {"cpu": 16, "memory": 64, "gpu": 5}, {"cpu": 1, "node_selector": {"pool": "none"}}
    for name, spec in (("large", large), ("odd", odd)):
        cluster.add_pod(pod(f"{name}-x", owner=job(cluster, name), created_at=9, **spec))
    cluster.cycle()
    for name in ("large", "odd"):
        (start,) = waiting_starts(
            fork(cluster.state), "Job", "default", name, cluster.history(), now=cluster.now
        ).groups
        assert start.text == "no forecast of its start: what is in the way does not pass by itself"
    assert seconds(cluster, "Job", "train-1") != [None]
