"""Decisions of one node one after the other, of all nodes side by side."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from kai_binder.projection.open_work import PodBinding
from kai_binder.writes.lanes import Lanes
from kaicore.rules.events.payloads import PodPlaced


def binding(position: int, node: str) -> PodBinding:
    placed = PodPlaced(f"uid-{position}", "default", f"p{position}", node, cycle="default/1", pod_class="")
    return PodBinding(event_id=UUID(int=position), position=position, recorded_at=0, decision=placed)


@given(nodes=st.lists(st.sampled_from("abc"), max_size=30), data=st.data())
def test_each_decision_is_given_out_once_in_its_nodes_order(nodes: list[str], data: st.DataObject) -> None:
    lanes = Lanes()
    waiting = [binding(position, node) for position, node in enumerate(nodes, 1)]
    under_way: dict[str, PodBinding] = {}
    given_out: list[PodBinding] = []

    def give(given: PodBinding | None) -> None:
        if given is not None:
            assert given.decision.node not in under_way
            under_way[given.decision.node] = given
            given_out.append(given)

    left = list(waiting)
    while left or under_way:
        if left and (not under_way or data.draw(st.booleans())):
            give(lanes.add(left.pop(0)))
        else:
            node = data.draw(st.sampled_from(sorted(under_way)))
            give(lanes.done(under_way.pop(node)))
        assert len(lanes) == len(waiting) - len(left) - len(given_out) + len(under_way)
    assert sorted(given_out, key=lambda one: one.position) == waiting
    for node in set(nodes):
        assert [one for one in given_out if one.decision.node == node] == [
            one for one in waiting if one.decision.node == node
        ]
