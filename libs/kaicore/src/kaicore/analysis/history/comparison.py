"""A what-if over history from question to answer: the window read once, and simulated as it was and as it might be.

Both sides are simulated, so that what the simulator does otherwise than a cluster is on both. How near the simulated
baseline comes to what was recorded is said as well: that is how far the difference between both can be believed.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from kaicore.analysis.history.alternative import changes_of
from kaicore.analysis.history.lineages import Known
from kaicore.analysis.history.outcome import Outcome, QueueOutcome, outcome_of, places_of
from kaicore.analysis.history.patch import Patch, patch_of
from kaicore.analysis.history.pod_stories import PodStory
from kaicore.analysis.history.reading import History, read_history
from kaicore.analysis.history.rerun import Rerun
from kaicore.analysis.history.settings import read_settings
from kaicore.analysis.inquiry.json_spelling import time_text
from kaicore.analysis.inquiry.moments import parse_moment, position_of, state_at
from kaicore.analysis.simulation.kubelets import FleetKubelets
from kaicore.errors import ConfigurationError
from kaicore.ledger.log.port import EventLog

RECORDED, BASELINE = "recorded", "baseline"

#: Waiting times count as the same if they differ by no more than this: seconds, and a share of the longer one.
_SAME_S, _SAME_SHARE = 10.0, 0.1
#: A queue gains or loses by no less than this: seconds, and a share.
_MATTERS_S, _MATTERS_SHARE = 1.0, 0.05

#: A model of kubelets, with the nodes of a profile where one is named.
KubeletModel = Callable[[str | None], FleetKubelets]


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Part of a question or an answer."""


class PatchText(_Part, frozen=True, kw_only=True):
    """A patch as it is written (`kaicore.analysis.history.patch`), and what it is called where it says nothing."""

    name: str
    text: str


