"""The search: sets of pods into domains. Each domain is tried with pods before it is chosen.

It keeps the sets and pods placed so far: the pods that they attract, the domains that they share, and the domains that
they close. Pods of several classes on the same nodes are combined by an exact search, while that is little work. One
class after the other may block itself: the last leader takes the place of two workers where another node had room for
it beside them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kaicore.rules.topology.placing.candidates import (
    Bound,
    TopologyDemand,
    Trial,
    balanced,
    candidates,
    demand,
    first_depth,
    reach,
)
from kaicore.rules.topology.placing.descent import Descent, Layer, Scope, Wish, capacity, without_spares
from kaicore.rules.topology.placing.request import (
    NO_LEVEL,
    POLICIES,
    Placed,
    Policy,
    Refused,
    Room,
    SetRequest,
    TopologyStrategy,
)
from kaicore.rules.topology.placing.work import Batch, Lot, Work, compiled, parted
from kaicore.rules.topology.tree import Numbers, OrderedTree, TopologyColumns, Truths


def shared_domains(request: SetRequest, tree: OrderedTree, rows: Mapping[int, int]) -> dict[str, tuple[int, int]]:
    """Return, by set that has a constraint, level and number of the narrowest domain that its pods share."""
    domain_by_set: dict[str, tuple[int, int]] = {}
    _shared(request, tree, rows, domain_by_set)
    return domain_by_set


def _shared(
    request: SetRequest, tree: OrderedTree, rows: Mapping[int, int], domain_by_set: dict[str, tuple[int, int]]
) -> tuple[int, int]:
    """Fill in the domains of a set and those in it; returns the first and the last spot of its pods."""
    ends = [_shared(child, tree, rows, domain_by_set) for child in request.children]
    if request.pods:
        own = tree.spots[[rows[pod] for pod in request.pods]]
        ends.append((int(own.min()), int(own.max())))
    if request.held is not None and request.held.any():
        own = tree.spots[np.flatnonzero(request.held)]
        ends.append((int(own.min()), int(own.max())))
    low = min((end[0] for end in ends), default=len(tree.rows))
    high = max((end[1] for end in ends), default=-1)
    if request.constraint is not None and high >= 0:
        domain_by_set[request.name] = (NO_LEVEL, -1)
        for depth in range(tree.depth - 1, 0, -1):
            domain = int(tree.of[depth][low])
            if domain == int(tree.of[depth][high]) and tree.numbers[depth][domain] >= 0:
                domain_by_set[request.name] = (depth - 1, int(tree.numbers[depth][domain]))
                break
    return low, high


@dataclass(slots=True)
class Siblings:
    """The part of a set that has been put, in order.

    Attributes:
        closed: spots that are closed to all of it; None for none.
        begin: number of the set's first pod in the trial.
        ends: of each that has been placed, the set, or None for pods with no constraint of their own, and the number
            of the pod behind its last one.
    """

    tree: OrderedTree
    trial: Trial
    work: Work
    closed: Truths | None
    begin: int
    ends: list[tuple[Work | None, int]] = field(default_factory=list)

    def pull(self) -> Numbers | None:
        """Return of each spot how many pods of the set attract others; None for none."""
        placed = self.trial.placed_since(self.begin)
        if placed is None or self.work.held is None:
            return self.work.held if placed is None else placed
        return placed + self.work.held

    def closed_to(self, one: Work | None) -> Truths | None:
        """Return the spots that are closed to one more: its own domains are shared with no exclusive set's."""
        shut: dict[int, list[int]] = {}
        begin = self.begin
        for placed, end in self.ends:
            if placed is not None and placed.exclusive:
                shut.setdefault(placed.required, []).extend(self.trial.spots[begin:end])
            begin = end
        for batch in self.work.batches:
            for other in batch.works if batch.works[0].exclusive else ():
                if other is not one and other.held is not None:
                    shut.setdefault(other.required, []).extend(np.flatnonzero(other.held).tolist())
        if one is not None and one.exclusive:
            there = self.trial.spots[self.begin :]
            if self.work.held is not None:
                others = self.work.held if one.held is None else self.work.held - one.held
                there = [*there, *np.flatnonzero(others > 0).tolist()]
            shut.setdefault(one.required, []).extend(there)
        closed = self.closed
        for depth, spots in shut.items():
            if spots:
                domains = np.zeros(len(self.tree.starts[depth]), np.bool_)
                domains[self.tree.of[depth][spots]] = True
                inside = domains[self.tree.of[depth]]
                closed = inside if closed is None else closed | inside
        return closed


