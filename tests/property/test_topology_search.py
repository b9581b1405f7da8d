"""The search on small random trees: what it places keeps every constraint, and what can be placed it places."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from kaicore.rules.topology.placing.request import (
    NO_LEVEL,
    POLICIES,
    LevelConstraint,
    Placed,
    SetRequest,
    Slices,
    TopologyStrategy,
)
from kaicore.rules.topology.placing.search import search

from tests.given.cluster.rooms import MemoryRoom, room_of, tree_of

Path = tuple[str, ...]

PATHS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("xy")).map(tuple) | st.tuples(st.sampled_from("ab")) | st.just(()),
    min_size=1,
    max_size=8,
)


def fits_somewhere(paths: Sequence[Path], free: Sequence[int], pods: int, constraint: LevelConstraint) -> bool:
    """True if pods fit, by trying every domain; slices are of one layer."""
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
    strategy=st.sampled_from(list(TopologyStrategy)),
)
def test_pods_of_one_class_are_placed_if_and_only_if_they_fit(
    *,
    paths: list[Path],
    data: st.DataObject,
    pods: int,
    required: int,
    preferred: int,
    size: int,
    strategy: TopologyStrategy,
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
    likes = data.draw(st.lists(st.integers(0, 2), min_size=len(paths), max_size=len(paths)))
    room = room_of([*free, 0], pods, preferences={0: [*likes, 0]} if any(likes) else None)
    found = search(SetRequest("set", tuple(range(pods)), constraint=constraint), tree, room, strategy)

    assert isinstance(found, Placed) == fits_somewhere(paths, free, pods, constraint)
    if not isinstance(found, Placed):
        assert (room.free[:-1] == before).all()
        return
    on = Counter(found.rows.values())
    assert sorted(found.rows) == list(range(pods))
    assert all(on[row] <= free[row] for row in on)
    # Strategies that look for the narrowest domain compare these by room.
    if required != NO_LEVEL and preferred == NO_LEVEL and not slices and POLICIES[strategy].begin is None:
        domain = paths[found.rows[0]][: required + 1]
        left = [likes[row] for row, path in enumerate(paths) if path[: required + 1] == domain and on[row] < free[row]]
        assert min(likes[row] for row in on) >= max(left, default=0), "spots that are preferred are full first"
    if required != NO_LEVEL:
        assert len({paths[row][: required + 1] for row in on}) == 1
        assert all(len(paths[row]) > required for row in on)
    if slices:
        level = slices[0].required
        for first in range(0, pods, size):
            assert len({paths[found.rows[pod]][: level + 1] for pod in range(first, first + size)}) == 1


def _subsets_fit(request: SetRequest, paths: Sequence[Path], rows: dict[int, int]) -> bool:
    """True if pods on rows keep the constraints of a set and those in it."""
    own = list(request.pods) + [pod for child in request.children for pod in child.pods]
    level = request.constraint.required if request.constraint else NO_LEVEL
    if level != NO_LEVEL:
        there = {paths[rows[pod]][: level + 1] for pod in own}
        if len(there) != 1 or len(next(iter(there))) <= level:
            return False
    for child in request.children:
        if not _subsets_fit(child, paths, rows):
            return False
        if child.constraint is not None and child.constraint.exclusive:
            depth = child.constraint.required + 1
            inside = {paths[rows[pod]][:depth] for pod in child.pods}
            if any(paths[rows[pod]][:depth] in inside for pod in own if pod not in child.pods):
                return False
    return True


def _brute(request: SetRequest, paths: Sequence[Path], room: MemoryRoom) -> bool:
    """True if there is any way at all to place a set's pods."""
    pods = [pod for child in request.children for pod in child.pods] + list(request.pods)
    rows: dict[int, int] = {}

    def on(index: int) -> bool:
        if index == len(pods):
            return _subsets_fit(request, paths, rows)
        for row in range(len(paths)):
            mark = room.savepoint()
            if room.put([pods[index]], row):
                rows[pods[index]] = row
                if on(index + 1):
                    room.rollback(mark)
                    return True
            room.rollback(mark)
        return False

    return on(0)


