"""Reasons of all kinds in one union, as cycles record them. Answers, conditions and events put them into words.

The tag of the union is `code`. A new member raises the schema version of the events that carry reasons, because older
programs cannot read it. Remedies, changes that would make a group schedulable, are reported beside them in the same
form.
"""

from typing import TYPE_CHECKING, TypeAlias

from msgspec import field

from kaicore.rules.events.reasons.base import CodedReason
from kaicore.rules.events.reasons.devices import (
    DevicesTaken,
    NoGpuToShare,
    NoMatchingDevices,
    NoPartOfGpu,
    ResourceClaimNotReady,
    ResourceClaimOutOfReach,
)
from kaicore.rules.events.reasons.eviction import (
    GroupsThatCannotRestart,
    JobWouldFail,
    LosesTooMuchWork,
    MovedLately,
    NeverPreempts,
    NoMoveWouldHelp,
    NoOtherPlaceForThem,
    NotWorthMoving,
    NoVictimsWouldHelp,
    PodsWithoutController,
    PreemptionDelayNotElapsed,
    ProtectedByDisruptionBudget,
    RoomKeptForOthers,
    TooManyToMove,
    UnderSeveralDisruptionBudgets,
    VictimSearchEnded,
    WaitsForVictims,
    WithinMinimumRuntime,
)
from kaicore.rules.events.reasons.group import (
    FlavorNotFound,
    GangDoesNotFit,
    GangGroupWaits,
    GangIncomplete,
    GroupNotFound,
    Malformed,
    OwnerNotFound,
    PodGroupNotInWorkload,
    SchedulingGated,
    SubGroupNotFound,
    SubGroupNotNamed,
    Unsupported,
    WaitsAfterFailedBinds,
)
from kaicore.rules.events.reasons.node import (
    HistoryIncomplete,
    InsufficientResource,
    NodeAffinityMismatch,
    NodeFlavorMismatch,
    NodeNotReady,
    NodeSelectorMismatch,
    NodeTooSmall,
    NodeUnschedulable,
    NoNodes,
    NotObservedYet,
    RejectedByKubelet,
    UntoleratedTaint,
)
from kaicore.rules.events.reasons.numa import (
    NumaMemoryGroups,
    NumaNeverFits,
    NumaPolicyNeverKept,
    NumaPolicyNotKept,
    NumaPolicyUntold,
    NumaWholeCores,
    NumaWidthsDiffer,
    NumaZonesApart,
    NumaZoneShort,
)
from kaicore.rules.events.reasons.pods_nearby import (
    AntiAffinityOfOthers,
    HostPortTaken,
    NoTopologyLabel,
    NoVolumeLeft,
    PodAffinity,
    PodAntiAffinity,
    TopologySpread,
    VolumeInUse,
    VolumeNotReady,
    VolumeOutOfReach,
)
from kaicore.rules.events.reasons.policy import FilteredByPolicy, HeldByPolicy
from kaicore.rules.events.reasons.promise import PromiseGivenUp, RoomPromised, WouldDelay
from kaicore.rules.events.reasons.provisioning import (
    ProvisioningClassNotAllowed,
    ProvisioningImpossible,
    ProvisioningRetried,
    WaitsForProvisioning,
)
from kaicore.rules.events.reasons.queue import (
    NamespaceNotSelected,
    NonPreemptibleOverQuota,
    OverFairShare,
    OverLimit,
    QueueDoesNotExist,
    QueueInvalid,
    QueueMayNotPreempt,
    QueueMayNotReclaim,
    QueueNotLeaf,
    QueueStopped,
    QueueUnsupported,
    ResourceNotCovered,
    VictimWithinShare,
)
from kaicore.rules.events.reasons.topology import (
    TopologyAmbiguous,
    TopologyConstraintInvalid,
    TopologyHasNoRoom,
    TopologyInvalid,
    TopologyLevelNotFound,
    TopologyNotFound,
)
from kaicore.rules.model.quantity import format_amount


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


_Recorded: TypeAlias = (
    NoNodes
    | NodeNotReady
    | NodeUnschedulable
    | NodeSelectorMismatch
    | NodeAffinityMismatch
    | NodeFlavorMismatch
    | UntoleratedTaint
    | RejectedByKubelet
    | HistoryIncomplete
    | NotObservedYet
    | NodeTooSmall
    | InsufficientResource
    | NoGpuToShare
    | NoPartOfGpu
    | NoTopologyLabel
    | TopologySpread
    | PodAffinity
    | PodAntiAffinity
    | AntiAffinityOfOthers
    | HostPortTaken
    | VolumeOutOfReach
    | NoVolumeLeft
    | VolumeInUse
    | VolumeNotReady
    | ResourceClaimNotReady
    | ResourceClaimOutOfReach
    | NoMatchingDevices
    | DevicesTaken
    | NumaNeverFits
    | NumaWidthsDiffer
    | NumaZoneShort
    | NumaZonesApart
    | NumaMemoryGroups
    | NumaWholeCores
    | NumaPolicyUntold
    | NumaPolicyNeverKept
    | NumaPolicyNotKept
    | SchedulingGated
    | Unsupported
    | Malformed
    | FlavorNotFound
    | GangIncomplete
    | GangDoesNotFit
    | GangGroupWaits
    | WaitsAfterFailedBinds
    | GroupNotFound
    | PodGroupNotInWorkload
    | SubGroupNotFound
    | SubGroupNotNamed
    | OwnerNotFound
    | TopologyNotFound
    | TopologyLevelNotFound
    | TopologyAmbiguous
    | TopologyInvalid
    | TopologyConstraintInvalid
    | QueueDoesNotExist
    | QueueInvalid
    | QueueNotLeaf
    | QueueStopped
    | NamespaceNotSelected
    | QueueUnsupported
    | ResourceNotCovered
    | OverLimit
    | NonPreemptibleOverQuota
    | OverFairShare
    | VictimWithinShare
    | QueueMayNotReclaim
    | QueueMayNotPreempt
    | WaitsForVictims
    | RoomKeptForOthers
    | RoomPromised
    | WouldDelay
    | PromiseGivenUp
    | NeverPreempts
    | PreemptionDelayNotElapsed
    | NoVictimsWouldHelp
    | ProtectedByDisruptionBudget
    | UnderSeveralDisruptionBudgets
    | WithinMinimumRuntime
    | VictimSearchEnded
    | NoMoveWouldHelp
    | PodsWithoutController
    | GroupsThatCannotRestart
    | MovedLately
    | NoOtherPlaceForThem
    | TooManyToMove
    | NotWorthMoving
    | LosesTooMuchWork
    | JobWouldFail
    | WaitsForProvisioning
    | ProvisioningRetried
    | ProvisioningImpossible
    | ProvisioningClassNotAllowed
    | FitsIf
    | FitsAfter
    | TopologyHasNoRoom
    | FilteredByPolicy
    | HeldByPolicy
)

if TYPE_CHECKING:
    # mypy compares each of 90 members with all others where one is looked for: a tenth of its time.
    Reason: TypeAlias = CodedReason
else:
    Reason = _Recorded
