"""Reasons about room that is made or kept: evictions and moves, reserved starts (decision 0660), new nodes."""

from typing import ClassVar, Self, TypeAlias

import msgspec
from msgspec import field
from msgspec.structs import replace

from kaicore.rules.events.reasons.base import CodedReason, WorkReason, gpu_hours_text, plural, time_text
from kaicore.rules.model.quantity import format_amount


class WaitsForVictims(WorkReason, frozen=True, kw_only=True):
    """Room is reserved for pods of the group; the pods that hold it are ending.

    Attributes:
        nodes: on how many nodes.
        example: one of them.
        pods: for how many pods.
    """

    nodes: int = 0
    example: str = ""
    pods: int = field(name="need", default=0)

    def __str__(self) -> str:
        where = f" (such as {self.example})" if self.example else ""
        return f"room is kept for {self.pods} of its pods until the pods on it are gone{where}"


class RoomKeptForOthers(CodedReason, frozen=True, kw_only=True):
    """The pods would fit where room is kept for a group that comes first.

    Attributes:
        nodes: on how many nodes, for that group.
        example: one of them.
        group: that group, `<kind> <namespace>/<name>`; of several the first one.
    """

    nodes: int = 0
    example: str = ""
    group: str = field(name="detail", default="")

    def __str__(self) -> str:
        where = f" (such as {self.example})" if self.example else ""
        return (
            f"would fit where room is kept for {self.group}, which comes first: on {plural(self.nodes, 'node')}{where}"
        )


class NeverPreempts(CodedReason, frozen=True, kw_only=True):
    """The preemption policy of the group, or its pods, is `Never`."""

    says: ClassVar[str] = "its preemption policy is Never"


class PreemptionDelayNotElapsed(CodedReason, frozen=True, kw_only=True):
    """The group may not have pods evicted yet.

    Attributes:
        until: from when on it may, microseconds since the epoch.
    """

    until: int = 0

    def __str__(self) -> str:
        return f"may have others evicted from {time_text(self.until)} on"


class NoVictimsWouldHelp(CodedReason, frozen=True, kw_only=True):
    """Evicting all pods that may be evicted for the group would not make it fit.

    Attributes:
        action: for which reason they would be evicted.
    """

    action: str = field(name="detail", default="")
    says: ClassVar[str] = "{action}: evicting all allowed victims would not make room"


class ProtectedByDisruptionBudget(CodedReason, frozen=True, kw_only=True):
    """A PodDisruptionBudget protects pods that could make way.

    Attributes:
        pods: how many of them.
        disruptions_allowed: by the budget, now.
        budget: `namespace/name`.
    """

    pods: int = field(name="need", default=0)
    disruptions_allowed: int = field(name="free", default=0)
    budget: str = field(name="detail", default="")

    def __str__(self) -> str:
        pods, allowed = plural(self.pods, "pod"), plural(self.disruptions_allowed, "disruption")
        return f"PodDisruptionBudget {self.budget} protects {pods} that could make way: it allows {allowed} now"


class UnderSeveralDisruptionBudgets(CodedReason, frozen=True, kw_only=True):
    """Pods that could make way are under several PodDisruptionBudgets, so that they cannot be evicted.

    Attributes:
        pods: how many.
        budgets: `namespace/name`, with commas.
    """

    pods: int = field(name="need", default=0)
    budgets: str = field(name="detail", default="")

    def __str__(self) -> str:
        pods = f"{plural(self.pods, 'pod')} that could make way"
        return f"no pod under several PodDisruptionBudgets can be evicted: {pods}, by {self.budgets}"


class WithinMinimumRuntime(CodedReason, frozen=True, kw_only=True):
    """Pods that could make way have not run for their minimum runtime yet.

    Attributes:
        pods: how many.
        until: when the first of them has, microseconds since the epoch.
    """

    pods: int = field(name="need", default=0)
    until: int = 0

    def __str__(self) -> str:
        if self.pods == 1:
            return f"a pod that could make way has a minimum runtime until {time_text(self.until)}"
        return f"{self.pods} pods that could make way have a minimum runtime, the first until {time_text(self.until)}"


class VictimSearchEnded(CodedReason, frozen=True, kw_only=True):
    """The cycle ended its search for victims before or at this group."""

    says: ClassVar[str] = "the search for victims reached its limit in this cycle"


