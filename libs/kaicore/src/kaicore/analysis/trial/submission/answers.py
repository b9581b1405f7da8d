"""Answers of `kai what-if submit` as data; see `kaicore.analysis.ask.answers` for their form."""

from enum import StrEnum

import msgspec

from kaicore.analysis.ask.answers import Answer, CalibrationAnswer, GroupStart, ReasonAnswer, StartAnswer
from kaicore.analysis.life.why_answers import GpuPartAnswer


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
        evictions: for its sake.
        reasons: why it waits.
        schedulable_if: what would make it fit on what there is, each tried.
        start: when it is likely to start; None without a forecast.
        no_start: why there is no forecast; empty where it starts now, or `start` says when.
        notes: what else is to know about it.
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


class SubmitAnswer(Answer, frozen=True, kw_only=True):
    """The outcome of submitted manifests.

    Attributes:
        position: of the log, as of which it is answered.
        recorded_at: of the event there.
        now: the time for which it is answered.
        problems: objects that make no sense, one line each; the others are answered for.
        warnings: what of the manifests is read otherwise than it stands there, or left out.
        groups: in order of namespace, name and kind.
        others_placed: pods that waited before, and that the same cycle places; the reasons count their room as taken.
        calibration: how often forecasts came true so far; None where nobody has measured it yet.
    """

    cluster: str
    position: int
    recorded_at: str
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


class StartsAnswer(Answer, frozen=True, kw_only=True):
    """The likely starts of waiting pods.

    Attributes:
        position: of the log, as of which it is answered.
        recorded_at: of the event there.
        now: the time for which it is answered.
        groups: that they are in, in order of their keys; empty where none of them waits.
        calibration: how often forecasts came true so far; None where nobody has measured it yet.
    """

    cluster: str
    position: int
    recorded_at: str
    now: str
    groups: list[GroupStart]
    calibration: CalibrationAnswer | None = None
