"""Uncertainty about nodes while a cycle decides: pods that have not been observed yet, and pods that may end."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kaicore.rules.engine.placement.statement import PodCharge, Statement
from kaicore.rules.numa.arrivals import Arrival, applies_to, has_stages, is_certain
from kaicore.rules.numa.kubelet.admission import admit
from kaicore.rules.numa.kubelet.requests import AlignedRequest
from kaicore.rules.numa.kubelet.verdict import Admitted, Rejected
from kaicore.rules.numa.kubelet.zones import NodeZones


@dataclass(frozen=True, slots=True)
class EndingPods:
    """The holdings of a node's pods that may end at any moment.

    Attributes:
        amounts: by resource and zone.
        until: when the first of the node's doubts is over though nothing is reported, microseconds since the epoch; 0
            where there is none.
    """

    amounts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    until: int = 0


class OpenMatters(Protocol):
    """The matters that the state does not know for certain of nodes."""

    def arrivals(self, row: int) -> tuple[Arrival, ...]:
        """Return the pods of a row with zones that have not been observed yet, in the order of the decisions."""

    def ending(self, row: int) -> EndingPods:
        """Return what may end on a row, besides those."""


class Doubts:
    """Doubts about nodes, with what a cycle itself has decided."""

    def __init__(self, matters: OpenMatters, statement: Statement) -> None:
        """Args:
        matters: what the state does not know.
        statement: of the cycle, on the nodes as they are now.
        """
        self._matters = matters
        self._statement = statement
        self._arrivals: dict[int, tuple[Arrival, ...]] = {}
        self._ending: dict[int, EndingPods] = {}
        #: By the identities of requests and arrivals, each with these: those of gone ones would come again.
        self._answers: dict[object, tuple[bool, AlignedRequest, tuple[Arrival, ...]]] = {}
        self._clear: dict[object, tuple[bool, AlignedRequest]] = {}
        #: When the first of the doubts ends by itself for which a pod was refused a node; 0 while there are none.
        self.due = 0
        #: Savepoint of the statement before the pods that are being placed, which start together.
        self._since = 0
        #: Requests that were refused a node for doubts about pods that start together with them, and no others.
        self._of_companions: set[AlignedRequest] = set()

    def begin_steps(self) -> None:
        """Take pods that are placed from now on to start together with each other."""
        self._since = self._statement.savepoint()

    def likeness(self, row: int) -> object:
        """Return a key that is equal for two rows of one state exactly when the doubts about them are the same."""
        arrivals = (*self._unobserved(row), *self._statement.arrivals(row))
        reserved, was_reserved = self._statement.reserved(row)
        return _identities(arrivals), tuple(self._ends(row).amounts.items()), _split(reserved), was_reserved

    def were_of_companions(self, requests: Iterable[AlignedRequest]) -> bool:
        """Tell whether one of several pods was refused a node only for what pods get that start together with it.

        No observation settles such a doubt, for they start at once or not at all.
        """
        return bool(self._of_companions) and not self._of_companions.isdisjoint(requests)

    def is_of_companions(self, row: int) -> bool:
        """Tell whether nothing of a row is open but what the pods get that start together now."""
        reserved, _ = self._statement.reserved(row)
        before = self._statement.arrivals(row, before=self._since)
        return not (self._unobserved(row) or before or reserved or self._ends(row).amounts)

    def _unobserved(self, row: int) -> tuple[Arrival, ...]:
        if row not in self._arrivals:
            self._arrivals[row] = self._matters.arrivals(row)
        return self._arrivals[row]

    def _ends(self, row: int) -> EndingPods:
        if row not in self._ending:
            self._ending[row] = self._matters.ending(row)
        return self._ending[row]

    def admits(self, row: int, request: AlignedRequest, *, created_at: int, node: Callable[[], NodeZones]) -> bool:
        """Tell whether a node that admits a pod, as it is accounted, does so for certain, and beside what is reserved.

        Args:
            created_at: when the pod was created, seconds since the epoch.
            node: makes the zones of the row as they are accounted.
        """
        arrivals = (*self._unobserved(row), *self._statement.arrivals(row))
        zones = self._statement.columns.zones
        settings = zones.kubelet_of(row)
        staged = has_stages(request, settings)
        reserved, was_reserved = self._statement.reserved(row)
        if reserved and not self._keeps_clear(row, request, reserved, node):
            return False
        if not (arrivals or staged) or not applies_to(settings) or not zones.zone_count[row]:
            return True
        ending = self._ends(row)
        ages = [*(arrival.created_at for arrival in arrivals), created_at]
        quiet = not ending.amounts and not self._arrivals[row] and not was_reserved
        if quiet and ages == sorted(ages) and not any(arrival.request.lends_cpus for arrival in arrivals):
            # Nothing can become free there, the order is the cycle's own, and what is held is what is accounted.
            return True
        latest = max(ages[:-1], default=created_at)
        amounts = _with_reserved(ending.amounts, reserved, zones=int(zones.zone_count[row]))
        key = (
            self._statement.states.kind(row),
            id(request),
            min(created_at, latest),
            _identities(arrivals),
            tuple(amounts.items()),
        )
        if key not in self._answers:
            certain = is_certain(node(), arrivals, amounts, request, created_at=created_at)
            self._answers[key] = certain, request, arrivals
        certain = self._answers[key][0]
        if not certain:
            if ending.until:
                self.due = min(self.due or ending.until, ending.until)
            if self.is_of_companions(row):
                self._of_companions.add(request)
        return certain

    def admits_in_turn(self, row: int, request: AlignedRequest, ages: Sequence[int]) -> bool:
        """Tell whether a node surely admits pods that come one after the other, as long as it does as it is accounted.

        Args:
            ages: when they were created, seconds since the epoch; the first is known to be admitted.
        """
        zones, statement = self._statement.columns.zones, self._statement
        reserved, was_reserved = statement.reserved(row)
        if reserved:
            return False
        if not applies_to(zones.kubelet_of(row)) or not zones.zone_count[row]:
            return True
        if was_reserved or request.lends_cpus or self._unobserved(row) or self._ends(row).amounts:
            return False
        arrivals = statement.arrivals(row)
        every = [*[arrival.created_at for arrival in arrivals], *ages]
        return every == sorted(every) and not any(arrival.request.lends_cpus for arrival in arrivals)

    def _keeps_clear(
        self, row: int, request: AlignedRequest, reserved: Sequence[PodCharge], node: Callable[[], NodeZones]
    ) -> bool:
        """Tell whether a kubelet, which knows nothing of what is reserved, leaves it alone when a pod comes to it."""
        key = self._statement.states.kind(row), id(request), _split(reserved)
        if key not in self._clear:
            columns = self._statement.columns
            mark = columns.mark(row)
            for pod_charge in reserved:
                columns.charge(row, pod_charge.requests, sign=-1)
                columns.zones.release(row, pod_charge.charge)
                columns.zones.assume(row, pod_charge.charge, sign=-1)
            as_the_kubelet_sees = node()
            columns.restore(row, mark)
            clear = _zones(admit(as_the_kubelet_sees, request)) == _zones(admit(node(), request))
            self._clear[key] = clear, request
        return self._clear[key][0]


class TrustingDoubts(Doubts):
    """Doubts, but about what pods get that start together: those are taken to get what they are accounted to hold.

    For pods that find no place otherwise. A doubt is there to be waited out, and this one no waiting ends.
    """

    def likeness(self, row: int) -> object:
        """See `Doubts.likeness`."""
        return super().likeness(row), self.is_of_companions(row)

    def admits(self, row: int, request: AlignedRequest, *, created_at: int, node: Callable[[], NodeZones]) -> bool:
        """See `Doubts.admits`."""
        return self.is_of_companions(row) or super().admits(row, request, created_at=created_at, node=node)


def _identities(arrivals: tuple[Arrival, ...]) -> tuple[tuple[int, int, int, bool, bool], ...]:
    return tuple((id(one.request), id(one.charge), one.created_at, one.shaken, one.may_end) for one in arrivals)


def _split(reserved: Sequence[PodCharge]) -> tuple[object, ...]:
    return tuple(pod_charge.charge.split for pod_charge in reserved)


def _zones(verdict: Admitted | Rejected) -> object:
    """Return what of which zones a pod gets; None if it is rejected."""
    if isinstance(verdict, Rejected):
        return None
    return [(one.mask, one.amounts, [(block.mask, block.drawn) for block in one.blocks]) for one in verdict.holdings]


def _with_reserved(
    ending: Mapping[str, tuple[int, ...]], reserved: Sequence[PodCharge], *, zones: int
) -> Mapping[str, tuple[int, ...]]:
    """Count what is reserved among what may end: a pod that comes to the kubelet finds that room."""
    if not reserved:
        return ending
    amounts = {resource: list(by_zone) for resource, by_zone in ending.items()}
    for pod_charge in reserved:
        for zone, resource, amount in pod_charge.charge.split:
            amounts.setdefault(resource, [0] * zones)[zone] += amount
    return {resource: tuple(by_zone) for resource, by_zone in sorted(amounts.items())}
