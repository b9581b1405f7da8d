"""The search: sets of pods into domains, each tried with pods before it is chosen."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from kaicore.rules.topology.ordered import Numbers, OrderedTree, Truths
from kaicore.rules.topology.placing.capacity import Capacity, Layer, Scope, capacity, without_spares
from kaicore.rules.topology.placing.descent import descend, nearness
from kaicore.rules.topology.placing.request import NO_LEVEL, Placed, Refused, Room, SetRequest
from kaicore.rules.topology.placing.strategies import POLICIES, Policy, Strategy
from kaicore.rules.topology.placing.work import Batch, Lot, Work, compiled
from kaicore.rules.topology.tree import TopologyColumns

#: So often a set is placed anew in one domain when a node took fewer pods than it had counted.
CORRECTIONS = 16


def search(
    request: SetRequest, tree: TopologyColumns, room: Room, strategy: Strategy = Strategy.BEST_FIT
) -> Placed | Refused:
    """Place the pods of a set on a topology.

    Args:
        request: the set; its pods are put into the room if they all find a place, otherwise none is.
        tree: the topology.
        room: the nodes.
        strategy: how one of several domains with room is chosen.
    """
    ordered = tree.ordered
    work = compiled(request, ordered, room.classes)
    trial = _Search(ordered, room, POLICIES[strategy])
    if not trial.place(work, Scope(0, 0, len(ordered.rows)), None):
        return trial.refused
    rows = dict(zip(trial.pods, ordered.rows[trial.positions].tolist(), strict=True))
    return Placed(rows, _domains(request, ordered, rows))


@dataclass(frozen=True, slots=True)
class _Bound:
    """What limits a set in each domain: so many pods must fit."""

    wanted: int
    within: Capacity


class _Search:
    """A search at work; what is put is kept in order, so that it can be taken off again."""

    def __init__(self, tree: OrderedTree, room: Room, policy: Policy) -> None:
        self._tree, self._room, self._policy = tree, room, policy
        self.pods: list[int] = []
        self.positions: list[int] = []
        self.refused = Refused("", NO_LEVEL, 0, 0, -1, 0, 0)

    def place(self, work: Work, scope: Scope, closed: Truths | None) -> bool:
        """Put the pods of a set into one domain of the scope; if there is none, say why and put nothing."""
        outside = scope.depth == 0 and not work.constrained
        if scope.depth == 0 and work.constrained:
            scope = replace(scope, high=min(scope.high, self._tree.inside))
        held = self._held_in(work, scope)
        if held is None:
            self.refused = Refused(work.name, work.required - 1, work.size, 0, -1, 0, 0)
            return False
        scope = held
        widest = max(work.required, scope.depth)
        bounds = self._bounds(work, scope, closed)
        tried, farthest, inner = 0, 0, None
        for depth in range(self._begin(work, widest), widest - 1, -1):
            for domain in self._candidates(work, bounds, depth, scope):
                tried += 1
                reached = self._inside(work, domain, closed)
                if reached == work.size:
                    return True
                if reached >= farthest:
                    farthest, inner = reached, self.refused
        if not outside and scope.depth == 0 and not work.required and not work.gaps:
            # A preference goes beyond the topology: it is more important that the pods start.
            whole = Scope(0, 0, len(self._tree.rows))
            if self._inside(work, whole, closed) == work.size:
                return True
        self._refuse(work, bounds, widest, tried=tried, farthest=farthest, inner=inner)
        return False

    def _refuse(
        self, work: Work, bounds: list[_Bound], depth: int, *, tried: int, farthest: int, inner: Refused | None
    ) -> None:
        if tried and inner is not None and inner.set_name != work.name:
            self.refused = inner
            return
        first, best, domain = bounds[0].within.firsts[depth], 0, -1
        if len(bounds[0].within.whole[depth]):
            fitting = np.minimum.reduce([np.minimum(bound.within.whole[depth], bound.wanted) for bound in bounds])
            best = int(fitting.argmax())
            domain = int(self._tree.numbers[depth][first + best]) if depth else -1
            best = int(fitting[best])
        domains = int(self._tree.real(depth).sum()) if depth else 1
        self.refused = Refused(
            work.name, depth - 1, bounds[0].wanted, farthest if tried else best, domain, tried, domains
        )

    def _held_in(self, work: Work, scope: Scope) -> Scope | None:
        """Narrow the scope to the domain that running pods are in; None if they are in several."""
        if work.held is None or work.required <= scope.depth:
            return scope
        there = np.flatnonzero(work.held)
        of = self._tree.of[work.required]
        domain = int(of[there[0]])
        if domain != int(of[there[-1]]) or self._tree.numbers[work.required][domain] < 0:
            return None
        low, high = self._tree.starts[work.required][domain : domain + 2].tolist()
        if low < scope.low or high > scope.high:
            return None
        return Scope(work.required, low, high)

    def _begin(self, work: Work, widest: int) -> int:
        if work.gaps or not work.constrained:
            return widest
        if self._policy.begin is not None:
            return max(self._tree.depth - self._policy.begin, widest)
        return max(work.preferred, widest)

    def _counts(self, pod_class: int, scope: Scope, closed: Truths | None) -> Numbers:
        counts = self._room.counts(pod_class)[self._tree.rows[scope.low : scope.high]]
        if closed is not None:
            counts[closed[scope.low : scope.high]] = 0
        return counts

    def _bounds(self, work: Work, scope: Scope, closed: Truths | None) -> list[_Bound]:
        """What must fit in one domain: of each class all pods, and where parts stay together these parts."""
        lots = list(work.lots) + [batch.lot for batch in work.batches if batch.lot is not None]
        totals: dict[int, int] = {}
        for pod_class, count in _totals(work):
            totals[pod_class] = totals.get(pod_class, 0) + count
        counts = {one: self._counts(one, scope, closed) for one in totals}
        if not (len(lots) == 1 and len(totals) == 1 and len(lots[0].pods) == work.size):
            lots = [lot for lot in lots if lot.layers]
            bounds = [_Bound(total, capacity(self._tree, counts[one], (), scope)) for one, total in totals.items()]
        else:
            bounds = []
        for lot in lots:
            within = capacity(self._tree, counts[lot.pod_class], lot.layers, scope)
            bounds.append(_Bound(len(lot.pods), within))
        return sorted(bounds, key=lambda bound: -bound.wanted)

    def _candidates(self, work: Work, bounds: list[_Bound], depth: int, scope: Scope) -> Iterator[Scope]:
        """Yield the domains at a depth that may take the set, the best first."""
        main = bounds[0].within
        first = main.firsts[depth]
        fits = self._tree.real(depth)[first : first + len(main.whole[depth])].copy()
        for bound in bounds:
            fits &= bound.within.whole[depth] >= bound.wanted
        there = np.flatnonzero(fits)
        sign = 1 if self._policy.tightest else -1
        keys = [sign * main.pods[depth][there], sign * main.whole[depth][there]]
        if work.held is not None:
            keys.append(nearness(self._tree, work.held, depth, first + there))
        starts = self._tree.starts[depth]
        for domain in (first + there[np.lexsort(keys)]).tolist():
            yield Scope(depth, max(int(starts[domain]), scope.low), min(int(starts[domain + 1]), scope.high))

    def _inside(self, work: Work, scope: Scope, closed: Truths | None) -> int:
        """Put the pods of a set into a domain; returns how many were put before the first that found no place."""
        if work.spares:
            closed = self._spared(work, scope, closed)
        parts: list[Batch | Lot] = [*work.batches, *work.lots]
        reached = 0
        mark, savepoint = len(self.pods), self._room.savepoint()
        for order in (parts, parts[::-1]) if len(parts) > 1 else (parts,):
            if all(self._part(part, work, scope, mark, closed) for part in order):
                return work.size
            reached = max(reached, len(self.pods) - mark)
            self._undo(mark, savepoint)
        return reached

    def _spared(self, work: Work, scope: Scope, closed: Truths | None) -> Truths:
        main = max(_totals(work), key=lambda total: total[1])[0]
        counts = self._counts(main, scope, closed)
        left = without_spares(self._tree, counts, Layer(1, scope.depth, work.spares), scope)
        closed = np.zeros(len(self._tree.rows), np.bool_) if closed is None else closed.copy()
        closed[scope.low : scope.high] |= left != counts
        return closed

    def _part(self, part: Batch | Lot, work: Work, scope: Scope, mark: int, closed: Truths | None) -> bool:
        pull = work.held
        if len(self.pods) > mark:
            placed = np.bincount(self.positions[mark:], minlength=len(self._tree.rows))
            pull = placed if pull is None else pull + placed
        if isinstance(part, Lot):
            return self._lot(part, work, scope, pull, closed)
        first = part.works[0]
        if not first.exclusive:
            closed = self._taken_by_exclusive(work, mark, closed)
        else:
            closed = self._shut(first, pull, closed)
        if part.lot is not None:
            return self._lot(part.lot, work, scope, None if first.exclusive else pull, closed)
        for each in part.works:
            here = len(self.pods)
            if not self.place(each, scope, closed):
                return False
            if each.exclusive:
                closed = self._shut(each, np.bincount(self.positions[here:], minlength=len(self._tree.rows)), closed)
        return True

    def _taken_by_exclusive(self, work: Work, mark: int, closed: Truths | None) -> Truths | None:
        for batch in work.batches:
            first = batch.works[0]
            if first.exclusive:
                own = {pod for each in batch.works for pod in _pods(each)}
                there = [at for pod, at in zip(self.pods[mark:], self.positions[mark:], strict=True) if pod in own]
                placed = np.bincount(there, minlength=len(self._tree.rows)) if there else None
                closed = self._shut(first, placed, closed)
        return closed

    def _shut(self, exclusive: Work, there: Numbers | None, closed: Truths | None) -> Truths | None:
        """Close the domains that pods are in to a set that shares its domain with no other."""
        if there is None:
            return closed
        if exclusive.held is not None:
            there = there - exclusive.held
        of = self._tree.of[exclusive.required]
        shut = np.zeros(len(self._tree.starts[exclusive.required]), np.bool_)
        shut[of[there > 0]] = True
        return shut[of] if closed is None else closed | shut[of]

    def _lot(self, lot: Lot, work: Work, scope: Scope, pull: Numbers | None, closed: Truths | None) -> bool:
        wanted = len(lot.pods)
        counts = self._counts(lot.pod_class, scope, closed)
        mark, savepoint = len(self.pods), self._room.savepoint()
        for _ in range(CORRECTIONS):
            within = capacity(self._tree, counts, lot.layers, scope)
            if within.whole[scope.depth].sum() < wanted:
                return False
            taken = descend(
                self._tree,
                within,
                wanted,
                lot.layers,
                scope,
                policy=self._policy,
                gaps=work.gaps,
                gather=work.preferred,
                pull=pull,
            )
            short = self._put(lot.pods, taken, scope)
            if short is None:
                return True
            self._undo(mark, savepoint)
            counts[short[0]] = short[1]
        return False

    def _put(self, pods: tuple[int, ...], taken: Numbers, scope: Scope) -> tuple[int, int] | None:
        """Put pods in order onto positions in order; returns where one of the scope took too few, and how many."""
        there = np.flatnonzero(taken)
        begin = 0
        for at, row, count in zip(
            there.tolist(), self._tree.rows[scope.low + there].tolist(), taken[there].tolist(), strict=True
        ):
            end = begin + count
            put = self._room.put(pods[begin:end], row)
            if put < count:
                return at, put
            self.pods.extend(pods[begin:end])
            self.positions.extend([scope.low + at] * count)
            begin = end
        return None

    def _undo(self, mark: int, savepoint: int) -> None:
        self._room.rollback(savepoint)
        del self.pods[mark:]
        del self.positions[mark:]


def _pods(work: Work) -> Iterator[int]:
    for lot in work.lots:
        yield from lot.pods
    for batch in work.batches:
        for each in batch.works:
            yield from _pods(each)


def _totals(work: Work) -> Iterator[tuple[int, int]]:
    """Yield classes with how many pods there are; a class may come several times."""
    for lot in work.lots:
        yield lot.pod_class, len(lot.pods)
    for batch in work.batches:
        for pod_class, count in _totals(batch.works[0]):
            yield pod_class, count * len(batch.works)


def _domains(request: SetRequest, tree: OrderedTree, rows: Mapping[int, int]) -> dict[str, tuple[int, int]]:
    """Return the narrowest domain that the pods of each set with a constraint share."""
    found: dict[str, tuple[int, int]] = {}
    _shared(request, tree, rows, found)
    return found


def _shared(
    request: SetRequest, tree: OrderedTree, rows: Mapping[int, int], found: dict[str, tuple[int, int]]
) -> tuple[int, int]:
    """Fill in the domains of a set and those in it; returns the first and the last position of its pods."""
    ends = [_shared(child, tree, rows, found) for child in request.children]
    if request.pods:
        own = tree.positions[[rows[pod] for pod in request.pods]]
        ends.append((int(own.min()), int(own.max())))
    if request.held is not None and request.held.any():
        own = tree.positions[np.flatnonzero(request.held)]
        ends.append((int(own.min()), int(own.max())))
    low = min((end[0] for end in ends), default=len(tree.rows))
    high = max((end[1] for end in ends), default=-1)
    if request.constraint is not None and high >= 0:
        found[request.name] = (NO_LEVEL, -1)
        for depth in range(tree.depth - 1, 0, -1):
            domain = int(tree.of[depth][low])
            if domain == int(tree.of[depth][high]) and tree.numbers[depth][domain] >= 0:
                found[request.name] = (depth - 1, int(tree.numbers[depth][domain]))
                break
    return low, high
