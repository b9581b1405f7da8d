"""Answers as data: what the API sends, what `kai … -o json` prints, and what the command line reads.

Names are camelCase in JSON, hashes hexadecimal, times RFC 3339 in UTC; amounts are as a person would write them.
"""

from types import GenericAlias
from typing import Annotated, Any

import msgspec


class Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Something that is answered."""


class ReasonAnswer(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """Why a pod waits, or when it would become schedulable; `message` says it in words.

    The fields are those of the log; docs/reference/reasons.md says what each means for which code.

    Attributes:
        pods: for how many pods of what was asked about.
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
    fields: dict[str, Any] = {}


class RemedyAnswer(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """A change after which the pods start: it was made to a copy of the state, and a cycle of the engine placed them.

    Attributes:
        kind: what is done, in a word: `wait`, `request-less`, `tend-node`, `edit-queue`, `end-work`, `add-nodes`, …
        message: what is to be done, with its object, place and amount.
        resource: that it is about; empty for none.
        amount: of the resource, or of pods or nodes; empty where no amount is meant.
        place: node, queue, domain or object where it is to be done.
        until: for what only waits, when it is tried again.
        node: where the pod that was asked about starts then.
        evicts: pods that cycles evict first, `<namespace>/<name>`.
    """

    kind: str
    message: str
    resource: str = ""
    amount: str = ""
    place: str = ""
    until: str = ""
    node: str = ""
    evicts: list[str] = []


class RemediesAnswer(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """What would make a pod start.

    Attributes:
        pod: which, `<namespace>/<name>`.
        next_cycle: the node on which the next cycle starts it as things are; empty if it does not.
        remedies: changes of which each by itself makes it start, those that cost least first.
        tried: how many changes were tried; where none helps, no single one of these does.
        untried: how many more there were, for which there was no time or no need.
    """

    pod: str
    next_cycle: str = ""
    remedies: list[RemedyAnswer] = []
    tried: int = 0
    untried: int = 0


class StoryAnswer(Answer, frozen=True, kw_only=True):
    """One event of a story."""

    position: int
    recorded_at: str
    text: str


class PodRow(Answer, frozen=True, kw_only=True):
    """A pod.

    Attributes:
        status: in a word, as kubectl would: Pending, Placed, Running, Rejected, …
        stage: waiting, placed, bound or finished.
        zones: of its node, that it holds something of.
        queue: that pays for it; empty where there is none.
        group: `<kind>/<namespace>/<name>`; empty for a pod of its own.
        message: why it waits or failed; empty when there is nothing to say.
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


class GroupRow(Answer, frozen=True, kw_only=True):
    """A group of pods.

    Attributes:
        key: `<kind>/<namespace>/<name>`.
        minimum: how many pods must run at once; 0 where each starts for itself.
        waiting: pods without a node.
        running: pods that hold a node and are to stay.
        leaving: pods that hold a node and are on their way out.
        succeeded: pods that ended well and are still there.
        message: why it waits; empty when it does not.
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


class QueueResource(Answer, frozen=True, kw_only=True):
    """A queue's account of one resource, the queues below it included.

    Attributes:
        quota: guaranteed; `unlimited` where it is.
        limit: never exceeded; empty for none.
        fair_share: what the division gives it now.
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


class NodeRow(Answer, frozen=True, kw_only=True):
    """A node.

    Attributes:
        status: Ready or NotReady, and `SchedulingDisabled` where it is cordoned, as kubectl writes it.
        policy: of its Topology Manager; empty where nothing is published.
        pods: that hold something there.
        rejections: classes of pods that its kubelet has rejected.
    """

    name: str
    status: str
    policy: str
    scope: str
    pods: int
    rejections: int
    resources: list[NodeResource]
    zones: list[ZoneAnswer]


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
        releasing: whether it is terminating.
    """

    namespace: str
    name: str
    observed: bool
    releasing: bool
    amounts: dict[str, str]


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
        total: how many there are; `next` is where the next page begins, empty where the rows are the last ones.
        items: rows, still encoded; `rows` decodes them.
    """

    cluster: str
    kind: str
    position: int
    recorded_at: str
    total: int
    next: str = ""
    items: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "array"})]

    @property
    def rows(self) -> list[Row]:
        """The rows."""
        rows: list[Row] = msgspec.json.decode(self.items, type=GenericAlias(list, (ROWS[self.kind],)))
        return rows


class RowSelection(Answer, frozen=True, kw_only=True):
    """Which rows are wanted; what is not named lets all through.

    Attributes:
        namespaces: only what is in one of these; None for all.
        name: of the thing itself.
        pending: only pods that wait, or groups with such.
        rejected: only pods that a kubelet rejected, or nodes whose kubelet has rejected some.
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
}


def inapplicable_filters(kind: str, wanted: RowSelection) -> list[str]:
    """Return the filters that are set and that rows of this kind do not have: these would let all through."""
    return sorted({name for name in ("queue", "node", "pending", "rejected") if getattr(wanted, name)} - FILTERS[kind])


class Why(Answer, frozen=True, kw_only=True):
    """Why something is as it is.

    Attributes:
        kind: Pod, Job, Deployment, PodGroup, Queue, Node, …
        position: up to which the log was looked at; `recorded_at` is when its event was recorded.
        verdict: one sentence.
        reasons: why its pods wait, as last recorded; where it has several, by how many pods.
        schedulable_if: when a pod would become schedulable, worked out for this answer.
        starts_if: what would make it start, tried for this answer; of several pods that wait, the oldest.
        notes: what is wrong.
        story: a pod's events, in order.
        pods: of anything that has several: those that wait first.
        details: the row of what was asked about, as lists have it; None for pods and for what has no row.
    """

    kind: str
    cluster: str
    position: int
    namespace: str
    name: str
    uid: str
    verdict: str
    reasons: list[ReasonAnswer] = []
    schedulable_if: list[ReasonAnswer] = []
    starts_if: RemediesAnswer | None = None
    notes: list[str] = []
    story: list[StoryAnswer] = []
    pods: list[PodRow] = []
    group: GroupRow | None = None
    queue: QueueRow | None = None
    node: NodeRow | None = None
    recorded_at: str = ""
