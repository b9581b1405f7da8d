"""The history of a pod from the events of its name: its timeline, its evictions, its rejections, and its evidence.

The evidence is the cycles since the pod waits, and the state that the cycle saw that placed it.

All reads use an index of the log: the pod's name, the type of an event, a position. So they take as long on a long log
as on a short one.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kaicore.analysis.json_spelling import time_text
from kaicore.analysis.life.attempts import MOST_BEFORE, CycleBook, CycleRecords, cycle_records, placement_scores
from kaicore.analysis.life.placements import DecidedPlacement
from kaicore.analysis.life.why_answers import EvictionAnswer, PodRejectionAnswer, TimelineStep
from kaicore.analysis.replay.moments import appended_together
from kaicore.errors import EventsRetired
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.policy import Point
from kaicore.rules.deciding.why import choice_text, zones_text
from kaicore.rules.engine.config import ENGINE_VERSION, EngineConfig
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook, PolicyMismatch
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import ConfigRecorded, CycleCompleted, EvictionDecided, PodPlaced
from kaicore.rules.events.reasons.base import plural
from kaicore.rules.groups.membership import display_key
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.pods.pod_life import LifeEvent, life_steps
from kaicore.rules.state.views import ClusterView, FleetView

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


def evictions(state: ClusterView, evidence: "PodEvidence") -> list[EvictionAnswer]:
    """Return by which decisions pods of a name were evicted, for whom, and where their successors are."""
    answers = []
    for event, payload, _, life in life_steps(evidence.story):
        pod = life.seen
        if not isinstance(payload, payloads.EvictionDecided | payloads.RepairRequested):
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
        if isinstance(payload, payloads.RepairRequested):
            reason, preemptor, choice, fits_on = f"its NUMA policy was missed: {payload.missed}", "", "", ""
        else:
            reason, preemptor, fits_on = payload.why, payload.preemptor, payload.fits_on
            choice = choice_text(payload, evidence.dearer_by.get(event.position, ())).removeprefix("; ")
        group = state.groups.get(preemptor)
        answers.append(
            EvictionAnswer(
                node=payload.node,
                cycle=payload.cycle,
                position=event.position,
                at=time_text(event.recorded_at),
                reason=reason,
                made_way_for=display_key(preemptor) if preemptor else "",
                for_queue="" if group is None else state.queue_registry.tree.name_for(group.queue, group.namespace),
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
                PodRejectionAnswer.copied(
                    payload,
                    position=event.position,
                    at=time_text(event.recorded_at),
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
    times = f"its kubelet has rejected {plural(known.count, 'such pod')}"
    if known.changes == state.rejections.changes.get(rejected.node, 0):
        return f"{times}; none is offered to it until something changes there"
    return f"{times}; something has changed there since, so such pods are offered to it again"


#: Returns a state at a position if that takes little; None if not.
StateNear = Callable[[int], Awaitable[ClusterState | None]]


@dataclass(frozen=True, slots=True)
class PodEvidence:
    """The evidence that was read.

    Attributes:
        story: the events of all pods of the name, in order.
        uid: of the pod that is meant: the last one.
        cycles: since it has waited; None where it does not wait.
        placed: the decision that placed it last; None where none did.
        dearer_by: by position of an eviction, the policies that may have added to its cost, where any did.
    """

    story: Sequence[Event]
    uid: str
    cycles: CycleRecords | None = None
    placed: DecidedPlacement | None = None
    dearer_by: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @property
    def own(self) -> list[Event]:
        """The events of the pod that is meant."""
        return [event for event in self.story if event.stream == f"pod/{self.uid}"]


async def pod_evidence(
    log: EventLog,
    cluster: str,
    story: Sequence[Event],
    *,
    upto: int,
    state_near: StateNear,
    policies: PolicyBook = NO_POLICIES,
) -> PodEvidence:
    """Read what it takes to explain a pod (`story`: the events of the pod's name, in order)."""
    events = [event for event in story if event.stream.startswith("pod/")]
    if not events:
        return PodEvidence((), "")
    uid = events[-1].stream.removeprefix("pod/")
    own = [event for event in events if event.stream == f"pod/{uid}"]
    since, dearer_by = waits_since(own), await _dearer_by(log, cluster, events)
    if since is not None:
        cycles = await cycle_records(log, cluster, own, since=since, upto=upto)
        return PodEvidence(events, uid, cycles=cycles, dearer_by=dearer_by)
    placed = next((event for event in reversed(own) if isinstance(decode_payload(event), PodPlaced)), None)
    decided = None if placed is None else await _decided(log, cluster, placed, state_near, policies)
    return PodEvidence(events, uid, dearer_by=dearer_by, placed=decided)


async def _dearer_by(log: EventLog, cluster: str, events: Sequence[Event]) -> dict[int, Sequence[str]]:
    """Return, by position of an eviction to which policies made the cost higher, their names in its settings."""
    found: dict[int, Sequence[str]] = {}
    for event in events:
        decision = decode_payload(event)
        costs = (decision.cost, decision.runner_up_cost) if isinstance(decision, EvictionDecided) else ()
        if not isinstance(decision, EvictionDecided) or not any(one.policies for one in costs if one is not None):
            continue
        cycle = await _cycle_of(log, cluster, event, decision.cycle)
        config = None if cycle is None else await recorded_config(log, cluster, cycle.config_digest)
        if config is not None:
            found[event.position] = [one.name for one in config.policies if Point.VICTIMS in one.points]
    return found


async def _decided(
    log: EventLog, cluster: str, placed: Event, state_near: StateNear, policies: PolicyBook
) -> DecidedPlacement:
    """Run the cycle again that placed a pod."""
    decision = decode_payload(placed)
    assert isinstance(decision, PodPlaced)
    cycle = await _cycle_of(log, cluster, placed, decision.cycle)
    if cycle is None:
        retired = await log.retired(cluster)
        if retired and placed.position - retired <= MOST_BEFORE:
            gone = f"the record of cycle {decision.cycle} is not in the log any more"
            return DecidedPlacement(placed, decision, not_ranked=gone)
        none = f"no cycle decided it: event {placed.position} was not appended with a record of cycle {decision.cycle}"
        return DecidedPlacement(placed, decision, not_ranked=none, by_cycle=False)
    if cycle.engine_version != ENGINE_VERSION:
        old = f"cycle {cycle.cycle} was decided by engine {cycle.engine_version}, and this is {ENGINE_VERSION}"
        return DecidedPlacement(placed, decision, not_ranked=old)
    config = await recorded_config(log, cluster, cycle.config_digest)
    try:
        state = await state_near(cycle.input_position)
    except EventsRetired as error:
        return DecidedPlacement(placed, decision, not_ranked=str(error))
    if state is None or config is None:
        again = f"`kai replay --cycle {cycle.cycle}` runs it again"
        far = f"position {cycle.input_position} is too far from any snapshot; {again}"
        return DecidedPlacement(placed, decision, not_ranked=far)
    try:
        scores = placement_scores(state, config, cycle, uid=decision.uid, node=decision.node, policies=policies)
    except PolicyMismatch as error:
        return DecidedPlacement(placed, decision, not_ranked=str(error))
    why = "" if scores is not None else f"cycle {cycle.cycle} does not place it so when it is run again"
    return DecidedPlacement(placed, decision, scores, why)


async def _cycle_of(log: EventLog, cluster: str, placed: Event, decided_by: str) -> CycleCompleted | None:
    """Return the record of the cycle that a decision is of: its cause, with which it was appended."""
    book = CycleBook(log, cluster)
    await book.look_up([placed])
    event, cycle = book.records.get(placed.correlation, (None, None))
    if event is None or cycle is None or event.id != placed.cause or cycle.cycle != decided_by:
        return None
    return cycle if appended_together(event, placed) else None


async def recorded_config(log: EventLog, cluster: str, digest: str) -> EngineConfig | None:
    """Return a configuration by its digest; there are few."""
    for event in await log.read(cluster, where=Filter(types=(ConfigRecorded.__name__,))):
        recorded = decode_payload(event)
        if isinstance(recorded, ConfigRecorded) and recorded.digest == digest:
            return EngineConfig.recorded(recorded.config)
    return None
