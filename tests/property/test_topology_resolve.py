"""Whatever groups name, of whatever topologies: an answer that holds, or a reason that can be recorded and read."""

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from kaicore.rules.events.reasons.base import CodedReason
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.group import PodSet, SliceLayer, TopologyConstraint
from kaicore.rules.model.node import (
    CLUSTER_NETWORK_TOPOLOGY,
    HOSTNAME,
    HYPER_NODE,
    KAI_TOPOLOGY,
    KUEUE_TOPOLOGY,
    HyperNode,
    HyperNodeMember,
    TopologyDefinition,
    TopologyLevel,
)
from kaicore.rules.topology.book import TopologyBook
from kaicore.rules.topology.placing.request import NO_LEVEL
from kaicore.rules.topology.resolve import Resolved, resolve

NAMES = ("block", "rack", "Rack", "1", "2", "7", "node", HOSTNAME, "")
KINDS = ("", KAI_TOPOLOGY, KUEUE_TOPOLOGY, CLUSTER_NETWORK_TOPOLOGY, HYPER_NODE)

_names = st.sampled_from(NAMES)
_layers = st.builds(SliceLayer, st.integers(0, 6), required=_names, preferred=_names, spares=st.integers(0, 2))
_constraints = st.builds(
    TopologyConstraint,
    topology=st.sampled_from(("", "", "t", "u")),
    required=_names,
    preferred=_names,
    kind=st.sampled_from(KINDS),
    closest=st.booleans(),
    unconstrained=st.booleans(),
    slices=st.lists(_layers, max_size=3).map(tuple),
    exclusive=st.booleans(),
    required_also=st.lists(_names, max_size=2).map(tuple),
    preferred_also=st.lists(_names, max_size=2).map(tuple),
    together=st.booleans(),
    problem=st.sampled_from(("", "", "", "wrong")),
)
_sets = st.tuples(
    st.none() | _constraints,
    st.lists(st.tuples(st.none() | _constraints, st.booleans()), max_size=3),
).map(
    lambda drawn: (
        PodSet(topology=drawn[0]),
        *(
            PodSet(f"s{number}", "s0" if below and number else "", topology=topology)
            for number, (topology, below) in enumerate(drawn[1])
        ),
    )
)
_level = st.sampled_from(("block", "rack", "Rack")).map(lambda name: TopologyLevel(name, (name,), (f"the-{name}",)))
_definitions = st.builds(
    TopologyDefinition,
    kind=st.sampled_from((KAI_TOPOLOGY, KUEUE_TOPOLOGY, CLUSTER_NETWORK_TOPOLOGY)),
    name=st.sampled_from(("t", "u")),
    uid=st.just("u"),
    resource_version=st.just("1"),
    levels=st.lists(_level, min_size=1, max_size=3, unique=True).map(tuple),
)
_hyper_nodes = st.builds(
    HyperNode,
    name=st.sampled_from(("h1", "h2")),
    uid=st.just("u"),
    resource_version=st.just("1"),
    tier=st.integers(1, 3),
    tier_name=st.sampled_from(("", "rack")),
    members=st.sampled_from(((HyperNodeMember(node="n"),), (HyperNodeMember(hyper_node="h1"),))),
)


@given(_sets, st.lists(_definitions, max_size=3), st.lists(_hyper_nodes, max_size=2), st.booleans())
def test_names_are_looked_up_or_refused(
    sets: tuple[PodSet, ...], definitions: list[TopologyDefinition], hyper_nodes: list[HyperNode], labelled: bool
) -> None:
    book = TopologyBook()
    for definition in definitions:
        book.definition_seen(definition)
    for hyper_node in hyper_nodes:
        book.hyper_node_seen(hyper_node)
    book.node_seen("n", {"rack": "r"} if labelled else {})
    resolved = resolve(sets, book, group="PodGroup.x default/g")
    assert resolved == resolve(sets, book, group="PodGroup.x default/g")
    if isinstance(resolved, CodedReason):
        assert msgspec.json.decode(msgspec.json.encode(resolved), type=Reason) == resolved
        assert "default/g: " in str(resolved)
    elif resolved is not None:
        _check(resolved, sets, book)
    else:
        assert not any(one.topology is not None and one.topology.problem for one in sets)


def _check(resolved: Resolved, sets: tuple[PodSet, ...], book: TopologyBook) -> None:
    levels = range(NO_LEVEL, len(book.tree(resolved.topology).columns(["n"]).levels))
    by_name = {one.name: one for one in sets}
    for name, constraint in resolved.constraints.items():
        assert by_name[name].topology is not None
        assert constraint.required in levels
        assert constraint.preferred in levels
        assert constraint.preferred == NO_LEVEL or constraint.preferred > constraint.required
        assert not constraint.exclusive or constraint.required != NO_LEVEL
        sizes = [layer.size for layer in constraint.slices]
        assert all(not wider % narrower for wider, narrower in pairwise(sizes))
        for layer in constraint.slices:
            assert layer.required in levels
            assert layer.preferred in levels
            assert layer.required == NO_LEVEL or layer.required >= constraint.required
            assert max(layer.required, layer.preferred) != NO_LEVEL
