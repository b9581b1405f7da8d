"""The topology names of groups' sets, looked up."""

import pytest
from kaicore.rules.events.reasons.group import (
    TopologyAmbiguous,
    TopologyConstraintInvalid,
    TopologyInvalid,
    TopologyLevelNotFound,
    TopologyNotFound,
)
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.group import PodSet, SliceLayer, TopologyConstraint
from kaicore.rules.model.node import (
    CLUSTER_NETWORK_TOPOLOGY,
    HOSTNAME,
    HYPER_NODE,
    KAI_TOPOLOGY,
    KUEUE_TOPOLOGY,
    LABEL,
    HyperNode,
    HyperNodeMember,
    TopologyDefinition,
    TopologyLevel,
)
from kaicore.rules.topology.book import TopologyBook, TopologyKey
from kaicore.rules.topology.placing.request import NO_LEVEL, LevelConstraint, Slices
from kaicore.rules.topology.resolve import Resolved, Resolver, resolve

GROUP = "PodGroup.x default/g"
BLOCK, RACK = TopologyLevel("x/block", ("x/block",), ("block",)), TopologyLevel("x/rack", ("x/rack",), ("rack",))
LAYERS = (
    TopologyLevel("SpineLayer", ("x/spine", "y/spine")),
    TopologyLevel("BlockLayer", ("x/block",)),
    TopologyLevel("NodeTopologyLayer"),
)


def define(kind: str, name: str, *levels: TopologyLevel) -> TopologyDefinition:
    return TopologyDefinition(kind, name, f"uid-{name}", "1", levels)


def book(*definitions: TopologyDefinition | HyperNode, labels: tuple[str, ...] = ()) -> TopologyBook:
    found = TopologyBook()
    for one in definitions:
        if isinstance(one, HyperNode):
            found.hyper_node_seen(one)
        else:
            found.definition_seen(one)
    found.node_seen("n1", dict.fromkeys(labels, "1"))
    return found


KAI = define(KAI_TOPOLOGY, "gpu", BLOCK, RACK)
SPINES = define(CLUSTER_NETWORK_TOPOLOGY, "default", *LAYERS)
TIERS = (
    HyperNode("s1", "1", "1", 3, "spine", (HyperNodeMember(hyper_node="r1"),)),
    HyperNode("r1", "2", "1", 1, "rack", (HyperNodeMember(node="n1"),)),
)


def look_up(topologies: TopologyBook, **said: object) -> Resolved | Reason | None:
    return resolve((PodSet(topology=TopologyConstraint(**said)),), topologies, group=GROUP)  # type: ignore[arg-type]


def root_of(found: Resolved | Reason | None) -> LevelConstraint:
    assert isinstance(found, Resolved), str(found)
    return found.constraints[""]


@pytest.mark.parametrize("name", ["x/rack", "rack"])
def test_level_is_found_by_label_and_by_alias(name: str) -> None:
    found = look_up(book(KAI), kind=KAI_TOPOLOGY, topology="gpu", required="block", preferred=name)
    assert isinstance(found, Resolved)
    assert found.topology == TopologyKey(KAI_TOPOLOGY, "gpu")
    assert found.constraints == {"": LevelConstraint(required=0, preferred=1)}


@pytest.mark.parametrize("name", ["SpineLayer", "x/spine", "y/spine"])
def test_layer_is_found_by_name_and_by_each_of_its_labels(name: str) -> None:
    assert root_of(look_up(book(SPINES), kind=CLUSTER_NETWORK_TOPOLOGY, required=name)).required == 0


def test_wrong_case_of_a_layer_is_an_error_that_names_what_there_is() -> None:
    reason = look_up(book(SPINES), kind=CLUSTER_NETWORK_TOPOLOGY, preferred="spineLayer", field="annotation a")
    assert isinstance(reason, TopologyLevelNotFound)
    assert str(reason) == (
        "PodGroup.x default/g: annotation a: level spineLayer is not in ClusterNetworkTopology default: it has "
        "SpineLayer, BlockLayer, NodeTopologyLayer; did you mean 'SpineLayer'?"
    )
    assert reason.lasting
    assert not reason.of_nodes


