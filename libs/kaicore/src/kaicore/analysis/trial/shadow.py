"""Results of a shadow's decisions: rejections avoided, waiting, fragmentation and distance, by queue.

Another scheduler's bindings are compared, one by one, with the shadow's decisions about the same pods at the same
moment. The log is folded again. Right before each binding, the kubelet's answer for the node that the other scheduler
took is predicted. The shadow's decision is read from its records, and the pod's outcome from the later log.

The report can be one HTML file, without a script or another file.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import groupby
from typing import NamedTuple

import msgspec
import numpy as np

from kaicore.analysis.json_spelling import Answer, time_text
from kaicore.analysis.replay.log_states import events_of
from kaicore.analysis.replay.moments import parse_moment, range_of, state_at
from kaicore.analysis.trial.history import page as history
from kaicore.analysis.trial.history.alternative import HistoryQuestion, PatchText
from kaicore.analysis.trial.history.comparison import (
    STAND_IN,
    HistoryComparison,
    KubeletModel,
    Progress,
    compare_history,
)
from kaicore.errors import UnknownSubject
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.deciding.cycle_run import input_to_explain, run_on
from kaicore.rules.engine.config import Action, EngineConfig, PlacementStrategy
from kaicore.rules.engine.constraints.class_filters import AdmissionFilter
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.engine.session.session import Session
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import ShadowDecided
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import is_kubelet_rejection
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.views import CycleView, WorkView
from kaicore.spelling import did_you_mean


class AfterBinding(StrEnum):
    """A pod's outcome after its binding."""

    OPEN = "open"
    RAN = "ran"
    REJECTED = "rejected"


class ShadowAnswer(StrEnum):
    """The shadow's decision about a pod, beside the other scheduler's."""

    SAME = "same node"
    OTHER = "other node"
    WAIT = "would wait"
    NONE = "not decided"


#: Characters of a time that are its day.
_DAY = 10


@dataclass(slots=True)
class ForeignBinding:
    """A pod that the other scheduler bound.

    Attributes:
        queue: of its group; `namespace/NAME` where that names none.
        node: where the other scheduler put it.
        day: when that was recorded, in UTC.
        admits: whether that node's kubelet was predicted to admit it.
        why: why not; empty where it was.
        zones: how many zones it was predicted to get there; 0 where nothing is aligned or it is not admitted.
        choice: what the shadow decided.
        chosen: the node that the shadow chose; empty for none.
        chosen_zones: as `zones`, there.
        reason: of the kubelet's rejection; empty without one.
    """

    uid: str
    namespace: str
    name: str
    queue: str
    node: str
    day: str
    admits: bool
    why: str
    zones: int
    choice: ShadowAnswer
    chosen: str = ""
    chosen_zones: int = 0
    outcome: AfterBinding = AfterBinding.OPEN
    reason: str = ""


class _Choice(NamedTuple):
    """A shadow's decision about a pod: on which state, the node, empty for none, and what is held there."""

    position: int
    node: str
    placement: Placement | None


