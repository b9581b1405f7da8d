"""The likely starts of work that waits already."""

import pytest
from kaicore.analysis.trial.submission.start_forecasts import waiting_starts
from kaicore.errors import UnknownSubject
from kaicore.rules.state.fork import fork

from tests.given.cluster.factory import amounts, pod
from tests.given.work.groups import job
from tests.given.work.past_runs import SECOND, PastRuns


@pytest.fixture
def cluster() -> PastRuns:
    """A full node, a job that waits for it, and another behind it."""
    made = PastRuns()
    made.have_run("train", [300.0] * 20)
    made.add_node("n", amounts(cpu=16, memory=64, gpu=4))
    for number in range(3):
        one = pod(f"train-{number}-x", cpu=16, memory=64, gpu=4, owner=job(made, f"train-{number}"), created_at=number)
        made.add_pod(one)
        for decision in made.cycle().placements:
            made.see(one, node_name=decision.node, phase="Running", start_time=made.now // SECOND)
    return made


def seconds(cluster: PastRuns, kind: str, name: str) -> list[int | None]:
    answer = waiting_starts(fork(cluster.state), kind, "default", name, cluster.history(), now=cluster.now)
    return [None if group.start is None else group.start.p50_seconds for group in answer.groups]


def test_a_pod_and_its_owner_are_foretold_alike_and_later_than_who_waits_before_them(cluster: PastRuns) -> None:
    (first,) = seconds(cluster, "Job", "train-1")
    assert first == pytest.approx(300, abs=20)
    assert seconds(cluster, "Pod", "train-1-x") == [first]
    assert seconds(cluster, "Job", "train-2") == [pytest.approx(600, abs=60)]


def test_of_what_runs_nothing_is_foretold(cluster: PastRuns) -> None:
    assert seconds(cluster, "Job", "train-0") == []


def test_a_name_that_is_not_there_is_named_with_one_that_is_close(cluster: PastRuns) -> None:
    with pytest.raises(UnknownSubject, match="no pods of Job default/train-11; did you mean 'train-1'"):
        seconds(cluster, "Job", "train-11")


def test_work_that_no_node_can_ever_take_has_no_forecast(cluster: PastRuns) -> None:
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
