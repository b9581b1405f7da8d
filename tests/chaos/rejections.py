"""Which kubelet rejections a log could have avoided, and what it says of a node up to something that went wrong."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event

_NEVER = 1 << 60

#: How far the API is behind a kubelet at most, microseconds; the log is behind the API a little.
_AHEAD_US = 3_000_000

#: Events about a node before something went wrong, of those that are told.
_TOLD = 60


@dataclass(slots=True)
class _Life:
    """A pod's positions in the log."""

    node: str = ""
    created_at: int = 0
    placed: int = _NEVER
    placed_at: int = 0
    observed: bool = False
    missed: int = 0
    ended: int = _NEVER
    ended_at: int = _NEVER

    def end(self, event: Event) -> None:
        if self.ended == _NEVER:
            self.ended, self.ended_at = event.position, event.recorded_at


@dataclass(slots=True)
class Rejections:
    """Kubelets' rejections of a log, by whether it knew better.

    One could have been avoided if the log knew, when the pod was decided on, what the others of its node held. It did
    not know if one of them was seen elsewhere only afterwards or never, as while ingest or an exporter is down; if the
    end of one was told soon after, for the kubelet had freed what it held by then, and a first container went to where
    the others cannot follow; or if an older one that was decided on later came to the kubelet together with it.
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
                life.created_at = pod.created_at
                if pod.phase in ("Succeeded", "Failed"):
                    life.end(event)
            case payloads.PodDeleted(uid=uid):
                lives.setdefault(uid, _Life()).end(event)
            case payloads.PodPlaced(uid=uid, node=node):
                life = lives.setdefault(uid, _Life())
                life.node, life.placed, life.placed_at = node, event.position, event.recorded_at
            case payloads.PlacementObserved(uid=uid):
                lives.setdefault(uid, _Life()).observed = True
            case payloads.PredictionMissed(uid=uid, observed=observed) if observed is not None:
                lives.setdefault(uid, _Life()).missed = event.position
            case payloads.PodRejected():
                rejected.append((event, payload))
    found = Rejections()
    for event, rejection in rejected:
        own = lives[rejection.uid]
        others = [life for uid, life in lives.items() if uid != rejection.uid and life.node == rejection.node]
        if any(_was_not_known(other, own, at=event.position) for other in others):
            found.unavoidable += 1
        else:
            found.avoidable += story(events, rejection.node, event.position)
    return found


def _was_not_known(other: _Life, own: _Life, *, at: int) -> bool:
    if own.placed < other.placed < at:
        return other.created_at < own.created_at
    if not other.placed < own.placed < other.ended:
        return False
    freed_early = other.ended_at <= own.placed_at + _AHEAD_US
    return freed_early or other.missed > own.placed or not other.observed


def story(events: Sequence[Event], node: str, position: int) -> list[str]:
    """What the log says of a node up to a position, the last of it."""
    told: list[str] = []
    for event in events:
        payload = decode_payload(event)
        named = payload.pod.node_name if isinstance(payload, payloads.PodObserved) else getattr(payload, "node", "")
        if named == node and event.position <= position:
            text = msgspec.json.encode(payload).decode()[:1000]
            told.append(f"{event.position} {event.recorded_at} {event.type} {text}")
    return [f"node {node} up to position {position}:", *told[-_TOLD:]]
