"""A what-if over history from question to answer: the window is read once and simulated twice, unchanged and changed.

Both sides are simulated, so a deviation of the simulator from a real cluster affects both. The answer also reports how
close the simulated baseline comes to the recorded history: that limits how far the difference can be trusted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from kaicore.analysis.json_spelling import Answer, time_text
from kaicore.analysis.life.pod_stories import PodStory, RunBasis
from kaicore.analysis.replay.moments import Moment, parse_moment, range_of, state_at
from kaicore.analysis.trial.history.alternative import (
    BEST_POLICIES,
    Changes,
    HistoryQuestion,
    Patch,
    changes_of,
    patch_of,
    read_settings,
)
from kaicore.analysis.trial.history.reading import History, read_history
from kaicore.analysis.trial.history.rerun import Rerun
from kaicore.analysis.trial.history.results import FIGURES, QueueResult, RunResult, result_of
from kaicore.analysis.trial.simulation.kubelets import FleetKubelets
from kaicore.errors import ConfigurationError
from kaicore.ledger.log.port import EventLog
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.state.views import FleetView

RECORDED, BASELINE = "recorded", "baseline"

#: How the baseline is called where another scheduler decided: it stands for that one.
STAND_IN = "stand-in"

#: Waiting times count as the same if they differ by no more than this: seconds, and a share of the longer one.
_SAME_S, _SAME_SHARE = 10.0, 0.1
#: A queue gains or loses by no less than this: seconds, and a share.
_MATTERS_S, _MATTERS_SHARE = 1.0, 0.05

#: Called with how much is done, and how much there is.
Progress = Callable[[int, int], None]

#: A model of kubelets, with the nodes of a profile where one is named.
KubeletModel = Callable[[str | None], FleetKubelets]


class Assumptions(Answer, frozen=True, kw_only=True):
    """An assumption in place of a fact that the log does not have.

    Attributes:
        observed: runs of pods of which the log has the end.
        estimated: of which it has not; as long as half of their kind run that have run for as long.
        unbounded: of which too little is known; they run to the end of the window.
        deleted: that somebody ended; they run until then.
        delays: seconds that things take: the window's medians.
    """

    observed: int
    estimated: int
    unbounded: int
    deleted: int
    delays: dict[str, float]


class Validity(Answer, frozen=True, kw_only=True):
    """The distance between the simulated baseline and the recorded history.

    Attributes:
        same_waits: share of the pods that waited as long in both, within 10 s or a tenth; or started in neither.
        same_nodes: of those that started in both, the share that did so on the same node.
        started: baseline less recorded.
        wait_p50: likewise, seconds.
    """

    same_waits: float
    same_nodes: float
    started: int
    rejections: int
    occupancy: float
    wait_p50: float | None


class Fares(StrEnum):
    """A queue's figures in an alternative, against the baseline."""

    GAINS = "gains"
    LOSES = "loses"
    MIXED = "mixed"
    SAME = "same"


class QueueComparison(Answer, frozen=True, kw_only=True):
    """A queue's change: alternative less baseline; seconds."""

    queue: str
    fares: Fares
    started: int
    wait_p50: float | None
    wait_p99: float | None
    gpu_hours: float


class AlternativeAnswer(Answer, frozen=True, kw_only=True):
    """An alternative: what it changes, what it comes to, and who gains."""

    name: str
    patch: dict[str, object]
    result: RunResult
    queues: tuple[QueueComparison, ...]


class HistoryComparison(Answer, frozen=True, kw_only=True):
    """The answer.

    Attributes:
        begin: of the window, RFC 3339; `end` likewise.
        events: of the log, in the window.
        simulated_events: of all runs together.
        notes: what could not be simulated as it was.
    """

    cluster: str
    from_position: int
    to_position: int
    begin: str
    end: str
    events: int
    cycles: int
    simulated_events: int
    assumptions: Assumptions
    validity: Validity
    recorded: RunResult
    baseline: RunResult
    alternatives: tuple[AlternativeAnswer, ...]
    notes: tuple[str, ...]

    @property
    def runs(self) -> tuple[RunResult, ...]:
        """All runs: as recorded, the baseline, and the alternatives."""
        return (self.recorded, self.baseline, *(one.result for one in self.alternatives))

    def tables(self) -> dict[str, list[tuple[str, ...]]]:
        """Return figures, waits by queue and GPU-hours by queue, as rows of a name and a text for each run."""
        by_run = [{one.queue: one for one in run.queues} for run in self.runs]
        queues = sorted({name for of_run in by_run for name in of_run})
        return {
            "figures": [(one.name, *(one.text(run) for run in self.runs)) for one in FIGURES],
            "waits by queue, p50 / p99": [
                (name, *(run[name].waits.text if name in run else "-" for run in by_run)) for name in queues
            ],
            "GPU-hours by queue": [
                (name, *(f"{run[name].gpu_hours:.2f}" if name in run else "-" for run in by_run)) for name in queues
            ],
        }


