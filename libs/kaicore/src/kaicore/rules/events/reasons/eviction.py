"""Reasons for which no pods are evicted or moved for a group, and for which it waits where some are."""

from typing import ClassVar, Self, TypeAlias

import msgspec
from msgspec import field

from kaicore.rules.events.reasons.base import CodedReason, gpu_hours_text, plural, time_text


class WaitsForVictims(CodedReason, frozen=True, kw_only=True):
    """Room is reserved for pods of the group; the pods that hold it are ending.

    Attributes:
        nodes: on how many nodes.
        example: one of them.
        pods: for how many pods.
    """

    of_nodes: ClassVar[bool] = False
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
    """The pods' preemption policy is `Never`."""

    def __str__(self) -> str:
        return "its pods' preemption policy is Never"


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

    def __str__(self) -> str:
        return f"{self.action}: evicting all allowed victims would not make room"


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
    """The cycle ended its search for victims before this group."""

    def __str__(self) -> str:
        return "the search for victims reached its limit in this cycle"


class NoMoveWouldHelp(CodedReason, frozen=True, kw_only=True):
    """Moving all pods that may be moved would not make the group fit."""

    def __str__(self) -> str:
        return "no pods were moved for it: moving all movable pods would not make room"


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

    def __str__(self) -> str:
        return f"pods without a controller are not moved: nothing would create them again (such as {self.example_pod})"


class GroupsThatCannotRestart(ObstacleReason, frozen=True, kw_only=True):
    """Pods of groups that could not start again are not moved."""

    def __str__(self) -> str:
        return f"pods of groups that could not start again are not moved (such as {self.example_pod})"


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
