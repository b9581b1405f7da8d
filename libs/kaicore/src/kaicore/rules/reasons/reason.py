"""The union of all reasons that cycles record. Answers, conditions and events put them into words.

The tag of the union is `code`. A new member raises the schema version of the events that carry reasons, because older
programs cannot read it.
"""

from typing import TypeAlias

from kaicore.rules.reasons.devices import (
    DevicesTaken,
    NoMatchingDevices,
    ResourceClaimNotReady,
    ResourceClaimOutOfReach,
)
from kaicore.rules.reasons.eviction import (
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
from kaicore.rules.reasons.gpus import NoGpuToShare, NoPartOfGpu
from kaicore.rules.reasons.group import (
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
from kaicore.rules.reasons.node import (
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
from kaicore.rules.reasons.numa import (
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
from kaicore.rules.reasons.pods_nearby import (
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
from kaicore.rules.reasons.promise import PromiseGivenUp, RoomPromised, WouldDelay
from kaicore.rules.reasons.provisioning import (
    ProvisioningClassNotAllowed,
    ProvisioningImpossible,
    ProvisioningRetried,
    WaitsForProvisioning,
)
from kaicore.rules.reasons.queue import (
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
from kaicore.rules.reasons.remedy import (
    FitsAfter,
    FitsIf,
)
from kaicore.rules.reasons.topology import (
    TopologyAmbiguous,
    TopologyConstraintInvalid,
    TopologyHasNoRoom,
    TopologyInvalid,
    TopologyLevelNotFound,
    TopologyNotFound,
)

Reason: TypeAlias = (
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
)