class ShadowComparison:
    """Takes a cluster's events in order.

    Attributes:
        bound: the pods that the other scheduler bound, by uid, in order of their binding.
        beside_own: whether that scheduler is one of ours, so that its cycles are in the log.
    """

    def __init__(
        self,
        state: CycleView,
        config: EngineConfig,
        records: Iterable[ShadowDecided],
        *,
        policies: PolicyBook = NO_POLICIES,
    ) -> None:
        """Args:
        state: as the comparison begins; folded on by the caller.
        config: of the shadow's cycles: its `scheduler_name` says which pods.
        records: of the shadow, in order.
        policies: the code of those that the shadow's settings name.
        """
        self.bound: dict[str, ForeignBinding] = {}
        self.beside_own = False
        self._policies = policies
        self._state = state
        self._config = config
        #: By the pod's uid, in order of position.
        self._choices: dict[str, list[_Choice]] = {}
        for record in records:
            for placed in record.placed:
                choice = _Choice(record.input_position, placed.node, placed.placement)
                self._choices.setdefault(placed.uid, []).append(choice)
            for uid in (*record.left, *(nominated.uid for nominated in record.nominated)):
                self._choices.setdefault(uid, []).append(_Choice(record.input_position, "", None))

    def take(self, event: Event) -> None:
        """Take an event, before it is folded."""
        payload = decode_payload(event)
        match payload:
            case payloads.PodObserved(pod) if pod.scheduler_name == self._config.scheduler_name:
                if pod.node_name and pod.uid in self._state.waiting:
                    self._judge(pod.uid, pod.node_name, event)
                bound = self.bound.get(pod.uid)
                if bound is not None and is_kubelet_rejection(pod):
                    bound.outcome, bound.reason = AfterBinding.REJECTED, pod.reason
                elif bound is not None and bound.outcome is AfterBinding.OPEN and pod.phase in ("Running", "Succeeded"):
                    bound.outcome = AfterBinding.RAN
            case payloads.PodPlaced(uid=uid, node=node) if uid in self._state.waiting:
                if self._state.pods[uid].pod.scheduler_name == self._config.scheduler_name:
                    self.beside_own = True
                    self._judge(uid, node, event)
            case payloads.PodRejected(uid=uid) if uid in self.bound:
                self.bound[uid].outcome, self.bound[uid].reason = AfterBinding.REJECTED, payload.reason
            case _:
                pass

    def _judge(self, uid: str, node: str, event: Event) -> None:
        state, entry = self._state, self._state.pods[uid]
        queue, namespace = state.queue_of(entry)
        choices = self._choices.get(uid, ())
        # The last one that was decided on a state before the event.
        place = bisect_left(choices, event.position, key=lambda one: one.position)
        _, chosen, placement = choices[place - 1] if place else _Choice(0, "", None)
        if not chosen and uid not in self._choices and self._would_be_placed(uid):
            choice = ShadowAnswer.NONE
        else:
            choice = ShadowAnswer.WAIT if not chosen else ShadowAnswer.SAME if chosen == node else ShadowAnswer.OTHER
        bound = self.bound[uid] = ForeignBinding(
            uid=uid,
            namespace=entry.pod.namespace,
            name=entry.pod.name,
            queue=queue or f"namespace/{namespace}",
            node=node,
            day=time_text(event.recorded_at)[:_DAY],
            admits=True,
            why="",
            zones=0,
            choice=choice,
            chosen=chosen,
            chosen_zones=zone_count(placement),
        )
        row = state.columns.rows.get(node)
        if row is None or state.columns.facts[row] is None:
            return
        session = Session(input_to_explain(state, self._config, now=state.recorded_at), self._config)
        feasible = session.nodes.now.feasible_nodes(state.class_of(entry))
        for one in feasible.filters.in_order():
            if isinstance(one, AdmissionFilter) and one.failing(np.array([row]))[0]:
                bound.admits, bound.why = False, "; ".join(map(str, one.reasons(np.array([row]))))
        if bound.admits:
            assignment = session.nodes.now.place_on(entry, row)
            bound.zones = 0 if assignment is None else zone_count(assignment.placement)

    def _would_be_placed(self, uid: str) -> bool:
        """Tell whether a cycle places a pod of which nothing is recorded: then the shadow was away."""
        run = run_on(self._state, self._config, now=self._state.recorded_at, policies=self._policies)
        return any(placed.uid == uid for placed in run.result.placements)


def zone_count(placement: Placement | None) -> int:
    """Return over how many zones a placement spreads; 0 where it holds none."""
    if placement is None:
        return 0
    return len({zone for container in placement.containers for zone in container.mask})


#: Rejected pods that a report names.
_MOST_PODS = 100

#: How the simulated shadow is called.
SHADOW = "kai-ledger"

_RECORDS = Filter(types=("ShadowDecided",))


class Rejections(Answer, frozen=True, kw_only=True):
    """Pods that kubelets rejected where the other scheduler put them, by what the shadow had decided.

    Attributes:
        avoided: the shadow had chosen another node, and predicted that its kubelet admits the pod.
        waits: the shadow would have let the pod wait.
        not_foreseen: the shadow had chosen the same node.
        not_decided: the shadow was away.
        by_reason: how many, by the kubelet's reason.
    """

    observed: int
    avoided: int
    waits: int
    not_foreseen: int
    not_decided: int
    by_reason: dict[str, int]


