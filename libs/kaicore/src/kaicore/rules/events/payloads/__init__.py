"""The facts and decisions that the log records, one class per event type.

The class's name is the event's type. A field that is added gets a default; any other change raises the type's schema
version in `kaicore.rules.events.codec` and comes with an upcaster. No floats: milli-units, bytes, counts, microseconds.
"""

from kaicore.rules.events.payloads.base import Payload
from kaicore.rules.events.payloads.constraints import (
    NamespaceDeleted,
    NamespaceObserved,
    PersistentVolumeClaimDeleted,
    PersistentVolumeClaimObserved,
    PersistentVolumeDeleted,
    PersistentVolumeObserved,
    PodDisruptionBudgetDeleted,
    PodDisruptionBudgetObserved,
    StorageClassDeleted,
    StorageClassObserved,
)
from kaicore.rules.events.payloads.cycles import ConfigRecorded, CycleCompleted, ReplicasChanged, WatcherStarted
from kaicore.rules.events.payloads.decisions import (
    EvictionCost,
    EvictionDecided,
    HealRequested,
    NodeCharged,
    NominationCleared,
    PodNominated,
    PodPlaced,
)
from kaicore.rules.events.payloads.erasures import ErasedEvent, FieldsErased
from kaicore.rules.events.payloads.nodes import NodeDeleted, NodeObserved, TopologyDeleted, TopologyObserved
from kaicore.rules.events.payloads.outcomes import BindFailed, EvictionFailed, PodBound, PodEvicted
from kaicore.rules.events.payloads.pods import PlacementObserved, PodDeleted, PodObserved, PodRejected, PredictionMissed
from kaicore.rules.events.payloads.provisioning import (
    ProvisioningPodSet,
    ProvisioningRequestCreated,
    ProvisioningRequestDeleted,
    ProvisioningRequested,
    ProvisioningRequestObserved,
    ProvisioningRequestRefused,
    ProvisioningRequestRemoved,
    ProvisioningWithdrawn,
)
from kaicore.rules.events.payloads.queues import (
    FlavorDeleted,
    FlavorObserved,
    QueueDeleted,
    QueueFigures,
    QueueObserved,
    QueueReclaimed,
    QueuesReported,
)
from kaicore.rules.events.payloads.topologies import (
    HyperNodeDeleted,
    HyperNodeObserved,
    TopologyDefinitionDeleted,
    TopologyDefinitionObserved,
)
from kaicore.rules.events.payloads.waiting import (
    AlonePending,
    ClassPending,
    GroupPending,
    PodsLeftWaiting,
    WaitingPod,
)
from kaicore.rules.events.payloads.workloads import (
    GroupSourceDeleted,
    GroupSourceObserved,
    PriorityClassDeleted,
    PriorityClassObserved,
)

__all__ = [
    "AlonePending",
    "BindFailed",
    "ClassPending",
    "ConfigRecorded",
    "CycleCompleted",
    "ErasedEvent",
    "EvictionCost",
    "EvictionDecided",
    "EvictionFailed",
    "FieldsErased",
    "FlavorDeleted",
    "FlavorObserved",
    "GroupPending",
    "GroupSourceDeleted",
    "GroupSourceObserved",
    "HealRequested",
    "HyperNodeDeleted",
    "HyperNodeObserved",
    "NamespaceDeleted",
    "NamespaceObserved",
    "NodeCharged",
    "NodeDeleted",
    "NodeObserved",
    "NominationCleared",
    "Payload",
    "PersistentVolumeClaimDeleted",
    "PersistentVolumeClaimObserved",
    "PersistentVolumeDeleted",
    "PersistentVolumeObserved",
    "PlacementObserved",
    "PodBound",
    "PodDeleted",
    "PodDisruptionBudgetDeleted",
    "PodDisruptionBudgetObserved",
    "PodEvicted",
    "PodNominated",
    "PodObserved",
    "PodPlaced",
    "PodRejected",
    "PodsLeftWaiting",
    "PredictionMissed",
    "PriorityClassDeleted",
    "PriorityClassObserved",
    "ProvisioningPodSet",
    "ProvisioningRequestCreated",
    "ProvisioningRequestDeleted",
    "ProvisioningRequestObserved",
    "ProvisioningRequestRefused",
    "ProvisioningRequestRemoved",
    "ProvisioningRequested",
    "ProvisioningWithdrawn",
    "QueueDeleted",
    "QueueFigures",
    "QueueObserved",
    "QueueReclaimed",
    "QueuesReported",
    "ReplicasChanged",
    "StorageClassDeleted",
    "StorageClassObserved",
    "TopologyDefinitionDeleted",
    "TopologyDefinitionObserved",
    "TopologyDeleted",
    "TopologyObserved",
    "WaitingPod",
    "WatcherStarted",
]