class HistoryQuestion(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked.

    Attributes:
        since: the moment at which the window begins (`kaicore.analysis.inquiry.moments`).
        until: the moment at which it ends.
        settings: `KEY=VALUE`, of every alternative.
        patches: one for each alternative; without any, `settings` are the only one.
    """

    since: str = msgspec.field(name="from", default="0")
    until: str = msgspec.field(name="to", default="end")
    settings: tuple[str, ...] = ()
    patches: tuple[PatchText, ...] = ()


class Assumptions(_Part, frozen=True, kw_only=True):
    """What was not seen, and what is supposed instead.

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


class Validity(_Part, frozen=True, kw_only=True):
    """How near the simulated baseline comes to what was recorded.

    Attributes:
        same_waits: share of the pods that waited as long in both, within 10 s or a tenth; or started in neither.
        same_nodes: of those that started in both, the share that did so on the same node.
        started: baseline less recorded.
        rejections: likewise.
        occupancy: likewise.
        wait_p50: likewise, seconds.
    """

    same_waits: float
    same_nodes: float
    started: int
    rejections: int
    occupancy: float
    wait_p50: float | None


class Verdict(StrEnum):
    """How a queue fares in an alternative, against the baseline."""

    GAINS = "gains"
    LOSES = "loses"
    MIXED = "mixed"
    SAME = "same"


class QueueVerdict(_Part, frozen=True, kw_only=True):
    """How a queue fares: alternative less baseline; seconds."""

    queue: str
    verdict: Verdict
    started: int
    wait_p50: float | None
    wait_p99: float | None
    gpu_hours: float


class AlternativeAnswer(_Part, frozen=True, kw_only=True):
    """An alternative: what it changes, what it comes to, and who gains."""

    name: str
    patch: dict[str, object]
    outcome: Outcome
    queues: tuple[QueueVerdict, ...]


class HistoryComparison(_Part, frozen=True, kw_only=True):
    """The answer.

    Attributes:
        begin: of the window, RFC 3339; `end` likewise.
        events: of the log, in the window.
        cycles: recorded in it.
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
    recorded: Outcome
    baseline: Outcome
    alternatives: tuple[AlternativeAnswer, ...]
    notes: tuple[str, ...]


async def compare_history(
    log: EventLog,
    cluster: str,
    question: HistoryQuestion,
    model: KubeletModel,
    *,
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> HistoryComparison:
    """Answer a question.

    Args:
        log: to read.
        cluster: whose history.
        question: what is asked.
        model: of kubelets.
        progress: called with how much is done, and how much there is, in thousandths of a pass over the window.

    Raises:
        ConfigurationError: the question makes no sense, or names what is not there.
        UnknownMoment: there is no such moment.
        EventsRetired: the window's events are gone.
    """
    patches = _patches(question)
    begin = await position_of(log, cluster, parse_moment(question.since))
    end = await position_of(log, cluster, parse_moment(question.until))
    if begin >= end:
        raise ConfigurationError(
            f"cluster {cluster}: the window from position {begin} to position {end} has no events; "
            "it must begin before it ends"
        )
    passes = 2 + len(patches)

    def part(number: int) -> Callable[[int, int], None]:
        return lambda done, of: progress(1000 * number + 1000 * done // max(of, 1), 1000 * passes)

    state = await state_at(log, cluster, begin)
    history = await read_history(log, state, end, progress=part(0))
    recorded_lineages = {story.pod.uid: lineage.uid for lineage in history.lineages for story in lineage.stories}
    recorded = outcome_of(
        RECORDED, history, history.stories, recorded_lineages, history.samples, places_of(state)
    )
    changes = [changes_of(patch, history, lambda name: model(name).objects()) for patch in patches]
    notes: dict[str, None] = {}
    outcomes, events, baseline_stories, baseline_lineages = [], 0, {}, {}
    for number, change in enumerate([changes_of(Patch(name=BASELINE), history, lambda _: []), *changes]):
        run = Rerun(history, change, model(None))
        figures = run.run(progress=part(1 + number))
        events += figures.events
        notes |= dict.fromkeys(figures.warnings)
        if not number:
            baseline_stories, baseline_lineages = run.stories.by_uid, run.pods.lineage_of
        outcomes.append(
            outcome_of(
                change.patch.name,
                history,
                run.stories.by_uid,
                run.pods.lineage_of,
                run.sampler.samples,
                places_of(run.state),
            )
        )
    progress(1000 * passes, 1000 * passes)
    baseline, others = outcomes[0], outcomes[1:]
    waits = _first_starts(history.stories, recorded_lineages), _first_starts(baseline_stories, baseline_lineages)
    return HistoryComparison(
        cluster=cluster,
        from_position=begin,
        to_position=end,
        begin=time_text(history.begin),
        end=time_text(history.end),
        events=history.events,
        cycles=history.cycles,
        simulated_events=events,
        assumptions=_assumptions(history),
        validity=_validity(history, *waits, recorded, baseline),
        recorded=recorded,
        baseline=baseline,
        alternatives=tuple(
            AlternativeAnswer(
                name=patch.name,
                patch=_shown(patch),
                outcome=outcome,
                queues=_verdicts(baseline.queues, outcome.queues),
            )
            for patch, outcome in zip(patches, others, strict=True)
        ),
        notes=tuple(notes),
    )


def _patches(question: HistoryQuestion) -> list[Patch]:
    """Return the alternatives, each with the settings that are of all of them; their names differ."""
    settings = read_settings(question.settings)
    patches = [patch_of(one.text, where=one.name, name=one.name) for one in question.patches]
    patches = patches or [Patch(name=", ".join(question.settings) or "unchanged")]
    names: set[str] = {RECORDED, BASELINE}
    for patch in patches:
        if patch.name in names:
            raise ConfigurationError(f"{patch.name}: two runs cannot have one name; give the patch another name")
        names.add(patch.name)
    return [msgspec.structs.replace(patch, settings={**patch.settings, **settings}) for patch in patches]


def _shown(patch: Patch) -> dict[str, object]:
    """Return what a patch changes, without what it leaves as it is."""
    document: dict[str, object] = msgspec.to_builtins(patch)
    shown = _trimmed(document)
    return shown if isinstance(shown, dict) else {}


def _trimmed(value: object) -> object:
    if isinstance(value, dict):
        parts = {key: _trimmed(item) for key, item in value.items()}
        return {key: item for key, item in parts.items() if item not in (None, "", {}, [])}
    return [_trimmed(item) for item in value] if isinstance(value, list | tuple) else value


def _assumptions(history: History) -> Assumptions:
    counts = dict.fromkeys(Known, 0)
    for lineage in history.lineages:
        for attempt in lineage.attempts:
            counts[attempt.known] += 1
    delays = history.delays
    return Assumptions(
        observed=counts[Known.OBSERVED],
        estimated=counts[Known.ESTIMATED],
        unbounded=counts[Known.UNBOUNDED],
        deleted=counts[Known.DELETED],
        delays={name: getattr(delays, name) / 1e6 for name in delays.__slots__},
    )


def _first_starts(stories: dict[str, PodStory], lineage_of: dict[str, str]) -> dict[str, PodStory | None]:
    """Return, by lineage, the first of its pods that ran; None where none did."""
    starts: dict[str, PodStory | None] = {}
    for uid in sorted(stories, key=lambda uid: (stories[uid].created_at, uid)):
        lineage = lineage_of.get(uid)
        if lineage is not None and starts.get(lineage) is None:
            starts[lineage] = stories[uid] if stories[uid].running_at else None
    return starts


def _validity(
    history: History,
    recorded_starts: dict[str, PodStory | None],
    baseline_starts: dict[str, PodStory | None],
    recorded: Outcome,
    baseline: Outcome,
) -> Validity:
    same_waits = same_nodes = both = waited = 0
    for lineage in history.lineages:
        theirs, ours = recorded_starts.get(lineage.uid), baseline_starts.get(lineage.uid)
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
    return Validity(
        same_waits=same_waits / waited if waited else 1.0,
        same_nodes=same_nodes / both if both else 1.0,
        started=baseline.started - recorded.started,
        rejections=baseline.rejections - recorded.rejections,
        occupancy=baseline.occupancy - recorded.occupancy,
        wait_p50=_difference(recorded.waits.p50, baseline.waits.p50),
    )


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _verdicts(before: Sequence[QueueOutcome], after: Sequence[QueueOutcome]) -> tuple[QueueVerdict, ...]:
    by_name = {queue.queue: queue for queue in after}
    return tuple(_verdict(queue, by_name[queue.queue]) for queue in before if queue.queue in by_name)


def _verdict(before: QueueOutcome, after: QueueOutcome) -> QueueVerdict:
    signs = {_sign(after.started - before.started, before.started, least=1.0)}
    for old, new in ((before.waits.p50, after.waits.p50), (before.waits.p99, after.waits.p99)):
        if old is not None and new is not None:
            signs.add(_sign(old - new, old, least=_MATTERS_S))
    verdict = Verdict.SAME
    if {1, -1} <= signs:
        verdict = Verdict.MIXED
    elif 1 in signs:
        verdict = Verdict.GAINS
    elif -1 in signs:
        verdict = Verdict.LOSES
    return QueueVerdict(
        queue=before.queue,
        verdict=verdict,
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
