"""Answers as data: sent by the API, printed by `kai … -o json`, and read by the command line.

Names are camelCase in JSON, hashes hexadecimal, times RFC 3339 in UTC; amounts are exact Kubernetes quantities.

They are about clusters, the hub and its dispatches, objects and their explanations, differences between two moments,
forecasts of starts, and who has the GPUs.
"""

from enum import StrEnum
from types import GenericAlias
from typing import Annotated, Any

import msgspec

from kaicore.analysis.json_spelling import Answer, AsOf
from kaicore.analysis.life import why_answers
from kaicore.rules.groups.dialects.table import WORKLOADS

#: Kinds of what can be explained, and the words that kubectl and people have for each.
_KIND_WORDS: dict[str, tuple[str, ...]] = {
    "Pod": ("pod", "pods", "po"),
    "CronJob": ("cronjob", "cronjobs", "cj"),
    "Workload": ("workload", "workloads", "wl"),
    **{
        (name := one.kind.partition(".")[0]): (name.lower(), one.plural, *one.short_names) for one in WORKLOADS.values()
    },
    "Queue": ("queue", "queues", "q"),
    "ClusterQueue": ("clusterqueue", "clusterqueues", "cq"),
    "LocalQueue": ("localqueue", "localqueues", "lq"),
    "Cohort": ("cohort", "cohorts"),
    "Node": ("node", "nodes", "no"),
    "Dispatch": ("dispatch", "dispatches"),
}
#: Kinds without their API group; an owner of pods may also be of another one.
KIND_CALLED = {word: kind for kind, words in _KIND_WORDS.items() for word in words}


class HubClusterRow(Answer, frozen=True, kw_only=True):
    """A cluster of the hub.

    Attributes:
        state: Ready, Drained, Lost (its lease ran out), or NeverSeen (its binder has not come yet).
        silent_seconds: since its lease was renewed last, by the log's clock; None before the first time.
        waiting, running: dispatches that it has and that have not started, or have.
        kubeconfigs: by which the hub's machine reaches it; none where an agent dials out, or it is simulated.
        simulated: profile of its fleet, where it is.
    """

    name: str
    state: str
    silent_seconds: int | None = None
    waiting: int = 0
    running: int = 0
    cost: int = 0
    data: list[str] = msgspec.field(default_factory=list)
    kubeconfigs: list[str] = msgspec.field(default_factory=list)
    simulated: str = ""


class OfferAnswer(Answer, frozen=True, kw_only=True):
    """The outcome that a dispatch would have in a cluster; see `kaicore.rules.events.payloads.Offer`."""

    cluster: str
    position: int
    prospect: str
    unfit: str
    capacity: int
    topology: int
    share: int
    locality: int
    cost: int
    score: int
    why: str = ""


class DispatchRow(Answer, frozen=True, kw_only=True):
    """A dispatch.

    Attributes:
        stage: Waiting, Given, Started, Recalled, Finished or Withdrawn.
        cluster: that has it, or had it last.
        term: how often it was given to a cluster.
        clusters: that it may run in; none for any.
        message: why it waits, or how it ended.
    """

    name: str
    stage: str
    cluster: str
    term: int
    queue: str
    since: str
    submitted_at: str
    clusters: list[str] = msgspec.field(default_factory=list)
    data: list[str] = msgspec.field(default_factory=list)
    message: str = ""


class DispatchWhy(Answer, frozen=True, kw_only=True):
    """The reason for a dispatch's place: the first level of the decision.

    Attributes:
        position: of the hub's log.
        offers: of all clusters, as of the decision, or as of now where it waits.
        weights: of the parts of their scores; empty where it waits.
        story: what the hub's log has of it, the oldest first.
        correlation: what its events have in common in the hub's log and in the clusters'.
    """

    dispatch: DispatchRow
    position: int
    verdict: str
    correlation: str
    offers: list[OfferAnswer] = msgspec.field(default_factory=list)
    weights: dict[str, int] = msgspec.field(default_factory=dict)
    story: list["HubStoryLine"] = msgspec.field(default_factory=list)


