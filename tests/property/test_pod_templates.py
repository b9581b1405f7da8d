"""Whatever Kueue's annotations say, a tree keeps its pod sets, and nothing impossible is asked of a topology."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from kaicore.rules.groups.kueue import (
    GROUP_NAME,
    PREFERRED,
    REQUIRED,
    SLICE_LAYERS,
    SLICE_REQUIRED,
    SLICE_SIZE,
    UNCONSTRAINED,
)
from kaicore.rules.groups.pod_templates import PodSetTemplate, with_templates
from kaicore.rules.model.group import PodSet, leaves, min_pods, satisfied

NAMES = (REQUIRED, PREFERRED, UNCONSTRAINED, SLICE_REQUIRED, SLICE_SIZE, SLICE_LAYERS, GROUP_NAME)
VALUES = st.sampled_from(
    ["rack", "block", "true", "0", "1", "2", "3", "", "g", '[{"topology": "rack", "size": 2}]', "[]", "junk"]
)
ANNOTATIONS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4)
TEMPLATES = st.lists(st.tuples(ANNOTATIONS, st.integers(0, 8), st.integers(0, 8)), max_size=4)


@given(TEMPLATES, st.sampled_from([None, 0, 1]))
def test_a_tree_keeps_its_leaves_and_what_it_asks_for(
    given_: list[tuple[dict[str, str], int, int]], least: int | None
) -> None:
    sets = (
        PodSet(min_sets=least),
        *(PodSet(f"s{n}", min_pods=min(least, pods)) for n, (_, pods, least) in enumerate(given_)),
    )
    templates = {f"s{n}": PodSetTemplate(said, "metadata", pods) for n, (said, pods, _) in enumerate(given_)}
    filled = with_templates(sets, templates)
    assert {one.name for one in leaves(filled)} == {one.name for one in leaves(sets)}
    there: set[str] = set()
    for one in filled:
        assert one is filled[0] or one.parent in there, "parents come before their children"
        there.add(one.name)
    if least is None:
        assert min_pods(filled) == min_pods(sets)
    assert satisfied(filled, {name: template.pods for name, template in templates.items()}) >= (least is None)
    for one in filled:
        constraint = one.topology
        if constraint is None:
            continue
        assert constraint.problem or constraint.required or constraint.preferred or constraint.unconstrained
        sizes = [layer.size for layer in constraint.slices]
        assert all(wider % narrower == 0 for wider, narrower in pairwise(sizes))
        if sizes:
            assert templates[one.name].pods % sizes[0] == 0
