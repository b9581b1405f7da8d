"""Arrivals in the living demonstration are decided by a seed and a number."""

import pytest
from kai_cli.demonstration.demo import arrival, demo, shared_by_teams, team_work
from kaicore.errors import ConfigurationError

WORK = team_work()


def test_the_same_seed_brings_the_same_work_and_another_one_other_work() -> None:
    first, again, other = ([arrival(WORK, seed=seed, number=n) for n in range(36)] for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_a_round_brings_work_of_every_kind_under_names_of_its_own() -> None:
    came = [arrival(WORK, seed=0, number=number).manifest for number in range(108)]
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in came]
    assert len(set(names)) == len(names)
    assert {kind for kind, _ in names} == {manifest["kind"] for team in WORK.values() for manifest in team}


def test_a_team_rests_for_a_turn_so_that_another_one_borrows_what_it_leaves() -> None:
    turns = [[arrival(WORK, seed=0, number=number) for number in range(first, first + 12)] for first in (0, 12)]
    queues = [[one.manifest["metadata"]["labels"]["kai.scheduler/queue"] for one in turn] for turn in turns]
    assert "vision" not in queues[0]
    assert queues[0].count("research") > 6
    assert queues[1].count("vision") > 4


def test_every_team_has_a_queue_and_work_without_one_has_the_default() -> None:
    queues = {one["metadata"]["name"] for one in shared_by_teams() if one["kind"] == "Queue"}
    assert queues == {*WORK, "company", "default"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"lasting": "a while"}, "--for a while: is no duration such as 90s or 1h30m"),
        ({"once": True, "lasting": "5m"}, "--once"),
    ],
)
def test_a_time_that_is_none_or_of_a_comparison_is_refused(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        demo(**arguments)  # type: ignore[arg-type]