class HubStoryLine(Answer, frozen=True, kw_only=True):
    """One event about a dispatch."""

    position: int
    recorded_at: str
    actor: str
    text: str


class StartAnswer(Answer, frozen=True, kw_only=True):
    """A range of likely starts of a group, as `kaicore.rules.deciding.forecast.start.StartForecast` describes it.

    Attributes:
        calibrated: whether this is a forecast: past ones came true, and it is known how long most running pods go on.
        missing: what is missing for that; empty where it is one.
        p50, p90: times; without `calibrated` nothing says that they come true. Seconds are from now.
        within_horizon: a share of the scenarios.
    """

    calibrated: bool = False
    missing: list[str] = msgspec.field(default_factory=list)
    p50: str | None
    p90: str | None
    p50_seconds: int | None
    p90_seconds: int | None
    earliest_seconds: int | None
    latest_seconds: int | None
    horizon_seconds: int
    within_horizon: float
    scenarios: int
    asked_scenarios: int
    ahead: int
    runs: int
    bases: dict[str, int]
    unknown: int
    deadlines: int
    text: str


class GroupStart(Answer, frozen=True, kw_only=True):
    """A forecast of the start of a waiting group.

    Attributes:
        kind: of the object that it is a group by, with its API group; Pod for one that is alone.
        start: None without a forecast.
    """

    kind: str
    namespace: str
    name: str
    start: StartAnswer | None = None
    no_start: str = ""

    @property
    def text(self) -> str:
        """All that for people."""
        return f"no forecast of its start: {self.no_start}" if self.start is None else self.start.text


class CalibrationAnswer(Answer, frozen=True, kw_only=True):
    """The accuracy of past forecasts of starts.

    Attributes:
        position: of the log's end when it was measured.
        groups: that waited, had a forecast then, and have started by now.
        undecided: groups that wait still, and not yet longer than forecast.
        started_before_p50, started_before_p90: shares of those for which there was such a time within the horizon;
            None where there are fewer than 10.
        median_error_seconds: between p50 and the start; None where there are fewer than 10.
        left_out: groups of the sample that were not looked at, because of what that costs.
    """

    cluster: str
    position: int
    groups: int
    undecided: int
    started_before_p50: float | None
    started_before_p90: float | None
    median_error_seconds: int | None
    from_position: int
    to_position: int
    left_out: int
    text: str


