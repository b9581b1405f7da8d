"""The story of a pod, or of what has several: what happened when, and for how long it stood how."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kaicore.analysis.inquiry.answers import Why
from kaicore.rules.deciding.why import story_of
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event

from kai_api.pages.frame import duration

#: Pods of a group whose stories are drawn.
MOST_LANES = 60


@dataclass(frozen=True, slots=True)
class Span:
    """A time that a pod stood somehow.

    Attributes:
        kind: waiting, placed, bound, running, leaving, ended or failed; its class in the style sheet.
        began_at: position of the event that began it.
        start, width: in hundredths of the lane.
        text: for people.
    """

    kind: str
    began_at: int
    start: float
    width: float
    text: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A pod's time."""

    namespace: str
    name: str
    node: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """An event of a story.

    Attributes:
        kind: what it is about, a class in the style sheet.
        after: how long after the one before; empty for the first.
    """

    position: int
    recorded_at: int
    after: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Story:
    """What happened to something.

    Attributes:
        why: what is to be said of it as of the position.
        lanes: its pods' time, from `began` to `ended` (microseconds since the epoch).
        more_pods: pods that are not drawn.
        steps: of a pod.
    """

    why: Why
    lanes: tuple[Lane, ...]
    began: int
    ended: int
    more_pods: int
    steps: tuple[Step, ...]


_KINDS: dict[type[payloads.Payload], str] = {
    payloads.PodPlaced: "placed",
    payloads.PodBound: "bound",
    payloads.BindFailed: "failed",
    payloads.PodRejected: "failed",
    payloads.PredictionMissed: "failed",
    payloads.EvictionDecided: "leaving",
    payloads.HealRequested: "leaving",
    payloads.PodEvicted: "leaving",
    payloads.EvictionFailed: "failed",
    payloads.PodNominated: "placed",
    payloads.PlacementObserved: "running",
    payloads.PodDeleted: "ended",
}


def story(why: Why, events: Sequence[Event], *, now: int) -> Story:
    """Return the model of a story.

    Args:
        why: the answer about it.
        events: of its pods, in order, from any streams.
        now: the end of what is drawn, microseconds since the epoch.
    """
    by_stream: dict[str, list[Event]] = {}
    for event in events:
        if event.stream.startswith("pod/"):
            by_stream.setdefault(event.stream, []).append(event)
    if why.kind == "Pod":
        by_stream = {stream: one for stream, one in by_stream.items() if stream == f"pod/{why.uid}"}
    began = min((one[0].recorded_at for one in by_stream.values()), default=now)
    lanes = [lane for one in by_stream.values() if (lane := _lane(one, began, now)) is not None]
    own = by_stream.get(f"pod/{why.uid}", [])
    return Story(
        why=why,
        lanes=tuple(sorted(lanes, key=lambda lane: lane.name))[:MOST_LANES],
        began=began,
        ended=now,
        more_pods=max(0, len(lanes) - MOST_LANES),
        steps=tuple(_steps(own)) if why.kind == "Pod" else (),
    )


def _steps(events: list[Event]) -> Iterable[Step]:
    by_position = {event.position: event for event in events}
    before = 0
    for line in story_of(events):
        payload = decode_payload(by_position[line.position])
        kind = _KINDS.get(type(payload), "")
        if isinstance(payload, payloads.PodObserved):
            phase = payload.pod.phase
            kind = {"Running": "running", "Failed": "failed", "Succeeded": "ended"}.get(phase, "")
        after = duration((line.recorded_at - before) / 1e6) if before else ""
        before = line.recorded_at
        yield Step(line.position, line.recorded_at, after, kind, line.text)


def _lane(events: list[Event], began: int, ended: int) -> Lane | None:
    """Return a pod's time as spans; None where the log does not tell of it."""
    marks: list[tuple[str, Event]] = []
    node = namespace = name = ""
    for event in events:
        payload = decode_payload(event)
        kind = _stage(payload, marks[-1][0] if marks else "")
        node = getattr(payload, "node", "") or node
        if isinstance(payload, payloads.PodObserved):
            namespace, name = payload.pod.namespace, payload.pod.name
            node = payload.pod.node_name or node
        if kind and (not marks or marks[-1][0] != kind):
            marks.append((kind, event))
    if not marks or not name:
        return None
    whole = max(1, ended - began)
    spans = []
    for (kind, event), until in zip(marks, [*(event.recorded_at for _, event in marks[1:]), ended], strict=True):
        if kind != "gone":
            lasted = until - event.recorded_at
            start, width = (round(100 * part / whole, 2) for part in (event.recorded_at - began, lasted))
            spans.append(Span(kind, event.position, start, width, f"{kind} for {duration(lasted / 1e6)}"))
    return Lane(namespace, name, node, tuple(spans))


def _stage(payload: payloads.Payload, before: str) -> str:
    """Return how a pod stands from an event on; empty where that does not change."""
    match payload:
        case payloads.PodObserved(pod):
            if pod.phase == "Failed":
                return "failed"
            if pod.phase == "Succeeded":
                return "ended"
            if pod.deletion_at is not None:
                return "leaving"
            if pod.phase == "Running":
                return "running"
            return "bound" if pod.node_name else before or "waiting"
        case payloads.PodPlaced():
            return "placed"
        case payloads.PodBound():
            return "bound"
        case payloads.BindFailed():
            return "waiting"
        case payloads.PodRejected():
            return "failed"
        case payloads.EvictionDecided() | payloads.HealRequested() | payloads.PodEvicted():
            return "leaving"
        case payloads.EvictionFailed():
            return "running"
        case payloads.PodDeleted():
            return "gone"
        case _:
            return ""
