"""Resolution of a group's topology constraints: the named topology, and the named levels.

A level is known by its name, its aliases and its labels, in exactly this spelling; the level of single nodes by the
hostname's label too. A group is placed on one topology. That is the one that its sets name; else the only one of the
requested kind, or of several the one that has all levels; else, where no kind is requested, a label of nodes. In
Kueue's terms it is the topology of a flavor of the group's queue, the first in the queue's order that has all levels.

Where there is no topology of its kind, a constraint without a known level asks for nothing.

For HyperNodes a number stands for the highest tier up to it, as `highestTierAllowed` does. Above all tiers it asks for
nothing (Volcano pkg/scheduler/api/hyper_node_info.go, v1.16.0-alpha.1).
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from kaicore.rules.events.reasons.group import (
    TopologyAmbiguous,
    TopologyConstraintInvalid,
    TopologyInvalid,
    TopologyLevelNotFound,
    TopologyNotFound,
)
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.group import PodSet, SliceLayer, TopologyConstraint
from kaicore.rules.model.node import HOSTNAME, HYPER_NODE, KUEUE_TOPOLOGY, LABEL, TopologyLevel
from kaicore.rules.topology.book import TopologyBook, TopologyKey
from kaicore.rules.topology.placing.request import NO_LEVEL, LevelConstraint, Slices, SpreadLimit


@dataclass(frozen=True, slots=True)
class Resolved:
    """A group's demand to a topology.

    Attributes:
        constraints: by name of the set; sets that ask for nothing are left out.
        together: whether the constraint of the root is about the pods of all groups that start at once with it.
    """

    topology: TopologyKey
    constraints: Mapping[str, LevelConstraint]
    together: bool = False


def resolve(
    sets: Sequence[PodSet], topologies: TopologyBook, *, group: str, of_flavors: Sequence[str] = ()
) -> Resolved | Reason | None:
    """Look up what the sets of a group name.

    Args:
        topologies: the known ones; the answer holds as long as its `revision`.
        group: `<kind> <namespace>/<name>`, for reasons.
        of_flavors: names of Kueue's topologies that the flavors of the group's queue name, in the queue's order.

    Returns:
        Why nothing of the group starts, or None if it asks for nothing.
    """
    asked_for = [
        _SetConstraint(group, one.name, one.topology)
        for one in sets
        if one.topology not in (None, TopologyConstraint())
    ]
    try:
        parents = {one.parent for one in sets[1:]}
        for one in asked_for:
            one.check(inner=one.pod_set in parents)
        kinds = {key.kind for key in topologies.topologies()}
        asked_for = [
            one for one in asked_for if one.names() or one.constraint.topology or one.constraint.kind in ("", *kinds)
        ]
        asked_for = _by_flavors(asked_for, topologies, of_flavors)
        if not asked_for:
            return None
        key = _chosen(asked_for, topologies, _nested_labels(sets))
        if problems := topologies.paths(key).problems:
            raise _Refused(TopologyInvalid(topology=key.text, problem="; ".join(problems), **asked_for[0].subject))
        levels = _Levels(key, topologies.paths(key).levels)
        constraints = {one.pod_set: _looked_up(one, levels) for one in asked_for}
    except _Refused as refused:
        return refused.reason
    asked = {name: constraint for name, constraint in constraints.items() if constraint != LevelConstraint()}
    together = any(one.constraint.together and one.pod_set in asked for one in asked_for if not one.pod_set)
    return Resolved(key, asked, together) if asked else None


class _Refused(Exception):
    """A constraint cannot be understood."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class _SetConstraint:
    """A set's constraint, with its group and set."""

    def __init__(self, group: str, pod_set: str, constraint: TopologyConstraint | None) -> None:
        self.pod_set = pod_set
        self.constraint = constraint or TopologyConstraint()
        self.subject = {"group": group, "pod_set": pod_set, "field": self.constraint.field}

    def on(self, topology: str) -> "_SetConstraint":
        """Return the same on a topology of this name."""
        return _SetConstraint(self.subject["group"], self.pod_set, replace(self.constraint, topology=topology))

    def check(self, *, inner: bool) -> None:
        """Check what needs no topology. Raises _Refused: naming what is wrong.

        Args:
            inner: whether the set holds other sets.
        """
        constraint = self.constraint
        if constraint.problem:
            # The problem names its own field.
            subject = {**self.subject, "field": ""}
            raise _Refused(TopologyConstraintInvalid(problem=constraint.problem, **subject))
        if constraint.exclusive and not constraint.required:
            raise self.invalid("exclusive domains need a required level")
        if constraint.slices and inner:
            raise self.invalid("slices are of pods, and not of sub-groups")
        for layer in constraint.slices:
            if layer.size < 1:
                raise self.invalid(f"slices of {layer.size} pods: the size must be 1 or more")

    def names(self) -> tuple[str, ...]:
        """Return the levels that are named, each once, in the order of the fields."""
        constraint = self.constraint
        named = [constraint.required, *constraint.required_also, constraint.preferred, *constraint.preferred_also]
        for layer in constraint.slices:
            named += layer.required, layer.preferred
        named += [rule.level for rule in constraint.spread]
        return tuple(dict.fromkeys(filter(None, named)))

    def invalid(self, problem: str) -> _Refused:
        return _Refused(TopologyConstraintInvalid(problem=problem, **self.subject))


