"""A cluster's side of the hub: its binder's tasks, the dispatches that it may start, and the lease that it acts under.

Holder and hub each count the lease by a clock of their own, and no two clocks are compared. The holder counts from
*before* it asked for the renewal; the hub counts from *after* it read that the log took it. So the hub's count begins
later than the holder's, and only the speed of the two clocks matters. Where each gains or loses less than
`DRIFT_PER_MILLE`, the hub's wait is over after the lease is.

The clocks are ones that are never set. A clock that stands still while a machine sleeps may serve the hub, but never
the holder (see `kaicore.ledger.bus.leases`).
"""

from dataclasses import dataclass

from kaicore.rules.hub.hub_state import DispatchEntry, DispatchStage, HubState
from kaicore.rules.objects.wire import number_in

#: By how much a clock may be fast or slow, in thousandths: 20 times as much as NTP corrects (500 parts in a million).
DRIFT_PER_MILLE = 10


def waiting_us(lease_us: int) -> int:
    """Return how long the hub hears nothing before a lease is certainly over, microseconds of its own clock."""
    return -(-lease_us * (1000 + DRIFT_PER_MILLE) // (1000 - DRIFT_PER_MILLE)) + 1


@dataclass(slots=True)
class HeldLease:
    """A lease as its holder has it.

    Attributes:
        lease_us: how long it lasts, microseconds.
        guard_us: how long before its end the holder begins nothing new: what it began has time to be carried out.
    """

    lease_us: int
    guard_us: int
    _ends: int | None = None

    def renewed(self, *, asked_at: int) -> None:
        """The log took a renewal.

        Args:
            asked_at: when it was asked for, before anything was sent, microseconds of the holder's clock.
        """
        ends = asked_at + self.lease_us
        self._ends = ends if self._ends is None else max(self._ends, ends)

    def given_up(self) -> None:
        """Hold it no more."""
        self._ends = None

    def holds(self, now: int) -> bool:
        """True if something may be begun, at a time by the holder's clock."""
        return self._ends is not None and now < self._ends - self.guard_us


class LeaseWatch:
    """The hub's knowledge of the clusters' leases, by its own clock.

    A hub that starts counts from its start: that it has heard nothing before says nothing.
    """

    def __init__(self, *, started_at: int) -> None:
        """Args: started_at: microseconds of the hub's clock."""
        self._started_at = started_at
        self._heard: dict[str, int] = {}

    def heard(self, cluster: str, *, now: int) -> None:
        """A renewal of a cluster was read from the log."""
        self._heard[cluster] = now

    def silent_us(self, cluster: str, *, now: int) -> int:
        """Return how long nothing has been heard of a cluster."""
        return now - self._heard.get(cluster, self._started_at)

    def is_over(self, cluster: str, lease_us: int, *, now: int) -> bool:
        """True if a cluster's lease is over by its holder's own clock, whatever time that shows.

        Args:
            lease_us: of its last renewal; 0 where there was none: then nothing is waited for.
            now: microseconds of the hub's clock.
        """
        return lease_us == 0 or self.silent_us(cluster, now=now) >= waiting_us(lease_us)


#: On pods and objects: `<dispatch>/<term>`, for which dispatch and on which giving they were made.
DISPATCH_MARK = "kai.scheduler/dispatch"


@dataclass(frozen=True, slots=True, order=True)
class Term:
    """One giving of a dispatch to a cluster."""

    dispatch: str
    number: int

    def __str__(self) -> str:
        return f"{self.dispatch}/{self.number}"

    @classmethod
    def read(cls, text: str) -> "Term | None":
        """Read the annotation; None where it makes no sense."""
        dispatch, _, last = text.rpartition("/")
        number = number_in(last, digits=9)
        return cls(dispatch, number) if dispatch and number is not None else None


def to_make(state: HubState, cluster: str) -> list[Term]:
    """Return what a cluster was given and has not started: its objects are to be there."""
    return [Term(entry.name, entry.term) for entry in state.of_cluster(cluster) if entry.stage is DispatchStage.GIVEN]


def to_clear(state: HubState, cluster: str) -> list[Term]:
    """Return what a cluster has no more, or is asked for: nothing of it is to be there any more."""
    terms = [
        Term(entry.name, entry.term) for entry in state.of_cluster(cluster) if entry.stage is DispatchStage.RECALLED
    ]
    return terms + [
        Term(entry.name, entry.left[cluster]) for entry in state.dispatches.values() if cluster in entry.left
    ]


def is_here(state: HubState, cluster: str, term: Term) -> bool:
    """True if the objects of a term are in their cluster; those of a finished one stay to be looked at."""
    entry = state.dispatches.get(term.dispatch)
    there = entry is not None and (entry.cluster, entry.term) == (cluster, term.number)
    return there and entry is not None and entry.stage is not DispatchStage.WITHDRAWN


def held_entry(state: HubState, cluster: str, term: Term) -> DispatchEntry | None:
    """Return the dispatch of a term if it is a cluster's now, and not asked back; else None."""
    entry = state.dispatches.get(term.dispatch)
    if entry is None or (entry.cluster, entry.term) != (cluster, term.number) or state.clusters[cluster].removed:
        return None
    return entry if entry.stage in (DispatchStage.GIVEN, DispatchStage.STARTED) else None
