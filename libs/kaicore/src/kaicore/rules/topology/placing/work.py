"""A request prepared for the search: depths for levels, pods by class, equal sets as one batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from kaicore.rules.topology.placing.descent import Layer
from kaicore.rules.topology.placing.request import PodsByRow, SetRequest, Slices
from kaicore.rules.topology.tree import Numbers, OrderedTree, Truths

#: What sets have in common that are placed alike.
Likeness = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Lot:
    """Pods of one class.

    Attributes:
        pods: in order of rank.
        layers: which of them stay together, from the widest domain to the narrowest.
    """

    pods: tuple[int, ...]
    pod_class: int
    layers: tuple[Layer, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Sets that are alike, in order.

    Attributes:
        lot: their pods as those of one class in parts that stay together, the sets themselves at their required
            depth; None where that does not say it all.
    """

    works: tuple["Work", ...]
    lot: Lot | None

    @property
    def size(self) -> int:
        """Pods of one of the sets."""
        return self.works[0].size


@dataclass(frozen=True, slots=True)
class Work:
    """A set to be placed.

    Attributes:
        size: how many pods it has, those of sets in it included.
        lots: pods with no constraint but this set's, by class.
        batches: sets in it with constraints of their own.
        required: depth at which it must be in one domain; 0 for none.
        preferred: depth at which it should; 0 for none.
        gaps: whether any place in the topology will do.
        spares: how many spots of its domain stay free.
        exclusive: whether it shares its domain with no other set of the same parent.
        held: of each spot, how many of its pods are there already; None for none.
        slice_size: pods of each of its slices; 1 if it has none.
        shut: spots that are closed to it: those of the first, and where it finds no place, those of the next; empty
            for none.
    """

    name: str
    size: int
    lots: tuple[Lot, ...] = ()
    batches: tuple[Batch, ...] = ()
    constrained: bool = False
    required: int = 0
    preferred: int = 0
    gaps: bool = False
    spares: int = 0
    exclusive: bool = False
    held: Numbers | None = None
    slice_size: int = 1
    shut: tuple[Truths, ...] = ()

    def totals(self) -> Iterator[tuple[int, int]]:
        """Yield classes with how many pods there are; a class may come several times."""
        for lot in self.lots:
            yield lot.pod_class, len(lot.pods)
        for batch in self.batches:
            for pod_class, count in batch.works[0].totals():
                yield pod_class, count * len(batch.works)

    def as_one(self) -> bool:
        """True if all its pods are of one class, in parts that are alike."""
        if self.batches:
            return len(self.batches) == 1 and not self.lots and self.batches[0].lot is not None
        return len(self.lots) == 1

    @property
    def likeness(self) -> Likeness:
        """Equal of sets that are placed alike."""
        lots = tuple((lot.pod_class, len(lot.pods), lot.layers) for lot in self.lots)
        batches = tuple((len(batch.works), batch.works[0].likeness) for batch in self.batches)
        shape = (self.required, self.preferred, self.gaps, self.spares, self.exclusive, self.constrained)
        return (lots, batches, shape, self.held is not None and id(self.held), tuple(map(id, self.shut)))


def compiled(request: SetRequest, tree: OrderedTree, classes: Sequence[int]) -> Work:
    """Return what is to be placed for a request."""
    held = None if request.held is None else at_spots(request.held, tree)
    constraint = request.constraint
    if request.children:
        works = [work for child in request.children if (work := compiled(child, tree, classes)).size]
        own = [work for work in works if work.constrained or work.held is not None]
        loose = [work for work in works if not (work.constrained or work.held is not None)]
        lots = _by_class([lot for work in loose for lot in work.lots])
        own += [work for loose_work in loose for batch in loose_work.batches for work in batch.works]
        work = Work(request.name, sum(each.size for each in works), lots, _batches(own))
    elif constraint is not None and constraint.slices:
        parts = _slices(request, constraint.slices, tree, classes)
        size = constraint.slices[0].size
        work = Work(request.name, len(request.pods), (), _batches(parts), slice_size=size)
    else:
        work = Work(request.name, len(request.pods), _lots(request.pods, classes))
    if constraint is None:
        return work if held is None else replace(work, held=held)
    return replace(
        work,
        constrained=True,
        required=constraint.required + 1,
        preferred=constraint.preferred + 1 if constraint.preferred > constraint.required else 0,
        gaps=constraint.unconstrained or (constraint.required < 0 and constraint.preferred < 0),
        exclusive=constraint.exclusive and constraint.required >= 0,
        held=held,
        shut=tuple(~rows[tree.rows] for rows in request.among),
    )