class _Levels:
    """The levels of a topology, found by their names."""

    def __init__(self, key: TopologyKey, levels: Sequence[TopologyLevel]) -> None:
        self.key = key
        self.names = tuple(name for level in levels for name in (level.name, *level.aliases))
        #: Above the single nodes, which are the last one.
        self.narrowest = max(len(levels) - 2, 0)
        self._by_name: dict[str, int] = {}
        for number, level in enumerate(levels):
            self._by_name.setdefault(level.name, number)
        for number, level in enumerate(levels):
            for name in (*level.aliases, *(level.keys or (HOSTNAME,))):
                self._by_name.setdefault(name, number)
        self._tiers = [int(level.name) for level in levels[:-1]] if key.kind == HYPER_NODE else []

    def has(self, name: str) -> bool:
        return self.number(name) is not None

    def number(self, name: str) -> int | None:
        """Return a level's number; `NO_LEVEL` for a tier above all, and None if there is no such level."""
        number = self._by_name.get(name)
        if number is None and self._tiers and name.isascii() and name.isdecimal():
            if int(name) > self._tiers[0]:
                return NO_LEVEL
            return next((number for number, tier in enumerate(self._tiers) if tier <= int(name)), None)
        return number

    def narrowest_of(self, names: Iterable[str], one: _SetConstraint) -> int:
        """Return the number of the narrowest of the levels that are named; `NO_LEVEL` for none.

        Raises _Refused: one of them does not exist.
        """
        narrowest = NO_LEVEL
        for name in filter(None, names):
            number = self.number(name)
            if number is None:
                there = ", ".join(self.names)
                reason = TopologyLevelNotFound(level=name, topology=self.key.text, levels=there, **one.subject)
                raise _Refused(reason)
            narrowest = max(narrowest, number)
        return narrowest


def _nested_labels(sets: Sequence[PodSet]) -> tuple[str, ...]:
    """Return the labels that sets and those within them require, the widest first; none where that order is not clear.

    Of a set in another one the label is the narrower one, as Kubernetes resolves them (KEP-6012).
    """
    ways: dict[str, tuple[str, ...]] = {}
    for one in sets:
        above = ways.get(one.parent, ())
        named = _SetConstraint("", one.name, one.topology).names()
        if len(named) > 1:
            return ()
        ways[one.name] = above + tuple(name for name in named if name not in (*above, HOSTNAME))
    longest = max(ways.values(), key=len, default=())
    for way in ways.values():
        left = iter(longest)
        if not all(name in left for name in way):
            return ()
    return longest


def _chosen(asked_for: Sequence[_SetConstraint], topologies: TopologyBook, nested: tuple[str, ...] = ()) -> TopologyKey:
    """Return the topology of a group. Raises _Refused: there is none, or more than one.

    Args:
        nested: see `_nested_labels`.
    """
    everything = topologies.topologies()
    common = set(everything)
    for one in asked_for:
        kind, name = one.constraint.kind, one.constraint.topology
        meant = {key for key in everything if kind in ("", key.kind) and name in ("", key.name)}
        if not meant and (kind or name):
            there = ", ".join(key.text for key in everything if kind in ("", key.kind))
            wanted = f"{kind.partition('.')[0] or 'topology'} {name}".rstrip()
            raise _Refused(TopologyNotFound(topology=wanted, topologies=there, **one.subject))
        if common and not common & meant:
            first = next((other for other in asked_for if other.constraint.topology), asked_for[0])
            raise one.invalid(
                f"topology {name or kind} is not the one of {_set_text(first)}, "
                f"{first.constraint.topology or first.constraint.kind}; a group is placed on one topology"
            )
        common &= meant
    if any(one.constraint.kind or one.constraint.topology for one in asked_for):
        return _one_of(sorted(common), asked_for, topologies)
    return _by_labels(sorted(common), asked_for, topologies, nested)


