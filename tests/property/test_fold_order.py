"""Events of different nodes may be folded in any order: the zones of each come out the same."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.events import payloads
from kaicore.rules.model.pod import Pod

from tests.given.cluster.factory import Cluster, amounts, container, pod
from tests.given.examples import examples
from tests.property.test_screen import KINDS, REQUEST

ZONE = amounts(cpu=8, memory=8, gpu=2, nic=2)
SPECS = st.lists(st.lists(st.tuples(KINDS, REQUEST), min_size=1, max_size=2), min_size=1, max_size=6)


def stories(specs: Any) -> dict[str, list[tuple[str, payloads.Payload]]]:
    """The events of two nodes, each by itself: pods placed, running and gone, as predicted there."""
    by_node = {}
    for node in ("n0", "n1"):
        cluster = Cluster().add_node(node, ZONE, ZONE, policy="restricted")
        story: list[tuple[str, payloads.Payload]] = []
        ended: list[Pod] = []
        for index, spec in enumerate(specs[node == "n1" :: 2]):
            ordered = sorted(spec, key=lambda item: item[0] == "app")
            containers = [container(f"c{place}", kind, **request) for place, (kind, request) in enumerate(ordered)]
            one = cluster.add_pod(pod(f"{node}-{index}", *containers))
            story.append((f"pod/{one.uid}", payloads.PodObserved(one)))
            for decision in cluster.cycle().placements:
                ids = (one.uid, "default", one.name, node)
                placed = payloads.PodPlaced(*ids, "c/1", decision.pod_class, decision.placement)
                story.append((f"pod/{one.uid}", placed))
                ended.append(one)
            if index % 2 and ended:
                gone = ended.pop(0)
                cluster.delete_pod(gone)
                story.append((f"pod/{gone.uid}", payloads.PodDeleted(gone.uid, "default", gone.name)))
        by_node[node] = story
    return by_node


@settings(max_examples=examples(60), deadline=None)
@given(SPECS, st.lists(st.booleans(), max_size=40))
def test_order_between_nodes_does_not_matter(specs: Any, turns: list[bool]) -> None:
    by_node = stories(specs)
    likenesses = []
    for order in ([False] * 100, turns + [True] * 100):
        left = {name: list(story) for name, story in by_node.items()}
        cluster = Cluster()
        for name in left:
            cluster.add_node(name, ZONE, ZONE, policy="restricted")
        for turn in order + [True] * 100:
            name = "n1" if turn and left["n1"] else "n0"
            if left[name]:
                cluster.record(*left[name].pop(0))
        assert not any(left.values())
        columns = cluster.state.columns
        likenesses.append([columns.zones.likeness(columns.rows[name])[2:] for name in ("n0", "n1")])
    assert likenesses[0] == likenesses[1]
