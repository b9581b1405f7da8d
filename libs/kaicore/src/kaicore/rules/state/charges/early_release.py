"""Early releases: a kubelet frees a pod's resources up to two seconds before the API reports the pod's end.

An admission in that time finds more free than the log knows of, and may give other zones than predicted. This module
answers two questions, both by repeating the kubelet's walk over the pod on the account of that moment. Was an early
release the reason of an observation that contradicts its prediction? And, when an end is reported, which unobserved
pods may have found the resources already free? Until they are observed, they may be on either zones.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations, islice

import msgspec

from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import Amounts, ContainerKind
from kaicore.rules.numa.kubelet.admission import admit
from kaicore.rules.numa.kubelet.requests import AlignedRequest
from kaicore.rules.numa.kubelet.verdict import Admitted, PredictedPlacement, predicted_placement
from kaicore.rules.numa.kubelet.zones import ZoneCharge
from kaicore.rules.state.charges.node_charges import AccountChange, NodeCharges
from kaicore.rules.state.counters import Counters
from kaicore.rules.state.pods.agreement import MissCause, contradiction
from kaicore.rules.state.pods.pod_entry import PodEntry

#: How long a reported end may explain what was observed, and how far the API may be behind a kubelet, microseconds.
KEPT_US, LAG_US = 10_000_000, 5_000_000

#: Pods that were bound within so long of each other may come to a kubelet together, microseconds.
_SYNC_US = 1_000_000

#: Other placements of one pod that are kept in mind.
_MOST_ALTERNATIVES = 3

#: Choices of pods that may have ended earlier than reported which are tried at most: all of those of seven pods.
_MOST_CHOICES = 128

#: Pairs of an order of arrivals and a choice of ends that are tried at most, as a last resort.
_MOST_TRIED = 1024

#: Choices of those that are predicted again at most, whenever an end is reported.
_MOST_WORLDS = 8

#: Pods of a node that are predicted again at most, the last ones: a node to which more come at once is no such case.
_MOST_OPEN = 16


class _Arrival(msgspec.Struct, frozen=True):
    """The time when a pod came to its node.

    Attributes:
        charged_at, placed_at, bound_at, started_at: as in `PodEntry`.
    """

    uid: str
    created_at: int
    charged_at: int
    placed_at: int
    bound_at: int
    started_at: int


class PodHolding(_Arrival, frozen=True):
    """A pod's holdings, until the API server reported its end.

    Attributes:
        subject: `namespace/name`.
        ended_at: position of the event that reported its end, 0 while there is none.
        reported_at: when that was recorded, microseconds since the epoch.
    """

    subject: str
    ended_at: int
    reported_at: int
    requests: Amounts
    zone_charge: ZoneCharge


class KubeletAdmission(_Arrival, frozen=True):
    """A pod's request to a kubelet, and the kubelet's answer: all that explains a miss, also when the pod is gone.

    Attributes:
        node, decided_at, predicted, observed: as in `PodEntry`.
        request: what it asks the kubelet for.
    """

    node: str
    decided_at: int
    predicted: Placement | None
    observed: Placement
    request: AlignedRequest


class Explanation(msgspec.Struct, frozen=True):
    """A kubelet's facts at an admission that the log did not have.

    Attributes:
        released: pods that it had released before the API server reported their end, in the order of the reports.
        by_age: it admitted pods that came to it together oldest first, not in the order of the decisions.
        but_init: what ordinary init containers keep is otherwise even so (`MissCause.INIT_KEPT`).
    """

    released: tuple[str, ...]
    by_age: bool
    but_init: bool


class EarlyReleases:
    """The ends that were reported lately, by node."""

    def __init__(
        self, columns: NodeColumns, classes: Mapping[str, PodClass], charges: NodeCharges, counters: Counters
    ) -> None:
        self.ended: dict[str, list[PodHolding]] = {}
        self._columns = columns
        self._classes = classes
        self._charges = charges
        self._counters = counters

    def update(self, entry: PodEntry, node: str, change: AccountChange, *, ended: bool, at: int, now: int) -> None:
        """Follow the change of a node's account: note what an ended pod held, and predict others' zones again.

        Nothing is predicted again where there are no exporters: without observations no doubt would ever end.

        Args:
            entry: a pod that ended, was placed, or was observed otherwise.
            node: to which it is charged, or was until it ended.
        """
        before = self.ended.get(node, [])
        if ended and change.freed != ZoneCharge():
            lately = [one for one in before if one.reported_at > now - KEPT_US]
            holding = PodHolding(*_arrival(entry), entry.pod.subject, at, now, entry.requests, change.freed)
            self.ended[node] = [*lately, holding]
        if self._counters.reported and (
            ended or change.otherwise or any(one.ended_at > entry.decided_at for one in before)
        ):
            self._predict_again(node, at=at, now=now)

    def admission(self, entry: PodEntry, node: str) -> KubeletAdmission | None:
        """Return what is known of a pod's admission to the node that has or had it; None while it is not observed."""
        if entry.observed is None:
            return None
        return KubeletAdmission(
            *_arrival(entry),
            node,
            entry.decided_at,
            entry.predicted,
            entry.observed,
            self._request_of(entry),
        )

    def explain(self, admission: KubeletAdmission, *, last_resort: bool = False) -> Explanation | None:
        """Return what a kubelet had seen that gave a pod other zones than predicted.

        A kubelet tells the ends of pods one by one, in another order than it freed what they had held. So each choice
        of the ends that were reported after the decision may have come before the admission; few are likelier.

        Args:
            admission: of a pod that was observed otherwise than predicted.
            last_resort: whether what is less likely is tried: only some of the pods that came together came in another
                order, or sidecars took other cores than those of the init containers before them.

        Returns:
            the least that explains it; None if nothing does.
        """
        held = [self._holder(other) for other in self._charges.held_on(admission.node)]
        # What held something by the account on which the pod was decided, or came later.
        ended = [one for one in self.ended.get(admission.node, ()) if one.ended_at > admission.decided_at]
        others = [one for one in (*held, *ended) if one.uid != admission.uid]
        decided = [one for one in others if one.charged_at < admission.charged_at]
        orders = [(decided, False), *((order, True) for order in _orders_by_age(admission, others))]
        if not last_resort:
            return self._explained_by(admission, orders)
        orders += ((order, True) for order in _orders_of_arrival(admission, others))
        if (explanation := self._explained_by(admission, orders)) is not None:
            return explanation
        kept = msgspec.structs.replace(admission, request=_sidecars_first(admission.request))
        explanation = None if kept == admission else self._explained_by(kept, orders)
        return None if explanation is None else msgspec.structs.replace(explanation, but_init=True)

    def _explained_by(
        self, admission: KubeletAdmission, orders: Iterable[tuple[list[PodHolding], bool]]
    ) -> Explanation | None:
        nearly: Explanation | None = None
        worlds = (
            (before, by_age, released)
            for before, by_age in orders
            for released in _choices([one for one in before if one.ended_at])
        )
        for before, by_age, released in islice(worlds, _MOST_TRIED):
            difference = self._difference(admission, [one for one in before if one not in released])
            if difference not in (None, MissCause.INIT_KEPT):
                continue
            subjects, but_init = tuple(one.subject for one in released), difference is MissCause.INIT_KEPT
            explanation = Explanation(subjects, by_age=by_age, but_init=but_init)
            if not but_init:
                return explanation
            nearly = nearly or explanation
        return nearly

    def _predict_again(self, node: str, *, at: int, now: int) -> None:
        """Check what was decided on the account of a node before the log had something new about it.

        Pods that no exporter has observed, and that the kubelet may have admitted knowing the present event, are
        predicted again; where that gives other zones, they count on these as well. Any of them may have been the first
        that found it so.

        Args:
            node: the node with the changed account.
            at: position of the event that reported it.
        """
        open_ = self._charges.held_on(node, where=lambda other: _is_open(other, at=at, now=now))[-_MOST_OPEN:]
        if not open_:
            return
        row = self._columns.row(node)
        mark = self._columns.mark(row)
        for entry in open_:
            self._columns.charge(row, entry.requests, sign=-1, releasing=entry.releasing)
            self._columns.zones.release(row, entry.zone_charge, releasing=entry.releasing)
        placements_of: dict[str, list[Placement]] = {}
        for place, first in enumerate(open_):
            for still in self._perhaps_still_held(first, at=at, now=now):
                world = self._world(row, open_[place:], still)
                if not world and not still:
                    # A kubelet takes the best of what has room. What is best with all of it freed is so with less.
                    break
                for entry, given in world:
                    assert entry.predicted is not None
                    placements = (entry.predicted, *entry.alternatives, *placements_of.get(entry.pod.uid, ()))
                    if len(placements) <= _MOST_ALTERNATIVES and all(contradiction(one, given) for one in placements):
                        placements_of.setdefault(entry.pod.uid, []).append(given)
            self._charge(row, first.requests, self._charges.predicted_charge(first))
        self._columns.restore(row, mark)
        for entry in open_:
            if entry.pod.uid in placements_of:
                entry.alternatives = (*entry.alternatives, *placements_of[entry.pod.uid])
                self._charges.recharge(entry)

    def _perhaps_still_held(self, entry: PodEntry, *, at: int, now: int) -> Iterator[tuple[PodHolding, ...]]:
        """Yield what a kubelet may have freed only after an admission, though its end was reported before another's."""
        ended = [
            one
            for one in self.ended.get(entry.node, ())
            if entry.decided_at < one.ended_at < at and one.reported_at > now - LAG_US
        ]
        return islice(_choices(ended), _MOST_WORLDS)

    def _world(self, row: int, pods: list[PodEntry], still: tuple[PodHolding, ...]) -> list[tuple[PodEntry, Placement]]:
        """Predict pods of a node again, each after those before it, while some that ended hold what they had still.

        Only what the first of them gets makes this world another than the next: without it there is nothing to follow.
        """
        mark = self._columns.mark(row)
        for one in still:
            self._charge(row, one.requests, one.zone_charge)
        given, placements = self._admitted(row, self._request_of(pods[0])), list[tuple[PodEntry, Placement]]()
        if given is not None and _contradicts(pods[0], given.placement):
            placements = [(pods[0], given.placement)]
            self._charge(row, pods[0].requests, given.charge)
            for entry in pods[1:]:
                given = self._admitted(row, self._request_of(entry))
                if given is not None:
                    placements.append((entry, given.placement))
                charge = self._charges.predicted_charge(entry) if given is None else given.charge
                self._charge(row, entry.requests, charge)
        self._columns.restore(row, mark)
        return placements

    def _charge(self, row: int, requests: Amounts, charge: ZoneCharge) -> None:
        self._columns.charge(row, requests)
        self._columns.zones.charge(row, charge)

    def _holder(self, entry: PodEntry) -> PodHolding:
        charge = self._charges.predicted_charge(entry)
        return PodHolding(*_arrival(entry), entry.pod.subject, 0, 0, entry.requests, charge)

    def _difference(self, admission: KubeletAdmission, holders: Iterable[PodHolding]) -> MissCause | None:
        """Tell how what was observed of a pod differs from what the kubelet gives if just these others are there."""
        row = self._columns.row(admission.node)
        mark = self._columns.mark(row)
        self._columns.used[row] = self._columns.releasing[row] = 0
        self._columns.zones.clear_charges(row)
        for other in sorted(holders, key=lambda one: one.charged_at):
            self._charge(row, other.requests, other.zone_charge)
        given = self._admitted(row, admission.request)
        self._columns.restore(row, mark)
        return MissCause.ZONES if given is None else contradiction(given.placement, admission.observed)

    def _request_of(self, entry: PodEntry) -> AlignedRequest:
        return self._classes[entry.class_key].aligned

    def _admitted(self, row: int, request: AlignedRequest) -> PredictedPlacement | None:
        topology = self._columns.topologies[row]
        if topology is None:
            return None
        verdict = admit(self._columns.node_zones(row), request)
        names = tuple(zone.name for zone in topology.zones)
        return predicted_placement(verdict, names) if isinstance(verdict, Admitted) else None


