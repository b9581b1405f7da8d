"""Which kubelet rejections a log could have avoided, and what it says of a node up to something that went wrong."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event

_NEVER = 1 << 60

#: An exporter that works has reported a pod so long after its start, microseconds.
_BLIND_US = 5_000_000

#: A pod that ran for so long is not expected to end in the moment of a decision, microseconds; and within so long after
#: a kubelet freed what a pod held, the API tells its end.
_OLD_US, _AHEAD_US = 60_000_000, 3_000_000

#: Events about a node before something went wrong, of those that are told.
_TOLD = 60


@dataclass(slots=True)
class _Life:
    """When something became of a pod: positions in the log, or as `recorded_at` where it says `_at`."""

    node: str = ""
    placed: int = _NEVER
    placed_at: int = _NEVER
    started_at: int = _NEVER
    observed: int = _NEVER
    ended: int = _NEVER
    ended_at: int = _NEVER

    def end(self, event: Event) -> None:
        if self.ended == _NEVER:
            self.ended, self.ended_at = event.position, event.recorded_at


@dataclass(slots=True)
class Rejections:
    """Kubelets' rejections of a log, by whether it could have known better.

    It could not in two cases only. When the pod was decided on, another one that was there had run for five seconds and
    it was not observed: ingest or its node's exporter was down, and where it is was guessed. Or another one that had
    run for a minute ended between the decision and the kubelet's verdict.
    """

    avoidable: list[str] = field(default_factory=list)
    unavoidable: int = 0


def rejections_of(events: Sequence[Event]) -> Rejections:
    """Look at all events of a log."""
    lives: dict[str, _Life] = {}
    rejected: list[tuple[Event, payloads.PodRejected]] = []
    for event in events:
        payload = decode_payload(event)
        match payload:
            case payloads.PodObserved(pod=pod):
                life = lives.setdefault(pod.uid, _Life())
                if pod.phase == "Running":
                    life.started_at = min(life.started_at, event.recorded_at)
                if pod.phase in ("Succeeded", "Failed"):
                    life.end(event)
            case payloads.PodDeleted(uid=uid):
                lives.setdefault(uid, _Life()).end(event)
            case payloads.PodPlaced(uid=uid, node=node):
                life = lives.setdefault(uid, _Life())
                life.node, life.placed, life.placed_at = node, event.position, event.recorded_at
            case payloads.PlacementObserved(uid=uid):
                life = lives.setdefault(uid, _Life())
                life.observed = min(life.observed, event.position)
            case payloads.PodRejected():
                rejected.append((event, payload))
    rejections = Rejections()
    for event, rejection in rejected:
        own = lives[rejection.uid]
        others = [life for uid, life in lives.items() if uid != rejection.uid and life.node == rejection.node]
        there = [other for other in others if other.placed < own.placed < other.ended]
        if any(_was_not_seen(other, own) or _ended_of_a_sudden(other, own, at=event.recorded_at) for other in there):
            rejections.unavoidable += 1
        else:
            rejections.avoidable += story(events, rejection.node, event.position)
    return rejections


def _was_not_seen(other: _Life, own: _Life) -> bool:
    return other.observed > own.placed and own.placed_at - other.started_at > _BLIND_US


def _ended_of_a_sudden(other: _Life, own: _Life, *, at: int) -> bool:
    return own.placed_at - other.started_at > _OLD_US and other.ended_at <= at + _AHEAD_US


def story(events: Sequence[Event], node: str, position: int) -> list[str]:
    """What the log says of a node up to a position, the last of it."""
    lines: list[str] = []
    for event in events:
        payload = decode_payload(event)
        named = payload.pod.node_name if isinstance(payload, payloads.PodObserved) else getattr(payload, "node", "")
        if named == node and event.position <= position:
            text = msgspec.json.encode(payload).decode()[:1000]
            lines.append(f"{event.position} {event.recorded_at} {event.type} {text}")
    return [f"node {node} up to position {position}:", *lines[-_TOLD:]]
