"""Facts about the other objects that decide which nodes pods may use, and which pods may be evicted."""

from kaicore.rules.events.payloads.base import Payload
from kaicore.rules.model.disruption import PodDisruptionBudget
from kaicore.rules.model.namespace import Namespace
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim, StorageClass


class NamespaceObserved(Payload, frozen=True):
    """The watcher saw a namespace that is new or whose labels have changed."""

    namespace: Namespace


class NamespaceDeleted(Payload, frozen=True):
    """A namespace is gone."""

    uid: str
    name: str


class PersistentVolumeClaimObserved(Payload, frozen=True):
    """The watcher saw a claim that is new or has changed."""

    claim: PersistentVolumeClaim


class PersistentVolumeClaimDeleted(Payload, frozen=True):
    """A claim is gone."""

    uid: str
    namespace: str
    name: str


class PersistentVolumeObserved(Payload, frozen=True):
    """The watcher saw a volume that is new or has changed."""

    volume: PersistentVolume


class PersistentVolumeDeleted(Payload, frozen=True):
    """A volume is gone."""

    uid: str
    name: str


class StorageClassObserved(Payload, frozen=True):
    """The watcher saw a storage class that is new or has changed."""

    storage_class: StorageClass


class StorageClassDeleted(Payload, frozen=True):
    """A storage class is gone."""

    uid: str
    name: str


class PodDisruptionBudgetObserved(Payload, frozen=True):
    """The watcher saw a disruption budget that is new, or allows another number of disruptions."""

    budget: PodDisruptionBudget


class PodDisruptionBudgetDeleted(Payload, frozen=True):
    """A disruption budget is gone."""

    uid: str
    namespace: str
    name: str
