"""Kubelet rejections that a log could have avoided, the facts it lacked, and its events about a node up to one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from kaicore.rules.deciding.why import zones_text
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event

_NEVER = 1 << 60

#: An exporter that works has reported a pod so long after its start, microseconds.
_BLIND_US = 5_000_000

#: A pod that ran for so long is not expected to end in the moment of a decision, microseconds; and within so long after
#: a kubelet freed what a pod held, the API tells its end.
_OLD_US, _AHEAD_US = 60_000_000, 3_000_000

#: Events about a node before something went wrong, of those that are printed.
_TOLD = 60


@dataclass(slots=True)
class _Life:
    """The events of a pod's life: positions in the log, or as `recorded_at` where it says `_at`."""

    name: str = ""
    node: str = ""
    seen_on: str = ""
    zones: str = ""
    placed: int = _NEVER
    placed_at: int = _NEVER
    bound: int = _NEVER
    given_back: int = _NEVER
    started_at: int = _NEVER
    observed: int = _NEVER
    observed_zones: str = ""
    missed: str = ""
    ended: int = _NEVER
    ended_at: int = _NEVER

    def end(self, event: Event) -> None:
        if self.ended == _NEVER:
            self.ended, self.ended_at = event.position, event.recorded_at


@dataclass(frozen=True, slots=True)
class Rejection:
    """A pod that a kubelet rejected although the log had predicted that it fits.

    Attributes:
        position: of the rejection in the log.
        pod: its name.
        node: the node of the kubelet.
        what: the kubelet's reason and message, and the prediction.
        because: what the log did not know when it decided, a sentence each; empty where it knew all.
        avoidable: whether it could have known better.
    """

    position: int
    pod: str
    node: str
    what: str
    because: tuple[str, ...]
    avoidable: bool

    def __str__(self) -> str:
        known = "; ".join(self.because) or "nothing in the log tells why: see the node's story"
        return f"event {self.position}: pod {self.pod} rejected by {self.node}: {self.what}. {known}"


@dataclass(slots=True)
class Rejections:
    """Kubelets' rejections of a log, by whether it could have known better.

    It could not in three cases only. When the pod was decided on, another one that was there had run for five seconds
    and it was not observed: ingest or its node's exporter was down, and where it is was guessed. Or another one that
    had run for a minute ended between the decision and the kubelet's verdict. Or no exporter had reported anything yet:
    until one does, what is not observed is taken to be as predicted (`kaicore.rules.deciding.cycle_input`).
    """

    all: list[Rejection] = field(default_factory=list)
    #: What the log says of the nodes of those that it could have avoided.
    avoidable: list[str] = field(default_factory=list)

    @property
    def unavoidable(self) -> int:
        """The number that the log could not have avoided."""
        return sum(not one.avoidable for one in self.all)


def rejections_of(events: Sequence[Event]) -> Rejections:
    """Look at all events of a log."""
    lives: dict[str, _Life] = {}
    rejected: list[tuple[Event, payloads.PodRejected]] = []
    first_report = _NEVER
    for event in events:
        payload = decode_payload(event)
        if isinstance(payload, payloads.PodRejected):
            rejected.append((event, payload))
        if isinstance(payload, payloads.PlacementObserved) and payload.source == "exporter":
            first_report = min(first_report, event.position)
        _take(lives, event, payload)
    rejections = Rejections()
    for event, rejection in rejected:
        own = lives[rejection.uid]
        others = [life for uid, life in lives.items() if uid != rejection.uid and life.node == rejection.node]
        there = [other for other in others if other.placed < own.placed < other.ended]
        blind = own.placed < first_report and any(other.observed > own.placed for other in there)
        known = not blind and not any(
            _was_not_seen(other, own) or _ended_of_a_sudden(other, own, at=event.recorded_at) for other in there
        )
        because = list(_unknown(own, others, first_report, rejected=event.position))
        what = f"{rejection.reason}: {rejection.message}; predicted{own.zones or ' nothing of zones'}"
        one = Rejection(event.position, own.name, rejection.node, what, tuple(because), known)
        rejections.all.append(one)
        if known:
            rejections.avoidable += story(events, rejection.node, event.position)
    return rejections


