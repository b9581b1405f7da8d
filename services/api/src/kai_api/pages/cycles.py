"""A cycle step by step: what it was decided on, what it decided in which order, and what it left waiting."""

from collections.abc import Sequence
from dataclasses import dataclass

from kaicore.errors import UnknownSubject
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.deciding.why import story_of
from kaicore.rules.engine.decisions import Decision, GroupDecision
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.views import ClusterView

from kai_api.pages.frame import pods_text
from kai_api.pages.node import NodeZonesTable, zones_table
from kai_api.pages.pods import WaitingLine, waiting_line

#: Events of a cycle that are read; one that decides more is shown in part.
_MOST_EVENTS = 5000
_WAITING_ROWS = 20
#: Steps around the chosen one that are listed.
_AROUND = 150

_KINDS: dict[type[payloads.Payload], tuple[str, str]] = {
    payloads.PodPlaced: ("placed", "place"),
    payloads.PodNominated: ("placed", "keep room"),
    payloads.NominationCleared: ("leaving", "give up room"),
    payloads.EvictionDecided: ("leaving", "evict"),
    payloads.RepairRequested: ("leaving", "place anew"),
    payloads.GpuOpened: ("placed", "open a GPU for sharing"),
    payloads.ProvisioningRequested: ("placed", "ask for nodes"),
    payloads.ProvisioningWithdrawn: ("leaving", "withdraw request"),
}


@dataclass(frozen=True, slots=True)
class CycleStep:
    """A step of a cycle.

    Attributes:
        number: from 0, which is the input.
        position: of the state after it.
        kind: its class in the style sheet.
        verb: what it does.
        subject: `<namespace>/<name>` of the pod or group; empty for the first and the last step.
        node: that it is about; empty for none.
    """

    number: int
    position: int
    kind: str
    verb: str
    subject: str
    node: str
    text: str


@dataclass(frozen=True, slots=True)
class CycleSteps:
    """A recorded cycle as steps.

    Attributes:
        position: of its record.
        late: events that were recorded while it was decided.
        steps: the first is the input, the last is what is left waiting.
        whole: whether all of its events were read.
    """

    position: int
    recorded_at: int
    cycle: payloads.CycleCompleted
    late: int
    steps: tuple[CycleStep, ...]
    whole: bool

    def step(self, number: int) -> CycleStep:
        """Return a step; the last one where there are not so many."""
        return self.steps[min(max(0, number), len(self.steps) - 1)]

    def step_at(self, position: int) -> CycleStep:
        """Return the last step at or before a position; the first one where there is none."""
        return next((step for step in reversed(self.steps) if step.position <= position), self.steps[0])


@dataclass(frozen=True, slots=True)
class CyclePage:
    """A cycle at one of its steps.

    Attributes:
        shown: the steps that are listed.
        node: the zones of the node that the step is about, after it.
        waiting: what waits then, at the first and the last step.
    """

    steps: CycleSteps
    step: CycleStep
    shown: tuple[CycleStep, ...]
    node: NodeZonesTable | None
    waiting: WaitingLine | None


async def cycle_steps(log: EventLog, cluster: str, position: int) -> CycleSteps:
    """Read a cycle.

    Args:
        position: of its `CycleCompleted`, or of any of its decisions.

    Raises:
        UnknownSubject: there is no cycle at the position.
    """
    events = await log.read(cluster, after=max(0, position - 1), upto=position, limit=1)
    if events and events[0].type != "CycleCompleted" and events[0].correlation:
        # A decision: its cycle is recorded right before the first one.
        where = Filter(types=("CycleCompleted",))
        before = await log.read(cluster, after=max(0, position - _MOST_EVENTS), upto=position, where=where)
        events = [event for event in before if event.correlation == events[0].correlation]
    if not events or not isinstance(decode_payload(events[0]), payloads.CycleCompleted):
        raise UnknownSubject(f"no cycle is recorded at position {position}")
    first = events[0]
    events = await log.read(
        cluster, after=first.position - 1, upto=first.position - 1 + _MOST_EVENTS, limit=_MOST_EVENTS
    )
    own = 0
    while own < len(events) and events[own].correlation == first.correlation:
        own += 1
    return steps_of(events[:own], whole=own < _MOST_EVENTS)


def steps_of(events: Sequence[Event], *, whole: bool = True) -> CycleSteps:
    """Return the steps of a cycle from its events, the first of which is its record."""
    first = events[0]
    cycle = decode_payload(first)
    assert isinstance(cycle, payloads.CycleCompleted)
    steps = [
        CycleStep(
            0, cycle.input_position, "", "input", "", "", f"{pods_text(cycle.pods, 'waits', 'wait')} for a decision"
        ),
    ]
    for event in events:
        decision = decode_payload(event)
        if isinstance(decision, Decision):
            steps.append(_step(len(steps), event, decision))
    left = cycle.pods - cycle.placed
    steps.append(
        CycleStep(
            len(steps), events[-1].position, "ended", "end", "", "", f"{pods_text(left, 'is', 'are')} left waiting"
        ),
    )
    return CycleSteps(
        position=first.position,
        recorded_at=first.recorded_at,
        cycle=cycle,
        late=first.position - 1 - cycle.input_position,
        steps=tuple(steps),
        whole=whole,
    )


def cycle_page(steps: CycleSteps, number: int, state: ClusterView) -> CyclePage:
    """Return the model of a cycle's page.

    Args:
        number: of the step.
        state: as of that step's position.
    """
    step = steps.step(number)
    row = state.columns.rows.get(step.node) if step.node else None
    known = row is not None and state.columns.facts[row] is not None
    outer = step.number in (0, len(steps.steps) - 1)
    start = max(0, step.number - _AROUND // 2)
    return CyclePage(
        steps=steps,
        step=step,
        shown=steps.steps[start : start + _AROUND],
        node=zones_table(state, row) if row is not None and known else None,
        waiting=waiting_line(state, limit=_WAITING_ROWS) if outer else None,
    )


def _step(number: int, event: Event, decision: Decision) -> CycleStep:
    kind, verb = _KINDS[type(decision)]
    subject = f"{decision.namespace}/{decision.name}"
    if isinstance(decision, GroupDecision):
        return CycleStep(number, event.position, kind, verb, subject, "", f"{verb} for {decision.group}")
    lines = story_of([event])
    text = lines[0].text.removeprefix(f"cycle {decision.cycle} ") if lines else verb
    return CycleStep(number, event.position, kind, verb, subject, decision.node, text)