def test_topology_that_does_not_exist_is_an_error_that_names_those_of_its_kind() -> None:
    reason = look_up(book(KAI, SPINES), kind=KAI_TOPOLOGY, topology="gpus", required="rack")
    assert isinstance(reason, TopologyNotFound)
    assert str(reason).endswith("there is no Topology gpus; there is Topology gpu; did you mean 'gpu'?")
    assert str(look_up(book(), kind=HYPER_NODE, required="1")).endswith("there is no HyperNode")


def test_single_nodes_are_a_level_of_every_topology() -> None:
    for one, kind in ((KAI, KAI_TOPOLOGY), (SPINES, CLUSTER_NETWORK_TOPOLOGY)):
        topologies = book(one)
        found = look_up(topologies, kind=kind, required=HOSTNAME)
        assert isinstance(found, Resolved)
        columns = topologies.tree(found.topology).columns(["n1"])
        assert root_of(found).required == len(columns.levels) - 1
        assert not columns.levels[-1].keys


def test_the_closest_is_the_narrowest_level_above_the_single_nodes() -> None:
    assert root_of(look_up(book(*TIERS), kind=HYPER_NODE, closest=True)) == LevelConstraint(preferred=1)
    within = look_up(book(*TIERS), kind=HYPER_NODE, required="3", closest=True)
    assert root_of(within) == LevelConstraint(required=0, preferred=1)
    # What is as narrow as that is required already.
    assert root_of(look_up(book(*TIERS), kind=HYPER_NODE, required="1", closest=True)) == LevelConstraint(required=1)


def test_of_several_topologies_the_one_that_has_the_levels_is_taken() -> None:
    other = define(KUEUE_TOPOLOGY, "a", TopologyLevel("x/zone", ("x/zone",)))
    third = define(KUEUE_TOPOLOGY, "b", TopologyLevel("x/rack", ("x/rack",)), TopologyLevel(HOSTNAME))
    found = look_up(book(other, third, KAI), kind=KUEUE_TOPOLOGY, required="x/rack")
    assert isinstance(found, Resolved)
    assert found.topology.name == "b"
    both = look_up(book(third, define(KUEUE_TOPOLOGY, "c", BLOCK, RACK)), kind=KUEUE_TOPOLOGY, required="x/rack")
    assert isinstance(both, TopologyAmbiguous)
    assert str(both).endswith(
        "level x/rack is in several topologies, and none is named: Topology.kueue.x-k8s.io b, Topology.kueue.x-k8s.io c"
    )
    none = look_up(book(other, third), kind=KUEUE_TOPOLOGY, required="x/rak")
    assert isinstance(none, TopologyLevelNotFound)
    assert "Topology a, Topology b: it has x/zone, kubernetes.io/hostname, x/rack; did you mean 'x/rack'?" in str(none)
    split = look_up(book(other, third), kind=KUEUE_TOPOLOGY, required="x/zone", preferred="x/rack")
    assert "no topology has all of the levels x/zone, x/rack" in str(split)


def test_topologies_that_differ_by_name_only_are_not_ambiguous() -> None:
    twins = [define(KUEUE_TOPOLOGY, name, TopologyLevel("x/rack", ("x/rack",))) for name in ("b", "a")]
    found = look_up(book(*twins), kind=KUEUE_TOPOLOGY, required="x/rack")
    assert isinstance(found, Resolved)
    assert found.topology.name == "a"


