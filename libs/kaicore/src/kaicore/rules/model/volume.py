"""Persistent volumes, reduced to the fields that decide on which nodes a pod can use them."""

import msgspec

from kaicore.rules.model.selector import Requirement


class PersistentVolumeClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """A claim.

    Attributes:
        volume: `spec.volumeName`.
        bound: both sides agree (`pv.kubernetes.io/bind-completed`).
        lost: its volume is gone for good.
        deleting: it is about to go.
        selected_node: where a scheduler has asked for it to be provisioned.
        request: of storage, bytes.
        owner: uid of its controller.
        volume_mode: `Block`, or empty for a file system.
        selector: labels that a volume made beforehand must have.
    """

    uid: str
    namespace: str
    name: str
    resource_version: str
    volume: str = ""
    bound: bool = False
    lost: bool = False
    deleting: bool = False
    storage_class: str = ""
    selected_node: str = ""
    access_modes: tuple[str, ...] = ()
    request: int = 0
    owner: str = ""
    volume_mode: str = ""
    selector: tuple[Requirement, ...] = ()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class PersistentVolume(msgspec.Struct, frozen=True, omit_defaults=True):
    """A volume.

    Attributes:
        claimed: some claim has it, or is to have it (`spec.claimRef`).
        claim: that claim, `namespace/name`.
        claim_uid: its uid; empty where the claimRef that keeps the volume names none.
        deleting: it is about to go.
        node_affinity: required terms, any of them; None without.
        zones: its zone and region labels; a label may have several values, joined by `__`.
        volume_mode: `Block`, or empty for a file system.
        labels: those and all others.
    """

    uid: str
    name: str
    resource_version: str
    storage_class: str = ""
    claimed: bool = False
    claim: str = ""
    claim_uid: str = ""
    deleting: bool = False
    phase: str = ""
    capacity: int = 0
    access_modes: tuple[str, ...] = ()
    node_affinity: tuple[tuple[Requirement, ...], ...] | None = None
    zones: dict[str, str] = {}
    volume_mode: str = ""
    labels: dict[str, str] = {}

    def is_kept_for(self, claim: PersistentVolumeClaim) -> bool:
        """Tell whether `spec.claimRef` names a claim: this one, not an older one of the same name."""
        return self.claim == claim.key and self.claim_uid in ("", claim.uid)


class StorageClass(msgspec.Struct, frozen=True, omit_defaults=True):
    """A storage class.

    Attributes:
        waits: `WaitForFirstConsumer`: claims are bound when a pod that uses them has a node.
        topologies: where volumes can be provisioned, any of the terms; none for everywhere.
    """

    uid: str
    name: str
    resource_version: str
    provisioner: str = ""
    waits: bool = False
    topologies: tuple[tuple[Requirement, ...], ...] = ()