class Predictions(Answer, frozen=True, kw_only=True):
    """Predictions for the nodes that the other scheduler chose, beside their kubelets' outcomes.

    Attributes:
        rejected_rightly: predicted to be rejected, and rejected.
        admitted_rightly: predicted to be admitted, and ran.
        false_alarms: predicted to be rejected, and ran.
        missed: predicted to be admitted, and rejected.
    """

    rejected_rightly: int
    admitted_rightly: int
    false_alarms: int
    missed: int


class _SomePods(Answer, frozen=True, kw_only=True):
    """Some of the pods, as `ShadowReport` has them for all."""

    pods: int
    same_node: int = 0
    other_node: int = 0
    rejections: int
    avoided: int
    would_wait: int


class QueueReport(_SomePods, frozen=True, kw_only=True):
    """The pods of a queue."""

    queue: str


class DayReport(_SomePods, frozen=True, kw_only=True):
    """The pods that the other scheduler bound on a day of UTC."""

    day: str


class RejectedPod(Answer, frozen=True, kw_only=True):
    """A pod that a kubelet rejected.

    Attributes:
        node: where the other scheduler had put it.
        predicted: why it was predicted to be rejected there; empty where it was not.
        choice: what the shadow had decided.
        chosen: the node that the shadow had chosen; empty for none.
    """

    namespace: str
    name: str
    node: str
    reason: str
    predicted: str
    choice: str
    chosen: str


class ShadowReport(Answer, frozen=True, kw_only=True):
    """The answer.

    Attributes:
        scheduler: the scheduler of the pods.
        begin: of the window, RFC 3339; `end` likewise.
        pods: that the other scheduler bound in it.
        choices: how many of them the shadow had decided on how.
        zones: over how many NUMA zones a pod spreads, the mean over the pods that both placed and that hold any; as the
            other scheduler placed them, predicted. None without such pods.
        chosen_zones: likewise, as the shadow did.
        would_start: pods that wait at the end, and that the shadow would start.
        trajectory: the window simulated; None where that was not asked for. `baseline` is the stand-in for the other
            scheduler, the alternative is the shadow's engine with its settings.
        notes: what it cannot know.
    """

    cluster: str
    scheduler: str
    from_position: int
    to_position: int
    begin: str
    end: str
    pods: int
    choices: dict[str, int]
    rejections: Rejections
    predictions: Predictions
    zones: float | None
    chosen_zones: float | None
    would_start: int
    queues: tuple[QueueReport, ...]
    days: tuple[DayReport, ...] = ()
    rejected: tuple[RejectedPod, ...]
    trajectory: HistoryComparison | None
    notes: tuple[str, ...]