class ReasonAnswer(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """A reason why a pod waits, or when it would become schedulable; `message` is its text.

    The fields are those of the log; docs/reference/reasons.md says what each means for which code.

    Attributes:
        pods: for how many pods of what was asked about.
        details: of one pod that was asked about: what the message does not say, such as how much the pod asks for, of
            which object it describes, and which node is closest to taking it.
        fields: what else it has, by the field's name.
    """

    code: str
    message: str
    nodes: int = 0
    example: str = ""
    resource: str = ""
    zone: str = ""
    need: int = 0
    free: int = 0
    detail: str = ""
    rejection: str = ""
    queue: str = ""
    until: str = ""
    group: str = ""
    pods: int = 0
    details: list[str] = msgspec.field(default_factory=list)
    fields: dict[str, Any] = msgspec.field(default_factory=dict)


class PodRow(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """A pod.

    Attributes:
        status: in a word, as kubectl would: Pending, Placed, Running, Rejected, …
        stage: waiting, placed, bound or finished.
        zones: of its node, that it holds something of.
        queue: that pays for it; empty where there is none.
        group: `<kind>/<namespace>/<name>`; empty for a pod of its own.
        message: why it waits or failed; empty when there is nothing to say.
        gpus: the parts of GPUs that it holds.
    """

    namespace: str
    name: str
    uid: str
    status: str
    stage: str
    node: str
    zones: list[str]
    queue: str
    group: str
    scheduler: str
    created_at: str
    message: str
    gpus: list[why_answers.GpuPartAnswer] = msgspec.field(default_factory=list)


class GroupRow(Answer, frozen=True, kw_only=True):
    """A group of pods.

    Attributes:
        key: `<kind>/<namespace>/<name>`.
        minimum: how many pods must run at once; 0 where each starts for itself.
        gpus: that its pods hold or ask for, as a decimal number.
        created_at: of its first pod; empty without any.
        waiting: pods without a node.
        running: pods that hold a node and are to stay.
        leaving: pods that hold a node and are on their way out.
        succeeded: pods that ended well and are still there.
        message: why it waits; empty when it does not.
        expected_start: the start that is promised to it, else half of the scenarios' of its forecast; empty if unknown.
        expected_from: `promise` or `forecast`; empty if unknown.
    """

    key: str
    kind: str
    namespace: str
    name: str
    queue: str
    priority: int
    preemptible: bool
    minimum: int
    waiting: int
    running: int
    leaving: int
    succeeded: int
    message: str
    gpus: str = "0"
    created_at: str = ""
    expected_start: str = ""
    expected_from: str = ""


class QueueResource(Answer, frozen=True, kw_only=True):
    """A queue's account of one resource, the queues below it included.

    Attributes:
        quota: guaranteed; `unlimited` where it is.
        limit: never exceeded; empty for none.
        allocated: what its work holds.
        requested: that, and what its work waits for.
    """

    resource: str
    quota: str
    limit: str
    fair_share: str
    allocated: str
    requested: str


class QueueRow(Answer, frozen=True, kw_only=True):
    """A queue.

    Attributes:
        kind: of its object; empty for `default` where there are no queues, which all work is then in.
        waiting: pods that wait and name it, or a LocalQueue of it.
        running: pods that hold a node, likewise.
    """

    name: str
    kind: str
    parent: str
    priority: int
    stopped: bool
    waiting: int
    running: int
    resources: list[QueueResource]


class NodeResource(Answer, frozen=True, kw_only=True):
    """A resource of a node, or of one of its zones."""

    resource: str
    allocatable: str
    used: str


class ZoneAnswer(Answer, frozen=True, kw_only=True):
    """A NUMA zone, by what the log knows that pods hold there."""

    name: str
    resources: list[NodeResource]


class NodeRow(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """A node.

    Attributes:
        status: Ready or NotReady, and `SchedulingDisabled` where it is cordoned, as kubectl writes it; and `Suspect`.
        policy: of its Topology Manager; empty where nothing is published.
        rejections: classes of pods that its kubelet has rejected.
        kubelet: as which kubelet its zones are predicted, and why; empty for a node without zones.
        gpus: its GPUs that are opened for sharing.
        suspect: why it is suspect, by kind of work.
    """

    name: str
    status: str
    policy: str
    scope: str
    pods: int
    rejections: int
    resources: list[NodeResource]
    zones: list[ZoneAnswer]
    kubelet: str
    gpus: list[why_answers.SharedGpuAnswer] = msgspec.field(default_factory=list)
    suspect: list[str] = msgspec.field(default_factory=list)


class ZoneAmounts(Answer, frozen=True, kw_only=True):
    """A resource of a zone.

    Attributes:
        held: by what the log knows of the pods there; `releasing` is what terminating pods have of that.
    """

    resource: str
    allocatable: str
    held: str
    releasing: str
    free: str


class ZoneHolder(Answer, frozen=True, kw_only=True):
    """A pod that holds something of a zone.

    Attributes:
        observed: whether its placement was observed; otherwise it is as predicted.
        perhaps: of the amounts, what is counted in case that the pod holds it here: it was predicted elsewhere, and its
            kubelet may have released something that the log did not know of; or an init container may have kept it.
    """

    namespace: str
    name: str
    observed: bool
    releasing: bool
    amounts: dict[str, str]
    perhaps: dict[str, str] = msgspec.field(default_factory=dict)


class ZoneRow(Answer, frozen=True, kw_only=True):
    """A NUMA zone of a node.

    Attributes:
        name: `<node>/<zone>`.
        unknown: pods on the node that hold something of its zones, and no record tells of which.
        pods: in the order in which they came to the node.
    """

    name: str
    node: str
    zone: str
    unknown: int
    resources: list[ZoneAmounts]
    pods: list[ZoneHolder]


class CycleRow(Answer, frozen=True, kw_only=True):
    """A recorded cycle of the scheduler.

    Attributes:
        position: of its record; `input_position` is how far its input had been folded.
        pods: that waited for a decision.
    """

    cycle: str
    shard: str
    position: int
    input_position: int
    recorded_at: str
    engine: str
    config: str
    pods: int
    placed: int
    nominated: int
    evicted: int


Row = PodRow | GroupRow | QueueRow | NodeRow | ZoneRow | CycleRow

#: What can be listed of a cluster, by the word for it.
ROWS: dict[str, type[Row]] = {
    "pods": PodRow,
    "groups": GroupRow,
    "queues": QueueRow,
    "nodes": NodeRow,
    "zones": ZoneRow,
    "cycles": CycleRow,
}


class Listing(Answer, frozen=True, kw_only=True):
    """Rows, as of a position.

    Attributes:
        kind: one of `ROWS`.
        recorded_at: of the event at that position.
        reasons_position: the position of the state by which cycles found why pods wait, the earliest of shards; 0
            where no cycle was run, or the rows say nothing of that.
        unlisted_since: when the last watcher started, where the log has no node; its first list may not be complete.
        total: how many there are; `next` is where the next page begins, empty where the rows are the last ones.
        items: rows, still encoded; `rows` decodes them.
    """

    cluster: str
    kind: str
    position: int
    recorded_at: str
    reasons_position: int = 0
    unlisted_since: str = ""
    total: int
    next: str = ""
    items: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "array"})]

    @property
    def rows(self) -> list[Row]:
        """The rows."""
        rows: list[Row] = msgspec.json.decode(self.items, type=GenericAlias(list, (ROWS[self.kind],)))
        return rows