def _by_flavors(
    asked_for: list[_SetConstraint], topologies: TopologyBook, names: Sequence[str]
) -> list[_SetConstraint]:
    """Return constraints with the topology of their queue's flavors where they mean one of Kueue and name none.

    Raises _Refused: none of the flavors' topologies is there, or none has all levels.
    """
    meant = [one for one in asked_for if one.constraint.kind == KUEUE_TOPOLOGY and not one.constraint.topology]
    if not (meant and names):
        return asked_for
    keys = [TopologyKey(KUEUE_TOPOLOGY, name) for name in dict.fromkeys(names)]
    everything = topologies.topologies()
    there = [key for key in keys if key in everything]
    if not there:
        shown = ", ".join(key.text for key in everything if key.kind == KUEUE_TOPOLOGY)
        wanted = " or ".join(key.text for key in keys)
        raise _Refused(TopologyNotFound(topology=wanted, topologies=shown, **meant[0].subject))
    having = _having(there, meant, topologies)
    if not having:
        raise _nowhere(there, meant, topologies)
    return [one.on(having[0].name) if one in meant else one for one in asked_for]


def _one_of(keys: Sequence[TopologyKey], asked_for: Sequence[_SetConstraint], topologies: TopologyBook) -> TopologyKey:
    """Return the topology of several that has all levels, or the only one whatever it has.

    Raises _Refused: none has them, or more than one.
    """
    if len(keys) == 1:
        return keys[0]
    having = _having(keys, asked_for, topologies)
    if len(having) == 1:
        return having[0]
    raise _ambiguous(having, asked_for) if having else _nowhere(keys, asked_for, topologies)


def _by_labels(
    keys: Sequence[TopologyKey], asked_for: Sequence[_SetConstraint], topologies: TopologyBook, nested: tuple[str, ...]
) -> TopologyKey:
    """Return the topology that has the labels that are named, or labels of nodes by themselves.

    Raises _Refused: there is neither.
    """
    having = _having(keys, asked_for, topologies)
    if len(having) == 1:
        return having[0]
    labels = sorted({name for one in asked_for for name in one.names()} - {HOSTNAME})
    if not labels:
        return TopologyKey(LABEL, HOSTNAME)
    if (len(labels) == 1 or sorted(nested) == labels) and all(map(topologies.is_label, labels)):
        return TopologyKey(LABEL, ",".join(nested or labels))
    if having:
        raise _ambiguous(having, asked_for)
    if len(labels) > 1 and all(map(topologies.is_label, labels)):
        one = next(one for one in asked_for if one.names())
        raise one.invalid(f"labels {', '.join(labels)} are levels of no one topology; define one that has them")
    raise _nowhere(keys, asked_for, topologies)


def _having(
    keys: Iterable[TopologyKey], asked_for: Sequence[_SetConstraint], topologies: TopologyBook
) -> list[TopologyKey]:
    """Return the topologies that have all levels that are named; of those with the same levels the first by name."""
    names = {name for one in asked_for for name in one.names()}
    levels_by_key = ((key, _Levels(key, topologies.paths(key).levels)) for key in keys)
    having = [key for key, levels in levels_by_key if all(map(levels.has, names))]
    by_levels = {tuple((one.name, one.keys) for one in topologies.paths(key).levels): key for key in reversed(having)}
    return sorted(by_levels.values(), key=having.index)


def _ambiguous(keys: Iterable[TopologyKey], asked_for: Sequence[_SetConstraint]) -> _Refused:
    """Return why one of several topologies cannot be chosen."""
    one = next((one for one in asked_for if one.names()), asked_for[0])
    level = next(iter(one.names()), "")
    there = ", ".join(f"{key.kind} {key.name}".rstrip() for key in keys)
    return _Refused(TopologyAmbiguous(topologies=there, level=level, **one.subject))


def _nowhere(keys: Sequence[TopologyKey], asked_for: Sequence[_SetConstraint], topologies: TopologyBook) -> _Refused:
    """Return why none of some topologies will do: a level that none has, or levels that no single one has."""
    levels_by_key = {key: _Levels(key, topologies.paths(key).levels) for key in keys}
    for one in asked_for:
        for name in one.names():
            if not any(levels.has(name) for levels in levels_by_key.values()):
                there = ", ".join(dict.fromkeys(level for levels in levels_by_key.values() for level in levels.names))
                could_be_label = not one.constraint.kind and not one.constraint.topology
                where = "" if could_be_label else ", ".join(key.text for key in keys)
                label = topologies.label_like(name) if could_be_label else ""
                reason = TopologyLevelNotFound(level=name, topology=where, levels=there, label=label, **one.subject)
                return _Refused(reason)
    names = dict.fromkeys(name for one in asked_for for name in one.names())
    return asked_for[0].invalid(f"no topology has all of the levels {', '.join(names)}")


