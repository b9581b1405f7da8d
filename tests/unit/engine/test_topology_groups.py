"""Groups on network topologies in cycles: which domains they get, what pulls them, and what they wait for."""

import msgspec
import pytest
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.group import PodSet, SliceLayer, TopologyConstraint
from kaicore.rules.model.node import Taint
from kaicore.rules.model.pod import PodRules, PreferredNodes
from kaicore.rules.model.selector import Requirement
from kaicore.rules.topology.placing.request import TopologyStrategy

from tests.given.cluster.racks import INDEX, Racks, asks


def reasons(result: CycleResult, group: str) -> list[Reason]:
    """The reason why a group was left waiting."""
    return [reason for one in result.groups if one.group.endswith(f"/{group}") for reason in one.reasons]


def test_a_required_rack_takes_all_pods_or_none() -> None:
    cluster = Racks()
    cluster.group("g", 2, asks("rack"))
    cluster.group("large", 3, asks("rack"))
    result = cluster.cycle()
    assert cluster.racks_of(result) == ["r0", "r0"]
    first, *others = reasons(result, "large")
    assert msgspec.to_builtins(first) == {
        "code": "TopologyHasNoRoom",
        "topology": "dc",
        "level": "rack",
        "wanted": 3,
        "fitting": 2,
        "domain": "b0/r1",
        "domains": 4,
    }
    assert str(first) == "of 4 rack domains none has room for 3 pods: the best is b0/r1, which takes 2"
    assert [reason.code for reason in others] == ["InsufficientResource"]


def test_a_preferred_rack_is_widened_to_the_required_block() -> None:
    cluster = Racks()
    cluster.group("g", 3, asks("block", "rack"))
    cluster.group("h", 4, asks("block", "rack"))
    result = cluster.cycle()
    assert {one.domains["block"] for one in result.placements if one.name.startswith("g")} == {"b0"}
    assert {one.domains["block"] for one in result.placements if one.name.startswith("h")} == {"b1"}


def test_a_group_that_names_no_topology_that_there_is_waits_and_the_rest_goes_on() -> None:
    cluster = Racks()
    cluster.group("wrong", 2, asks("Rack"))
    cluster.group("g", 2, asks("rack"))
    result = cluster.cycle()
    assert set(cluster.placed(result)) == {"g-0", "g-1"}
    assert [reason.code for reason in reasons(result, "wrong")] == ["TopologyLevelNotFound"]


def test_the_first_pod_of_a_group_goes_where_all_that_wait_fit() -> None:
    cluster = Racks()
    cluster.full(cluster.group("alone", 1))
    cluster.group("g", 2, asks("rack"), least=1)
    assert cluster.racks_of(cluster.cycle()) == ["r1", "r1"], "the best fit of one pod alone is what is left of r0"


def test_of_a_group_that_fits_nowhere_as_many_pods_start_as_one_domain_takes() -> None:
    cluster = Racks()
    cluster.full(cluster.group("alone", 1))
    cluster.group("g", 3, asks("rack"), least=1)
    assert cluster.racks_of(cluster.cycle()) == ["r1", "r1"], "the best fit of one pod alone is what is left of r0"


def test_later_pods_go_to_the_domain_of_those_that_run() -> None:
    cluster = Racks()
    cluster.full(cluster.group("g", 1, asks("rack"), least=1))
    cluster.pods_of("g", range(1, 3))
    result = cluster.cycle()
    assert cluster.placed(result) == {"g-1": "n1"}
    (pending,) = result.pending
    said = [str(reason) for alone in pending.alone for reason in alone.reasons]
    assert "rack domain b0/r0, where its other pods are, has no room for 1 pod: it takes 0" in said


def test_a_preference_pulls_later_pods_near_those_that_run() -> None:
    cluster = Racks()
    cluster.full(cluster.group("other", 2))
    cluster.full(cluster.group("g", 1, asks(preferred="rack"), least=1))
    cluster.delete_pod(cluster.state.pods["uid-other-0"].pod)
    cluster.pods_of("g", [1])
    assert cluster.placed(cluster.cycle()) == {"g-1": "n3"}, "as much room is left in r0, which comes first by name"


def test_sub_groups_have_domains_of_their_own_within_that_of_the_group() -> None:
    cluster = Racks(16, per_block=8)
    sets = (
        PodSet(topology=asks("block")),
        *(PodSet(name, min_pods=2, topology=asks("rack", exclusive=True)) for name in ("a", "b", "c")),
        PodSet("leader", min_pods=1),
    )
    cluster.group("g", sets=sets)
    for name in ("a", "b", "c"):
        cluster.pods_of("g", range(2), subgroup=name)
    cluster.pods_of("g", range(1), subgroup="leader", gpu=1)
    result = cluster.cycle()
    assert len(result.placements) == 7
    assert len({one.domains["block"] for one in result.placements}) == 1
    racks = [set(cluster.racks_of(result, f"g-{name}")) for name in ("a", "b", "c")]
    assert all(len(one) == 1 for one in racks)
    assert len(set.union(*racks)) == 3


def test_a_sub_group_stays_in_its_domain_whatever_the_group_prefers() -> None:
    cluster = Racks(2, per_rack=1, per_block=1)
    sets = (PodSet(topology=asks(preferred="rack")), *(PodSet(name, topology=asks("block")) for name in ("a", "b")))
    cluster.group("g", sets=sets)
    cluster.pods_of("g", range(2), subgroup="a")
    assert cluster.placed(cluster.cycle()) == {"g-a-0": "n0"}


