"""The parts of an explanation, as data. Amounts are exact Kubernetes quantities, times RFC 3339."""

import msgspec

from kaicore.analysis.json_spelling import Answer
from kaicore.rules.events.reasons.base import plural


class StoryAnswer(Answer, frozen=True, kw_only=True):
    """One event of a story."""

    position: int
    recorded_at: str
    text: str


# GPUs that are opened for sharing.


class GpuPartAnswer(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a GPU that a pod holds.

    Attributes:
        group: the GPU group; empty for GPUs that are not shared, and in a trial for one that would be opened.
        gpu: its index or UUID, as its reservation pod or its driver names it; empty where that is not known.
        part: of the GPU, as a decimal number.
        reserves: whether the pod is the reservation pod of the GPU.
    """

    group: str = ""
    gpu: str = ""
    part: str = ""
    reserves: bool = False

    @property
    def name(self) -> str:
        """The GPU, for people."""
        if not self.gpu:
            return f"GPU group {self.group[:8]}"
        return f"GPU {self.gpu}" if self.gpu.isdecimal() else self.gpu

    @property
    def text(self) -> str:
        """All that for people."""
        if self.gpu or self.group:
            return f"reserves {self.name}" if self.reserves else f"{self.part} of {self.name}"
        if self.part.isdecimal():
            return f"{self.part} whole GPU{'' if self.part == '1' else 's'}, not known which"
        return f"{self.part} of a GPU that is opened for it"


class PartHolder(Answer, frozen=True, kw_only=True):
    """A pod, `<namespace>/<name>`, that holds a part of a GPU."""

    pod: str
    part: str


class SharedGpuAnswer(GpuPartAnswer, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU that is opened for sharing.

    Attributes:
        part: what the pod that was asked about holds of it; empty where none was.
        free: its free part, as a decimal number; `0` for none.
        held_by: pods with parts, without the one that was asked about.
        reservation: the pod that holds it, `<namespace>/<name>`; empty where none does.
        remark: what is unusual: its reservation pod was not seen yet, is lost, or it is closed.
    """

    free: str = ""
    held_by: list[PartHolder] = msgspec.field(default_factory=list)
    reservation: str = ""
    remark: str = ""


# Waiting pods.


class AttemptChange(Answer, frozen=True, kw_only=True):
    """From a cycle on, a pod waited for other reasons than before.

    Attributes:
        cycle: the first one.
        position: of its record; `recorded_at` likewise.
        cycles: how many cycles in a row.
        reasons: the codes; empty where none was recorded.
        message: the first of them in words.
        skipped: whether these cycles tried no node, for the pod may not be placed.
    """

    cycle: str
    position: int
    recorded_at: str
    cycles: int
    reasons: list[str]
    message: str
    skipped: bool = False


class AttemptsAnswer(Answer, frozen=True, kw_only=True):
    """In which cycles a waiting pod was tried.

    Attributes:
        since: when it was first seen waiting.
        cycles: how many there have been since, of all shards.
        tried: of those that were looked at, how many tried nodes for it.
        skipped: how many did not, for it may not be placed: it is gated, its group lacks pods, it failed to be bound.
        last_cycle: the last one; empty before the first.
        last_position: of its record; 0 before the first.
        last_input_position: the position of the state that it was decided on.
        looked_from: the first position that was looked at; what was recorded before it is only counted. 0 for all.
        changes: how the reasons changed, the oldest first.
    """

    since: str
    cycles: int = 0
    tried: int = 0
    skipped: int = 0
    last_cycle: str = ""
    last_position: int = 0
    last_input_position: int = 0
    last_at: str = ""
    looked_from: int = 0
    changes: list[AttemptChange] = msgspec.field(default_factory=list)

    @property
    def text(self) -> str:
        """In how many cycles it was tried, of those that were looked at."""
        if not self.last_cycle:
            return "no cycle has run since"
        cycles = f"{plural(self.cycles, 'cycle')} since"
        if self.looked_from:
            cycles = f"the last {self.tried + self.skipped} cycles, from position {self.looked_from} on, of {cycles}"
        held = f"; in {self.skipped} it was not allowed to start" if self.skipped else ""
        return f"tried in {self.tried} of {cycles}{held}"


class ZoneShortfall(Answer, frozen=True, kw_only=True):
    """A zone's free amounts of the requested resources, and the amounts that it lacks; by resource."""

    zone: str
    free: dict[str, str] = msgspec.field(default_factory=dict)
    missing: dict[str, str] = msgspec.field(default_factory=dict)


class NodeShortfall(Answer, frozen=True, kw_only=True):
    """A reason why a node does not take a pod now.

    Attributes:
        reasons: codes of all that stands in the way, not only of the first.
        missing: what the node lacks, by resource.
        zones: for a pod that is bound to zones.
        kubelet: as which kubelet its zones are predicted, and why; empty for a node without zones.
    """

    node: str
    reasons: list[str] = msgspec.field(default_factory=list)
    messages: list[str] = msgspec.field(default_factory=list)
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    zones: list[ZoneShortfall] = msgspec.field(default_factory=list)
    kubelet: str = ""


class DomainShortfall(Answer, frozen=True, kw_only=True):
    """The amounts that a domain of a network topology lacks.

    Attributes:
        domain: the best one; empty where none takes any.
        needed: pods, or slices.
        unit: `pods` or `slices of N`.
    """

    topology: str
    level: str
    domain: str
    needed: int
    has: int
    unit: str


class BlockerAnswer(Answer, frozen=True, kw_only=True):
    """Other work without which a pod would fit, as the engine placed it without that work.

    Attributes:
        group: `<kind> <namespace>/<name>`.
        frees: what they hold of what is asked for.
        suffices: whether the pod fits after its end alone; otherwise it is on the closest node.
        may_leave: whether a cycle may evict it for the pod.
        because: why not, or by which action.
    """

    group: str
    nodes: list[str]
    pods: int
    frees: str
    queue: str
    priority: int
    suffices: bool
    may_leave: bool
    because: list[str] = msgspec.field(default_factory=list)


class RemedyAnswer(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """A change after which the pods start: it was made to a copy of the state, and a cycle of the engine placed them.

    Attributes:
        kind: what is done, in a word: `wait`, `request-less`, `tend-node`, `edit-queue`, `end-work`, `add-nodes`, …
        message: what is to be done, with its object, place and amount.
        resource: that it is about; empty for none.
        amount: of the resource, or of pods or nodes; empty where no amount is meant.
        place: node, queue, domain or object where it is to be done.
        until: for what only waits, when it is tried again.
        node: where the pod that was asked about starts then; `the new node` for one that would be added.
        evicts: pods that cycles evict first, `<namespace>/<name>`.
    """

    kind: str
    message: str
    resource: str = ""
    amount: str = ""
    place: str = ""
    until: str = ""
    node: str = ""
    evicts: list[str] = msgspec.field(default_factory=list)


class RemediesAnswer(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """A change that would make a pod start.

    Attributes:
        pod: which, `<namespace>/<name>`.
        next_cycle: the node on which the next cycle starts it as things are; empty if it does not.
        remedies: changes of which each by itself makes it start, those that cost least first.
        tried: how many changes were tried; where none helps, no single one of these does.
        untried: how many more there were, for which there was no time or no need.
    """

    pod: str
    next_cycle: str = ""
    remedies: list[RemedyAnswer] = msgspec.field(default_factory=list)
    tried: int = 0
    untried: int = 0


# Pods that have, or had, a node.


class TimelineStep(Answer, frozen=True, kw_only=True):
    """A step of a pod's way.

    Attributes:
        what: created, seen, decided, bound, running, observed, ended, evicted, rejected, bind failed.
        position: of the event; 0 for its creation, which is not an event of the log.
        after_ms: milliseconds since the step before; 0 for the first.
    """

    what: str
    at: str
    position: int
    after_ms: int


class NodeScore(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """By what a node was ranked that could take a pod; the first part in which two nodes differ decided.

    Attributes: the parts are described at `kaicore.rules.engine.placement.node_score.RowScore`.
    """

    node: str
    chosen: bool
    preference: int
    leaves_devices: bool
    avoided: bool
    keeps_policy: bool
    zones: int
    full: int
    room_taken: int = 0
    opened: int = 0
    idle_devices: int = 0
    choices: int = 0
    near: int = -1
    whole: int = 100
    policies: dict[str, int] = msgspec.field(default_factory=dict)


class PlacementAnswer(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """The reason why a pod was placed on its node.

    Attributes:
        cycle: that decided; empty where none did, though an event says so. `position` and `at` are of that event.
        because: in what the node was better than the next one, in words.
        nodes: those that could have taken it, the best first; empty where the cycle could not be run again.
        ruled_out: why the others could not, in words, counted.
        not_ranked: why there are no scores; empty where there are.
        strategy: whether fuller nodes are preferred (`binpack`) or emptier ones (`spread`).
        predicted: zones and amounts that the kubelet was predicted to give.
        kubelet: as which kubelet the node is predicted now, and why; empty for a node without zones.
        observed: that it was observed to hold; empty as long as it was not observed.
        agreement: how both compare, in words.
        domains: of a network topology, by level.
        rank: -1 for none.
        gpus: the GPUs of which it has parts.
    """

    node: str
    cycle: str
    position: int
    at: str
    because: str = ""
    nodes: list[NodeScore] = msgspec.field(default_factory=list)
    able: int = 0
    ruled_out: list[str] = msgspec.field(default_factory=list)
    not_ranked: str = ""
    strategy: str = ""
    predicted: str = ""
    kubelet: str = ""
    observed: str = ""
    agreement: str = ""
    cause: str = ""
    domains: dict[str, str] = msgspec.field(default_factory=dict)
    rank: int = -1
    gpus: list[SharedGpuAnswer] = msgspec.field(default_factory=list)


class EvictionAnswer(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """An eviction of a pod.

    Attributes:
        reason: why, as the action that decided it is called.
        made_way_for: the group, `<kind> <namespace>/<name>`; empty for none.
        for_queue: that group's queue.
        choice: why this pod, in words; empty where pods are not chosen by cost.
        would_fit_on: the node that could take its successor then; empty for none.
        successors: the pods that its owner made afterwards, with where they are now.
    """

    node: str
    cycle: str
    position: int
    at: str
    reason: str
    made_way_for: str = ""
    for_queue: str = ""
    choice: str = ""
    would_fit_on: str = ""
    successors: list[str] = msgspec.field(default_factory=list)


class PodRejectionAnswer(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """A kubelet's rejection of a pod.

    Attributes:
        reason: the kubelet's, and `message` its words.
        predicted: zones that it was predicted to give.
        learned: what follows for such pods.
    """

    node: str
    position: int
    at: str
    reason: str
    message: str
    predicted: str = ""
    learned: str = ""


# Groups.


class SubGroupAnswer(Answer, frozen=True, kw_only=True):
    """A set of pods of a group.

    Attributes:
        name: empty for the group as a whole.
        minimum: pods, or sub-groups where it has any, that must run at once.
        constraint: what it asks of a network topology, in words.
        domains: where its pods are, by level, with how many pods each domain has.
    """

    name: str
    minimum: int
    waiting: int
    running: int
    leaving: int
    succeeded: int
    constraint: str = ""
    domains: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