class RowSelection(Answer, frozen=True, kw_only=True):
    """A selection of rows; a criterion that is not given lets all through.

    Attributes:
        namespaces: only what is in one of these; None for all.
        name: of the thing itself.
        pending: only pods that wait, or groups with such.
        rejected: only pods that a kubelet rejected, or nodes with a kubelet that has rejected some.
        limit: how many rows at most, after the first `skip`; of cycles the last ones.
    """

    namespace: str = ""
    name: str = ""
    queue: str = ""
    node: str = ""
    pending: bool = False
    rejected: bool = False
    limit: int = 0
    skip: int = 0
    namespaces: frozenset[str] | None = None

    def admits(self, namespace: str) -> bool:
        """Tell whether what is in a namespace is wanted."""
        return self.namespace in ("", namespace) and (self.namespaces is None or namespace in self.namespaces)


#: Which filters of a selection each kind of rows has, beside name, namespace and limit.
FILTERS: dict[str, frozenset[str]] = {
    "pods": frozenset({"queue", "node", "pending", "rejected"}),
    "groups": frozenset({"queue", "pending"}),
    "queues": frozenset({"pending"}),
    "nodes": frozenset({"node", "rejected"}),
    "zones": frozenset({"node"}),
    "cycles": frozenset(),
    "clusters": frozenset(),
    "dispatches": frozenset({"pending"}),
}


def inapplicable_filters(kind: str, wanted: RowSelection) -> list[str]:
    """Return the filters that are set and that rows of this kind do not have: these would let all through."""
    return sorted({name for name in ("queue", "node", "pending", "rejected") if getattr(wanted, name)} - FILTERS[kind])


