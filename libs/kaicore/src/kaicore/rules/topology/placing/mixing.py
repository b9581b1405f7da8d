"""Pods of several classes on the same nodes: an exact search for the combination, while that is little work.

One class after the other may block itself: the last leader takes the place of two workers where another node had room
for it beside them.
"""

import numpy as np

from kaicore.rules.topology.ordered import Numbers, Truths
from kaicore.rules.topology.placing.capacity import Scope
from kaicore.rules.topology.placing.trial import Trial
from kaicore.rules.topology.placing.work import Lot

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
