"""Answers of `kai what-if submit` as data, and forecasts of starts, also in words.

See `kaicore.analysis.ask.answers` for their form. The result of the scenarios is given as a forecast only where
forecasts of the same log were right (`checked_start`).
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import TypeVar

import msgspec

from kaicore.analysis.ask.answers import CalibrationAnswer, GroupStart, ReasonAnswer, StartAnswer
from kaicore.analysis.json_spelling import Answer, AsOf, duration_text, time_text
from kaicore.analysis.life.why_answers import GpuPartAnswer
from kaicore.rules.deciding.forecast.start import StartForecast
from kaicore.rules.events.reasons.base import plural
from kaicore.rules.state.indexes.past_runs import Basis


class Prospect(StrEnum):
    """A group's outcome in the next cycle.

    Attributes:
        STARTS_NOW: it has its minimum at once; more of its pods may wait.
        STARTS_AFTER_EVICTIONS: it has its minimum when pods that are evicted for it are gone.
        WAITS: neither.
        OTHER_SCHEDULER: its pods name a scheduler that is not this one.
    """

    STARTS_NOW = "StartsNow"
    STARTS_AFTER_EVICTIONS = "StartsAfterEvictions"
    WAITS = "Waits"
    OTHER_SCHEDULER = "OtherScheduler"


class SubmittedPod(Answer, frozen=True, kw_only=True):
    """A pod that would be made.

    Attributes:
        status: Placed, Nominated (its room is kept until others are gone) or Pending.
        node: where it is placed or its room is kept; empty for nowhere.
        zones: NUMA zones that the kubelet is predicted to give it.
        rank: its place among the pods of its set, where its group has a topology constraint; None for none.
        domains: of such a pod: its node's domain at each level of the topology, by the level's name.
        gpus: parts of GPUs that it gets; of a GPU that would be opened for it nobody knows which.
    """

    namespace: str
    name: str
    status: str
    node: str = ""
    zones: list[str] = msgspec.field(default_factory=list)
    rank: int | None = None
    domains: dict[str, str] = msgspec.field(default_factory=dict)
    gpus: list[GpuPartAnswer] | msgspec.UnsetType = msgspec.UNSET


class SubmittedEviction(Answer, frozen=True, kw_only=True):
    """A pod that would be evicted.

    Attributes:
        group: key of its group.
        reason: such as Preempted or Reclaimed.
        fits_on: a node that could take its successor; empty when none could.
    """

    namespace: str
    name: str
    node: str
    group: str
    reason: str
    fits_on: str = ""


class SubmittedGroup(Answer, frozen=True, kw_only=True):
    """Pods that would be decided on together.

    Attributes:
        kind: of the object that they are a group by, with its API group; Pod for one that is alone.
        queue: that would pay for it, as it names it; empty for the default one.
        minimum: how many of its pods must start at once.
        verdict: see `Prospect`.
        message: the verdict for people.
        reasons: why it waits.
        schedulable_if: changes that would make it fit on present nodes, each tried.
        start: when it is likely to start; None without a forecast.
        no_start: why there is no forecast; empty where it starts now, or `start` says when.
    """

    kind: str
    namespace: str
    name: str
    queue: str
    minimum: int
    verdict: Prospect
    message: str
    pods: list[SubmittedPod]
    evictions: list[SubmittedEviction] = msgspec.field(default_factory=list)
    reasons: list[ReasonAnswer] = msgspec.field(default_factory=list)
    schedulable_if: list[ReasonAnswer] = msgspec.field(default_factory=list)
    start: StartAnswer | None = None
    no_start: str = ""
    notes: list[str] = msgspec.field(default_factory=list)


class SubmitAnswer(AsOf, frozen=True, kw_only=True):
    """The outcome of submitted manifests.

    Attributes:
        position: of the log, as of which it is answered.
        now: the time for which it is answered.
        problems: objects that make no sense, one line each; the others are answered for.
        warnings: what of the manifests is read otherwise than it stands there, or left out.
        groups: in order of namespace, name and kind.
        others_placed: pods that waited before, and that the same cycle places; the reasons count their room as taken.
        calibration: how often forecasts came true so far; None where nobody has measured it yet.
    """

    now: str
    problems: list[str]
    warnings: list[str]
    groups: list[SubmittedGroup]
    others_placed: list[SubmittedPod] = msgspec.field(default_factory=list)
    calibration: CalibrationAnswer | None = None

    @property
    def good(self) -> bool:
        """True if all manifests make sense, and their work starts now."""
        return not self.problems and all(group.verdict is Prospect.STARTS_NOW for group in self.groups)


class StartsAnswer(AsOf, frozen=True, kw_only=True):
    """The likely starts of waiting pods.

    Attributes:
        position: of the log, as of which it is answered.
        now: the time for which it is answered.
        groups: that they are in, in order of their keys; empty where none of them waits.
        calibration: how often forecasts came true so far; None where nobody has measured it yet.
    """

    now: str
    groups: list[GroupStart]
    calibration: CalibrationAnswer | None = None


_RUNS_OF = {
    Basis.OWNER: "of their owners",
    Basis.CLASS: "that request the same in their queue",
    Basis.QUEUE: "of their queue",
    Basis.CLUSTER: "of the whole cluster",
}

#: Why there is no forecast where only a change of the cluster, or of the work, would help.
STAYS_IN_THE_WAY = "what is in the way does not pass by itself"
#: Shares of past forecasts within which they count as calibrated: of those that started before p50, and before p90.
_LEAST_P50, _MOST_P50, _LEAST_P90 = 0.3, 0.7, 0.75


def start_answer(forecast: StartForecast, *, now: int) -> StartAnswer:
    """Return what the scenarios say as an answer; nothing is checked yet, so it is no forecast (`checked_start`).

    Args:
        now: from when it looks ahead, microseconds since the epoch.
    """
    p50, p90, earliest, latest = map(
        _seconds, (forecast.p50_us, forecast.p90_us, forecast.earliest_us, forecast.latest_us)
    )
    answer = StartAnswer.copied(
        forecast,
        p50=_time(now, p50),
        p90=_time(now, p90),
        p50_seconds=p50,
        p90_seconds=p90,
        earliest_seconds=earliest,
        latest_seconds=latest,
        horizon_seconds=forecast.horizon_us // 1_000_000,
        within_horizon=round(forecast.within / forecast.scenarios, 3),
        bases={basis.value: count for basis, count in forecast.bases.items()},
        text="",
    )
    return checked_start(answer, None)


def checked_start(start: StartAnswer, calibration: CalibrationAnswer | None) -> StartAnswer:
    """Return an answer as a forecast where past forecasts came true; else as a range, with what is missing.

    Args:
        calibration: how often forecasts of its cluster came true; None where nobody has measured it.
    """
    missing = list(_missing(start, calibration))
    when = _range(start) if missing else _when(start)
    because = f"; this is no forecast: {', and '.join(missing)}" if missing else ""
    text = f"{when}{because} ({_rests_on(start)})"
    if start.scenarios < start.asked_scenarios and start.within_horizon:
        text += f"; {start.scenarios} of {start.asked_scenarios} scenarios were computed, which is what one may cost"
    return msgspec.structs.replace(start, calibrated=not missing, missing=missing, text=text)


_GroupT = TypeVar("_GroupT", GroupStart, SubmittedGroup)


def checked_group(group: _GroupT, calibration: CalibrationAnswer | None) -> _GroupT:
    """Return a group with its start as `checked_start` gives it; one without a start as it is."""
    if group.start is None:
        return group
    return msgspec.structs.replace(group, start=checked_start(group.start, calibration))


def _missing(start: StartAnswer, calibration: CalibrationAnswer | None) -> Iterator[str]:
    """Yield what is missing for a forecast; nothing where the group starts at once in every scenario."""
    if start.latest_seconds == 0:
        return
    running = start.unknown + sum(start.bases.values())
    if 2 * start.unknown > running:
        yield f"no run times are known of {start.unknown} of {running} running pods"
    if calibration is None:
        yield "no past forecast was checked yet (`kai what-if calibration` does that)"
        return
    before_p50, before_p90 = calibration.started_before_p50, calibration.started_before_p90
    if before_p50 is None or before_p90 is None:
        checked = plural(calibration.groups, "past forecast")
        yield f"too little is known of how often they come true: {checked} could be checked"
    elif not _LEAST_P50 <= before_p50 <= _MOST_P50 or before_p90 < _LEAST_P90:
        yield f"past ones did not come true: {before_p50:.0%} started before p50, {before_p90:.0%} before p90"


def _when(start: StartAnswer) -> str:
    parts = []
    if start.p50_seconds is not None:
        within = "at once" if not start.p50_seconds else f"within {duration_text(start.p50_seconds)}"
        parts.append(f"likely to start {within} (p50)")
        if start.p90_seconds is not None:
            parts.append(f"{duration_text(start.p90_seconds)} (p90)")
    if start.within_horizon < 1:
        share = round(100 * (1 - start.within_horizon))
        parts.append(f"not within {duration_text(start.horizon_seconds)} in {share} % of scenarios")
    return ", ".join(parts)


def _range(start: StartAnswer) -> str:
    """Say between what times it starts. Pods of which no run time is known may end any time."""
    earliest, latest = 0 if start.unknown else start.earliest_seconds, start.latest_seconds
    beyond = f"not within {duration_text(start.horizon_seconds)}"
    if earliest is None:
        return f"{beyond} in any of {start.scenarios} scenarios"
    if latest is None:
        return f"may start {f'after {duration_text(earliest)}' if earliest else 'at any time'}, or {beyond}"
    if not earliest:
        return f"may start at any time within {duration_text(latest)}"
    first, last = duration_text(earliest), duration_text(latest)
    return f"may start in about {first}" if first == last else f"may start in {first} to {last}"


def _rests_on(start: StartAnswer) -> str:
    runs = [f"{count} by runs {_RUNS_OF[Basis(basis)]}" for basis, count in start.bases.items()]
    parts = [f"{start.runs} runs have ended"]
    if runs:
        parts.append(f"ends of pods that run: {', '.join(runs)}")
    if start.deadlines:
        parts.append(f"{start.deadlines} bounded by a deadline")
    if start.unknown:
        parts.append(f"{start.unknown} running pods assumed endless (no run-time data)")
    return "; ".join(parts)


def _seconds(time_us: int | None) -> int | None:
    return None if time_us is None else -(-time_us // 1_000_000)


def _time(now: int, seconds: int | None) -> str | None:
    return None if seconds is None else time_text(now + seconds * 1_000_000)