class Why(Answer, frozen=True, kw_only=True):
    """An explanation of a thing's state.

    Attributes:
        kind: Pod, Job, Deployment, PodGroup, Queue, Node, …
        position: up to which the log was looked at; `recorded_at` is when its event was recorded.
        since: since when it is so; empty where that is not known.
        attempts: of a pod that waits: in which cycles it was tried.
        reasons: why its pods wait, as last recorded; where it has several, by how many pods.
        reasons_position: the position of the state by which cycles found them, the earliest where there are several; 0
            where no cycle did. What the cycle placed before counts as taken. All else is of `position`.
        nodes: of a pod that waits: what the nodes lack that are closest to taking it.
        domains: what the best domains of its topology lack.
        queues: the accounts of its queue and of those above it.
        blockers: other work without which it would fit, and whether that may be evicted for it.
        schedulable_if: when a pod would become schedulable, worked out for this answer.
        starts_if: what would make it start, tried for this answer; of several pods that wait, the oldest.
        start: when the group that waits longest is likely to start, from past runs; None where that was not asked.
        calibration: accuracy of past forecasts so far; None where it was not measured.
        placement: of a pod that was placed: why there.
        evictions: of pods of this name.
        rejections: by kubelets, of pods of this name.
        timeline: a pod's way, step by step.
        story: a pod's events, in order.
        pods: of anything that has several: those that wait first.
        sub_groups: of a group: its sets of pods.
        group: the row of what was asked about, as lists have it; so are `queue` and `node`.
        dispatch: of what the hub gave to this cluster: why this one; nodes were chosen here.
    """

    kind: str
    cluster: str
    position: int
    namespace: str
    name: str
    uid: str
    verdict: str
    since: str = ""
    attempts: why_answers.AttemptsAnswer | None = None
    reasons: list[ReasonAnswer] = msgspec.field(default_factory=list)
    reasons_position: int = 0
    nodes: list[why_answers.NodeShortfall] = msgspec.field(default_factory=list)
    domains: list[why_answers.DomainShortfall] = msgspec.field(default_factory=list)
    queues: list[QueueRow] = msgspec.field(default_factory=list)
    blockers: list[why_answers.BlockerAnswer] = msgspec.field(default_factory=list)
    schedulable_if: list[ReasonAnswer] = msgspec.field(default_factory=list)
    starts_if: why_answers.RemediesAnswer | None = None
    start: GroupStart | None = None
    calibration: CalibrationAnswer | None = None
    notes: list[str] = msgspec.field(default_factory=list)
    placement: why_answers.PlacementAnswer | None = None
    evictions: list[why_answers.EvictionAnswer] = msgspec.field(default_factory=list)
    rejections: list[why_answers.PodRejectionAnswer] = msgspec.field(default_factory=list)
    timeline: list[why_answers.TimelineStep] = msgspec.field(default_factory=list)
    story: list[why_answers.StoryAnswer] = msgspec.field(default_factory=list)
    pods: list[PodRow] = msgspec.field(default_factory=list)
    sub_groups: list[why_answers.SubGroupAnswer] = msgspec.field(default_factory=list)
    group: GroupRow | None = None
    queue: QueueRow | None = None
    node: NodeRow | None = None
    recorded_at: str = ""
    dispatch: DispatchWhy | None = None


class ClusterRow(Answer, frozen=True, kw_only=True):
    """A cluster that has a log.

    Attributes:
        position: of the log's end.
        hash: of its last event.
        state: as one of the hub's: Ready, Drained, Lost or NeverSeen; empty where it is none of the hub's.
        waiting, running: dispatches that the hub gave it and that have not started, or have.
    """

    name: str
    position: int
    recorded_at: str
    hash: str
    state: str = ""
    waiting: int = 0
    running: int = 0


class ClusterSummary(Answer, frozen=True, kw_only=True):
    """A cluster in figures.

    Attributes:
        pods: how many, by stage: waiting, placed, bound, finished.
        tally: counts over the whole log (`kaicore.rules.state.counters`).
    """

    name: str
    position: int
    recorded_at: str
    nodes: int
    queues: int
    groups: int
    pods: dict[str, int]
    tally: dict[str, object]