class NoMoveWouldHelp(CodedReason, frozen=True, kw_only=True):
    """Moving all pods that may be moved would not make the group fit."""

    says: ClassVar[str] = "no pods were moved for it: moving all movable pods would not make room"


class ObstacleReason(CodedReason, frozen=True, kw_only=True):
    """A reason why some running pods are not moved, even if that would help.

    Attributes:
        example_pod: one of them, `namespace/name`: the first by name.
        until: when the first of them may be moved again, microseconds since the epoch; 0 if not by time.
    """

    example_pod: str = field(name="example", default="")
    until: int = 0

    def joined(self, other: "ObstacleReason") -> Self:
        """Return the same obstacle of these pods and of another one's."""
        example, until = min(self.example_pod, other.example_pod), min(self.until, other.until)
        return msgspec.structs.replace(self, example_pod=example, until=until)


class PodsWithoutController(ObstacleReason, frozen=True, kw_only=True):
    """Pods without a controller are not moved: nothing would create them again."""

    says: ClassVar[str] = (
        "pods without a controller are not moved: nothing would create them again (such as {example_pod})"
    )


class GroupsThatCannotRestart(ObstacleReason, frozen=True, kw_only=True):
    """Pods of groups that could not start again are not moved."""

    says: ClassVar[str] = "pods of groups that could not start again are not moved (such as {example_pod})"


class MovedLately(ObstacleReason, frozen=True, kw_only=True):
    """Pods that were moved a short time ago are not moved again yet."""

    def __str__(self) -> str:
        until = time_text(self.until)
        return f"pods that were moved lately stay for now, the first until {until} (such as {self.example_pod})"


Obstacle: TypeAlias = PodsWithoutController | GroupsThatCannotRestart | MovedLately


class NoOtherPlaceForThem(CodedReason, frozen=True, kw_only=True):
    """Groups that would have to be moved fit nowhere else.

    Attributes:
        example_group: one of them, `<kind> <namespace>/<name>`.
        groups: how many.
    """

    example_group: str = field(name="example", default="")
    groups: int = field(name="need", default=0)

    def __str__(self) -> str:
        groups = plural(self.groups, "group")
        return f"no pods were moved for it: {groups} in the way fit nowhere else (such as {self.example_group})"


class TooManyToMove(CodedReason, frozen=True, kw_only=True):
    """More than the configuration allows would have to be moved: groups for one group, or pods of a day.

    Attributes:
        groups: how many groups; 0 where the pods are too many.
        max_groups: how many may be, for one group.
        pods: how many pods, where these are too many.
        pods_left: how many more may be moved now.
        per_day: how many may be within 24 hours.
    """

    groups: int = field(name="need", default=0)
    max_groups: int = field(name="free", default=0)
    pods: int = 0
    pods_left: int = 0
    per_day: int = 0

    def __str__(self) -> str:
        if self.pods:
            may_be = f"{self.pods_left} of {self.per_day} a day may be now"
            return f"no pods were moved for it: {plural(self.pods, 'pod')} would have to be, {may_be}"
        return f"no pods were moved for it: {plural(self.groups, 'group')} would have to be, {self.max_groups} may be"


class NotWorthMoving(CodedReason, frozen=True, kw_only=True):
    """Moving pods would cost more than it gains that the group starts.

    Attributes:
        cost: in ten-thousandths of the largest node.
        gain: in ten-thousandths of the largest node.
    """

    cost: int = field(name="need", default=0)
    gain: int = field(name="free", default=0)

    def __str__(self) -> str:
        cost, gain = _percent(self.cost), _percent(self.gain)
        return f"no pods were moved for it: that would cost as much as {cost} of the largest node, and gain {gain}"


class LosesTooMuchWork(CodedReason, frozen=True, kw_only=True):
    """Moving pods would lose as much work as the start of the group wins, or more.

    Attributes:
        lost: in GPU-seconds, since the last checkpoints of the pods, or since they run.
        won: in GPU-seconds.
    """

    lost: int = field(name="need", default=0)
    won: int = field(name="free", default=0)

    def __str__(self) -> str:
        return (
            f"no pods were moved for it: that would lose {gpu_hours_text(self.lost)} of work, "
            f"and its start wins {gpu_hours_text(self.won)}"
        )


