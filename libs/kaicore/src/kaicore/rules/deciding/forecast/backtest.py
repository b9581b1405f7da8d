"""Calibration of forecasts: they are made again at past positions, from the history up to there, and compared with the
log.

A group counts from the cycle that first left it waiting. The groups that count are chosen by the knowledge at that
time: those for which the forecast did not predict an immediate start.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from kaicore.rules.deciding.forecast.runs import RUN_EVENTS, RunHistory
from kaicore.rules.deciding.forecast.start import ForecastLimits, StartForecast, forecast_starts
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.cluster_state import ClusterState

#: Types of the events that tell of waits.
WAIT_EVENTS = tuple(kind.__name__ for kind in (payloads.PodsLeftWaiting, payloads.PodPlaced, payloads.PodDeleted))

#: A group that goes on growing counts from when it has not changed for this long, or from so long after it was first
#: left waiting: its pods are created one after the other.
_GROWING_US = 10 * 1_000_000

#: Most groups of one backtest, and least for any result.
MOST_GROUPS, LEAST_GROUPS = 200, 10

#: What one forecast, and what all of a backtest, may cost.
_ONE, _ALL = 40_000, 1_000_000
_SCENARIOS = 11


class Wait(msgspec.Struct):
    """A group that was left waiting.

    Attributes:
        position: of the event as of which its start is forecast.
        since: recorded time of that event, microseconds since the epoch.
        started_at: recorded time of the first decision that placed a pod of it; 0 as long as there is none.
    """

    group: str
    position: int
    since: int
    started_at: int = 0


class PastWaits:
    """The waits that a log tells of, folded event by event; each group counts once."""

    def __init__(self) -> None:
        #: By group.
        self._waits: dict[str, Wait] = {}
        self._group_of: dict[str, str] = {}
        self._pods: dict[str, set[str]] = {}
        self._first: dict[str, int] = {}

    def take(self, event: Event) -> None:
        """Take in an event of one of `WAIT_EVENTS`; others change nothing."""
        if event.type not in WAIT_EVENTS:
            return
        match decode_payload(event):
            case payloads.PodsLeftWaiting(pods=pods):
                for pod in pods:
                    self._left(pod, event)
            case payloads.PodPlaced(uid=uid):
                wait = self._waits.get(self._group_of.get(uid, ""))
                if wait is not None and not wait.started_at:
                    wait.started_at = event.recorded_at
            case payloads.PodDeleted(uid=uid):
                self._gone(uid)
            case _:
                pass

    def waits(self) -> list[Wait]:
        """Return them, in order of position."""
        return sorted(self._waits.values(), key=lambda wait: (wait.position, wait.group))

    def _left(self, pod: payloads.WaitingPod, event: Event) -> None:
        self._group_of[pod.uid] = pod.group
        self._pods.setdefault(pod.group, set()).add(pod.uid)
        wait = self._waits.get(pod.group)
        if wait is None:
            self._waits[pod.group] = Wait(pod.group, event.position, event.recorded_at)
            self._first[pod.group] = event.recorded_at
        elif not wait.started_at and event.recorded_at - self._first[pod.group] <= _GROWING_US:
            wait.position, wait.since = event.position, event.recorded_at

    def _gone(self, uid: str) -> None:
        group = self._group_of.pop(uid, "")
        pods = self._pods.get(group, set())
        pods.discard(uid)
        if group and not pods and not self._waits[group].started_at:
            # It was withdrawn before it started: nobody knows when it would have.
            del self._waits[group]


def sample(waits: Sequence[Wait], *, most: int = MOST_GROUPS) -> list[Wait]:
    """Return waits at equal distances, so many at most."""
    if len(waits) <= most:
        return list(waits)
    return [waits[place * len(waits) // most] for place in range(most)]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The accuracy of forecasts.

    Attributes:
        groups: number of groups with a forecast start that is known by now.
        undecided: how many more wait still, and not yet longer than forecast.
        p50_groups, p90_groups: of how many of the groups there was such a time within the horizon.
        before_p50, before_p90: how many of these had started by then.
        median_error_us: between p50 and the start, of the groups that have both; None where none has.
        positions: the first and the last position with a forecast.
        left_out: how many of the sample were not looked at, because of what that costs.
    """

    groups: int = 0
    undecided: int = 0
    p50_groups: int = 0
    before_p50: int = 0
    p90_groups: int = 0
    before_p90: int = 0
    median_error_us: int | None = None
    positions: tuple[int, int] = (0, 0)
    left_out: int = 0

    @property
    def suffices(self) -> bool:
        """True if it has enough forecasts to say anything."""
        return self.groups >= LEAST_GROUPS