#: What is compared, in the order of answers.
KINDS = ("nodes", "topology", "queues", "groups", "pods", "zones")


class FieldChange(Answer, frozen=True, kw_only=True):
    """A field that is different; empty where it was not, or is not any more."""

    field: str
    before: str
    after: str


class RowChange(Answer, frozen=True, kw_only=True):
    """A thing that is new, gone or changed.

    Attributes:
        kind: one of `KINDS`.
        change: added, removed or changed.
        fields: that are different; of what is new or gone all that say something.
    """

    kind: str
    name: str
    change: str
    fields: list[FieldChange]


class DiffSide(Answer, frozen=True, kw_only=True):
    """One of the two moments."""

    position: int
    recorded_at: str


class DiffAnswer(Answer, frozen=True, kw_only=True):
    """The differences between an earlier and a later moment.

    Attributes:
        counts: changes by kind and by what they are; kinds without any are left out.
        changes: by kind, in each by name.
    """

    cluster: str
    before: DiffSide
    after: DiffSide
    counts: dict[str, dict[str, int]]
    changes: list[RowChange]


class DiffQuestion(Answer, frozen=True, kw_only=True):
    """A selection for a comparison; a criterion that is not given lets all through.

    Attributes:
        kind: one of `KINDS`.
        namespace, node, queue: only what is there before or after; kinds that have no such thing are left out.
    """

    kind: str = ""
    namespace: str = ""
    node: str = ""
    queue: str = ""


class HolderStanding(StrEnum):
    """The standing of a group that holds GPUs to the queue that asks; what that may take is first.

    Attributes:
        RECLAIMABLE: the queue may have it evicted.
        PROTECTED: the same, but not yet: it has not run for its least time.
        BORROWED: beyond the quota of its queue, but the queue that asks may not take it.
        BY_RIGHT: within the quota, or it cannot be preempted.
        OWN: of the queue itself, or of one below it.
        OUTSIDE: of no queue.
    """

    RECLAIMABLE = "reclaimable"
    PROTECTED = "protected"
    BORROWED = "borrowed"
    BY_RIGHT = "by right"
    OWN = "own"
    OUTSIDE = "outside"


class GpuHolder(Answer, frozen=True, kw_only=True):
    """A group that holds GPUs, or all of one standing that the caller may not see.

    Attributes:
        gpus: that it holds, as a decimal number.
        since: when its first pod got its node.
        rule: by which it holds them, in a sentence.
        protected_until: before that nothing of other queues has it evicted; empty where that has passed.
        ends: by when its declared limit ends it at the latest; empty without one.
    """

    standing: HolderStanding
    namespace: str
    group: str
    queue: str
    user: str
    gpus: str
    since: str
    rule: str
    protected_until: str = ""
    ends: str = ""


class QueueClaim(Answer, frozen=True, kw_only=True):
    """A queue's account by one rule; GPUs as decimal numbers.

    Attributes:
        quota: `unlimited` for no bound.
        owed: of its fair share, what it asks for and does not hold.
        may_take: of others' GPUs, what it may have evicted for one GPU more.
        refused: why it may have nothing evicted; empty where it may.
    """

    quota: str
    fair_share: str
    holds: str
    asks: str
    owed: str
    may_take: str
    refused: str = ""


class GpuHolders(AsOf, frozen=True, kw_only=True):
    """The holders of GPUs, as one queue sees them.

    Attributes:
        settings: of the other rule, `KEY=VALUE`; empty where none was asked for.
        other: the same claim by that rule.
        moved: the queues with another fair share by it, each with both.
    """

    queue: str
    claim: QueueClaim
    verdict: str
    holders: list[GpuHolder]
    settings: list[str] = msgspec.field(default_factory=list)
    other: QueueClaim | None = None
    moved: dict[str, tuple[str, str]] = msgspec.field(default_factory=dict)