def test_label_without_a_topology_is_a_topology_of_that_label() -> None:
    topologies = book(KAI, labels=("x/zone",))
    found = look_up(topologies, required="x/zone", preferred=HOSTNAME)
    assert isinstance(found, Resolved)
    assert found.topology == TopologyKey(LABEL, "x/zone")
    assert root_of(found) == LevelConstraint(required=0, preferred=1)
    topologies.node_seen("n0", {"x/zone": "0"})
    assert topologies.tree(found.topology).columns(["n0", "n1"]).domains == (
        (("0",), ("1",)),
        (("0", "n0"), ("1", "n1")),
    )
    assert TopologyKey(LABEL, "x/zone") not in topologies.topologies()
    by_topology = look_up(book(KAI, labels=("x/rack",)), required="x/rack")
    assert isinstance(by_topology, Resolved)
    assert by_topology.topology.kind == KAI_TOPOLOGY
    twice = book(KAI, define(KUEUE_TOPOLOGY, "gpu", RACK), labels=("x/rack",))
    by_label = look_up(twice, required="x/rack")
    assert isinstance(by_label, Resolved)
    assert by_label.topology == TopologyKey(LABEL, "x/rack")
    hosts = look_up(book(), required=HOSTNAME)
    assert isinstance(hosts, Resolved)
    assert hosts.topology == TopologyKey(LABEL, HOSTNAME)
    assert root_of(hosts).required == 0


def test_label_that_no_node_has_is_an_error_until_one_has_it() -> None:
    topologies = book(KAI)
    reason = look_up(topologies, required="x/rac")
    assert isinstance(reason, TopologyLevelNotFound)
    assert "level x/rac is in no topology, and no node has a label of that name; there is x/block, block" in str(reason)
    before = topologies.revision
    topologies.node_seen("n2", {"x/rac": "1"})
    assert topologies.revision > before
    assert isinstance(look_up(topologies, required="x/rac"), Resolved)
    topologies.node_gone("n2")
    assert isinstance(look_up(topologies, required="x/rac"), TopologyLevelNotFound)
    two = look_up(book(labels=("a", "b")), required="a", preferred="b")
    assert "labels a, b are levels of no one topology" in str(two)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"required": "x/rac"}, "x/rack"),
        ({"required": "x/blok"}, "x/block"),
        ({"required": "far"}, ""),
        ({"required": "x/rac", "kind": KAI_TOPOLOGY}, ""),
    ],
    ids=["label of nodes", "level", "neither", "not of labels"],
)
def test_mistyped_label_gets_the_close_one_that_nodes_have(said: dict[str, str], meant: str) -> None:
    topologies = book(define(KAI_TOPOLOGY, "gpu", BLOCK), labels=("x/rack", "x/zone"))
    reason = look_up(topologies, **said)
    assert isinstance(reason, TopologyLevelNotFound)
    assert str(reason).partition("did you mean ")[2] == (f"{meant!r}?" if meant else "")


def test_mistyped_label_gets_the_close_one_without_any_topology() -> None:
    reason = look_up(book(labels=("x/rack",)), required="x/rac")
    assert str(reason).endswith("and no node has a label of that name; did you mean 'x/rack'?")


def test_narrowest_of_several_levels_counts_and_all_must_exist() -> None:
    topologies = book(SPINES)
    found = root_of(
        look_up(
            topologies,
            kind=CLUSTER_NETWORK_TOPOLOGY,
            required="BlockLayer",
            required_also=("SpineLayer",),
            preferred="NodeTopologyLayer",
            preferred_also=("SpineLayer", "BlockLayer"),
        )
    )
    assert found == LevelConstraint(required=1, preferred=2)
    wrong = look_up(topologies, kind=CLUSTER_NETWORK_TOPOLOGY, required="BlockLayer", preferred_also=("Spine",))
    assert isinstance(wrong, TopologyLevelNotFound)
    assert wrong.level == "Spine"


def test_preference_that_is_no_narrower_than_what_is_required_is_left_out() -> None:
    found = root_of(look_up(book(KAI), kind=KAI_TOPOLOGY, required="rack", preferred="block"))
    assert found == LevelConstraint(required=1, preferred=NO_LEVEL)


