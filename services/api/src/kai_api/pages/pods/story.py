"""The story of a pod, or of what has several: what happened when, and for how long it stood how."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kaicore.analysis.ask.answers import Why
from kaicore.rules.deciding.why import story_of
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.pods.pod_life import LifeEvent, LifeStage, LifeStep, PodLife, life_steps

from kai_api.pages.frame import duration

#: Pods of a group with stories that are drawn.
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
    """The story of something.

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


#: Classes of the style sheet, by the part of an event in the pod's life.
_KINDS = {
    LifeEvent.REJECTED: "failed",
    LifeEvent.PLACED: "placed",
    LifeEvent.NOMINATED: "placed",
    LifeEvent.BOUND: "bound",
    LifeEvent.BIND_FAILED: "failed",
    LifeEvent.OBSERVED: "running",
    LifeEvent.EVICTION_DECIDED: "leaving",
    LifeEvent.EVICTED: "leaving",
    LifeEvent.EVICTION_FAILED: "failed",
    LifeEvent.DELETED: "ended",
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
    kinds = {step.event.position: _kind(step) for step in life_steps(events)}
    before = 0
    for line in story_of(events):
        after = duration((line.recorded_at - before) / 1e6) if before else ""
        before = line.recorded_at
        yield Step(line.position, line.recorded_at, after, kinds[line.position], line.text)


def _kind(step: LifeStep) -> str:
    if isinstance(step.payload, payloads.PredictionMissed):
        return "failed"
    if isinstance(step.payload, payloads.PodObserved):
        return {"Running": "running", "Failed": "failed", "Succeeded": "ended"}.get(step.payload.pod.phase, "")
    return "" if step.part is None else _KINDS.get(step.part, "")


def _lane(events: list[Event], began: int, ended: int) -> Lane | None:
    """Return a pod's time as spans; None where the log does not tell of it."""
    marks: list[tuple[LifeStage, Event]] = []
    life = PodLife()
    for event, _, _, life in life_steps(events):
        if not marks or marks[-1][0] is not life.stage:
            marks.append((life.stage, event))
    if life.seen is None:
        return None
    whole = max(1, ended - began)
    spans = []
    for (kind, event), until in zip(marks, [*(event.recorded_at for _, event in marks[1:]), ended], strict=True):
        if kind is not LifeStage.GONE:
            lasted = until - event.recorded_at
            start, width = (round(100 * part / whole, 2) for part in (event.recorded_at - began, lasted))
            spans.append(Span(kind, event.position, start, width, f"{kind} for {duration(lasted / 1e6)}"))
    return Lane(life.seen.namespace, life.seen.name, life.node, tuple(spans))
