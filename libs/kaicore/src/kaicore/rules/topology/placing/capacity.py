"""The number of pods of a class that each domain takes, from the nodes up."""

from dataclasses import dataclass

import numpy as np

from kaicore.rules.topology.tree import Numbers, OrderedTree


@dataclass(frozen=True, slots=True)
class Layer:
    """So many pods stay in one domain at a depth.

    Attributes:
        spares: how many spots of each such domain stay free.
        alone: whether a domain takes only one such part.
    """

    size: int
    depth: int
    spares: int = 0
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    """A domain, or the whole cluster, as a run of spots.

    Attributes:
        low: first spot.
        high: behind the last spot.
    """

    depth: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of the domains in a scope, at each depth from the scope's down to the spots.

    Attributes:
        firsts: at each depth, the first domain in the scope; depths above the scope's have nothing.
        whole: at each depth, of each domain how many pods in whole parts.
        pods: the same, but the last part need not be whole; for ties.
    """

    firsts: tuple[int, ...]
    whole: tuple[Numbers, ...]
    pods: tuple[Numbers, ...]


_NOTHING = np.zeros(0, np.int64)


def capacity(
    tree: OrderedTree, counts: Numbers, layers: tuple[Layer, ...], scope: Scope, held: Numbers | None = None
) -> Capacity:
    """Sum up what spots take.

    Args:
        counts: of each spot in the scope, how many pods it takes.
        layers: parts that stay together, from the widest to the narrowest.
        scope: what is looked at.
        held: of each spot of the tree, how many pods of the set are there already; None for none.
    """
    at_depth: dict[int, list[Layer]] = {}
    for layer in layers:
        at_depth.setdefault(max(layer.depth, scope.depth), []).append(layer)
        if not tree.complete[layer.depth]:
            counts = np.where(tree.real[layer.depth][tree.of[layer.depth][scope.low : scope.high]], counts, 0)
        if layer.spares:
            counts = without_spares(tree, counts, layer, scope, held)
    firsts, whole, pods = [0] * (tree.depth + 1), [_NOTHING] * (tree.depth + 1), [_NOTHING] * (tree.depth + 1)
    for depth in range(tree.depth, scope.depth - 1, -1):
        low, high = tree.span(depth, scope.low, scope.high)
        firsts[depth] = low
        if depth == tree.depth:
            summed = loose = counts
        elif high - low == len(whole[depth + 1]):
            # Each domain has one below it, such as a host's one spot.
            summed, loose = whole[depth + 1], pods[depth + 1]
        else:
            begins = tree.children[depth][low:high] - firsts[depth + 1]
            summed = np.add.reduceat(whole[depth + 1], begins) if high > low else _NOTHING
            loose = summed if whole[depth + 1] is pods[depth + 1] else np.add.reduceat(pods[depth + 1], begins)
        here = at_depth.get(depth)
        if here:
            loose = summed
            for layer in reversed(here):
                summed = summed - summed % layer.size
                if layer.alone:
                    summed = np.minimum(summed, layer.size)
        whole[depth], pods[depth] = summed, loose
    return Capacity(tuple(firsts), tuple(whole), tuple(pods))


@dataclass(frozen=True, slots=True)
class Wish:
    """Pods of one class that prefer some spots of a scope.

    Attributes:
        wanted: how many pods there are.
        counts: of each spot, how many of them it takes.
        preferences: of each spot, how much they prefer it; more is better.
    """

    wanted: int
    counts: Numbers
    preferences: Numbers

    def means(self, tree: OrderedTree, depth: int, scope: Scope) -> Numbers:
        """Return of each domain at a depth how much the spots are preferred that the pods would get there.

        As if the domain took all it can, on the spots that are preferred most; the mean over the pods, in thousandths.
        """
        if depth == tree.depth:
            return self.preferences * 1000
        low, high = tree.span(depth, scope.low, scope.high)
        of = tree.of[depth][scope.low : scope.high] - low
        sequence = np.lexsort((-self.preferences, of))
        begins = of.searchsorted(np.arange(high - low))
        room = np.minimum(self.counts, self.wanted)[sequence]
        before = room.cumsum() - room
        taken = np.minimum(np.maximum(self.wanted - (before - before[begins][of]), 0), room)
        pods = np.add.reduceat(taken, begins)
        means: Numbers = np.add.reduceat(taken * self.preferences[sequence], begins) * 1000 // np.maximum(pods, 1)
        return means


def without_spares(tree: OrderedTree, counts: Numbers, layer: Layer, scope: Scope, held: Numbers | None) -> Numbers:
    """Return the counts with those spots of each domain at nothing that stay free.

    These are the ones that take the most pods, so that each of them can stand in for any other of its domain. A
    spot that holds pods of the set is none.
    """
    of = tree.of[layer.depth][scope.low : scope.high]
    able = counts if held is None else np.where(held[scope.low : scope.high] > 0, -1, counts)
    sequence = np.lexsort((-able, of))
    heads = np.searchsorted(of, of)
    spare = sequence[np.arange(len(of)) - heads < layer.spares]
    counts = counts.copy()
    counts[spare] = 0
    return counts