def test_tier_is_found_by_number_and_name_and_a_number_between_is_the_next_lower() -> None:
    topologies = book(*TIERS)
    numbers = [
        root_of(look_up(topologies, kind=HYPER_NODE, required=name)).required for name in ("3", "spine", "2", "1")
    ]
    assert numbers == [0, 0, 1, 1]
    assert look_up(topologies, kind=HYPER_NODE, required="4") is None
    below = look_up(topologies, kind=HYPER_NODE, required="0")
    assert isinstance(below, TopologyLevelNotFound)
    assert "level 0 is not in the topology of HyperNodes: it has 3, spine, 1, rack, node" in str(below)


def test_definition_that_is_wrong_is_said_to_the_group() -> None:
    second = HyperNode("s2", "3", "1", 3, "", (HyperNodeMember(hyper_node="r1"),))
    reason = look_up(book(*TIERS, second), kind=HYPER_NODE, required="1")
    assert isinstance(reason, TopologyInvalid)
    wrong = "the topology of HyperNodes is not valid: HyperNode r1 is a member of s1 and of s2"
    assert str(reason).startswith(f"{GROUP}: {wrong}")


def test_slices_are_ordered_by_level_and_their_sizes_must_divide() -> None:
    layers = (SliceLayer(2, required=HOSTNAME), SliceLayer(8, required="block", preferred="rack", spares=1))
    found = root_of(look_up(book(KAI), kind=KAI_TOPOLOGY, slices=layers))
    assert found.slices == (Slices(8, required=0, preferred=1, spares=1), Slices(2, required=2))
    odd = (SliceLayer(8, required="block"), SliceLayer(3, required="rack"))
    reason = look_up(book(KAI), kind=KAI_TOPOLOGY, slices=odd)
    assert isinstance(reason, TopologyConstraintInvalid)
    assert "slices of 8 pods cannot be divided into slices of 3" in str(reason)
    above = look_up(book(KAI), kind=KAI_TOPOLOGY, required="rack", slices=(SliceLayer(2, required="block"),))
    assert "level block of slices of 2 pods is above that of all pods, rack" in str(above)
    empty = look_up(book(KAI), kind=KAI_TOPOLOGY, slices=(SliceLayer(0, required="rack"),))
    assert "the size must be 1 or more" in str(empty)


def test_slices_of_sub_groups_are_refused() -> None:
    topology = TopologyConstraint(kind=KAI_TOPOLOGY, slices=(SliceLayer(2, required="rack"),))
    sets = (PodSet(), PodSet("a", topology=topology), PodSet("b", "a", 2))
    reason = resolve(sets, book(KAI), group=GROUP)
    assert str(reason) == "sub-group a of PodGroup.x default/g: slices are of pods, and not of sub-groups"


def test_sets_of_one_group_are_placed_on_one_topology() -> None:
    def of(topology: str, level: str) -> TopologyConstraint:
        return TopologyConstraint(topology=topology, required=level, kind=KAI_TOPOLOGY)

    topologies = book(KAI, define(KAI_TOPOLOGY, "cpu", BLOCK, RACK))
    sets = (PodSet(topology=of("gpu", "block")), PodSet("a", topology=of("", "rack")), PodSet("b"))
    found = resolve(sets, topologies, group=GROUP)
    assert isinstance(found, Resolved)
    assert found.topology.name == "gpu"
    assert found.constraints == {"": LevelConstraint(required=0), "a": LevelConstraint(required=1)}
    mixed = resolve((*sets, PodSet("c", topology=of("cpu", "rack"))), topologies, group=GROUP)
    assert isinstance(mixed, TopologyConstraintInvalid)
    assert str(mixed) == (
        "sub-group c of PodGroup.x default/g: topology cpu is not the one of the whole group, gpu; "
        "a group is placed on one topology"
    )


