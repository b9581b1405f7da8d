"""Answers of `kai audit placements`, `node`, `group` and `evictions` as data."""

import msgspec

from kaicore.analysis.json_spelling import Answer
from kaicore.analysis.life.why_answers import GpuPartAnswer


class Span(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a log that is asked about; both ends are moments (`kaicore.analysis.replay.moments.parse_moment`).

    Attributes:
        since: a position or a time, of the first event that counts; empty for the log's beginning.
        until: of the last one; empty for the log's end.
    """

    since: str = ""
    until: str = ""


class SpanAnswer(Answer, frozen=True, kw_only=True):
    """The part of a log that was read.

    Attributes:
        first, last: positions of its first and last event.
        retired: the last position that has left the log with an old month; 0 where none has.
    """

    first: int
    last: int
    from_time: str
    to_time: str
    retired: int = 0


class AgreementCounts(Answer, frozen=True, kw_only=True):
    """The comparison of predicted placements with observed ones.

    Attributes:
        predicted: decisions of the part with a prediction of zones; all but `rejected` counts at their time.
        observed: those of which the pod was observed, up to the part's end, and the observation believed.
        exact, same_zones, different: of the observed, by how they compare (`kaicore.rules.state.pods.agreement`).
        rejected: pods that a kubelet refused.
    """

    predicted: int = 0
    observed: int = 0
    exact: int = 0
    same_zones: int = 0
    different: int = 0
    rejected: int = 0


class MissRow(Answer, frozen=True, kw_only=True):
    """Predictions that kubelets did not follow, for one cause.

    Attributes:
        policy: of the kubelet's Topology Manager.
        cause: `zones`, `amounts`, what explains it (`ReleasedEarlier`, `HalfRead`, `OldestFirst`,
            `NotObservedYet`), or the reason with which the kubelet rejected a pod.
        explained: whether the cause says that nothing is wrong with the model of that kubelet.
    """

    node: str
    policy: str
    cause: str
    count: int
    explained: bool


class NodeAgreement(Answer, frozen=True, kw_only=True):
    """A node's predictions and observations.

    Attributes:
        policy: of its Topology Manager, at the end of the span; empty where it has no zones or is gone.
        last_observed: when something was last observed there; empty for never in the span.
        unobserved: pods that run on its zones, and that no exporter has observed for longer than it should take.
        unobserved_since: since when the first of them runs; empty for none.
        unexplained: misses without an explanation.
    """

    node: str
    policy: str
    counts: AgreementCounts
    last_observed: str = ""
    unobserved: int = 0
    unobserved_since: str = ""
    unexplained: int = 0

    @property
    def silent(self) -> bool:
        """True if its exporter does not report what runs there."""
        return self.unobserved > 0

    @property
    def disagrees(self) -> bool:
        """True if its kubelet contradicts predictions for no known cause."""
        return self.unexplained > 0


class PolicyAgreement(Answer, frozen=True, kw_only=True):
    """The same of all nodes of one policy."""

    policy: str
    counts: AgreementCounts


class HourAgreement(Answer, frozen=True, kw_only=True):
    """The same of an hour; predictions and rejections count when they were recorded, observations likewise."""

    hour: str
    counts: AgreementCounts


class PlacementAudit(Answer, frozen=True, kw_only=True):
    """Predicted placements against observed ones.

    Attributes:
        misses: by node, policy and cause.
        open_misses: misses at the end of the span without a known cause.
        silent: names of the nodes without reports of their pods by an exporter.
        disagreeing: names of the nodes with kubelets that contradict predictions for no known cause.
    """

    cluster: str
    span: SpanAnswer
    counts: AgreementCounts
    nodes: list[NodeAgreement]
    policies: list[PolicyAgreement]
    misses: list[MissRow]
    hours: list[HourAgreement]
    open_misses: int
    silent: list[str]
    disagreeing: list[str]

    @property
    def ok(self) -> bool:
        """True if every exporter reports, and no kubelet disagrees."""
        return not self.silent and not self.disagreeing


class DecisionAnswer(Answer, frozen=True, kw_only=True):
    """The decision that something came from.

    Attributes:
        position, id: of the event that records it.
        cycle: the cycle's id; empty where no cycle of ours decided it.
        cycle_position: of the event that records the cycle; 0 where that is not in the log any more.
        input_position: up to which the cycle knew the log.
        config: digest of the configuration.
        engine: version of the rules.
    """

    position: int
    recorded_at: str
    id: str
    cycle: str = ""
    actor: str = ""
    cycle_position: int = 0
    input_position: int = 0
    config: str = ""
    engine: str = ""


class ZoneRecord(Answer, frozen=True, kw_only=True):
    """A pod's known holdings from one event on.

    Attributes:
        provenance: `predicted` or `observed`; `unknown` where nothing tells of its zones.
        zones: amounts by resource, by zone; zones that hold something together are joined by `+`.
        agreement: how an observation compares with the prediction; empty where there was none.
    """

    position: int
    recorded_at: str
    provenance: str
    zones: dict[str, dict[str, str]]
    agreement: str = ""


class HoldingAnswer(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """A pod that held a node, from when to when.

    Attributes:
        since: position of the event from which on it was accounted to hold the node.
        until: position of the event that ended that; 0 where it still holds it at the end of the span.
        ended: how: `Succeeded`, `Failed`, `deleted`, `BindFailed: …`, `placed on …`, a rejection's reason; empty while
            it holds.
        decided: the decision to place it; None where another scheduler, or a person, did.
        records: what it was known to hold, in order.
        gpus: parts of GPUs that it held; where one GPU was asked about, also whole ones.
    """

    uid: str
    pod: str
    since: int
    since_time: str
    until: int
    until_time: str
    ended: str
    decided: DecisionAnswer | None
    records: list[ZoneRecord]
    gpus: list[GpuPartAnswer] = msgspec.field(default_factory=list)


class RejectionAnswer(Answer, frozen=True, kw_only=True):
    """A pod that a node's kubelet refused."""

    position: int
    recorded_at: str
    uid: str
    pod: str
    reason: str
    message: str
    decided: DecisionAnswer | None


class KnowledgeGap(Answer, frozen=True, kw_only=True):
    """A time in which no record said what a pod held of the node's zones.

    Attributes:
        until: position of the event that said it; 0 where none has.
    """

    uid: str
    pod: str
    since: int
    since_time: str
    until: int
    until_time: str


class NodeAudit(Answer, frozen=True, kw_only=True):
    """Everything that held a node.

    Attributes:
        holdings: in the order in which pods came.
        gaps: what was not known of them.
        gpu: the GPU that was asked about, as in the question; empty for all of the node.
        suspicions: when the node was found suspect, by which events, and when it was cleared, and why.
    """

    cluster: str
    node: str
    gpu: str = ""
    span: SpanAnswer
    holdings: list[HoldingAnswer]
    rejections: list[RejectionAnswer]
    gaps: list[KnowledgeGap]
    suspicions: list[str]


class GroupEvent(Answer, frozen=True, kw_only=True):
    """A decision about a group's pods, or what became of one.

    Attributes:
        what: the event's type.
        node: which it is about; empty for none.
        reason: of an eviction, a failure, a rejection; empty where there is none.
        preemptor: of an eviction: key of the group that it makes way for.
        decided: who decided it, with which rules; None for what is no decision.
    """

    position: int
    recorded_at: str
    what: str
    uid: str
    pod: str
    node: str
    reason: str = ""
    preemptor: str = ""
    text: str = ""
    decided: DecisionAnswer | None = None


class GroupAudit(Answer, frozen=True, kw_only=True):
    """One decision about a group, with its author.

    Attributes:
        queue: that paid for it, as of when it was last seen.
        events: decisions about its pods and their outcomes, in order.
        evicted_for_it: evictions of other groups' pods to make way for it, in order.
        configs, engines: digests of the configurations and versions of the rules by which it was decided on.
    """

    cluster: str
    group: str
    queue: str
    priority: int
    preemptible: bool
    span: SpanAnswer
    pods: list[str]
    events: list[GroupEvent]
    evicted_for_it: list[GroupEvent]
    configs: list[str]
    engines: list[str]


class DecidedEviction(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """One eviction that a cycle decided.

    Attributes:
        pod: `<namespace>/<name>`.
        group: its own, `<kind> <namespace>/<name>`; empty where a pod of its own was to get other zones.
        reason: the action, as in `kai why`; `Repaired` where it was to get the zones that it had missed.
        made_way_for: the group that was to start in its place, `<kind> <namespace>/<name>`; empty for none.
        choice: why this pod, in words; empty where pods are not chosen by cost.
        lost_gpu_seconds: the work that was lost, as the cycle counted it.
        spared_by: what would spare it the next time.
    """

    position: int
    recorded_at: str
    pod: str
    node: str
    group: str = ""
    reason: str
    made_way_for: str = ""
    choice: str = ""
    lost_gpu_seconds: int = 0
    cycle: str
    spared_by: str = ""


class EvictionAudit(Answer, frozen=True, kw_only=True):
    """The evictions of a part of a log, the oldest first (`reasons`: how many, by reason)."""

    cluster: str
    span: SpanAnswer
    reasons: dict[str, int]
    lost_gpu_seconds: int
    evictions: list[DecidedEviction]