async def shadow_report(  # long: one line for each field of the report
    log: EventLog,
    cluster: str,
    model: KubeletModel,
    *,
    scheduler: str = "",
    since: str = "",
    until: str = "",
    simulate: bool = True,
    policies: PolicyBook = NO_POLICIES,
    progress: Progress = lambda _, __: None,
) -> ShadowReport:
    """Compare what a shadow decided with what the other scheduler did.

    Args:
        scheduler: the scheduler of the pods; may be left out where there is one shadow.
        since: the window's first moment, or one before what is left of the log; empty for the shadow's first record.
        until: its last; empty for the log's end.
        simulate: whether the window is simulated, too.
        policies: the code of those that the shadow's settings name, and the recorded ones.
        progress: called with how much is done, and how much there is.

    Raises:
        UnknownSubject: there is no such shadow in the window, or there are several and none is named.
        UnknownMoment: there is no such moment.
        EventsRetired: the window's events are gone.
    """
    begins, ends = (parse_moment(text) if text else None for text in (since, until))
    window = await range_of(log, cluster, since=begins, until=ends)
    last = window.last
    records = await _records(log, cluster, scheduler, last)
    config = await _config(log, cluster, records)
    first = window.first - 1 if since else records[0].input_position
    state = await state_at(log, cluster, first)
    begin, trajectory = state.recorded_at, None
    comparison = ShadowComparison(state, config, records, policies=policies)
    await _compare(comparison, state, log, last, progress)
    bound = list(comparison.bound.values())
    if simulate:
        question, set_as = _question(config, first + 1, last, beside_own=comparison.beside_own)
        asking = partial(compare_history, log, cluster, question, model, set_as=set_as)
        # The simulation is the last three quarters of the work.
        trajectory = await asking(policies=policies, progress=lambda done, of: progress(of + 3 * done, 4 * of))
    return ShadowReport(
        cluster=cluster,
        scheduler=config.scheduler_name,
        from_position=first + 1,
        to_position=last,
        begin=time_text(begin),
        end=time_text(state.recorded_at),
        pods=len(bound),
        choices={choice.value: sum(one.choice is choice for one in bound) for choice in ShadowAnswer},
        rejections=_rejections(bound),
        predictions=_predictions(bound),
        zones=_mean(bound, lambda one: one.zones),
        chosen_zones=_mean(bound, lambda one: one.chosen_zones),
        would_start=_would_start(state, config.scheduler_name),
        queues=tuple(QueueReport(queue=queue, **_counted(own)) for queue, own in _by(bound, lambda one: one.queue)),
        days=tuple(DayReport(day=day, **_counted(own)) for day, own in _by(bound, lambda one: one.day)),
        rejected=tuple(
            RejectedPod.copied(one, predicted=one.why, choice=one.choice.value)
            for one in bound
            if one.outcome is AfterBinding.REJECTED
        )[:_MOST_PODS],
        trajectory=trajectory,
        notes=_notes(bound, stand_in=simulate and not comparison.beside_own),
    )


async def _compare(
    comparison: ShadowComparison, state: ClusterState, log: EventLog, last: int, progress: Progress
) -> None:
    """Have a comparison take the window's events, and fold them."""
    first = state.position
    async for event in events_of(log, state.cluster, after=first, upto=last):
        comparison.take(event)
        state.fold(event)
        if event.position % 500 == 0:
            progress(event.position - first, 4 * (last - first))


def _would_start(state: WorkView, scheduler: str) -> int:
    """Count the pods that wait, and that the shadow would start."""
    waiting = (uid for uid in state.waiting if state.pods[uid].pod.scheduler_name == scheduler)
    choices = (state.shadows.choices.get(uid) for uid in waiting)
    return sum(choice is not None and not choice.kept for choice in choices)


async def _records(log: EventLog, cluster: str, scheduler: str, last: int) -> list[ShadowDecided]:
    everything = [decode_payload(event) async for event in events_of(log, cluster, upto=last, where=_RECORDS)]
    records = [one for one in everything if isinstance(one, ShadowDecided)]
    names = sorted({record.scheduler for record in records})
    if not names:
        raise UnknownSubject(
            f"cluster {cluster}: no shadow has recorded anything; start one with `kai up --shadow SCHEDULER`"
        )
    if scheduler and scheduler not in names:
        close = did_you_mean(scheduler, names)
        raise UnknownSubject(f"cluster {cluster}: no shadow of {scheduler!r}{close}; there are {', '.join(names)}")
    if not scheduler and len(names) > 1:
        raise UnknownSubject(f"cluster {cluster}: a report of which shadow? There are {', '.join(names)}")
    return [record for record in records if record.scheduler == (scheduler or names[0])]


async def _config(log: EventLog, cluster: str, records: Sequence[ShadowDecided]) -> EngineConfig:
    digest = records[-1].config_digest
    document = next((one.config for one in records if one.config is not None and one.config_digest == digest), None)
    if document is None:
        document = (await state_at(log, cluster, records[-1].input_position)).configs[digest]
    return EngineConfig.recorded(document)


def _question(
    config: EngineConfig, first: int, last: int, *, beside_own: bool
) -> tuple[HistoryQuestion, EngineConfig | None]:
    """Return what is asked of the window, and the settings of the baseline; None for the recorded ones."""
    # Beside a scheduler of ours: the recorded settings, and the shadow's policies.
    patch = PatchText.of(SHADOW, policies=config.policies) if beside_own else _as_set(config)
    question = HistoryQuestion(since=str(first), until=str(last), patches=(patch,))
    return question, None if beside_own else _stand_in(config)