#: So many ways to have placed a part of the pods are kept from node to node.
WAYS = 512

#: Of each class a number of pods.
_Mixture = tuple[int, ...]


def mixed(trial: Trial, lots: tuple[Lot, ...], scope: Scope, closed: Truths | None) -> tuple[Numbers, ...] | None:
    """Return how many pods of each lot each spot of a scope gets; None if none is found. Nothing stays put."""
    asked, lots = lots, tuple(sorted(lots, key=lambda lot: len(lot.pods)))
    room = np.stack([trial.counts(lot.pod_class, scope, closed) for lot in lots])
    wanted = np.array([len(lot.pods) for lot in lots])
    room = np.minimum(room, wanted[:, None])
    places = np.flatnonzero(room.any(axis=0))
    needed = int((room[:-1, places] + 1).prod(axis=0).sum())
    if needed > trial.mixtures:
        return None
    trial.mixtures -= needed
    ways: list[dict[_Mixture, tuple[_Mixture, _Mixture]]] = [{tuple(wanted.tolist()): ((), ())}]
    for place in places.tolist():
        most = _mixtures(trial, lots, scope.low + place, room[:, place].tolist())
        after: dict[_Mixture, tuple[_Mixture, _Mixture]] = {}
        for left in ways[-1]:
            for mixture in most:
                rest = tuple(max(have - put, 0) for have, put in zip(left, mixture, strict=True))
                after.setdefault(rest, (left, mixture))
        ways.append({left: after[left] for left in _best(list(after))})
    done = (0,) * len(lots)
    if done not in ways[-1]:
        return None
    counts = np.zeros((len(lots), scope.high - scope.low), np.int64)
    left = done
    for place, way in zip(reversed(places.tolist()), reversed(ways), strict=False):
        before, _ = way[left]
        counts[:, place] = np.array(before) - np.array(left)
        left = before
    by_lot = {lot.pods: taken for lot, taken in zip(lots, counts, strict=True)}
    return tuple(by_lot[lot.pods] for lot in asked)


def _mixtures(trial: Trial, lots: tuple[Lot, ...], spot: int, most: list[int]) -> list[_Mixture]:
    """Return the mixtures that a spot takes: of the last class as many as find room beside the others."""
    if len(lots) == 1:
        mark = trial.mark()
        put = trial.put_some(lots[0].pods[: most[0]], spot)
        trial.undo(mark)
        return [(put,)]
    mixtures: list[_Mixture] = []
    for count in range(most[0], -1, -1):
        mark = trial.mark()
        if trial.put_some(lots[0].pods[:count], spot) == count:
            mixtures += [(count, *rest) for rest in _mixtures(trial, lots[1:], spot, most[1:])]
        trial.undo(mark)
    return _best([tuple(-put for put in mixture) for mixture in mixtures], -1)


def _best(lefts: list[_Mixture], sign: int = 1) -> list[_Mixture]:
    """Return those that no other is at least as good as, in each class, the fewest pods left being the best."""
    kept: list[_Mixture] = []
    for left in sorted(set(lefts)):
        if not any(all(have <= other for have, other in zip(one, left, strict=True)) for one in kept):
            kept.append(left)
    return [tuple(sign * count for count in left) for left in kept[:WAYS]]


#: So often pods are placed anew in one domain when a node took fewer than it had counted.
CORRECTIONS = 16

#: So many domains are tried for sets in a set, all in all, after the first way to place them one by one has failed.
TRIES = 512

_NOTHING = Refused("", NO_LEVEL, 0, 0, -1, 0, 0)


def search(
    request: SetRequest, tree: TopologyColumns, room: Room, strategy: TopologyStrategy = TopologyStrategy.BEST_FIT
) -> Placed | Refused:
    """Place the pods of a set on a topology.

    Args:
        request: the set; its pods are put into the room if they all find a place, otherwise none is.
        strategy: how one of several domains with room is chosen.
    """
    ordered = tree.ordered
    work = compiled(request, ordered, room.classes)
    if not work.size:
        return Placed({}, {})
    one = _Search(ordered, Trial(ordered, room), POLICIES[strategy])
    if not one.place(work, Scope(0, 0, len(ordered.rows)), None):
        return one.refused
    rows = dict(zip(one.trial.pods, ordered.rows[one.trial.spots].tolist(), strict=True))
    return Placed(rows, shared_domains(request, ordered, rows))


