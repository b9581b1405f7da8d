"""The tree of a group's pod sets: its validity, and whether its minimum counts are reached."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kaicore.errors import InvalidObject
from kaicore.rules.model.group import Group, PodSet


def leaves(sets: Sequence[PodSet]) -> tuple[PodSet, ...]:
    """Return the sets that hold pods, in the tree's order."""
    parents = {one.parent for one in sets[1:]}
    return tuple(one for one in sets if one.name not in parents)


def satisfied(sets: Sequence[PodSet], pods: Mapping[str, int]) -> bool:
    """Tell whether a tree has what it asks for, with so many pods in each leaf."""
    # From the last to the first, every set comes after all that is below it.
    counts: dict[str, int] = {}
    met: dict[str, int] = {}
    below: dict[str, int] = {}
    for one in reversed(sets):
        inner = one.name in below
        count = counts.get(one.name, 0) if inner else pods.get(one.name, 0)
        enough = count >= one.min_pods
        if inner:
            needed = below[one.name] if one.min_sets is None else one.min_sets
            enough = enough and met.get(one.name, 0) >= needed
        if one.name == sets[0].name:
            return enough
        counts[one.parent] = counts.get(one.parent, 0) + count
        met[one.parent] = met.get(one.parent, 0) + enough
        below[one.parent] = below.get(one.parent, 0) + 1
    return True


def is_gang(group: Group) -> bool:
    """Tell whether more than one pod of a group has to start at once, or it with other groups."""
    return bool(group.together) or min_pods(group.sets) > 1


def min_pods(sets: Sequence[PodSet]) -> int:
    """Return the least number of pods with which a tree has what it asks for."""
    needed: dict[str, list[int]] = {}
    for one in reversed(sets):
        below = sorted(needed.pop(one.name, ()))
        asked = max(one.min_pods, sum(below[: len(below) if one.min_sets is None else one.min_sets]))
        if one.name == sets[0].name:
            return asked
        needed.setdefault(one.parent, []).append(asked)
    return 0


def ordered(sets: Iterable[PodSet], *, root: PodSet, subject: str, field: str) -> tuple[PodSet, ...]:
    """Return a tree, the root first and every parent before its children, otherwise in the order given.

    Raises InvalidObject: a name is there twice, a parent is not there at all, or sets are each other's parents.

    Args:
        sets: all but the root, in any order.
        root: the set that those without a parent belong to.
        subject: the object that says so, for errors.
        field: where it says so, for errors.
    """
    given = list(sets)
    by_name: dict[str, PodSet] = {}
    for index, one in enumerate(given):
        if one.name in by_name or one.name == root.name:
            raise InvalidObject(subject, f"{field}[{index}].name", one.name, "is there twice or empty")
        by_name[one.name] = one
    below: dict[str, list[PodSet]] = {}
    for index, one in enumerate(given):
        if one.parent != root.name and one.parent not in by_name:
            raise InvalidObject(subject, f"{field}[{index}].parent", one.parent, "is no sub-group of this group")
        below.setdefault(one.parent, []).append(one)
    tree = [root]
    for one in tree:
        tree += below.pop(one.name, ())
    if below:
        name = min(below)
        raise InvalidObject(subject, field, name, "is below itself")
    return tuple(tree)


def check_minimums(sets: Sequence[PodSet], *, subject: str, field: str) -> None:
    """Check that no set asks for more child sets than it has. Raises InvalidObject: naming the set."""
    below = Counter(one.parent for one in sets[1:])
    for one in sets:
        if one.min_sets is not None and one.min_sets > below[one.name]:
            problem = f"asks for {one.min_sets} sub-groups and has {below[one.name]}"
            raise InvalidObject(subject, field, one.name, problem)
