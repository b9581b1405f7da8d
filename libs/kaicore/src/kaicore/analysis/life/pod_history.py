"""The history of a pod: its timeline, its evictions and its rejections, from the events of its name."""

from collections.abc import Iterable, Sequence

from kaicore.analysis.json_spelling import time_text
from kaicore.analysis.life.why_answers import EvictionAnswer, PodRejectionAnswer, TimelineStep
from kaicore.rules.deciding.why import choice_text, zones_text
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import Event
from kaicore.rules.groups.membership import display_key
from kaicore.rules.state.pod_entry import PodEntry
from kaicore.rules.state.pod_life import LifeEvent, life_steps
from kaicore.rules.state.views import FleetView, WorkView

#: A step that changes nothing of how a pod stands.
OBSERVED = "zones observed"
#: Successors that are shown of one pod.
_MOST_SUCCESSORS = 3


#: Texts of a timeline's steps; a node follows those with a colon.
_STEP_TEXTS = {
    LifeEvent.SEEN: "seen",
    LifeEvent.STARTED: "running",
    LifeEvent.FINISHED: "ended",
    LifeEvent.REJECTED: "rejected: ",
    LifeEvent.PLACED: "decided: ",
    LifeEvent.NOMINATED: "room kept: ",
    LifeEvent.BOUND: "bound: ",
    LifeEvent.BIND_FAILED: "bind failed: ",
    LifeEvent.OBSERVED: OBSERVED,
    LifeEvent.EVICTION_DECIDED: "eviction decided: ",
    LifeEvent.EVICTED: "evicted: ",
    LifeEvent.DELETED: "deleted",
}


def waits_since(events: Sequence[Event]) -> Event | None:
    """Return the event with which a pod began to wait as it does now; None where it does not wait.

    Args:
        events: of one pod, in order.
    """
    position = 0
    for step in life_steps(events):
        position = step.life.waits_since
    return next((event for event in events if event.position == position), None)


def timeline(events: Sequence[Event]) -> list[TimelineStep]:
    """Return the steps of a pod's way, each with how long after the one before it came."""
    steps: list[tuple[str, int, int]] = []
    for event, payload, part, life in life_steps(events):
        if not steps and life.seen is not None:
            steps.append(("created", life.seen.created_at * 1_000_000, 0))
        text = "" if part is None else _STEP_TEXTS.get(part, "")
        if text:
            what = f"{text}{getattr(payload, 'node', '')}" if text.endswith(": ") else text
            steps.append((what, event.recorded_at, event.position))
    before = [at for _, at, _ in steps[:1]] + [at for _, at, _ in steps[:-1]]
    return [
        TimelineStep(what=what, at=time_text(at), position=position, after_ms=max(at - earlier, 0) // 1000)
        for (what, at, position), earlier in zip(steps, before, strict=True)
    ]


def evictions(state: WorkView, events: Iterable[Event]) -> list[EvictionAnswer]:
    """Return by which decisions pods of a name were evicted, for whom, and where their successors are."""
    answers = []
    for event, payload, _, life in life_steps(events):
        pod = life.seen
        if not isinstance(payload, payloads.EvictionDecided | payloads.HealRequested):
            continue
        successors: list[str] = []
        if pod is not None and pod.owner is not None:
            made = [
                one
                for one in state.pods.values()
                if one.pod.owner is not None
                and one.pod.owner.uid == pod.owner.uid
                and one.pod.created_at * 1_000_000 >= event.recorded_at - 1_000_000
                and one.pod.uid != pod.uid
            ]
            made.sort(key=lambda one: (one.pod.created_at, one.pod.name))
            successors = [_where(one) for one in made[:_MOST_SUCCESSORS]]
        if isinstance(payload, payloads.HealRequested):
            reason, preemptor, choice, fits_on = f"its NUMA policy was missed: {payload.missed}", "", "", ""
        else:
            reason, preemptor, fits_on = payload.reason, payload.preemptor, payload.fits_on
            choice = choice_text(payload).removeprefix("; ")
        group = state.groups.get(preemptor)
        answers.append(
            EvictionAnswer(
                node=payload.node,
                cycle=payload.cycle,
                position=event.position,
                at=time_text(event.recorded_at),
                reason=reason,
                made_way_for=display_key(preemptor) if preemptor else "",
                for_queue="" if group is None else group.queue,
                choice=choice,
                would_fit_on=fits_on,
                successors=successors,
            )
        )
    return answers


def _where(entry: PodEntry) -> str:
    return f"{entry.pod.subject} on {entry.node}" if entry.node else f"{entry.pod.subject}, which waits"


def rejections(state: FleetView, events: Iterable[Event]) -> list[PodRejectionAnswer]:
    """Return what kubelets refused of pods of a name, what had been predicted, and what follows from it."""
    answers = []
    for event, payload, _, life in life_steps(events):
        if isinstance(payload, payloads.PodRejected):
            answers.append(
                PodRejectionAnswer(
                    node=payload.node,
                    position=event.position,
                    at=time_text(event.recorded_at),
                    reason=payload.reason,
                    message=payload.message,
                    predicted=zones_text(life.predicted).removeprefix(" zones "),
                    learned=_learned(state, payload),
                )
            )
    return answers


def _learned(state: FleetView, rejected: payloads.PodRejected) -> str:
    """Say whether such pods are offered to the node again."""
    entry = state.pods.get(rejected.uid)
    by_class = state.rejections.by_node.get(rejected.node, {})
    known = by_class.get(entry.class_key) if entry is not None else None
    if known is None:
        return ""
    times = f"its kubelet has rejected {known.count} such pod{'' if known.count == 1 else 's'}"
    if known.changes == state.rejections.changes.get(rejected.node, 0):
        return f"{times}; none is offered to it until something changes there"
    return f"{times}; something has changed there since, so such pods are offered to it again"