@given(
    paths=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy")), min_size=1, max_size=5),
    data=st.data(),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    strategy=st.sampled_from(list(TopologyStrategy)),
)
def test_sets_in_a_set_are_placed_if_and_only_if_they_fit(
    *, paths: list[Path], data: st.DataObject, sizes: list[int], strategy: TopologyStrategy
) -> None:
    free = data.draw(st.lists(st.integers(0, 3), min_size=len(paths), max_size=len(paths)))
    outer = data.draw(st.sampled_from((NO_LEVEL, 0, 1)))
    loose = data.draw(st.integers(0, 1))
    children, begin = [], loose
    for number, size in enumerate(sizes):
        level = data.draw(st.integers(max(outer, 0), 1))
        constraint = LevelConstraint(required=level, exclusive=data.draw(st.booleans()))
        children.append(SetRequest(f"c{number}", tuple(range(begin, begin + size)), constraint=constraint))
        begin += size
    if loose:
        children.append(SetRequest("loose", tuple(range(loose))))
    request = SetRequest(
        "all",
        children=tuple(children),
        constraint=LevelConstraint(required=outer) if outer != NO_LEVEL else None,
    )
    likes = data.draw(st.lists(st.integers(0, 2), min_size=len(paths), max_size=len(paths)))
    tree, room = tree_of(paths), room_of(free, begin, preferences={0: likes})
    before = room.free.copy()
    found = search(request, tree, room, strategy)

    if isinstance(found, Placed):
        assert _subsets_fit(request, paths, dict(found.rows))
        on = Counter(found.rows.values())
        assert (before[:, 0] - room.free[:, 0]).tolist() == [on[row] for row in range(len(paths))]
        assert (room.free >= 0).all()
    else:
        assert (room.free == before).all()
        assert not _brute(request, paths, room)


@given(
    paths=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy")), min_size=1, max_size=4),
    data=st.data(),
    pods=st.lists(st.integers(0, 1), min_size=1, max_size=6),
    required=st.integers(-1, 1),
    strategy=st.sampled_from(list(TopologyStrategy)),
)
def test_pods_of_two_classes_are_placed_if_and_only_if_they_fit(
    *, paths: list[Path], data: st.DataObject, pods: list[int], required: int, strategy: TopologyStrategy
) -> None:
    free = data.draw(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=len(paths), max_size=len(paths))
    )
    requests = np.array(data.draw(st.tuples(*[st.tuples(st.integers(1, 3), st.integers(0, 2))] * 2)))
    room = MemoryRoom(np.array(free), requests, pods)
    before = room.free.copy()
    constraint = LevelConstraint(required=required) if required >= 0 else None
    request = SetRequest("set", tuple(range(len(pods))), constraint=constraint)
    found = search(request, tree_of(paths), room, strategy)

    if isinstance(found, Placed):
        assert _subsets_fit(request, paths, dict(found.rows))
        assert (room.free >= 0).all()
    else:
        assert (room.free == before).all()
        assert not _brute(request, paths, room)


def _needed(paths: Sequence[Path], free: Sequence[int], pods: int, within: Path) -> int | None:
    """The least number of racks of a domain that hold pods; None if they do not fit."""
    room: Counter[Path] = Counter()
    for row, path in enumerate(paths):
        if path[: len(within)] == within:
            room[path] += free[row]
    for count in range(1, len(room) + 1):
        if sum(have for _, have in room.most_common(count)) >= pods:
            return count
    return None


