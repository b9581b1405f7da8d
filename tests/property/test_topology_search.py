"""The search on small random trees: what it places keeps every constraint, and what can be placed it places."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from kaicore.rules.topology.placing.request import NO_LEVEL, LevelConstraint, Placed, SetRequest, Slices
from kaicore.rules.topology.placing.search import search
from kaicore.rules.topology.placing.strategies import Strategy

from tests.rooms import room_of, tree_of

Path = tuple[str, ...]

PATHS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("xy")).map(tuple) | st.tuples(st.sampled_from("ab")) | st.just(()),
    min_size=1,
    max_size=8,
)


def fits_somewhere(paths: Sequence[Path], free: Sequence[int], pods: int, constraint: LevelConstraint) -> bool:
    """Whether pods fit, by trying every domain; slices are of one layer."""
    size, level = (constraint.slices[0].size, constraint.slices[0].required) if constraint.slices else (1, NO_LEVEL)

    def takes(rows: Sequence[int]) -> int:
        if level == NO_LEVEL:
            return sum(free[row] for row in rows)
        inside: Counter[Path] = Counter()
        for row in rows:
            if len(paths[row]) > level:
                inside[paths[row][: level + 1]] += free[row]
        return sum(room // size * size for room in inside.values())

    if constraint.required == NO_LEVEL:
        rows = [row for row, path in enumerate(paths) if path or constraint.preferred != NO_LEVEL]
        return takes(rows) >= pods
    depth = constraint.required + 1
    domains = {path[:depth] for path in paths if len(path) >= depth}
    return any(takes([row for row, path in enumerate(paths) if path[:depth] == one]) >= pods for one in domains)


@given(
    paths=PATHS,
    data=st.data(),
    pods=st.integers(1, 8),
    required=st.integers(-1, 1),
    preferred=st.integers(-1, 1),
    size=st.sampled_from((0, 1, 2, 3)),
    strategy=st.sampled_from(list(Strategy)),
)
def test_pods_of_one_class_are_placed_if_and_only_if_they_fit(
    *,
    paths: list[Path],
    data: st.DataObject,
    pods: int,
    required: int,
    preferred: int,
    size: int,
    strategy: Strategy,
) -> None:
    free = data.draw(st.lists(st.integers(0, 3), min_size=len(paths), max_size=len(paths)))
    slices = (Slices(size, required=max(required, data.draw(st.integers(0, 1)))),) if size else ()
    pods = pods // size * size if size else pods
    if not pods:
        return
    preferred = preferred if preferred > required else NO_LEVEL
    constraint = LevelConstraint(required=required, preferred=preferred, slices=slices)
    room = room_of(free, pods)
    before = room.free.copy()
    # The tree has both levels, whatever the paths are.
    tree = tree_of([*paths, ("z", "z")])
    room = room_of([*free, 0], pods)
    found = search(SetRequest("set", tuple(range(pods)), constraint=constraint), tree, room, strategy)

    assert isinstance(found, Placed) == fits_somewhere(paths, free, pods, constraint)
    if not isinstance(found, Placed):
        assert (room.free[:-1] == before).all()
        return
    on = Counter(found.rows.values())
    assert sorted(found.rows) == list(range(pods))
    assert all(on[row] <= free[row] for row in on)
    if required != NO_LEVEL:
        assert len({paths[row][: required + 1] for row in on}) == 1
        assert all(len(paths[row]) > required for row in on)
    if slices:
        level = slices[0].required
        for first in range(0, pods, size):
            assert len({paths[found.rows[pod]][: level + 1] for pod in range(first, first + size)}) == 1