def test_what_the_object_says_wrongly_is_the_reason() -> None:
    reason = look_up(book(KAI), problem="annotation x: 'a' is no number", field="annotation y")
    assert str(reason) == "PodGroup.x default/g: annotation x: 'a' is no number"
    alone = look_up(book(KAI), exclusive=True, kind=KAI_TOPOLOGY)
    assert "exclusive domains need a required level" in str(alone)


def test_group_that_asks_for_nothing_has_nothing_to_look_up() -> None:
    assert resolve((PodSet(), PodSet("a", topology=TopologyConstraint())), book(), group=GROUP) is None
    assert look_up(book(KAI), kind=KAI_TOPOLOGY, topology="gpu") is None


def test_kept_answer_holds_until_topologies_change_and_names_the_group_that_asks() -> None:
    topologies = book(SPINES)
    resolver = Resolver(topologies)
    sets = (PodSet(topology=TopologyConstraint(kind=CLUSTER_NETWORK_TOPOLOGY, required="rack")),)
    assert [str(resolver(sets, group=group)).split(":")[0] for group in "ab"] == ["a", "b"]
    topologies.definition_seen(define(CLUSTER_NETWORK_TOPOLOGY, "default", RACK))
    found = resolver(sets, group="a")
    assert isinstance(found, Resolved)
    assert resolver(sets, group="b") is found


def test_constraint_of_groups_that_start_together_says_so() -> None:
    found = look_up(book(SPINES), kind=CLUSTER_NETWORK_TOPOLOGY, required="SpineLayer", together=True)
    assert isinstance(found, Resolved)
    assert found.together


NEW, OLD = define(KUEUE_TOPOLOGY, "new", BLOCK, RACK), define(KUEUE_TOPOLOGY, "old", BLOCK)


def by_flavors(*names: str, required: str = "x/block") -> Resolved | Reason | None:
    said = TopologyConstraint(required=required, kind=KUEUE_TOPOLOGY, field="f")
    return resolve((PodSet(topology=said),), book(NEW, OLD, KAI), group=GROUP, of_flavors=names)


@pytest.mark.parametrize(
    ("names", "required", "chosen"),
    [
        (("old", "new"), "x/block", "old"),
        (("new", "old"), "x/block", "new"),
        # The first that has the level, and that is there.
        (("old", "new"), "x/rack", "new"),
        (("gone", "old"), "x/block", "old"),
        # Without flavors it is the only one that has the level.
        ((), "x/rack", "new"),
    ],
)
def test_kueues_topology_is_that_of_a_flavor_of_the_queue(names: tuple[str, ...], required: str, chosen: str) -> None:
    found = by_flavors(*names, required=required)
    assert isinstance(found, Resolved), str(found)
    assert found.topology == TopologyKey(KUEUE_TOPOLOGY, chosen)


def test_flavors_without_such_a_topology_or_level_are_named() -> None:
    found = by_flavors("gone", "lost")
    assert isinstance(found, TopologyNotFound)
    assert found.topology == "Topology gone or Topology lost"
    assert found.topologies == "Topology new, Topology old"
    found = by_flavors("old", required="x/rack")
    assert isinstance(found, TopologyLevelNotFound)
    assert (found.level, found.topology, found.levels) == ("x/rack", "Topology old", by_names(OLD))


def by_names(definition: TopologyDefinition) -> str:
    return ", ".join(name for level in definition.levels for name in (level.name, *level.aliases)) + NODES


NODES = f", {HOSTNAME}"


@pytest.mark.parametrize(
    "said", [{"kind": HYPER_NODE, "closest": True}, {"kind": KUEUE_TOPOLOGY, "unconstrained": True}]
)
def test_what_names_no_level_asks_for_nothing_where_there_is_no_topology(said: dict[str, object]) -> None:
    assert look_up(book(KAI), **said) is None
    assert isinstance(look_up(book(KAI, NEW, *TIERS), **said), Resolved)