def _looked_up(one: _SetConstraint, levels: _Levels) -> LevelConstraint:
    """Return a set's constraint with its levels as numbers.

    Raises _Refused: a level does not exist, or slices make no sense.
    """
    constraint = one.constraint
    required = levels.narrowest_of((constraint.required, *constraint.required_also), one)
    preferred = levels.narrowest_of((constraint.preferred, *constraint.preferred_also), one)
    if constraint.closest:
        preferred = levels.narrowest
    return LevelConstraint(
        required=required,
        # What is as wide as the required domain is had anyway.
        preferred=preferred if preferred > required else NO_LEVEL,
        unconstrained=constraint.unconstrained,
        slices=_slices(one, levels, required),
        exclusive=constraint.exclusive and required != NO_LEVEL,
        spread=_spread(one, levels, required),
        spread_with=constraint.spread_with,
    )


def _spread(one: _SetConstraint, levels: _Levels, required: int) -> tuple[SpreadLimit, ...]:
    """Return the limits to like work of the domains at the required level, and of those around them.

    Raises _Refused: a level does not exist, or is below the required one.
    """
    limits = []
    for rule in one.constraint.spread:
        limit = SpreadLimit(levels.narrowest_of((rule.level,), one), rule.most_milli, rule.preferred)
        if limit.level > required:
            raise one.invalid(f"spreading over {rule.level}: no required level is {rule.level} or below")
        limits.append(limit)
    return tuple(sorted(limits, key=lambda limit: limit.level))


def _slices(one: _SetConstraint, levels: _Levels, above: int) -> tuple[Slices, ...]:
    """Return the slices of a set from the widest layer to the narrowest.

    Raises _Refused: a level does not exist or is wider than that of the set, or the sizes do not divide each other.

    Args:
        above: the level at which all pods of the set share a domain.
    """
    layers: list[tuple[Slices, SliceLayer]] = []
    for layer in one.constraint.slices:
        required, preferred = (levels.narrowest_of((name,), one) for name in (layer.required, layer.preferred))
        if NO_LEVEL < required < above:
            problem = f"level {layer.required} of slices of {layer.size} pods is above that of all pods"
            raise one.invalid(f"{problem}, {one.constraint.required}")
        preferred = preferred if preferred > max(required, above) else NO_LEVEL
        if max(required, preferred) != NO_LEVEL:
            layers.append((Slices(layer.size, required, preferred, layer.spares), layer))
    layers.sort(key=lambda item: (max(item[0].required, item[0].preferred), -item[0].size))
    for (wider, _), (narrower, _) in itertools.pairwise(layers):
        if wider.size % narrower.size:
            raise one.invalid(f"slices of {wider.size} pods cannot be divided into slices of {narrower.size}")
    return tuple(slices for slices, _ in layers)


def _set_text(one: _SetConstraint) -> str:
    return f"sub-group {one.pod_set}" if one.pod_set else "the whole group"


#: So many answers are kept; then all are forgotten.
_MOST = 10_000


class Resolver:
    """Keeps answers for as long as the topologies stay as they are: groups of one template ask for the same."""

    def __init__(self, topologies: TopologyBook) -> None:
        self.topologies = topologies
        self._revision = topologies.revision
        self._answers: dict[tuple[tuple[PodSet, ...], tuple[str, ...]], Resolved | Reason | None] = {}

    def __call__(
        self, sets: tuple[PodSet, ...], *, group: str, of_flavors: Sequence[str] = ()
    ) -> Resolved | Reason | None:
        """See `kaicore.rules.topology.resolve.resolve`."""
        if self._revision != self.topologies.revision or len(self._answers) >= _MOST:
            self._answers.clear()
            self._revision = self.topologies.revision
        key = sets, tuple(of_flavors)
        if key in self._answers:
            answer = self._answers[key]
        else:
            answer = self._answers[key] = resolve(sets, self.topologies, group=group, of_flavors=of_flavors)
        return answer if answer is None or isinstance(answer, Resolved) else replace(answer, group=group)
