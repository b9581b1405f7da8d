"""Runs: how long pods ran on their nodes, and how they ended, collected from a log's events.

Pods of one owner that began and ended together are one run: a gang of 64 pods counts once as a run of such a gang. A
run that an eviction cut short, or that still goes on, only shows that it lasted at least so long.

Remaining run times of pods, from the most similar runs that are numerous enough.

The estimate for a run of a given age is Kaplan and Meier's (1958). At each length at which runs ended, it takes the
share of the runs going on at that length that ended then. Runs that were cut short or go on count among the ones going
on for as long as they lasted. Runs that the log first saw at some age count from that age on.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload, names_in_logs
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.pod import Pod
from kaicore.rules.state.indexes.past_runs import LEAST_RUNS, Basis, RunKeys, run_keys
from kaicore.rules.state.pods.pod_life import LifeEvent, PodLife

#: Types of the events that tell of runs.
RUN_EVENTS = names_in_logs(
    kind.__name__
    for kind in (
        payloads.PodObserved,
        payloads.PodDeleted,
        payloads.EvictionDecided,
        payloads.RepairRequested,
        payloads.EvictionFailed,
    )
)

#: So many of the last runs are kept of each kind of runs: what is long ago tells little of today.
_MOST_OF_A_KIND = 2000

#: Pods of one owner are one run if their runs begin and end within this part of their length of each other; at least so
#: long, and at most.
_TOGETHER_PART, _LEAST_TOGETHER_US, _MOST_TOGETHER_US = 20, 1_000_000, 60 * 1_000_000


class Run(NamedTuple):
    """A pod's run time.

    Attributes:
        duration_us: microseconds from its start to its end, or as far as it is known.
        entered_us: the time that it had run already at its first event in the log: it counts for no shorter runs.
        ended: whether it came to its own end; otherwise it was cut short, or goes on.
    """

    duration_us: int
    entered_us: int = 0
    ended: bool = True


class _Running(NamedTuple):
    keys: RunKeys
    owner: str
    started_at: int


class _LastEnd(NamedTuple):
    started_at: int
    ended_at: int
    ended: bool


class RunHistory:
    """The runs that a log tells of, folded event by event.

    Attributes:
        position: of the last event that was taken in.
        ended: how many runs have come to their end.
        since: recorded time of the first event, microseconds since the epoch; 0 before it.
    """

    def __init__(self) -> None:
        self.position = 0
        self.ended = 0
        self.since = 0
        self._by_key: dict[tuple[Basis, str], deque[Run]] = {}
        self._running: dict[str, _Running] = {}
        self._lives: dict[str, PodLife] = {}
        self._last_ends: dict[str, _LastEnd] = {}

    def take(self, event: Event) -> None:
        """Take in an event; one of a type that is not in `RUN_EVENTS` changes nothing but the position.

        Raises:
            UnknownEvent: this program is too old for it.
            CorruptLog: it cannot be decoded.
        """
        self.position = event.position
        self.since = self.since or event.recorded_at
        if event.type not in RUN_EVENTS:
            return
        payload: Any = decode_payload(event)
        uid = payload.pod.uid if isinstance(payload, payloads.PodObserved) else payload.uid
        life = self._lives.setdefault(uid, PodLife())
        part = life.take(payload, at=event.recorded_at)
        if life.rejected:
            self._running.pop(uid, None)
        elif part is LifeEvent.STARTED:
            self._begin(payload.pod, event.recorded_at)
        elif part is LifeEvent.FINISHED:
            if uid not in self._running and payload.pod.start_time and not life.evicting:
                self._begin(payload.pod, event.recorded_at)
            self._end(uid, event.recorded_at, ended=not life.evicting)
        elif part is LifeEvent.DELETED:
            self._end(uid, event.recorded_at, ended=not life.evicting)
        if part is LifeEvent.DELETED:
            del self._lives[uid]

    def runs(self, basis: Basis, key: str) -> tuple[Run, ...]:
        """Return the last runs of a kind, the oldest first."""
        return tuple(self._by_key.get((basis, key), ()))

    def _begin(self, pod: Pod, at: int) -> None:
        owner = pod.owner.uid if pod.owner is not None else pod.uid
        # The two clocks may differ.
        started_at = min(pod.start_time * 1_000_000 or at, at)
        self._running[pod.uid] = _Running(run_keys(pod), owner, started_at)

    def _end(self, uid: str, at: int, *, ended: bool) -> None:
        running = self._running.pop(uid, None)
        if running is None:
            return
        last = self._last_ends.get(running.owner)
        end = _LastEnd(running.started_at, at, ended)
        if last is not None and last.ended is ended and _together(last, end):
            return
        self._last_ends[running.owner] = end
        run = Run(max(at - running.started_at, 1), max(self.since - running.started_at, 0), ended)
        self.ended += ended
        for basis, key in running.keys.items():
            self._by_key.setdefault((basis, key), deque(maxlen=_MOST_OF_A_KIND)).append(run)
        if len(self._last_ends) > _MOST_OF_A_KIND:
            del self._last_ends[next(iter(self._last_ends))]


def _together(one: _LastEnd, other: _LastEnd) -> bool:
    part = (other.ended_at - other.started_at) // _TOGETHER_PART
    within = min(max(part, _LEAST_TOGETHER_US), _MOST_TOGETHER_US)
    return abs(one.started_at - other.started_at) <= within and abs(one.ended_at - other.ended_at) <= within


#: Stands for the logarithm of zero, finite so that what comes after it can still be distinguished.
_CERTAIN = -1e6


class Survival:
    """The estimate for one kind of runs."""

    def __init__(self, runs: Iterable[Run]) -> None:
        listed = list(runs)
        durations = np.array([run.duration_us for run in listed], np.int64)
        entered = np.sort(np.array([run.entered_us for run in listed], np.int64))
        ended = np.array([run.ended for run in listed], np.bool_)
        #: Lengths at which runs ended, in order.
        self._ends = np.sort(durations[ended])
        self._times, ends = np.unique(self._ends, return_counts=True)
        lasted = len(listed) - np.searchsorted(np.sort(durations), self._times, side="left")
        not_entered = len(listed) - np.searchsorted(entered, self._times, side="left")
        at_risk = np.maximum(lasted - not_entered, ends)
        share = ends / at_risk
        certain = share >= 1
        logarithms = np.where(certain, _CERTAIN, np.log1p(-np.where(certain, 0, share)))
        #: Logarithm of the share that goes on beyond each of the times.
        self._log_beyond = np.cumsum(logarithms)

    def longer_than(self, ages_us: np.ndarray) -> np.ndarray:
        """Return how many runs ended after each of some ages, microseconds."""
        longer: np.ndarray = len(self._ends) - np.searchsorted(self._ends, ages_us, side="right")
        return longer

    def remaining(self, ages_us: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Return after how much longer such shares of the runs that reached some ages have ended.

        Args:
            ages_us: microseconds.
            shares: of those that get so old, between 0 and 1; of the same shape.

        Returns:
            microseconds, at least 1; -1 where fewer than that share are known to end.
        """
        first = np.searchsorted(self._times, ages_us, side="right")
        padded = np.concatenate(([0.0], self._log_beyond))
        wanted = padded[first] + np.log1p(-np.minimum(shares, 1 - 1e-12))
        place = np.maximum(np.searchsorted(-self._log_beyond, -wanted, side="left"), first)
        there = place < len(self._times)
        times = np.concatenate((self._times, [0]))
        return np.where(there, np.maximum(times[np.where(there, place, -1)] - ages_us, 1), -1)