def _arrival(entry: PodEntry) -> tuple[str, int, int, int, int, int]:
    times = entry.placed_at, entry.bound_at, entry.started_at
    return entry.pod.uid, entry.pod.created_at, entry.charged_at, *times


def _orders_by_age(admission: KubeletAdmission, others: Sequence[PodHolding]) -> list[list[PodHolding]]:
    """Return the pods before one if those that came to the kubelet together are admitted oldest first.

    So it does with pods of one sync (Kubernetes v1.36, `pkg/kubelet/kubelet.go`, HandlePodAdditions); decisions are
    made in another order. A pod that ran when another was decided on came before that. Empty if both orders agree.
    """
    turned = [one for one in others if _may_be_turned(one, admission) and one.created_at != admission.created_at]
    return [_before(admission, others, turned)] if turned else []


def _orders_of_arrival(admission: KubeletAdmission, others: Sequence[PodHolding]) -> Iterator[list[PodHolding]]:
    """Yield the pods before one for each choice of those that came to the kubelet in the other order, fewest first.

    Those that came together need not have come in one sync. Creation times have whole seconds, and the kubelet's sort
    by them leaves equal ones as they came.
    """
    open_ = [one for one in others if _may_be_turned(one, admission)]
    return (_before(admission, others, turned) for turned in _choices(open_) if turned)