class Backtest:
    """Foretells the starts of a sample as the log goes on."""

    def __init__(
        self,
        state: ClusterState,
        history: RunHistory,
        waits: Sequence[Wait],
        *,
        ended_at: int,
        policies: PolicyBook = NO_POLICIES,
    ) -> None:
        """Args:
        state: before the first of the waits; folded on by `take`.
        history: up to there; likewise.
        waits: the sample, in order of position.
        ended_at: recorded time of the log's last event, microseconds since the epoch.
        """
        self._policies = policies
        self._state, self._history, self._ended_at = state, history, ended_at
        self._waits = list(waits)
        self._next = 0
        self._work = _ALL
        self._forecasts: list[tuple[Wait, StartForecast]] = []
        self._left_out = 0

    @property
    def upto(self) -> int:
        """The last position that is needed."""
        return self._waits[-1].position if self._waits else 0

    def take(self, event: Event) -> None:
        """Take in the next event."""
        self._state.fold(event)
        if event.type in RUN_EVENTS:
            self._history.take(event)
        while self._next < len(self._waits) and self._waits[self._next].position <= event.position:
            wait = self._waits[self._next]
            self._next += 1
            self._foretell(wait)

    def finish(self) -> Calibration:
        """Compare."""
        outcomes = [_Outcome.of(wait, forecast, self._ended_at) for wait, forecast in self._forecasts]
        decided = [outcome for outcome in outcomes if not outcome.undecided]
        halves = [one.before_p50 for one in decided if one.before_p50 is not None]
        nines = [one.before_p90 for one in decided if one.before_p90 is not None]
        errors = [outcome.error_us for outcome in decided if outcome.error_us is not None]
        positions = [wait.position for wait, _ in self._forecasts]
        return Calibration(
            groups=len(decided),
            undecided=len(outcomes) - len(decided),
            p50_groups=len(halves),
            before_p50=sum(halves),
            p90_groups=len(nines),
            before_p90=sum(nines),
            median_error_us=int(np.median(errors)) if errors else None,
            positions=(min(positions), max(positions)) if positions else (0, 0),
            left_out=self._left_out,
        )

    def _foretell(self, wait: Wait) -> None:
        if self._work <= 0:
            self._left_out += 1
            return
        state = self._state
        limits = ForecastLimits(scenarios=_SCENARIOS, work=min(_ONE, self._work))
        forecast = forecast_starts(
            state,
            state.config(),
            self._history,
            [wait.group],
            now=state.recorded_at,
            limits=limits,
            policies=self._policies,
        )[wait.group]
        if isinstance(forecast, StartForecast):
            self._work -= forecast.work
            if forecast.p50_us != 0:
                self._forecasts.append((wait, forecast))


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of one forecast; None without such a time, or before it is over."""

    before_p50: bool | None
    before_p90: bool | None
    error_us: int | None
    undecided: bool

    @classmethod
    def of(cls, wait: Wait, forecast: StartForecast, ended_at: int) -> "_Outcome":
        waited = (wait.started_at or ended_at) - wait.since
        started = bool(wait.started_at)

        def before(predicted: int | None) -> bool | None:
            if predicted is None or (not started and waited <= predicted):
                return None
            return started and waited <= predicted

        error = abs(waited - forecast.p50_us) if started and forecast.p50_us is not None else None
        before_p50, before_p90 = before(forecast.p50_us), before(forecast.p90_us)
        undecided = not started and before_p50 is None and before_p90 is None
        return cls(before_p50, before_p90, error, undecided)
