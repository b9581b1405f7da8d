"""Paths of nodes in a topology: defined by the labels of nodes, or by HyperNodes."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol

import re2

from kaicore.errors import InvalidPattern, OverlappingDomains
from kaicore.rules.model.node import HOSTNAME, HyperNode, TopologyDefinition, TopologyLevel
from kaicore.rules.model.selector import Requirement, meets

#: Names of domains, from the widest to the narrowest; a domain is named by all of them, for racks of different blocks
#: may have the same name.
Path = tuple[str, ...]


class Paths(Protocol):
    """Tells where nodes are.

    Attributes:
        levels: from the widest to the narrowest.
        problems: what is wrong with the definitions, each with the names of the objects; no node has a path then.
    """

    levels: tuple[TopologyLevel, ...]
    problems: tuple[str, ...]

    def path(self, name: str, labels: Mapping[str, str]) -> Path:
        """Return names of a node's domains, as far as it is in any.

        Raises OverlappingDomains: it is in several domains of which none is in another.
        """


#: The level of single nodes, below levels that are shown by labels.
_NODE_LEVEL = TopologyLevel(HOSTNAME)


class LabelPaths:
    """Finds nodes' paths by their labels.

    The lowest level is that of single nodes: where the definition ends above it, it is added, named by the hostname.

    A node has a path down to the first level of which it lacks the label: it is in no domain of that level or below.
    Kueue (pkg/cache/scheduler/tas_flavor_snapshot.go, v0.20.0-devel) and KAI (pkg/scheduler/plugins/topology, v0.17.0)
    leave such a node out altogether. Where the definition fills the lowest level, it is in a domain of its own there
    (Koordinator pkg/scheduler/frameworkext/networktopology/tree.go, v1.8.0, `getTreeNodesMeta`).
    """

    def __init__(self, definition: TopologyDefinition) -> None:
        ends_above = not definition.levels or bool(definition.levels[-1].keys)
        self.levels = (*definition.levels, _NODE_LEVEL) if ends_above else definition.levels
        #: What is wrong with the definition: nothing, for that would have been refused before.
        self.problems: tuple[str, ...] = ()
        self._filled = len(self.levels) - 2 if definition.fills_lowest else None

    def path(self, name: str, labels: Mapping[str, str]) -> Path:
        """Return names of a node's domains, from the widest to the narrowest."""
        domains: list[str] = []
        for depth, level in enumerate(self.levels):
            value = next((value for key in level.keys if (value := labels.get(key))), "") if level.keys else name
            if not value and depth == self._filled:
                value = name
            if not value:
                break
            domains.append(value)
        return tuple(domains)


#: The level of single nodes, below every tier.
_HYPER_NODE_LEVEL = TopologyLevel("node")


class HyperNodeProblem(NamedTuple):
    """The problems of some HyperNodes, by name."""

    text: str
    hyper_nodes: tuple[str, ...]


