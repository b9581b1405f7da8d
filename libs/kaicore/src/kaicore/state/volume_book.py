"""Claims, volumes and storage classes of a cluster, and what they mean for the pods that use them.

Source: kube-scheduler's plugins VolumeBinding, VolumeZone and VolumeRestrictions. Unlike it, nothing here picks one of
several volumes made beforehand for a claim: such a claim waits until somebody has bound it.
"""

from collections.abc import Iterator

from kaicore.engine.volume_demand import VolumeDemand
from kaicore.model.pod import Pod
from kaicore.model.pod_rules import ClaimUse
from kaicore.model.selector import Requirement
from kaicore.model.volume import PersistentVolume, PersistentVolumeClaim, StorageClass

_NO_PROVISIONER = "kubernetes.io/no-provisioner"
_ONE_POD = "ReadWriteOncePod"
_ZONES = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
_ZONE_LABELS = (*_ZONES, *_ZONES.values())
_UNZONED = tuple(Requirement(label, "DoesNotExist") for label in _ZONE_LABELS)

_Terms = tuple[tuple[Requirement, ...], ...]
_NOTHING = VolumeDemand()


class VolumeBook:
    """Everything about volumes, at one position of a cluster's log."""

    def __init__(self) -> None:
        #: By `namespace/name`.
        self.claims: dict[str, PersistentVolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self.storage_classes: dict[str, StorageClass] = {}
        self._users: dict[str, set[str]] = {}

    def add_pod(self, pod: Pod) -> None:
        """Know of a pod that uses its claims; harmless when it is known."""
        for key in claim_keys(pod):
            self._users.setdefault(key, set()).add(pod.uid)

    def remove_pod(self, pod: Pod) -> None:
        """Forget a pod."""
        for key in claim_keys(pod):
            users = self._users.get(key, set())
            users.discard(pod.uid)
            if not users:
                self._users.pop(key, None)

    def demand(self, pod: Pod) -> VolumeDemand:
        """Return what the pod's volumes ask of its node."""
        if not pod.claims:
            return _NOTHING
        waits: list[str] = []
        places: dict[tuple[str, _Terms], None] = {}
        exclusive: list[str] = []
        together: list[str] = []
        for use in pod.claims:
            key = f"{pod.namespace}/{use.name}"
            claim = self.claims.get(key)
            problem = self._problem(pod, use, claim)
            if problem or claim is None:
                waits.append(f"claim {use.name} {problem}")
                continue
            if _ONE_POD in claim.access_modes:
                exclusive.append(key)
            for place in self._bound_places(claim) if claim.bound else self._open_places(claim):
                places[place] = None
            if not claim.bound and not claim.selected_node and len(self._users.get(key, ())) > 1:
                together.append(key)
        return VolumeDemand(tuple(waits), tuple(sorted(places)), tuple(exclusive), tuple(together))

    def to_provision(self, pod: Pod) -> tuple[str, ...]:
        """Return the names of the pod's claims that are to be provisioned for the node that it gets."""
        claims = ((use.name, self.claims.get(f"{pod.namespace}/{use.name}")) for use in pod.claims)
        return tuple(name for name, claim in claims if claim is not None and not claim.bound)

    def _problem(self, pod: Pod, use: ClaimUse, claim: PersistentVolumeClaim | None) -> str:
        """Say what keeps a claim from being used at all; empty for nothing."""
        if claim is None:
            return "is not made yet" if use.owned else "does not exist"
        if use.owned and claim.owner != pod.uid:
            return "was not made for this pod"
        if claim.deleting:
            return "is being deleted"
        if claim.lost:
            return "has lost its volume"
        if claim.bound:
            return "" if claim.volume in self.volumes else f"is bound to volume {claim.volume}, which does not exist"
        storage_class = self.storage_classes.get(claim.storage_class)
        if claim.volume or storage_class is None or not storage_class.waits:
            return "is not bound yet"
        if storage_class.provisioner == _NO_PROVISIONER:
            return f"has to be bound first, for storage class {storage_class.name} provisions nothing"
        if any(_could_serve(volume, claim) for volume in self.volumes.values()):
            return f"has to be bound first, for there are volumes of storage class {storage_class.name} without a claim"
        return ""

    def _bound_places(self, claim: PersistentVolumeClaim) -> Iterator[tuple[str, _Terms]]:
        volume = self.volumes[claim.volume]
        if volume.node_affinity is not None:
            yield "node affinity of a bound volume", volume.node_affinity
        for label, text in sorted(volume.zones.items()):
            values = tuple(sorted(text.split("__")))
            terms: list[tuple[Requirement, ...]] = [_UNZONED, (Requirement(label, "In", values),)]
            if label in _ZONES:
                terms.append((Requirement(label, "DoesNotExist"), Requirement(_ZONES[label], "In", values)))
            yield "zone of a bound volume", tuple(terms)

    def _open_places(self, claim: PersistentVolumeClaim) -> Iterator[tuple[str, _Terms]]:
        if claim.selected_node:
            chosen = Requirement("metadata.name", "In", (claim.selected_node,), field=True)
            yield "node that a volume is provisioned for", ((chosen,),)
        storage_class = self.storage_classes[claim.storage_class]
        if storage_class.topologies:
            yield f"topologies of storage class {storage_class.name}", storage_class.topologies


def claim_keys(pod: Pod) -> Iterator[str]:
    """Yield the pod's claims as `namespace/name`."""
    for use in pod.claims:
        yield f"{pod.namespace}/{use.name}"


def _could_serve(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    return (
        not volume.claimed
        and volume.storage_class == claim.storage_class
        and volume.capacity >= claim.request
        and set(claim.access_modes) <= set(volume.access_modes)
    )
