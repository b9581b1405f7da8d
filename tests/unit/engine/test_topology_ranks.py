"""The ranks that pods take, and whether pods are where a request lets them be."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from kaicore.rules.engine.topology.set_requests import known_ranks, ranked, ranks_by_place
from kaicore.rules.engine.topology.unit_trial import keeps
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.groups.labels import NO_RANK
from kaicore.rules.model.group import RankSource
from kaicore.rules.model.node import TopologyLevel
from kaicore.rules.model.pod import Pod
from kaicore.rules.topology.placing.request import LevelConstraint, SetRequest, Slices
from kaicore.rules.topology.tree import TopologyColumns

from tests.given.cluster.factory import pod

INDEX = RankSource("index")


@dataclass
class Ranked:
    """A pod with the rank that it was placed with."""

    pod: Pod
    rank: int = NO_RANK


def members(*indexes: str, rank: int = NO_RANK) -> list[Member]:
    found: list[Any] = [Ranked(pod(f"p{n}", labels={"index": said}), rank) for n, said in enumerate(indexes)]
    return cast("list[Member]", found)


@pytest.mark.parametrize(
    ("indexes", "ranks"),
    [
        (("2", "0", "5"), [2, 0, 5]),
        (("2", "0", "2"), [0, 1, 2]),
        (("2", "", "1"), [0, 1, 2]),
        (("2", "-1", "1"), [0, 1, 2]),
    ],
)
def test_ranks_are_told_by_all_pods_or_by_none(indexes: tuple[str, ...], ranks: list[int]) -> None:
    waiting = members(*indexes)
    order, found = ranked(waiting, (), INDEX, {})
    assert [found[one.pod.uid] for one in waiting] == ranks
    assert [found[one.pod.uid] for one in order] == sorted(ranks)


def test_ranks_of_running_pods_are_of_the_log_else_written_on_them_else_their_index() -> None:
    of_log, written, by_index = (
        Ranked(pod(name, labels={"index": index}, annotations={"kai.scheduler/rank": rank} if rank else {}))
        for name, index, rank in (("log", "0", "1"), ("written", "0", "2"), ("index", "0", ""))
    )
    of_log.rank = 3
    active = cast("list[Member]", [of_log, written, by_index])
    assert known_ranks(active, (), (), INDEX) == {"uid-log": 3, "uid-written": 2, "uid-index": 0}


def test_a_rank_that_two_running_pods_name_is_nobodys_and_a_successor_may_have_that_of_a_pod_that_leaves() -> None:
    assert known_ranks(members("1", "1", "2"), (), (), INDEX) == {"uid-p2": 2}
    leaving = cast("list[Member]", [Ranked(pod("old", labels={"index": "0"}))])
    assert known_ranks(members("0"), leaving, (), INDEX) == {"uid-p0": 0, "uid-old": 0}


def test_of_indexes_that_are_only_an_order_the_place_among_all_pods_is_the_rank() -> None:
    one, two, three = members("10", "20", "40")
    order = RankSource("index", order_only=True)
    assert known_ranks([three, one], (), [two], order) == {"uid-p0": 0, "uid-p2": 2}


def test_pods_that_name_no_rank_fill_the_slices_of_their_domains() -> None:
    places = {"a": [0, 0], "b": [1, 2], "c": [0, 1], "d": [1, 2], "e": [0, 0], "f": [1, 3]}
    assert ranks_by_place(places, {"f": 5}, [4, 2]) == {"a": 0, "e": 1, "c": 2, "b": 6, "d": 7}


def test_pods_without_ranks_take_those_that_running_pods_leave() -> None:
    waiting = members("", "", "")
    _, found = ranked(waiting, (0, 2), None, {})
    assert [found[one.pod.uid] for one in waiting] == [1, 3, 4]


def test_a_pod_that_is_placed_anew_keeps_its_rank() -> None:
    _, found = ranked([*members(""), cast("Member", Ranked(pod("m")))], (), None, {"uid-m": 7})
    assert found == {"uid-m": 7, "uid-p0": 0}


#: Rows 0 and 1 are in the first rack, 2 and 3 in the second, and row 4 is in none.
RACKS = TopologyColumns(
    (TopologyLevel("rack"),),
    ((("r0",), ("r1",)),),
    (np.array([0, 0, 1, 1, -1], np.int32),),
    (np.array([-1, -1], np.int32),),
    np.arange(5),
)
RACK = LevelConstraint(required=0)


@pytest.mark.parametrize(
    ("request_", "rows", "kept"),
    [
        (SetRequest(pods=(0, 1), constraint=RACK), {0: 0, 1: 1}, True),
        (SetRequest(pods=(0, 1), constraint=RACK), {0: 0, 1: 2}, False),
        (SetRequest(pods=(0, 1), constraint=RACK, held=np.array([0, 0, 1, 0, 0])), {0: 0, 1: 1}, False),
        (SetRequest(pods=(0, 1), constraint=LevelConstraint(preferred=0)), {0: 0, 1: 2}, True),
        (SetRequest(pods=(0, 1), constraint=LevelConstraint(slices=(Slices(2, 0),))), {0: 0, 1: 2}, False),
        (SetRequest(pods=(0, 1), constraint=LevelConstraint(slices=(Slices(1, 0),))), {0: 0, 1: 2}, True),
        (SetRequest(pods=(0, 1), constraint=LevelConstraint(slices=(Slices(2, 0),)), ranks=(1, 2)), {0: 0, 1: 2}, True),
        (SetRequest(pods=(0,), constraint=LevelConstraint(slices=(Slices(1, 0),))), {0: 4}, False),
    ],
)
def test_what_is_required_is_told_from_where_pods_are(request_: SetRequest, rows: dict[int, int], kept: bool) -> None:
    assert keeps(request_, RACKS, rows) is kept


@pytest.mark.parametrize(("exclusive", "kept"), [(True, False), (False, True)])
def test_exclusive_sets_share_no_domain(exclusive: bool, kept: bool) -> None:
    constraint = LevelConstraint(required=0, exclusive=exclusive)
    sets = tuple(SetRequest(name, pods=(number,), constraint=constraint) for number, name in enumerate("ab"))
    assert keeps(SetRequest(children=sets), RACKS, {0: 0, 1: 1}) is kept
    assert keeps(SetRequest(children=sets), RACKS, {0: 0, 1: 2})
