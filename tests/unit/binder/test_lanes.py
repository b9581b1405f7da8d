"""Decisions of one node one after the other, of all nodes side by side."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from kai_binder.lanes import Lanes
from kai_binder.projection import Decision


def decision(position: int, node: str) -> Decision:
    return Decision(
        event_id=UUID(int=position),
        position=position,
        recorded_at=0,
        uid=f"uid-{position}",
        namespace="default",
        name=f"p{position}",
        node=node,
        cycle="default/1",
    )


@given(nodes=st.lists(st.sampled_from("abc"), max_size=30), data=st.data())
def test_each_decision_is_given_out_once_in_its_nodes_order(nodes: list[str], data: st.DataObject) -> None:
    lanes = Lanes()
    waiting = [decision(position, node) for position, node in enumerate(nodes, 1)]
    under_way: dict[str, Decision] = {}
    given_out: list[Decision] = []

    def give(turn: Decision | None) -> None:
        if turn is not None:
            assert turn.node not in under_way
            under_way[turn.node] = turn
            given_out.append(turn)

    left = list(waiting)
    while left or under_way:
        if left and (not under_way or data.draw(st.booleans())):
            give(lanes.add(left.pop(0)))
        else:
            node = data.draw(st.sampled_from(sorted(under_way)))
            give(lanes.done(under_way.pop(node)))
        assert len(lanes) == len(waiting) - len(left) - len(given_out) + len(under_way)
    assert sorted(given_out, key=lambda found: found.position) == waiting
    for node in set(nodes):
        assert [found for found in given_out if found.node == node] == [one for one in waiting if one.node == node]
