"""HyperNodes: what they make of nodes, and what is refused.

Restated from Volcano's tests (v1.16.0-alpha.1: pkg/scheduler/api/hyper_node_info_test.go and
pkg/webhooks/admission/hypernodes).
"""

import pytest
from kaicore.errors import InvalidPattern, OverlappingDomains
from kaicore.rules.model.node import HyperNode, HyperNodeMember
from kaicore.rules.model.selector import Requirement
from kaicore.rules.topology.paths import HyperNodePaths, compile_pattern


def hyper_node(name: str, tier: int, *members: HyperNodeMember, tier_name: str = "") -> HyperNode:
    return HyperNode(name, f"u-{name}", "1", tier, tier_name, members)


def nodes(*names: str) -> tuple[HyperNodeMember, ...]:
    return tuple(HyperNodeMember(node=name) for name in names)


def inside(*names: str) -> tuple[HyperNodeMember, ...]:
    return tuple(HyperNodeMember(hyper_node=name) for name in names)


SPINES = (
    hyper_node("s0", 1, *nodes("node-0", "node-1")),
    hyper_node("s1", 1, HyperNodeMember(pattern="^node-[23]$")),
    hyper_node("s2", 1, HyperNodeMember(labels=(Requirement("leaf", "In", ("s2",)),))),
    hyper_node("s3", 2, *inside("s0", "s1")),
    hyper_node("s4", 2, *inside("s2", "not-there-yet")),
    hyper_node("s5", 3, *inside("s3", "s4")),
)


@pytest.mark.parametrize(
    ("node", "labels", "path"),
    [
        ("node-1", {}, ("s5", "s3", "s0", "node-1")),
        ("node-3", {}, ("s5", "s3", "s1", "node-3")),
        ("node-33", {}, ()),
        ("any", {"leaf": "s2"}, ("s5", "s4", "s2", "any")),
        ("any", {"leaf": "s9"}, ()),
    ],
)
def test_members_by_name_pattern_and_labels_are_found(node: str, labels: dict[str, str], path: tuple[str, ...]) -> None:
    paths = HyperNodePaths(SPINES)
    assert paths.problems == ()
    assert [level.name for level in paths.levels] == ["3", "2", "1", "node"]
    assert paths.path(node, labels) == path


def test_a_pattern_is_found_anywhere_in_a_name_as_in_go() -> None:
    paths = HyperNodePaths([hyper_node("s0", 1, HyperNodeMember(pattern="gpu"))])
    assert paths.path("rack1-gpu-7", {}) == ("s0", "rack1-gpu-7")


@pytest.mark.parametrize("pattern", ["(?=a)", "(?<!a)b", r"(a)\1", "[a", "a**"])
def test_a_pattern_that_go_does_not_know_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        compile_pattern(pattern)


def test_a_class_that_only_go_knows_is_understood() -> None:
    assert compile_pattern(r"^[[:alpha:]]+\z").search("abc")


def test_a_hyper_node_two_tiers_below_its_parent_is_a_domain_of_both_tiers() -> None:
    paths = HyperNodePaths(
        [
            hyper_node("top", 3, *inside("a", "deep"), tier_name="zone"),
            hyper_node("a", 2, *inside("b")),
            hyper_node("b", 1, *nodes("n1")),
            hyper_node("deep", 1, *nodes("n2")),
            hyper_node("alone", 1, *nodes("n3")),
        ]
    )
    assert paths.levels[0].aliases == ("zone",)
    assert paths.path("n1", {}) == ("top", "a", "b", "n1")
    assert paths.path("n2", {}) == ("top", "deep", "deep", "n2")
    assert paths.path("n3", {}) == ("alone", "alone", "alone", "n3")


def test_a_node_right_below_a_high_tier_is_in_no_domain_of_the_lower_ones() -> None:
    paths = HyperNodePaths([hyper_node("top", 2, *inside("low"), *nodes("n1")), hyper_node("low", 1, *nodes("n2"))])
    assert paths.path("n1", {}) == ("top",)


def test_a_node_named_by_a_hyper_node_and_by_the_one_around_it_is_in_the_inner_one() -> None:
    paths = HyperNodePaths([hyper_node("top", 2, *inside("low"), *nodes("n1")), hyper_node("low", 1, *nodes("n1"))])
    assert paths.path("n1", {}) == ("top", "low", "n1")


def test_a_node_in_two_hyper_nodes_is_refused_with_their_names() -> None:
    paths = HyperNodePaths([hyper_node("b", 1, *nodes("n1")), hyper_node("a", 1, HyperNodeMember(pattern="n"))])
    with pytest.raises(OverlappingDomains, match="Node n1 is in HyperNodes a and b, of which none is in another"):
        paths.path("n1", {})
    assert paths.path("n2", {}) == ("a", "n2")


@pytest.mark.parametrize(
    ("hyper_nodes", "problem"),
    [
        (
            (hyper_node("a", 2, *inside("c")), hyper_node("b", 2, *inside("c")), hyper_node("c", 1, *nodes("n1"))),
            "HyperNode c is a member of a and of b; it may have one parent only",
        ),
        (
            (hyper_node("a", 2, *inside("b")), hyper_node("b", 1, *inside("c")), hyper_node("c", 3, *inside("a"))),
            "HyperNodes a, b, c contain each other",
        ),
        ((hyper_node("a", 1, *inside("a")),), "HyperNodes a contain each other"),
        (
            (hyper_node("a", 1, *inside("b")), hyper_node("b", 1, *nodes("n1"))),
            "HyperNode b of tier 1 is a member of a of tier 1; its tier must be lower",
        ),
        (
            (hyper_node("a", 2, tier_name="rack"), hyper_node("b", 1, *nodes("n1"), tier_name="rack")),
            "tierName rack is the name of tiers 1 and 2",
        ),
    ],
    ids=["two-parents", "cycle", "itself", "tier", "tier-name"],
)
def test_hyper_nodes_that_make_no_tree_are_refused_with_their_names(
    hyper_nodes: tuple[HyperNode, ...], problem: str
) -> None:
    paths = HyperNodePaths(hyper_nodes)
    assert paths.problems == (problem,)
    assert paths.path("n1", {}) == ()