def _may_be_turned(other: PodHolding, admission: KubeletAdmission) -> bool:
    """Tell whether two pods may have come to their kubelet in the other order than they were decided on.

    The older one that was decided on first comes first, together or not.
    """
    first, second = sorted((other, admission), key=lambda one: one.charged_at)
    return first.created_at >= second.created_at and _came_together(first, second)


def _before(
    admission: KubeletAdmission, others: Iterable[PodHolding], turned: Iterable[PodHolding]
) -> list[PodHolding]:
    """Return the pods before one in the order of the decisions, but for those that came in the other order."""
    uids = {one.uid for one in turned}
    return [one for one in others if (one.charged_at < admission.charged_at) != (one.uid in uids)]


def _sidecars_first(request: AlignedRequest) -> AlignedRequest:
    """Return a request of which sidecars take nothing over from init containers: they may take other cores."""
    containers = request.containers
    last = max((place for place, one in enumerate(containers) if one.kind is ContainerKind.SIDECAR), default=-1)
    starting = containers[: last + 1]
    ordered = sorted(starting, key=lambda one: one.kind is ContainerKind.INIT)
    return replace(request, containers=(*ordered, *containers[last + 1 :]))


def _came_together(one: _Arrival, other: _Arrival) -> bool:
    """Tell whether two pods may have come to their kubelet in one sync: none ran before the other was decided on.

    A kubelet knows of a pod when it is bound, which may be seconds after the decision.
    """
    first, second = sorted((one, other), key=lambda entry: entry.charged_at)
    ran_already = 0 < first.started_at <= second.placed_at
    came = [entry.bound_at or entry.placed_at for entry in (one, other)]
    return abs(came[1] - came[0]) <= _SYNC_US and not ran_already


def _choices(ended: list[PodHolding]) -> Iterator[tuple[PodHolding, ...]]:
    """Yield the ends that may have come first: none, then ever more, as long as they are few enough to be tried.

    Of too many, half of what is tried has few of them and half has most of them: a pod that came late to its kubelet
    finds nearly all of it done.
    """
    sizes = range(len(ended) + 1)
    ascending, descending = (
        chain.from_iterable(combinations(ended, size) for size in order) for order in (sizes, reversed(sizes))
    )
    if 2 ** len(ended) <= _MOST_CHOICES:
        return ascending
    return chain(islice(ascending, _MOST_CHOICES // 2), islice(descending, _MOST_CHOICES // 2))


def _contradicts(entry: PodEntry, given: Placement) -> bool:
    return entry.predicted is None or contradiction(entry.predicted, given) is not None


def _is_open(entry: PodEntry, *, at: int, now: int) -> bool:
    """Tell whether a pod's zones are not known for certain, and were predicted before an event."""
    if entry.predicted is None or entry.observed is not None or entry.decided_at >= at:
        return False
    return not entry.started_at or now - entry.started_at <= LAG_US
