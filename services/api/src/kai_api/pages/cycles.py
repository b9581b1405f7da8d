"""Decisions: a cycle step by step, and how well kubelets were predicted over the whole log."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kaicore.analysis.ask.projections.questions import Decisions
from kaicore.errors import UnknownSubject
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.deciding.cycle_input import is_unobserved
from kaicore.rules.deciding.why import story_of
from kaicore.rules.engine.decisions import Decision, GroupDecision
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.pods.agreement import NO_FAULT, Agreement
from kaicore.rules.state.views import ClusterView, FleetView, PodsView

from kai_api.pages.frame import Part, parts, pods_text
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
    """Read a cycle. Raises UnknownSubject: there is no cycle at the position.

    Args:
        position: of its `CycleCompleted`, or of any of its decisions.
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
    """Return the model of a cycle's page (`state`: as of that step's position)."""
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


#: Nodes that are listed, those with most misses first; and of the last misses.
_MOST_NODES, _MOST_MISSES = 50, 50


@dataclass(frozen=True, slots=True)
class CauseCount:
    """Misses of one cause under one policy; `expected` where that is no fault of the prediction."""

    policy: str
    cause: str
    count: int
    share: float
    expected: bool


@dataclass(frozen=True, slots=True)
class NodeMisses:
    """Misses of one node's kubelet."""

    node: str
    count: int
    causes: str


@dataclass(frozen=True, slots=True)
class LastMiss:
    """A miss and where in the log it is."""

    position: int
    namespace: str
    name: str
    node: str
    cause: str


@dataclass(frozen=True, slots=True)
class HourAccuracy:
    """The accuracy of predictions in an hour with at least one.

    Attributes:
        rate: how many of the observed pods were on the predicted zones, in hundredths; None where none was observed.
    """

    at: str
    bar: tuple[Part, ...]
    observed: int
    rejected: int
    rate: float | None


@dataclass(frozen=True, slots=True)
class Predictions:
    """The accuracy of predictions of kubelets.

    Attributes:
        observed: placements that were compared.
        rate: how many of them were exactly as predicted, in hundredths; None where none was compared.
        bar: of the three kinds of agreement.
        rejections: by the kubelet's reason.
        unobserved: pods that run on zones, and have not been observed.
        hours: the last first; none where no read models are kept.
        disbelieved: observations that were not believed.
        promises: reserved starts, by what became of them (`Counters.promises`).
        kept: how many groups of those that started were no later than was promised to them first, in hundredths; None
            where no promise with a time has come to its start.
    """

    observed: int
    rate: float | None
    bar: tuple[Part, ...]
    agreement: tuple[tuple[str, int], ...]
    placed: int
    rejections: tuple[tuple[str, int], ...]
    causes: tuple[CauseCount, ...]
    nodes: tuple[NodeMisses, ...]
    last: tuple[LastMiss, ...]
    unobserved: int
    disbelieved: int
    hours: tuple[HourAccuracy, ...] = ()
    promises: tuple[tuple[str, int], ...] = ()
    kept: float | None = None


def predictions(state: FleetView, hours: Sequence[Decisions] = ()) -> Predictions:
    """Return the model of the page about predictions.

    Args:
        hours: what was decided by the hour, the last hours up to there.
    """
    counters = state.counters
    agreement = {kind: counters.agreement.get(kind.value, 0) for kind in Agreement}
    observed = sum(agreement.values())
    causes: Counter[tuple[str, str]] = Counter()
    by_node: dict[str, Counter[str]] = {}
    for node, by_cause in counters.misses.items():
        for key, count in by_cause.items():
            policy, _, cause = key.partition("/")
            causes[policy, cause] += count
            by_node.setdefault(node, Counter())[cause] += count
    most = max(causes.values(), default=1)
    words = {Agreement.EXACT: "as predicted", Agreement.SAME_ZONES: "same zones", Agreement.DIFFERENT: "otherwise"}
    kinds = {Agreement.EXACT: "held", Agreement.SAME_ZONES: "placed", Agreement.DIFFERENT: "bad"}
    ordered = sorted(by_node.items(), key=lambda item: (-item[1].total(), item[0]))[:_MOST_NODES]
    return Predictions(
        observed=observed,
        rate=round(100 * agreement[Agreement.EXACT] / observed, 2) if observed else None,
        bar=parts(observed, ((kinds[kind], words[kind], count, str(count)) for kind, count in agreement.items())),
        agreement=tuple((words[kind], count) for kind, count in agreement.items()),
        placed=counters.placed,
        rejections=tuple(sorted(counters.rejections.items(), key=lambda item: (-item[1], item[0]))),
        causes=tuple(
            CauseCount(policy, cause, count, round(100 * count / most, 2), cause in NO_FAULT)
            for (policy, cause), count in sorted(causes.items(), key=lambda item: (-item[1], item[0]))
        ),
        nodes=tuple(
            NodeMisses(node, by_cause.total(), ", ".join(f"{count} {cause}" for cause, count in by_cause.most_common()))
            for node, by_cause in ordered
        ),
        last=tuple(_last(state)),
        unobserved=sum(is_unobserved(state, entry) for entry in state.pods.values()),
        hours=tuple(_hour(one) for one in reversed(hours)),
        disbelieved=sum(counters.disbelieved.values()),
        promises=tuple((key.replace("/", ": "), count) for key, count in sorted(counters.promises.items())),
        kept=_kept(counters.promises),
    )


def _kept(promises: Mapping[str, int]) -> float | None:
    started = promises.get("kept", 0) + promises.get("late", 0)
    return round(100 * promises.get("kept", 0) / started, 2) if started else None


def _hour(hour: Decisions) -> HourAccuracy:
    observed = hour.agreed + hour.contradicted
    kinds = (
        ("held", "on the predicted zones", hour.agreed),
        ("bad", "on others", hour.contradicted),
        ("releasing", "rejected", hour.rejected),
    )
    return HourAccuracy(
        at=f"{hour.at[:13].replace('T', ' ')}:00",
        bar=parts(observed + hour.rejected, ((kind, label, count, str(count)) for kind, label, count in kinds)),
        observed=observed,
        rejected=hour.rejected,
        rate=round(100 * hour.agreed / observed, 2) if observed else None,
    )


def _last(state: PodsView) -> list[LastMiss]:
    last = []
    for uid, miss in state.misses.explained.items():
        entry = state.pods.get(uid)
        if entry is not None:
            last.append(LastMiss(miss.at, entry.pod.namespace, entry.pod.name, miss.node, miss.cause))
    return sorted(last, key=lambda miss: -miss.position)[:_MOST_MISSES]