@given(
    paths=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), min_size=1, max_size=9),
    data=st.data(),
    pods=st.integers(1, 9),
)
def test_a_preferred_level_has_no_more_domains_than_needed(
    *, paths: list[Path], data: st.DataObject, pods: int
) -> None:
    free = data.draw(st.lists(st.integers(0, 4), min_size=len(paths), max_size=len(paths)))
    constraint = LevelConstraint(preferred=1)
    found = search(SetRequest("set", tuple(range(pods)), constraint=constraint), tree_of(paths), room_of(free, pods))
    if not isinstance(found, Placed):
        return
    racks = {paths[row] for row in found.rows.values()}
    blocks = {path[0] for path in racks}
    needed = [count for block in set(paths) if (count := _needed(paths, free, pods, block[:1])) is not None]
    if needed:
        assert len(racks) == min(needed)
        assert len(blocks) == 1
    else:
        room = Counter({block: sum(free[row] for row, path in enumerate(paths) if path[0] == block) for block in "abc"})
        assert len(blocks) == min(count for count in (2, 3) if sum(have for _, have in room.most_common(count)) >= pods)


@given(
    paths=PATHS,
    data=st.data(),
    pods=st.integers(1, 8),
    preferred=st.integers(-1, 1),
    strategy=st.sampled_from(list(TopologyStrategy)),
)
def test_nodes_in_another_order_get_the_same_pods(
    *, paths: list[Path], data: st.DataObject, pods: int, preferred: int, strategy: TopologyStrategy
) -> None:
    """By name, whatever rows the nodes have; and pods of one class take places in the order of the tree."""
    count = len(paths)
    free = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    held = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    order = data.draw(st.permutations(range(count)))
    names = [f"n{row}" for row in range(count)]
    constraint = LevelConstraint(preferred=preferred, unconstrained=preferred == NO_LEVEL)
    answers = []
    for rows in (list(range(count)), order):
        tree = tree_of([paths[row] for row in rows], [names[row] for row in rows], least_levels=2)
        room = room_of([free[row] for row in rows], pods)
        request = SetRequest("set", tuple(range(pods)), (), constraint, np.array([held[row] for row in rows]))
        found = search(request, tree, room, strategy)
        if isinstance(found, Placed):
            answers.append([names[rows[found.rows[pod]]] for pod in range(pods)])
            places = tree.ordered.spots[[found.rows[pod] for pod in range(pods)]].tolist()
            assert places == sorted(places)
        else:
            answers.append([str(found)])

    assert answers[0] == answers[1]


@given(
    paths=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), min_size=1, max_size=9),
    data=st.data(),
    slices=st.integers(1, 3),
    required=st.booleans(),
    strategy=st.sampled_from(list(TopologyStrategy)),
)
def test_slices_in_two_layers_are_placed_if_and_only_if_they_fit(
    *, paths: list[Path], data: st.DataObject, slices: int, required: bool, strategy: TopologyStrategy
) -> None:
    free = data.draw(st.lists(st.integers(0, 5), min_size=len(paths), max_size=len(paths)))
    spares = data.draw(st.integers(0, 1))
    layers = (Slices(4, required=0), Slices(2, required=1, spares=spares))
    constraint = LevelConstraint(required=0 if required else NO_LEVEL, slices=layers)
    pods = slices * 4
    found = search(
        SetRequest("set", tuple(range(pods)), constraint=constraint), tree_of(paths), room_of(free, pods), strategy
    )

    racks: dict[Path, list[int]] = {}
    for row, path in enumerate(paths):
        racks.setdefault(path, []).append(free[row])
    blocks: Counter[str] = Counter()
    for path, nodes in racks.items():
        blocks[path[0]] += (sum(nodes) - spares * max(nodes)) // 2 * 2
    takes = [room // 4 * 4 for room in blocks.values()]
    assert isinstance(found, Placed) == ((max(takes) if required else sum(takes)) >= pods)
    if not isinstance(found, Placed):
        return
    at = [paths[found.rows[pod]] for pod in range(pods)]
    assert all(len({path[0] for path in at[first : first + 4]}) == 1 for first in range(0, pods, 4))
    assert all(len(set(at[first : first + 2])) == 1 for first in range(0, pods, 2))
    on = Counter(found.rows.values())
    for rack in set(at):
        most = max(on[row] for row, path in enumerate(paths) if path == rack)
        unused = [row for row, path in enumerate(paths) if path == rack and not on[row] and free[row] >= most]
        assert len(unused) >= spares
