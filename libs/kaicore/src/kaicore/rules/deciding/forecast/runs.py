"""Runs: how long pods ran on their nodes, and how they ended, collected from a log's events.

Pods of one owner that began and ended together are one run: a gang of 64 pods counts once as a run of such a gang. A
run that an eviction cut short, or that still goes on, only shows that it lasted at least so long.
"""

from collections import deque
from typing import Any, NamedTuple

from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload, names_in_logs
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.pod import Pod
from kaicore.rules.state.indexes.run_times import Basis, RunKeys, run_keys
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