class JobWouldFail(CodedReason, frozen=True, kw_only=True):
    """Moving groups would make their Jobs fail: these count evictions as failures.

    Attributes:
        example_group: one of them, `<kind> <namespace>/<name>`.
        groups: how many.
    """

    example_group: str = field(name="example", default="")
    groups: int = field(name="need", default=0)

    def __str__(self) -> str:
        return (
            f"{plural(self.groups, 'group')} stay, because their Jobs count evictions as failures and allow no more "
            f"(such as {self.example_group}): a podFailurePolicy that ignores DisruptionTarget would let them be moved"
        )


def _percent(parts: int) -> str:
    """Write ten-thousandths, rounded up to whole hundredths."""
    return f"{-(-parts // 100)} %"


#: So many nodes are named in words.
_MOST_NAMES = 4


class RoomPromised(CodedReason, frozen=True, kw_only=True):
    """The group is the first that waits for room: nothing starts before it that would delay it.

    Attributes:
        nodes: on how many nodes it is to start.
        example: one of them.
        names: all of them, with commas.
        starts_at: the earliest time at which it can start, by the declared limits of what runs and by runs like those,
            microseconds since the epoch; 0 where nothing says it.
        unlimited: how many pods without a limit have to end before.
        expected: of how many of them runs of like pods say when they end.
        first_starts_at: the first time at which a start was promised, microseconds since the epoch; 0 for none.
        since: when room was promised first, microseconds since the epoch.
        moved: why the promise is not the first one; empty if it is.
        looked_at: when all nodes were looked at last for room that is only held, microseconds since the epoch; 0 for
            `since`.
    """

    nodes: int = 0
    example: str = ""
    unlimited: int = field(name="need", default=0)
    names: str = field(name="detail", default="")
    since: int = 0
    starts_at: int = 0
    moved: str = ""
    expected: int = 0
    first_starts_at: int = 0
    looked_at: int = 0

    def is_like(self, other: Self) -> bool:
        """Tell whether another record promises the same, whyever and whenever it was looked for."""
        return replace(self, moved=other.moved, looked_at=other.looked_at) == other

    def __str__(self) -> str:
        first = self.names.split(", ")[:_MOST_NAMES]
        others = f" and {self.nodes - len(first)} more" if self.nodes > len(first) else ""
        when = f"earliest start {time_text(self.starts_at)}" if self.starts_at else "it starts as soon as it fits"
        unknown = f", and {plural(self.unlimited, 'pod')} without a time limit must end" if self.unlimited else ""
        unknown += f" ({self.expected} by then, by the runs of like pods)" if self.expected else ""
        moved = f"; moved: {self.moved}" if self.moved else ""
        if self.moved and self.first_starts_at not in (0, self.starts_at):
            moved += f" (first promised for {time_text(self.first_starts_at)})"
        return f"reserved: nodes {', '.join(first)}{others}, {when}{unknown}, since {time_text(self.since)}{moved}"


class WouldDelay(CodedReason, frozen=True, kw_only=True):
    """The pods would fit, but would delay the group that room is promised to.

    Attributes:
        nodes: on how many nodes room is kept for that group.
        example: one of them.
        group: that group, `<kind> <namespace>/<name>`.
        starts_at: when it can start at the earliest, microseconds since the epoch; 0 where that is not known.
    """

    nodes: int = 0
    example: str = ""
    group: str = field(name="detail", default="")
    starts_at: int = 0

    def __str__(self) -> str:
        where = f"on {plural(self.nodes, 'node')} (such as {self.example})"
        if not self.starts_at:
            return f"would delay {self.group}, for which room is kept {where}"
        until = time_text(self.starts_at)
        return f"would delay {self.group}, which can start at {until} {where}: no declared limit ends it before that"


class PromiseGivenUp(CodedReason, frozen=True, kw_only=True):
    """Room is no longer promised to the group.

    Attributes:
        cause: why: see `kaicore.rules.engine.decisions.GiveUpReason`.
        until: until when no room is held for it without known limits, microseconds since the epoch; 0 for not at all.
    """

    cause: str = field(name="detail", default="")
    until: int = 0

    def __str__(self) -> str:
        until = f"; none is held without known limits until {time_text(self.until)}" if self.until else ""
        return f"room is no longer reserved for it: {self.cause}{until}"