def at_spots(by_row: PodsByRow, tree: OrderedTree) -> Numbers | None:
    """Return numbers of rows as numbers of spots; None if there are none."""
    return by_row[tree.rows].astype(np.int64) if by_row.any() else None


def _lots(pods: tuple[int, ...], classes: Sequence[int]) -> tuple[Lot, ...]:
    pod_classes = {classes[pod] for pod in pods}
    if len(pod_classes) == 1:
        return (Lot(pods, pod_classes.pop()),)
    return _by_class([Lot((pod,), classes[pod]) for pod in pods])


def _by_class(lots: Sequence[Lot]) -> tuple[Lot, ...]:
    pods: dict[int, list[int]] = {}
    for lot in lots:
        pods.setdefault(lot.pod_class, []).extend(lot.pods)
    return tuple(Lot(tuple(alike), pod_class) for pod_class, alike in pods.items())


def _slices(request: SetRequest, layers: tuple[Slices, ...], tree: OrderedTree, classes: Sequence[int]) -> list[Work]:
    """Return a work of each slice that has pods to be placed; what of it is held comes first in order."""
    outer, inner = layers[0], layers[1:]
    ranks = request.ranks or tuple(range(len(request.pods)))
    by_rank = sorted(zip(ranks, request.pods, strict=True))
    held: dict[int, dict[int, int]] = {}
    for rank, row in request.held_ranks.items():
        held.setdefault(rank // outer.size, {})[rank] = row
    works = []
    for number, members in groupby(by_rank, key=lambda member: member[0] // outer.size):
        there, missing = held.get(number, {}), list(members)
        pods = tuple(pod for _, pod in missing)
        part = replace(
            request,
            pods=pods,
            ranks=tuple(rank for rank, _ in missing) if inner else (),
            held_ranks=there,
        )
        batches = _batches(_slices(part, inner, tree, classes)) if inner else ()
        work = Work(
            request.name,
            len(pods),
            () if inner else _lots(pods, classes),
            batches,
            constrained=True,
            required=outer.required + 1,
            preferred=outer.preferred + 1 if outer.preferred > outer.required else 0,
            spares=outer.spares,
            held=_held_at(there, tree),
        )
        works.append(work)
    return works


def _held_at(there: dict[int, int], tree: OrderedTree) -> Numbers | None:
    if not there:
        return None
    counts = np.zeros(len(tree.rows), np.int64)
    np.add.at(counts, tree.spots[list(there.values())], 1)
    return counts


def _batches(works: Sequence[Work]) -> tuple[Batch, ...]:
    """Put together what is alike: what has pods running first, then the largest, then in order."""
    alike: dict[Likeness, list[Work]] = {}
    for work in works:
        alike.setdefault(work.likeness, []).append(work)
    return tuple(Batch(tuple(requests), _as_one(requests)) for requests in sorted(alike.values(), key=_urgency))


def _urgency(alike: list[Work]) -> tuple[bool, int, int]:
    first = alike[0]
    return first.held is None, -first.required, -first.size


def _as_one(works: Sequence[Work]) -> Lot | None:
    first = works[0]
    if (
        first.shut
        or not (first.required or first.preferred)
        or first.held is not None
        or (first.spares and not first.required)
    ):
        return None
    if first.exclusive and first.preferred:
        # Each takes a narrow domain and closes the wide one that it is in, which is not said of all at once.
        return None
    if len(first.lots) + len(first.batches) != 1 or (first.batches and first.batches[0].works[0].preferred):
        return None
    inner = [work.lots[0] if work.lots else work.batches[0].lot for work in works]
    lots = [lot for lot in inner if lot is not None]
    if len(lots) < len(works):
        return None
    pods = tuple(pod for lot in lots for pod in lot.pods)
    return Lot(pods, lots[0].pod_class, parted(first, first.required, lots[0].layers))


def parted(first: Work, depth: int, inner: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Return the layers of sets that are each in one domain at a depth, with those of the parts of each set."""
    if not depth:
        return inner
    narrower = tuple(layer for layer in inner if layer.depth > depth or layer.spares)
    return (Layer(first.size, depth, first.spares, first.exclusive), *narrower)
