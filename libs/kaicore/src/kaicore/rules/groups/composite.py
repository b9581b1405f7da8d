"""Groups made of several objects: the tree of a CompositePodGroup of Kubernetes and of all that names it as a parent.

The topmost composite is the group. Composites below it are inner pod sets, PodGroups are leaves. A child group that the
parent asks for and that is not there yet is a leaf without pods. The limits are those of KEP-6012. An invalid place in
the tree holds back the pods below it, and counts for nothing above it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from kaicore.rules.events.reasons.group import GroupNotFound, GroupTreeInvalid
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.groups.labels import COMPOSITE_POD_GROUP
from kaicore.rules.model.group import Group, GroupSource, PodSet

#: The most levels of a tree, PodGroups included.
_MOST_LEVELS = 4

#: In `GroupSource.kept`: the Workload of which an object of a tree is made.
WORKLOAD_NAME = "workloadName"

Below = Callable[[str], Sequence[GroupSource]]


class TreePlace(NamedTuple):
    """An object's place in a tree.

    Attributes:
        top: key of the topmost object that is known, or that is named and not there.
        looked_at: keys of the object and of all above it.
        problem: why the tree is not one that can be decided on; None if it is.
    """

    top: str
    looked_at: tuple[str, ...]
    problem: Reason | None = None


def place_in_tree(source: GroupSource, find: Callable[[str], GroupSource | None]) -> TreePlace:
    """Follow an object's parents upwards (`find`: returns a source by its key, None where there is none)."""
    keys, one, problem = [source.key], source, None
    while one.parent:
        if one.parent in keys:
            problem = _invalid(one, f"has itself above it: its parent is {_shown(one.parent)}")
            break
        if len(keys) == _MOST_LEVELS:
            problem = _invalid(one, f"has a parent and {_MOST_LEVELS - 1} levels below it; {_MOST_LEVELS} are the most")
            break
        keys.append(one.parent)
        parent = find(one.parent)
        if parent is None:
            return TreePlace(one.parent, tuple(keys), problem or GroupNotFound(group=_shown(one.parent)))
        mismatch = _mismatch(one, parent)
        problem = problem or (_invalid(one, mismatch) if mismatch else None)
        one = parent
    return TreePlace(source.key if problem else one.key, tuple(keys), problem)


def _invalid(source: GroupSource, problem: str) -> GroupTreeInvalid:
    return GroupTreeInvalid(group=_shown(source.key), problem=problem)


def _mismatch(child: GroupSource, parent: GroupSource) -> str:
    """Say what of a child its parent does not allow; empty if all is well."""
    for what, own, other in (
        ("Workload", child.kept.get(WORKLOAD_NAME), parent.kept.get(WORKLOAD_NAME)),
        ("priority", child.priority, parent.priority),
        ("priority class", child.priority_class, parent.priority_class),
        ("preemption policy", child.preemption_policy, parent.preemption_policy),
    ):
        if own != other:
            return f"its {what} is {own or 'none'}, that of its parent {_shown(parent.key)} is {other or 'none'}"
    if _root(parent).min_sets and not (_root(child).min_sets or _root(child).min_pods):
        return f"is basic, and its parent {_shown(parent.key)} is a gang"
    if parent.ends_whole and not child.ends_whole:
        return f"its pods are disrupted one by one, and those of its parent {_shown(parent.key)} all at once"
    return ""


def tree_sets(top: GroupSource, below: Below) -> tuple[PodSet, ...]:
    """Return the pod sets of a tree, every parent before its children.

    Args:
        below: returns the objects that name another one, by its key, as their parent; in an order of its own.
    """
    return tuple(_sets(top, replace(_root(top), name="", parent=""), below, levels=_MOST_LEVELS))


def parts(group: Group, below: Below) -> Iterator[Group]:
    """Yield a group, and what each object below the topmost one of its tree would be as a group by itself."""
    yield group
    sources = {_set_name(one): one for one in _all_below(group.key, below, levels=_MOST_LEVELS)}
    for place, top in enumerate(group.sets):
        if source := sources.get(top.name):
            inside = [top]
            names = {top.name}
            for one in group.sets[place + 1 :]:
                if one.parent not in names:
                    break
                inside.append(one)
                names.add(one.name)
            identity = {"key": source.key, "name": source.name, "uid": source.uid, "origin": source.kind}
            yield replace(group, sets=tuple(inside), **identity)


def _all_below(key: str, below: Below, *, levels: int) -> Iterator[GroupSource]:
    for one in below(key) if levels > 1 else ():
        yield one
        yield from _all_below(one.key, below, levels=levels - 1)


def _set_name(source: GroupSource) -> str:
    return f"composite/{source.name}" if source.kind == COMPOSITE_POD_GROUP else source.name


def _sets(source: GroupSource, own: PodSet, below: Below, *, levels: int) -> Iterator[PodSet]:
    if source.kind != COMPOSITE_POD_GROUP:
        yield own
        return
    children = below(source.key) if levels > 1 else ()
    lacking = max((own.min_sets or 0) - len(children), 0)
    yield replace(own, min_sets=None) if lacking else own
    for child in children:
        given = _root(child)
        if _mismatch(child, source):
            # Its pods wait, whatever it asks for.
            given = replace(given, min_pods=max(given.min_pods, 1))
        one = replace(given, name=_set_name(child), parent=own.name, ends_whole=child.ends_whole)
        yield from _sets(child, one, below, levels=levels - 1)
    if lacking or not children:
        yield PodSet(f"composite/{source.name}/missing", own.name, min_pods=lacking)


def _root(source: GroupSource) -> PodSet:
    return source.templates[0].sets[0]


def _shown(key: str) -> str:
    return key.replace("/", " ", 1)