def _take(lives: dict[str, _Life], event: Event, payload: payloads.Payload) -> None:
    life = lives.setdefault(_uid(payload), _Life())
    match payload:
        case payloads.PodObserved(pod=pod):
            life.name, life.seen_on = pod.subject, pod.node_name
            if pod.phase == "Running":
                life.started_at = min(life.started_at, event.recorded_at)
            if pod.phase in ("Succeeded", "Failed"):
                life.end(event)
        case payloads.PodDeleted():
            life.end(event)
        case payloads.PodPlaced(node=node, placement=placement):
            life.node, life.placed, life.placed_at = node, event.position, event.recorded_at
            life.zones = zones_text(placement)
        case payloads.PodBound():
            life.bound = min(life.bound, event.position)
        case payloads.BindFailed():
            life.given_back = event.position
        case payloads.PlacementObserved(placement=placement):
            life.observed = min(life.observed, event.position)
            life.observed_zones = zones_text(placement)
        case payloads.PredictionMissed(cause=cause):
            life.missed = cause
        case _:
            pass


def _uid(payload: payloads.Payload) -> str:
    return payload.pod.uid if isinstance(payload, payloads.PodObserved) else getattr(payload, "uid", "")


def _unknown(own: _Life, others: Sequence[_Life], first_report: int, *, rejected: int) -> Iterator[str]:
    """Yield what was so on the node, or may have been, and was not known when a pod was decided on."""
    if own.placed < first_report:
        yield f"when it was decided on (event {own.placed}) no exporter had reported anything"
    for other in others:
        if other.given_back < rejected and other.bound == _NEVER and other.seen_on == other.node:
            yield f"{other.name} was given back (event {other.given_back}) and came to the node all the same"
        if other.placed > own.placed and other.bound < min(own.bound, rejected):
            yield f"{other.name} was decided on after it and bound before it (event {other.bound})"
        if other.placed < own.placed < min(other.observed, other.ended):
            seen = "" if other.observed == _NEVER else f" until event {other.observed}"
            missed = f" (not as predicted: {other.missed},{other.observed_zones})" if other.missed else ""
            yield f"{other.name}, predicted{other.zones or ' nothing'}, was not observed{seen}{missed}"
        if other.placed < own.placed < other.ended < rejected:
            yield f"{other.name} ended, as was reported afterwards (event {other.ended})"
        if other.ended < own.placed and (names := ", ".join(one.name for one in _heirs(other, own, others))):
            yield f"{names} may have the room of {other.name}, later reported as ended (event {other.ended})"


def _heirs(gone: _Life, own: _Life, others: Sequence[_Life]) -> list[_Life]:
    """The pods that were decided on before another pod's end was reported, and not observed at another decision."""
    return [one for one in others if gone.placed < one.placed < gone.ended and one.placed < own.placed < one.observed]


def _was_not_seen(other: _Life, own: _Life) -> bool:
    return other.observed > own.placed and own.placed_at - other.started_at > _BLIND_US


def _ended_of_a_sudden(other: _Life, own: _Life, *, at: int) -> bool:
    return own.placed_at - other.started_at > _OLD_US and other.ended_at <= at + _AHEAD_US


def story(events: Sequence[Event], node: str, position: int) -> list[str]:
    """The log's events about a node up to a position, the last of it."""
    lines: list[str] = []
    for event in events:
        payload = decode_payload(event)
        named = payload.pod.node_name if isinstance(payload, payloads.PodObserved) else getattr(payload, "node", "")
        if named == node and event.position <= position:
            text = msgspec.json.encode(payload).decode()[:1000]
            lines.append(f"{event.position} {event.recorded_at} {event.type} {text}")
    return [f"node {node} up to position {position}:", *lines[-_TOLD:]]