class WaitsForProvisioning(WorkReason, frozen=True, kw_only=True):
    """A ProvisioningRequest was made for the group, and an autoscaler is at it.

    Another node would help, but not one that an autoscaler adds for each pod that is unschedulable: the group would get
    its nodes twice.

    Attributes:
        request: `<namespace>/<name>` of the request.
        provisioning_class: its class.
        pods: for how many pods it is.
        stage: how far it is: `requested`, `created`, `accepted`, `provisioned`.
        message: what the autoscaler says to that; empty for nothing.
        since: when it was decided, microseconds since the epoch.
    """

    request: str
    provisioning_class: str
    pods: int
    stage: str
    message: str = ""
    since: int

    def __str__(self) -> str:
        message = f": {self.message}" if self.message else ""
        return (
            f"waits for new nodes for {plural(self.pods, 'pod')}: ProvisioningRequest {self.request} of class "
            f"{self.provisioning_class} is {self.stage} (since {time_text(self.since)}){message}"
        )


class ProvisioningRetried(WorkReason, frozen=True, kw_only=True):
    """The group's ProvisioningRequest came to nothing, and another one will be made.

    Attributes:
        request: `<namespace>/<name>` of the request.
        attempt: how many requests there have been.
        ended: how it ended: `Failed`, `CapacityRevoked`, `BookingExpired` or `Deleted`.
        message: what was said to that; empty for nothing.
        retry_at: when the next one is made, microseconds since the epoch.
    """

    request: str
    attempt: int
    ended: str
    message: str = ""
    retry_at: int

    def __str__(self) -> str:
        message = f": {self.message}" if self.message else ""
        return (
            f"got no new nodes: ProvisioningRequest {self.request}, attempt {self.attempt}, ended as {self.ended}"
            f"{message}; the next is made at {time_text(self.retry_at)}"
        )


class ProvisioningImpossible(CodedReason, frozen=True, kw_only=True):
    """No ProvisioningRequest can be made for the group; nodes that are added otherwise still help.

    Attributes:
        problem: why, in words for people.
        retry_at: when it is tried again, microseconds since the epoch; 0 for not until the group changes.
    """

    problem: str
    retry_at: int = 0

    def __str__(self) -> str:
        again = f"; it is tried again at {time_text(self.retry_at)}" if self.retry_at else ""
        return f"no ProvisioningRequest can be made for it: {self.problem}{again}"


class ProvisioningClassNotAllowed(WorkReason, frozen=True, kw_only=True):
    """The group names a ProvisioningClass that the scheduler's settings do not have.

    Attributes:
        provisioning_class: the one that it names.
        allowed: those that there are.
    """

    provisioning_class: str
    allowed: str = ""
    says: ClassVar[str] = (
        "asks for new nodes by ProvisioningClass {provisioning_class}, which the scheduler's settings do not allow; "
        "they allow {allowed}"
    )


class FitsIf(CodedReason, frozen=True, kw_only=True):
    """The group would be schedulable now if its pods requested less of a resource.

    Attributes:
        example: a node that one of the pods would go to.
        resource: which.
        most: that each pod may request, in the resource's unit.
        scope: that it is meant per pod, and which containers request less.
    """

    example: str = ""
    resource: str = ""
    most: int = field(name="need", default=0)
    scope: str = field(name="detail", default="")

    def __str__(self) -> str:
        scope = f" {self.scope}" if self.scope else ""
        most = format_amount(self.resource, self.most)
        return f"would become schedulable if {self.resource} ≤ {most}{scope} (such as {self.example})"


class FitsAfter(CodedReason, frozen=True, kw_only=True):
    """The group would be schedulable when other pods have ended.

    Attributes:
        example: a node that one of them is on.
        pods: how many pods.
        group: `<kind> <namespace>/<name>` of their group, or of several that share a GPU, separated by `, `; empty
            where they are ending already.
    """

    example: str = ""
    pods: int = field(name="need", default=0)
    group: str = field(name="detail", default="")

    def __str__(self) -> str:
        if not self.group:
            return f"would become schedulable when the pods that are ending are gone (such as {self.example})"
        end, its = ("end", "their") if len(self.groups) > 1 else ("ends", "its")
        held = f"{its} {self.pods} pods, such as " if self.pods > 1 else ""
        return f"would become schedulable if {self.group} {end} ({held}on {self.example})"

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups one by one."""
        return tuple(self.group.split(", ")) if self.group else ()