def _stand_in(config: EngineConfig) -> EngineConfig:
    """Return settings that place pods about as a scheduler does that knows nothing of zones and evicts nothing."""
    return msgspec.structs.replace(
        config, numa=False, actions=(Action.ALLOCATE,), placement_strategy=PlacementStrategy.SPREAD
    )


def _as_set(config: EngineConfig) -> PatchText:
    """Return the alternative: the shadow's own settings, where the stand-in has others."""
    settings = {
        "numa": config.numa,
        "actions": [str(action) for action in config.actions],
        "placement_strategy": str(config.placement_strategy),
    }
    return PatchText.of(SHADOW, settings=settings)


def _rejections(bound: Sequence[ForeignBinding]) -> Rejections:
    rejected = [one for one in bound if one.outcome is AfterBinding.REJECTED]
    by_choice = Counter(one.choice for one in rejected)
    return Rejections(
        observed=len(rejected),
        avoided=by_choice[ShadowAnswer.OTHER],
        waits=by_choice[ShadowAnswer.WAIT],
        not_foreseen=by_choice[ShadowAnswer.SAME],
        not_decided=by_choice[ShadowAnswer.NONE],
        by_reason=dict(sorted(Counter(one.reason for one in rejected).items())),
    )


def _predictions(bound: Sequence[ForeignBinding]) -> Predictions:
    def count(*, admits: bool, outcome: AfterBinding) -> int:
        return sum(one.admits is admits and one.outcome is outcome for one in bound)

    return Predictions(
        rejected_rightly=count(admits=False, outcome=AfterBinding.REJECTED),
        admitted_rightly=count(admits=True, outcome=AfterBinding.RAN),
        false_alarms=count(admits=False, outcome=AfterBinding.RAN),
        missed=count(admits=True, outcome=AfterBinding.REJECTED),
    )


def _mean(bound: Sequence[ForeignBinding], value: Callable[[ForeignBinding], int]) -> float | None:
    """Return the mean over the pods that hold zones on both nodes."""
    values = [value(one) for one in bound if one.zones and one.chosen_zones]
    return sum(values) / len(values) if values else None


def _by(
    bound: Iterable[ForeignBinding], key: Callable[[ForeignBinding], str]
) -> Iterator[tuple[str, list[ForeignBinding]]]:
    for value, own in groupby(sorted(bound, key=key), key):
        yield value, list(own)


def _counted(own: Sequence[ForeignBinding]) -> dict[str, int]:
    rejections, choices = _rejections(own), Counter(one.choice for one in own)
    return {
        "pods": len(own),
        "same_node": choices[ShadowAnswer.SAME],
        "other_node": choices[ShadowAnswer.OTHER],
        "rejections": rejections.observed,
        "avoided": rejections.avoided,
        "would_wait": choices[ShadowAnswer.WAIT],
    }


def _notes(bound: Sequence[ForeignBinding], *, stand_in: bool) -> tuple[str, ...]:
    notes = [
        "a rejection counts as avoided where the shadow had chosen another node: that its kubelet would have admitted "
        "the pod is predicted, not seen"
    ]
    away = sum(one.choice is ShadowAnswer.NONE for one in bound)
    if away:
        notes.append(f"the shadow was away when {away} pods were bound: nothing is recorded of them")
    if stand_in:
        notes.append(
            f"in the simulation the other scheduler is a stand-in: this engine without zones, which spreads pods and "
            f"evicts nothing. Compare {STAND_IN} with recorded to see how far to believe it"
        )
    return tuple(notes)


#: Rejected pods that the page names.
_PAGE_PODS = 50


def page(report: ShadowReport, trajectory: HistoryComparison) -> str:
    """Return the report, with all that a what-if over history shows of the simulated window."""
    lead = history.template(__package__, "shadow.html.j2").render(report=report, rejected=report.rejected[:_PAGE_PODS])
    return history.page(trajectory, title=f"Shadow of {report.scheduler}", lead=lead)