def test_pods_take_ranks_in_the_order_of_the_tree_and_slices_stay_together() -> None:
    cluster = Racks()
    cluster.group("g", 4, asks("block", slices=(SliceLayer(2, "rack"),)), rank=INDEX)
    result = cluster.cycle()
    assert {one.name: one.rank for one in result.placements} == {f"g-{n}": n for n in range(4)}
    assert cluster.racks_of(result) == ["r0", "r0", "r1", "r1"]


def test_pods_that_fill_no_whole_slices_are_told_as_pods() -> None:
    cluster = Racks(4, per_rack=2, per_block=2)
    cluster.group("g", 8, asks("block", slices=(SliceLayer(3, "rack"),)))
    (first, *_) = reasons(cluster.cycle(), "g")
    assert "none has room for 8 pods in slices of 3: " in str(first)


def test_a_replacement_takes_the_rank_that_is_free() -> None:
    cluster = Racks()
    cluster.full(pods := cluster.group("g", 4, asks("block"), least=3))
    cluster.delete_pod(cluster.state.pods[pods[1].uid].pod)
    cluster.pods_of("g", [7])
    (placed,) = cluster.cycle().placements
    assert (placed.name, placed.rank) == ("g-7", 1)


def test_groups_that_start_together_are_each_on_their_own_rack() -> None:
    cluster = Racks(4)
    cluster.group("a", 2, asks("rack"), together=("a", "b"))
    cluster.group("b", 2, asks("rack"), together=("a", "b"))
    result = cluster.cycle()
    assert cluster.racks_of(result) in (["r0", "r0", "r1", "r1"], ["r1", "r1", "r0", "r0"])
    assert len(result.batches) == 1


def test_groups_that_share_a_constraint_are_in_one_domain() -> None:
    cluster = Racks()
    for name, others in (("a", ("a", "b")), ("b", ("a", "b"))):
        cluster.group(name, 2, asks("block", together=True), together=others)
    cluster.group("filler", 1, asks("block"), gpu=1)
    assert len({one.domains["block"] for one in cluster.cycle().placements if one.name[:2] in ("a-", "b-")}) == 1


def test_a_group_starts_together_with_another_or_not_at_all() -> None:
    cluster = Racks(4)
    cluster.group("a", 2, asks("rack"), together=("a", "b"))
    cluster.group("b", 3, asks("rack"), together=("a", "b"))
    result = cluster.cycle()
    assert not result.placements
    assert reasons(result, "a")[0].code == "TopologyHasNoRoom"


PREFERS = PodRules(preferred_nodes=(PreferredNodes(1, (Requirement("good", "In", ("yes",)),)),))


@pytest.mark.parametrize("soft", ["affinity", "taint"])
@pytest.mark.parametrize("strategy", [TopologyStrategy.BEST_FIT, TopologyStrategy.SPREAD])
@pytest.mark.parametrize(
    ("constraint", "good", "expected"),
    [
        (asks("block"), {2, 5}, {"n2"}),
        (asks("block"), {1, 3}, {"n1", "n3"}),
        (asks("rack"), {4, 5}, {"n4", "n5"}),
        (asks(preferred="rack"), {1, 5, 6, 7}, {"n6", "n7"}),
        (asks("block", slices=(SliceLayer(2, "rack"),)), {2, 3}, {"n2", "n3"}),
    ],
    ids=["node", "nodes", "domain", "preferred-domain", "slice"],
)
def test_preferred_nodes_come_first_within_a_domain_and_between_equal_ones(
    soft: str, strategy: TopologyStrategy, constraint: TopologyConstraint, good: set[int], expected: set[str]
) -> None:
    cluster = Racks(8)
    for number in range(8):
        if soft == "affinity" and number in good:
            cluster.becomes(f"n{number}", labels=cluster.fact(f"n{number}").labels | {"good": "yes"})
        if soft == "taint" and number not in good:
            cluster.becomes(f"n{number}", taints=(Taint("spot", "PreferNoSchedule"),))
    cluster.group("g", len(expected), constraint, rules=PREFERS if soft == "affinity" else None)
    assert set(cluster.placed(cluster.cycle(EngineConfig(topology_strategy=strategy))).values()) == expected


def test_preferred_nodes_attract_no_pods_to_a_domain_with_more_room_than_needed() -> None:
    cluster = Racks(8)
    cluster.full(cluster.group("alone", 1))
    cluster.becomes("n2", labels=cluster.fact("n2").labels | {"good": "yes"})
    cluster.group("g", 1, asks("rack"), rules=PREFERS)
    assert cluster.placed(cluster.cycle()) == {"g-0": "n1"}, "one place is left in r0, two in r1"


@pytest.mark.parametrize(("strategy", "rack"), [(TopologyStrategy.BEST_FIT, "r0"), (TopologyStrategy.SPREAD, "r1")])
def test_the_strategy_chooses_among_domains(strategy: TopologyStrategy, rack: str) -> None:
    cluster = Racks(4)
    config = EngineConfig(topology_strategy=strategy)
    cluster.group("alone", 1, gpu=2)
    cluster.run(*[cluster.state.pods[one.uid].pod for one in cluster.cycle(config).placements])
    cluster.group("g", 1, asks("rack"), gpu=2)
    assert cluster.racks_of(cluster.cycle(config)) == [rack]