@dataclass(slots=True)
class _Frame:
    """A set that has been placed one by one with others, with the ways that are left.

    Attributes:
        alike: equal of sets that are alike.
        domain: where it is; None before it is placed.
        vain: domains in which it was and another set found no place.
    """

    one: Work
    alike: int
    ways: Iterator[Scope]
    domain: Scope | None = None
    vain: list[Scope] = field(default_factory=list)

    def advance(self, placed: Siblings) -> bool:
        """Go on to the next way; False if there is none left."""
        before, self.domain = self.domain, next(self.ways, None)
        if before is not None:
            placed.ends.pop()
            if self.domain != before:
                self.vain.append(before)
        if self.domain is None:
            return False
        placed.ends.append((self.one, len(placed.trial.pods)))
        return True


class _Search:
    """A search at work.

    Attributes:
        trial: what has been put so far.
        refused: why the last set that was refused found no place.
    """

    def __init__(self, tree: OrderedTree, trial: Trial, policy: Policy) -> None:
        self._tree, self._policy = tree, policy
        self._tries = TRIES
        #: Whether sets go back to other domains now, which is bounded.
        self._going_back = False
        #: How many pods were there, or had room by the counts, when the last domain failed; those before it included.
        self._reached = 0
        #: Depth of the domains over which pods are balanced; 0 for none.
        self._balance = 0
        self.trial = trial
        self.refused = _NOTHING

    def place(self, work: Work, scope: Scope, closed: Truths | None, pull: Numbers | None = None) -> bool:
        """Put the pods of a set into the first domain of a scope that takes them; if there is none, say why."""
        return next(self.ways(work, scope, closed, pull), None) is not None

    def ways(
        self,
        work: Work,
        scope: Scope,
        closed: Truths | None,
        pull: Numbers | None = None,
        shunned: Sequence[Scope] = (),
    ) -> Iterator[Scope]:
        """Yield each domain of a scope that takes a set, with its pods there; they are taken off when it goes on.

        Args:
            pull: pods of other sets that attract this one.
            shunned: domains that need not be tried.
        """
        best: Refused | None = None
        for shut in work.shut:
            yield from self._open_ways(work, scope, shut if closed is None else closed | shut, pull, shunned)
            best = self.refused if best is None or best.fitting < self.refused.fitting else best
        if best is None:
            yield from self._open_ways(work, scope, closed, pull, shunned)
        else:
            shut, of = np.logical_and.reduce(work.shut), self._tree.of[work.required]
            full = np.bincount(of[shut], minlength=len(self._tree.starts[work.required]) - 1) == np.bincount(of)
            self.refused = replace(best, crowded=int((full & self._tree.real[work.required]).sum()))

    def _open_ways(
        self, work: Work, scope: Scope, closed: Truths | None, pull: Numbers | None, shunned: Sequence[Scope]
    ) -> Iterator[Scope]:
        """Yield the same, of domains that are not closed."""
        reached = reach(self._tree, work, scope)
        if reached is None:
            self.refused = self._refusal(work, work.required, fitting=0, domain=-1, tried=0)
            return
        asked = demand(self._tree, self.trial, work, reached, closed)
        begin, before = len(self.trial.pods), self._reached
        widest = max(work.required, reached.depth)
        tried, farthest, inner, where = 0, -1, _NOTHING, reached
        if self._policy.balanced and work.preferred > widest and work.as_one():
            self._balance = work.preferred
            for _ in self._inside(work, reached, closed):
                self._balance = 0
                yield reached
            self._balance = 0
        for domain in self._domains(work, asked, reached, widest, pull):
            if domain in shunned:
                continue
            if self._going_back and self._tries <= 0:
                break
            self._tries -= self._going_back
            tried, self._reached, self.refused = tried + 1, 0, _NOTHING
            for _ in self._inside(work, domain, closed):
                yield domain
            before = max(before, self._reached)
            if self._reached - begin > farthest:
                farthest, inner, where = self._reached - begin, self.refused, domain
        if scope.depth == 0 and work.preferred and not work.required and scope.high > reached.high:
            # It is more important that the pods start than that they are in the topology.
            for _ in self._inside(work, scope, closed):
                yield scope
        self._reached = before
        if not tried:
            self._refuse_by_counts(work, asked.limits, widest)
        elif inner.set_name != work.name and inner is not _NOTHING:
            self.refused = inner
        else:
            there = int(self._tree.numbers[widest][self._tree.of[widest][where.low]]) if widest else -1
            self.refused = self._refusal(work, widest, fitting=farthest, domain=there, tried=tried)

    def _domains(
        self, work: Work, asked: TopologyDemand, scope: Scope, widest: int, pull: Numbers | None
    ) -> Iterator[Scope]:
        for depth in range(first_depth(self._tree, work, widest, self._policy), widest - 1, -1):
            yield from candidates(self._tree, work, asked, depth, scope, policy=self._policy, pull=pull)

    def _refuse_by_counts(self, work: Work, limits: Sequence[Bound], depth: int) -> None:
        """Say which domain would take the most pods: all but those for which it lacks room by any one limit."""
        lacking = np.stack([bound.wanted - np.minimum(bound.within.whole[depth], bound.wanted) for bound in limits])
        first = limits[0].within.firsts[depth]
        numbers = self._tree.numbers[depth][first : first + lacking.shape[1]]
        fitting = np.where(numbers >= 0, work.size - lacking.max(axis=0), 0)
        if not fitting.any() and len(fitting) != 1:
            self.refused = self._refusal(work, depth, fitting=0, domain=-1, tried=0)
            return
        best = int(fitting.argmax())
        worst = limits[int(lacking[:, best].argmax())]
        if worst.of is not None and worst.of.required > depth:
            narrow = worst.of.required
            low = worst.within.firsts[narrow]
            room = worst.within.pods[narrow]
            most = int(room.argmax())
            if int(room[most]) < worst.of.size:
                there = int(self._tree.numbers[narrow][low + most]) if room[most] else -1
                self.refused = self._refusal(worst.of, narrow, fitting=int(room[most]), domain=there, tried=0)
                return
        domain = int(numbers[best]) if depth and best >= 0 else -1
        self.refused = self._refusal(
            work, depth, fitting=int(fitting[best]) if best >= 0 else 0, domain=domain, tried=0
        )

    def _refusal(self, work: Work, depth: int, *, fitting: int, domain: int, tried: int) -> Refused:
        wanted, fitting = -(-work.size // work.slice_size), fitting // work.slice_size
        domains = int(self._tree.real[depth].sum()) if depth else 1
        joined = work.held is not None and domain >= 0 and 0 < depth == work.required
        return Refused(work.name, depth - 1, wanted, fitting, domain, tried, domains, joined, work.size)

    def _inside(self, work: Work, scope: Scope, closed: Truths | None) -> Iterator[None]:
        """Put the pods of a set into a domain in one way after another; each is taken off before the next."""
        if work.spares:
            closed = self._without_spares(work, scope, closed)
        mark = self.trial.mark()
        orders: list[tuple[Batch | tuple[Lot, ...], ...]] = [work.batches]
        if work.lots:
            orders = [(*work.batches, work.lots)]
        if len(orders[0]) > 1:
            orders.append(orders[0][::-1])
        for order in orders:
            placed = Siblings(self._tree, self.trial, work, closed, mark[0])
            if all(self._part(part, work, scope, placed) for part in order):
                yield
            self._reached = max(self._reached, len(self.trial.pods))
            self.trial.undo(mark)
        if not self._balance and (sum(len(batch.works) for batch in work.batches) > 1 or (work.batches and work.lots)):
            yield from self._one_by_one(work, scope, closed)

    def _without_spares(self, work: Work, scope: Scope, closed: Truths | None) -> Truths:
        main = max(work.totals(), key=lambda total: total[1])[0]
        everywhere = Scope(0, 0, len(self._tree.rows))
        counts = self.trial.counts(main, everywhere, closed)
        spares = Layer(1, max(scope.depth, 1), work.spares)
        left = without_spares(self._tree, counts, spares, everywhere, work.held)
        spared: Truths = left != counts
        return spared if closed is None else closed | spared

    def _part(self, part: Batch | tuple[Lot, ...], work: Work, scope: Scope, placed: Siblings) -> bool:
        if not isinstance(part, Batch):
            return self._lots(part, work, scope, placed)
        if part.lot is not None and self._parted(part, part.lot, work, scope, placed):
            placed.ends.append((part.works[0], len(self.trial.pods)))
            return True
        if self._balance:
            return False
        for one in part.works:
            if not self.place(one, scope, placed.closed_to(one), placed.pull()):
                return False
            placed.ends.append((one, len(self.trial.pods)))
        return True

    def _one_by_one(self, work: Work, scope: Scope, closed: Truths | None) -> Iterator[None]:
        """Place the sets of a set one after the other, and go back to an earlier one where one finds no place.

        Sets that are alike are interchangeable: where one has tried a domain in vain, those behind it need not.
        """
        units = [(number, one) for number, batch in enumerate(work.batches) for one in batch.works]
        placed = Siblings(self._tree, self.trial, work, closed, len(self.trial.pods))
        frames: list[_Frame] = []
        while True:
            if len(frames) == len(units):
                mark = self.trial.mark()
                if not work.lots or self._lots(work.lots, work, scope, placed):
                    yield
                self._reached = max(self._reached, len(self.trial.pods))
                self.trial.undo(mark)
            else:
                alike, one = units[len(frames)]
                shunned = [domain for frame in frames if frame.alike == alike for domain in frame.vain]
                ways = self.ways(one, scope, placed.closed_to(one), placed.pull(), shunned)
                frames.append(_Frame(one, alike, ways))
            before, self._going_back = self._going_back, True
            while frames and not frames[-1].advance(placed):
                frames.pop()
            self._going_back = before
            if not frames:
                return

    def _lots(self, lots: tuple[Lot, ...], work: Work, scope: Scope, placed: Siblings) -> bool:
        """Put pods with no constraint of their own: class after class, or else mixed."""
        mark, closed = self.trial.mark(), placed.closed_to(None)
        for order in (lots, lots[::-1]) if len(lots) > 1 else (lots,):
            if all(self._lot(lot, work, scope, placed.pull(), closed) for lot in order):
                return True
            self.trial.undo(mark)
        taken = mixed(self.trial, lots, scope, closed) if len(lots) > 1 else None
        if taken is None:
            return False
        for lot, each in zip(lots, taken, strict=True):
            if self.trial.put(lot.pods, each, scope) is not None:
                self.trial.undo(mark)
                return False
        return True

    def _parted(self, batch: Batch, lot: Lot, work: Work, scope: Scope, placed: Siblings) -> bool:
        """Put sets that are alike all at once: as many as fit at the preferred depth, the rest wider."""
        first, size = batch.works[0], batch.works[0].size
        inner = lot.layers[1:] if first.required else lot.layers
        closed = placed.closed_to(first)
        widest = max(first.required, scope.depth)
        mark = self.trial.mark()
        begin = first_depth(self._tree, first, widest, self._policy) if first.preferred else widest
        for narrowest in (begin, widest) if begin > widest else (widest,):
            done = 0
            for depth in range(narrowest, widest - 1, -1):
                layers = parted(first, depth if depth >= scope.depth else 0, inner)
                pull = None if first.exclusive else placed.pull()
                counts = self.trial.counts(lot.pod_class, scope, closed)
                room = capacity(self._tree, counts, layers, scope, work.held).whole[scope.depth]
                more = min(int(room.sum()) // size * size, len(lot.pods) - done)
                part = Lot(lot.pods[done : done + more], lot.pod_class, layers)
                if more and self._lot(part, work, scope, pull, closed):
                    done += more
            if done == len(lot.pods):
                return True
            self._reached = max(self._reached, len(self.trial.pods))
            self.trial.undo(mark)
        return False

    def _lot(self, lot: Lot, work: Work, scope: Scope, pull: Numbers | None, closed: Truths | None) -> bool:
        wanted = len(lot.pods)
        counts = self.trial.counts(lot.pod_class, scope, closed)
        preferences = self.trial.preferences(lot.pod_class, scope)
        wish = None if preferences is None else Wish(wanted, counts, preferences)
        mark = self.trial.mark()
        for _ in range(CORRECTIONS):
            within = capacity(self._tree, counts, lot.layers, scope, work.held)
            room = int(within.whole[scope.depth].sum())
            if room < wanted:
                self._reached = max(self._reached, len(self.trial.pods) + room)
                return False
            start = None
            if self._balance:
                size, parts = (lot.layers[0].size, lot.layers[0].depth) if lot.layers else (1, self._tree.depth)
                start = balanced(self._tree, within, wanted, size, preferred=self._balance, parts=parts)
                if start is None:
                    return False
            descent = Descent(
                tree=self._tree,
                scope=scope,
                policy=self._policy,
                layers=lot.layers,
                gaps=work.gaps,
                gather=work.preferred,
                pull=pull,
                start=start,
                wish=wish,
            )
            short = self.trial.put(lot.pods, descent.taken(within, wanted), scope)
            if short is None:
                return True
            self.trial.undo(mark)
            counts[short[0]] = short[1]
        return False