async def compare_history(
    log: EventLog,
    cluster: str,
    question: HistoryQuestion,
    model: KubeletModel,
    *,
    set_as: EngineConfig | None = None,
    policies: PolicyBook = NO_POLICIES,
    progress: Progress = lambda _, __: None,
) -> HistoryComparison:
    """Answer a question.

    Args:
        set_as: the settings of the baseline, which name the scheduler of its pods; None for those that were recorded.
        policies: the code of those that the window's settings and the alternatives name.
        progress: called with how much is done, and how much there is, in thousandths of a pass over the window.

    Raises:
        ConfigurationError: the question makes no sense, or names what is not there.
        UnknownMoment: there is no such moment.
        EventsRetired: the window's events are gone.
        PolicyMismatch: there is no code of a policy.
    """
    patches = _patches(question)
    window = await range_of(log, cluster, since=_moment(question.since), until=_moment(question.until))
    begin, end = window.first - 1, window.last
    passes = 2 + len(patches)

    def part(number: int) -> Progress:
        return lambda done, of: progress(1000 * number + 1000 * done // max(of, 1), 1000 * passes)

    state = await state_at(log, cluster, begin)
    history = await read_history(log, state, end, set_as=set_as, progress=part(0))
    recorded = _recorded(history, state)
    changes = [changes_of(Patch(name=BASELINE if set_as is None else STAND_IN), history, lambda _: [])]
    changes += [changes_of(patch, history, lambda name: model(name).objects()) for patch in patches]
    runs = [_run(history, change, model, policies, part(1 + number)) for number, change in enumerate(changes)]
    progress(1000 * passes, 1000 * passes)
    baseline, others = runs[0], runs[1:]
    return HistoryComparison(
        cluster=cluster,
        from_position=begin + 1,
        to_position=end,
        begin=time_text(history.begin),
        end=time_text(history.end),
        events=history.events,
        cycles=history.cycles,
        simulated_events=sum(run.events for run in runs),
        assumptions=_assumptions(history),
        validity=_validity(history, recorded, baseline),
        recorded=recorded.result,
        baseline=baseline.result,
        alternatives=tuple(_alternative(patch, run, baseline) for patch, run in zip(patches, others, strict=True)),
        notes=tuple(dict.fromkeys(note for run in runs for note in run.notes)),
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """A run as it is compared: what it came to, and by lineage the first pod that ran."""

    result: RunResult
    starts: Mapping[str, PodStory | None]
    events: int = 0
    notes: Sequence[str] = ()


def _recorded(history: History, state: FleetView) -> _Run:
    lineage_of = {story.pod.uid: lineage.uid for lineage in history.lineages for story in lineage.stories}
    result = result_of(RECORDED, history, history.stories, lineage_of, history.samples, state=state)
    return _Run(result, _first_starts(history.stories, lineage_of))


def _run(history: History, changes: Changes, model: KubeletModel, policies: PolicyBook, progress: Progress) -> _Run:
    rerun = Rerun(history, changes, model(None), policies=policies)
    rerun.run(progress=progress)
    stories, lineage_of = rerun.stories.by_uid, rerun.pods.lineage_of
    result = result_of(changes.patch.name, history, stories, lineage_of, rerun.sampler.samples, state=rerun.state)
    return _Run(result, _first_starts(stories, lineage_of), rerun.events, rerun.warnings)


def _alternative(patch: Patch, run: _Run, baseline: _Run) -> AlternativeAnswer:
    queues = _compared_queues(baseline.result.queues, run.result.queues)
    return AlternativeAnswer(name=patch.name, patch=_shown(patch), result=run.result, queues=queues)


def _moment(text: str) -> Moment | None:
    return parse_moment(text) if text else None


def _patches(question: HistoryQuestion) -> list[Patch]:
    """Return the alternatives, each with the settings that are of all of them; their names differ."""
    settings = read_settings(question.settings)
    texts = (*question.patches, *(policy.patch() for policy in BEST_POLICIES if question.policies))
    patches = [patch_of(one.text, where=one.name, name=one.name) for one in texts]
    patches = patches or [Patch(name=", ".join(question.settings) or "unchanged")]
    names: set[str] = {RECORDED, BASELINE}
    for patch in patches:
        if patch.name in names:
            raise ConfigurationError(f"{patch.name}: two runs cannot have one name; give the patch another name")
        names.add(patch.name)
    return [msgspec.structs.replace(patch, settings={**patch.settings, **settings}) for patch in patches]


def _shown(patch: Patch) -> dict[str, object]:
    document: dict[str, object] = msgspec.to_builtins(patch)
    shown = _trimmed(document)
    return shown if isinstance(shown, dict) else {}


def _trimmed(value: object) -> object:
    if isinstance(value, dict):
        parts = {key: _trimmed(item) for key, item in value.items()}
        return {key: item for key, item in parts.items() if item not in (None, "", {}, [])}
    return [_trimmed(item) for item in value] if isinstance(value, list | tuple) else value


def _assumptions(history: History) -> Assumptions:
    counts = dict.fromkeys(RunBasis, 0)
    for lineage in history.lineages:
        for run in lineage.runs:
            counts[run.basis] += 1
    delays = history.delays
    return Assumptions(
        observed=counts[RunBasis.OBSERVED],
        estimated=counts[RunBasis.ESTIMATED],
        unbounded=counts[RunBasis.UNBOUNDED],
        deleted=counts[RunBasis.DELETED],
        delays={name: getattr(delays, name) / 1e6 for name in delays.__slots__},
    )


def _first_starts(stories: Mapping[str, PodStory], lineage_of: Mapping[str, str]) -> dict[str, PodStory | None]:
    """Return, by lineage, the first of its pods that ran; None where none did."""
    starts: dict[str, PodStory | None] = {}
    for uid in sorted(stories, key=lambda uid: (stories[uid].created_at, uid)):
        lineage = lineage_of.get(uid)
        if lineage is not None and starts.get(lineage) is None:
            starts[lineage] = stories[uid] if stories[uid].running_at else None
    return starts


def _validity(history: History, recorded: _Run, baseline: _Run) -> Validity:
    same_waits = same_nodes = both = waited = 0
    for lineage in history.lineages:
        theirs, ours = recorded.starts.get(lineage.uid), baseline.starts.get(lineage.uid)
        if theirs is not None and theirs.running_at <= history.begin:
            continue
        waited += 1
        if theirs is None or ours is None:
            same_waits += theirs is ours
            continue
        both += 1
        same_nodes += theirs.node == ours.node
        lengths = [(story.running_at - lineage.created_at) / 1e6 for story in (theirs, ours)]
        same_waits += abs(lengths[0] - lengths[1]) <= max(_SAME_S, _SAME_SHARE * max(lengths))
    before, after = recorded.result, baseline.result
    return Validity(
        same_waits=same_waits / waited if waited else 1.0,
        same_nodes=same_nodes / both if both else 1.0,
        started=after.started - before.started,
        rejections=after.rejections - before.rejections,
        occupancy=after.occupancy - before.occupancy,
        wait_p50=_difference(before.waits.p50, after.waits.p50),
    )


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _compared_queues(before: Sequence[QueueResult], after: Sequence[QueueResult]) -> tuple[QueueComparison, ...]:
    by_name = {queue.queue: queue for queue in after}
    return tuple(_compared_queue(queue, by_name[queue.queue]) for queue in before if queue.queue in by_name)


def _compared_queue(before: QueueResult, after: QueueResult) -> QueueComparison:
    signs = {_sign(after.started - before.started, before.started, least=1.0)}
    for old, new in ((before.waits.p50, after.waits.p50), (before.waits.p99, after.waits.p99)):
        if old is not None and new is not None:
            signs.add(_sign(old - new, old, least=_MATTERS_S))
    fares = Fares.SAME
    if {1, -1} <= signs:
        fares = Fares.MIXED
    elif 1 in signs:
        fares = Fares.GAINS
    elif -1 in signs:
        fares = Fares.LOSES
    return QueueComparison(
        queue=before.queue,
        fares=fares,
        started=after.started - before.started,
        wait_p50=_difference(before.waits.p50, after.waits.p50),
        wait_p99=_difference(before.waits.p99, after.waits.p99),
        gpu_hours=after.gpu_hours - before.gpu_hours,
    )


def _sign(gain: float, of: float, *, least: float) -> int:
    """Return 1 for a gain that matters, -1 for such a loss, else 0."""
    if abs(gain) < max(least, _MATTERS_SHARE * of):
        return 0
    return 1 if gain > 0 else -1