#: Bits of a digest that make up where between two shares one lies.
_FRACTION_BITS = 16


class ScenarioEnds(NamedTuple):
    """The ends of pods, in each scenario.

    Attributes:
        after_us: a row for each scenario and a column for each pod, microseconds from now; -1 where none is known.
        bases: for each pod, which runs tell that; None where none do.
    """

    after_us: np.ndarray
    bases: list[Basis | None]


class PodRun(NamedTuple):
    """A pod that runs, or would.

    Attributes:
        keys: see `run_keys`.
        age_us: how long it has run.
        together: pods for which this is equal end together; their scenarios are the same.
    """

    keys: RunKeys
    age_us: int
    together: str


class Lifetimes:
    """Looks up kinds of runs, each estimated once."""

    def __init__(self, history: RunHistory, going_on: Iterable[PodRun] = ()) -> None:
        """Args:
        history: of the log, up to now; not to be changed while this is asked.
        going_on: the pods that run now: they too tell how long pods last.
        """
        self._history = history
        self._going_on: dict[tuple[Basis, str], dict[str, Run]] = {}
        self._by_kind: dict[tuple[Basis, str], Survival] = {}
        for pod_run in going_on:
            run = Run(pod_run.age_us, 0, ended=False)
            for basis, key in pod_run.keys.items():
                self._going_on.setdefault((basis, key), {}).setdefault(pod_run.together, run)

    @property
    def ended(self) -> int:
        """The number of runs in the log that have ended."""
        return self._history.ended

    @property
    def suffices(self) -> bool:
        """True if enough runs have ended for a forecast."""
        return self.ended >= LEAST_RUNS[Basis.CLUSTER]

    def ends(self, pods: Sequence[PodRun], *, scenarios: int, seed: str) -> ScenarioEnds:
        """Return when pods end.

        Args:
            scenarios: how many; a prime number.
            seed: the same seed gives the same ends.
        """
        after = np.full((scenarios, len(pods)), -1, np.int64)
        bases = [self.basis_of(pod) for pod in pods]
        by_kind: dict[tuple[Basis, str], list[int]] = {}
        for place, (pod, basis) in enumerate(zip(pods, bases, strict=True)):
            if basis is not None:
                by_kind.setdefault((basis, pod.keys[basis]), []).append(place)
        for (basis, key), places in by_kind.items():
            ages = np.array([pods[place].age_us for place in places], np.int64)
            shares = np.array([shares_of(f"{seed}/{pods[place].together}", scenarios) for place in places]).T
            after[:, places] = self._survival(basis, key).remaining(np.broadcast_to(ages, shares.shape), shares)
        return ScenarioEnds(after, bases)

    def basis_of(self, pod: PodRun) -> Basis | None:
        """Return which runs tell how long a pod goes on: the closest ones of which there are enough; None for none."""
        age = np.array([pod.age_us])
        for basis, least in LEAST_RUNS.items():
            if int(self._survival(basis, pod.keys[basis]).longer_than(age)[0]) >= least:
                return basis
        return None

    def _survival(self, basis: Basis, key: str) -> Survival:
        survival = self._by_kind.get((basis, key))
        if survival is None:
            runs = [*self._history.runs(basis, key), *self._going_on.get((basis, key), {}).values()]
            survival = self._by_kind[basis, key] = Survival(runs)
        return survival


def shares_of(run: str, scenarios: int) -> np.ndarray:
    """Return for each scenario which share of the runs of its kind ends before a run does, between 0 and 1.

    Over the scenarios each part of the range comes once (a Latin hypercube); which comes when is by the run's digest.

    Args:
        run: what tells it from other runs.
        scenarios: how many; a prime number.
    """
    digest = int.from_bytes(blake2b(run.encode(), digest_size=12).digest(), "big")
    fraction, digest = digest % (1 << _FRACTION_BITS), digest >> _FRACTION_BITS
    first, digest = digest % scenarios, digest // scenarios
    stride = 1 + digest % (scenarios - 1)
    parts = (first + stride * np.arange(scenarios)) % scenarios
    return (parts + fraction / (1 << _FRACTION_BITS)) / scenarios
