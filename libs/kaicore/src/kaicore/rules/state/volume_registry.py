"""Claims, volumes and storage classes of a cluster, and their effect on the pods that use them.

Source: kube-scheduler's plugins VolumeBinding, VolumeZone and VolumeRestrictions.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from kaicore.rules.engine.constraints.volume_demand import Terms, VolumeDemand, WantedVolume, volume_places
from kaicore.rules.engine.constraints.volume_supply import VolumeSupply
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.pod_rules import ClaimUse
from kaicore.rules.model.selector import Requirement
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim, StorageClass
from kaicore.rules.state.claim_users import ClaimUsers

_NO_PROVISIONER = ("", "kubernetes.io/no-provisioner")
_ONE_POD = "ReadWriteOncePod"

_NOTHING = VolumeDemand()


class VolumeRegistry:
    """Everything about volumes, at one position of a cluster's log."""

    def __init__(self, supply: VolumeSupply) -> None:
        """Args: supply: told of every volume."""
        #: By `namespace/name`.
        self.claims: dict[str, PersistentVolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self.storage_classes: dict[str, StorageClass] = {}
        self._supply = supply
        self._users = ClaimUsers()
        #: Names of the volumes that name a claim, by the claim.
        self._kept: dict[str, set[str]] = {}

    def add_pod(self, pod: Pod) -> None:
        """Know of a pod that uses its claims; harmless when it is known."""
        self._users.add(pod.uid, claim_keys(pod))

    def remove_pod(self, pod: Pod) -> None:
        """Forget a pod."""
        self._users.remove(pod.uid, claim_keys(pod))

    def users(self, key: str) -> Collection[str]:
        """Return the uids of the pods that use a claim."""
        return self._users.of(key)

    def volume_seen(self, volume: PersistentVolume) -> None:
        """A volume is new or changed."""
        self.volume_gone(volume.name)
        self.volumes[volume.name] = volume
        self._supply.set_volume(volume)
        if volume.claim:
            self._kept.setdefault(volume.claim, set()).add(volume.name)

    def volume_gone(self, name: str) -> None:
        """A volume is no more."""
        before = self.volumes.pop(name, None)
        self._supply.forget(name)
        if before is not None and before.claim:
            kept = self._kept[before.claim]
            kept.discard(name)
            if not kept:
                del self._kept[before.claim]

    def demand(self, pod: Pod) -> VolumeDemand:
        """Return what the pod's volumes ask of its node."""
        if not pod.claims:
            return _NOTHING
        waits: list[str] = []
        places: dict[tuple[str, Terms], None] = {}
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
            for place in self._places(claim):
                places[place] = None
            if self._is_shared(claim):
                together.append(key)
        wanted = () if waits else tuple(want for want, _ in self._wanted(pod))
        return VolumeDemand(tuple(waits), tuple(sorted(places)), tuple(exclusive), tuple(together), wanted)

    def unbound(
        self, pod: Pod, chosen: Sequence[str], promised: Mapping[str, str]
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return which claims are to be provisioned for the node that a pod gets, and which volumes others get.

        Args:
            pod: the pod.
            chosen: a volume's name for each that its demand wants, empty where none was chosen.
            promised: what other pods' claims get that it may use as well, by `namespace/name`.
        """
        chosen_by_claim = {claim.key: name for (_, claim), name in zip(self._wanted(pod), chosen, strict=True) if name}
        claims: list[str] = []
        volumes: dict[str, str] = {}
        for key in dict.fromkeys(claim_keys(pod)):
            claim = self.claims.get(key)
            if claim is None or claim.bound:
                continue
            kept = self._kept_for(claim)
            volume = chosen_by_claim.get(key) or promised.get(key) or (kept.name if kept is not None else "")
            if volume and not claim.selected_node:
                volumes[claim.name] = volume
            else:
                claims.append(claim.name)
        return tuple(claims), volumes

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
        return ""

    def _places(self, claim: PersistentVolumeClaim) -> Iterator[tuple[str, Terms]]:
        """Yield where a claim's volume can be used, as far as it is settled which one that is."""
        if claim.bound:
            yield from volume_places(self.volumes[claim.volume], what="a bound volume")
        elif claim.selected_node:
            chosen = Requirement("metadata.name", "In", (claim.selected_node,), field=True)
            yield "node that a volume is provisioned for", ((chosen,),)
            storage_class = self.storage_classes[claim.storage_class]
            if storage_class.topologies:
                yield f"topologies of storage class {storage_class.name}", storage_class.topologies
        elif (kept := self._kept_for(claim)) is not None:
            yield from volume_places(kept, what="a volume that is kept for its claim")

    def _wanted(self, pod: Pod) -> list[tuple[WantedVolume, PersistentVolumeClaim]]:
        """Return what a pod's open claims ask for, in the order in which they choose."""
        unbound: list[tuple[WantedVolume, PersistentVolumeClaim]] = []
        for key in dict.fromkeys(claim_keys(pod)):
            claim = self.claims.get(key)
            if claim is None or claim.bound or claim.selected_node or self._kept_for(claim) is not None:
                continue
            storage_class = self.storage_classes.get(claim.storage_class)
            if storage_class is not None:
                unbound.append((self._want(claim, storage_class), claim))
        return sorted(unbound, key=_choosing_order)

    def _want(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> WantedVolume:
        return WantedVolume(
            storage_class=claim.storage_class,
            request=claim.request,
            access_modes=claim.access_modes,
            volume_mode=claim.volume_mode,
            selector=claim.selector,
            provisioned=storage_class.provisioner not in _NO_PROVISIONER,
            topologies=storage_class.topologies,
            claim=claim.key if self._is_shared(claim) else "",
        )

    def _kept_for(self, claim: PersistentVolumeClaim) -> PersistentVolume | None:
        """Return the volume that names a claim, if it would do: the claim is bound to that one, wherever it is."""
        for name in sorted(self._kept.get(claim.key, ())):
            volume = self.volumes[name]
            if (
                volume.is_kept_for(claim)
                and not volume.deleting
                and (volume.storage_class, volume.volume_mode) == (claim.storage_class, claim.volume_mode)
                and volume.capacity >= claim.request
            ):
                return volume
        return None

    def _is_shared(self, claim: PersistentVolumeClaim) -> bool:
        """Tell whether the first of several pods decides where an open claim's volume will be."""
        return not claim.bound and not claim.selected_node and self._users.is_shared(claim.key)


def claim_keys(pod: Pod) -> Iterator[str]:
    """Yield the pod's claims as `namespace/name`."""
    for use in pod.claims:
        yield f"{pod.namespace}/{use.name}"


def _choosing_order(item: tuple[WantedVolume, PersistentVolumeClaim]) -> tuple[int, str, tuple[str, ...], str]:
    want, claim = item
    return want.request, want.storage_class, want.access_modes, claim.name