class HyperNodePaths:
    """Finds nodes' paths by the members of HyperNodes.

    The levels are the tiers that any HyperNode has, the highest first, and the nodes. A HyperNode with a parent more
    than one tier above it, or which has none, is by itself a domain of each tier between.

    A HyperNode with two parents, HyperNodes that contain each other, and members of no lower tier are refused:
    no node has a path until they are mended (Volcano pkg/scheduler/api/hyper_node_info.go, v1.16.0-alpha.1: then the
    HyperNodes are not ready, and jobs that ask for a topology wait). A member that does not exist is ignored until it
    does, as there.
    """

    def __init__(self, hyper_nodes: Iterable[HyperNode]) -> None:
        self._by_name = {one.name: one for one in sorted(hyper_nodes, key=lambda one: one.name)}
        self._tiers = tuple(sorted({one.tier for one in self._by_name.values()}, reverse=True))
        names: dict[int, set[str]] = {tier: set() for tier in self._tiers}
        for one in self._by_name.values():
            if one.tier_name:
                names[one.tier].add(one.tier_name)
        self.levels = (
            *(TopologyLevel(str(tier), aliases=tuple(sorted(names[tier]))) for tier in self._tiers),
            _HYPER_NODE_LEVEL,
        )
        self._parents: dict[str, str] = {}
        #: What is wrong, each with the object to mend.
        self.wrong = (
            *self._find_parents(),
            *self._tier_names_used_twice(names),
            *self._wrong_tiers(),
            *self._cycles(),
        )
        self.problems = tuple(problem.text for problem in self.wrong)
        self._exact: dict[str, list[str]] = {}
        self._patterns: list[tuple[str, str]] = []
        self._labels: list[tuple[tuple[Requirement, ...], str]] = []
        self._gather_members()

    def path(self, name: str, labels: Mapping[str, str]) -> Path:
        """Return names of a node's domains, as far as it is in any.

        Raises OverlappingDomains: it is in several HyperNodes of which none is in another.
        """
        if self.problems:
            return ()
        holders = self._holding(name, labels)
        chains = {one: self._chain(one) for one in holders}
        above = {ancestor for chain in chains.values() for ancestor in chain[1:]}
        narrowest = sorted(holders - above)
        if not narrowest:
            return ()
        if len(narrowest) > 1:
            raise OverlappingDomains(name, narrowest)
        chain = chains[narrowest[0]]
        by_tier = {self._by_name[one].tier: one for one in chain}
        path: list[str] = []
        inner = ""
        # From below: where the chain has no HyperNode of a tier, the one below stands for itself there.
        for tier in sorted(tier for tier in self._tiers if tier >= min(by_tier)):
            inner = by_tier.get(tier, inner)
            path.append(inner)
        path.reverse()
        return (*path, name) if min(by_tier) == self._tiers[-1] else tuple(path)

    def _holding(self, name: str, labels: Mapping[str, str]) -> set[str]:
        holders = set(self._exact.get(name, ()))
        holders |= {holder for pattern, holder in self._patterns if compile_pattern(pattern).search(name)}
        holders |= {holder for requirements, holder in self._labels if meets(labels, requirements)}
        return holders

    def _chain(self, name: str) -> list[str]:
        """Return a HyperNode and those that contain it, from within."""
        chain = [name]
        while (parent := self._parents.get(chain[-1])) is not None:
            chain.append(parent)
        return chain

    def _gather_members(self) -> None:
        for one in self._by_name.values():
            for member in one.members:
                if member.node:
                    self._exact.setdefault(member.node, []).append(one.name)
                elif member.pattern:
                    self._patterns.append((member.pattern, one.name))
                elif member.labels:
                    self._labels.append((member.labels, one.name))

    def _find_parents(self) -> Iterator[HyperNodeProblem]:
        for one in self._by_name.values():
            for member in one.members:
                child = member.hyper_node
                if child not in self._by_name:
                    continue
                parent = self._parents.setdefault(child, one.name)
                if parent != one.name:
                    text = f"HyperNode {child} is a member of {parent} and of {one.name}; it may have one parent only"
                    yield HyperNodeProblem(text, (child, parent, one.name))

    def _wrong_tiers(self) -> Iterator[HyperNodeProblem]:
        for child, parent in sorted(self._parents.items()):
            lower, upper = self._by_name[child].tier, self._by_name[parent].tier
            if lower >= upper and child not in self._circle(child):
                member = f"HyperNode {child} of tier {lower} is a member of {parent} of tier {upper}"
                yield HyperNodeProblem(f"{member}; its tier must be lower", (child, parent))

    def _tier_names_used_twice(self, names: dict[int, set[str]]) -> Iterator[HyperNodeProblem]:
        tiers: dict[str, list[int]] = {}
        for tier in sorted(names):
            for name in names[tier]:
                tiers.setdefault(name, []).append(tier)
        for name, same in sorted(tiers.items()):
            if len(same) > 1:
                named = tuple(one.name for one in self._by_name.values() if one.tier_name == name)
                yield HyperNodeProblem(f"tierName {name} is the name of tiers {' and '.join(map(str, same))}", named)

    def _cycles(self) -> Iterator[HyperNodeProblem]:
        reported: set[str] = set()
        for name in self._by_name:
            circle = self._circle(name)
            if name in circle and name not in reported:
                reported |= circle
                yield HyperNodeProblem(
                    f"HyperNodes {', '.join(sorted(circle))} contain each other", tuple(sorted(circle))
                )

    def _circle(self, name: str) -> set[str]:
        """Return the HyperNodes on the circle that a HyperNode's parents lead round; none if they come to an end."""
        seen: list[str] = [name]
        while (parent := self._parents.get(seen[-1])) is not None:
            if parent in seen:
                return set(seen[seen.index(parent) :])
            seen.append(parent)
        return set()


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> "re2._Regexp":
    """Compile a regular expression of RE2, with the syntax of Go's regexp package.

    Raises InvalidPattern: it is none.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        message = error.args[0] if error.args else ""
        raise InvalidPattern(message.decode() if isinstance(message, bytes) else str(message)) from error
