"""Demands of a pod on its node: devices and volumes, from claims, classes and decided allocations; and flavors.

As in Kueue, the requests of a pod belong to a ResourceFlavor of its queue. The pod runs on nodes with that flavor's
labels, and the pod or the flavor must tolerate their taints. Placement determines the flavor: any of the queue's
flavors of a resource is possible if the pod tolerates its taints.
"""

from collections.abc import Iterable, Mapping
from itertools import product

import msgspec

from kaicore.rules.engine.constraints.node_matching import tolerates
from kaicore.rules.model.device import DeviceConstraint, DeviceRequest
from kaicore.rules.model.pod import Amounts, Toleration
from kaicore.rules.model.queue import Queue, ResourceFlavor
from kaicore.rules.model.selector import Requirement, meets
from kaicore.rules.model.volume import PersistentVolume


class WantedClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """A claim that is to be allocated.

    Claims that one pod uses are not named, so that alike pods with claims of their own stay one class.

    Attributes:
        requests: as the claim has them, the selectors of each request's device class before its own.
        claim: `namespace/name` of a claim that several pods use: where it is allocated for one, the others use that.
        extended: of a claim for extended resources, the resource of each request; one that a node's kubelet has is not
            asked of devices there.
    """

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    claim: str = ""
    extended: tuple[str, ...] = ()


class DeviceDemand(msgspec.Struct, frozen=True, omit_defaults=True):
    """The demand of a pod's resource claims: the nodes to which they let it go.

    Attributes:
        waits: what has to happen to the pod's claims, or to device classes, before it can go anywhere.
        places: node selector terms of claims that are allocated, any of which must hold; each with what asks for it.
        wanted: claims that are to be allocated on its node, in the order in which they choose.
    """

    waits: tuple[str, ...] = ()
    places: tuple[tuple[str, tuple[tuple[Requirement, ...], ...]], ...] = ()
    wanted: tuple[WantedClaim, ...] = ()


#: Of pods without claims.
NO_DEVICES = DeviceDemand()

#: Node selector terms, any of which must hold.
Terms = tuple[tuple[Requirement, ...], ...]

_ZONES = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
_ZONE_LABELS = (*_ZONES, *_ZONES.values())
_UNZONED = tuple(Requirement(label, "DoesNotExist") for label in _ZONE_LABELS)


class WantedVolume(msgspec.Struct, frozen=True, omit_defaults=True):
    """The request of an unbound claim of a storage class with `WaitForFirstConsumer`.

    Attributes:
        request: of storage, bytes.
        access_modes: sorted; a volume has to offer all of them.
        volume_mode: as `PersistentVolume.volume_mode`.
        selector: labels that a volume made beforehand has to have.
        provisioned: whether the class makes a volume where none is left.
        topologies: where it can, any of the terms; none for everywhere.
        claim: `namespace/name` of a claim that several pods use: where one of them has gone the others want nothing.
    """

    storage_class: str
    request: int = 0
    access_modes: tuple[str, ...] = ()
    volume_mode: str = ""
    selector: tuple[Requirement, ...] = ()
    provisioned: bool = False
    topologies: Terms = ()
    claim: str = ""

    def fits(self, volume: PersistentVolume) -> bool:
        """Tell whether a volume made beforehand would do, wherever it is."""
        return (
            volume.storage_class == self.storage_class
            and volume.capacity >= self.request
            and volume.volume_mode == self.volume_mode
            and set(self.access_modes) <= set(volume.access_modes)
            and meets(volume.labels, self.selector)
        )


class VolumeDemand(msgspec.Struct, frozen=True, omit_defaults=True):
    """The demand of a pod's volumes: the nodes to which they let it go.

    Claims are named only where they tell pods apart, so that alike pods with volumes of their own stay one class.

    Attributes:
        waits: what has to happen to the pod's claims before it can go anywhere.
        places: node selector terms, any of which must hold; each with what asks for it.
        exclusive: claims, `namespace/name`, that one pod at a time may use (`ReadWriteOncePod`).
        together: claims that are not bound yet and that several pods use: the first decides where.
        wanted: what is to be found or made for it on its node; those that ask for less first.
    """

    waits: tuple[str, ...] = ()
    places: tuple[tuple[str, Terms], ...] = ()
    exclusive: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    wanted: tuple[WantedVolume, ...] = ()


def volume_places(volume: PersistentVolume, *, what: str) -> tuple[tuple[str, Terms], ...]:
    """Return from where a volume can be used: node selector terms, of all of which one must hold.

    Source: kube-scheduler's VolumeBinding (node affinity) and VolumeZone (labels).

    Args:
        what: how it is called, such as `a bound volume`.
    """
    places: list[tuple[str, Terms]] = []
    if volume.node_affinity is not None:
        places.append((f"node affinity of {what}", volume.node_affinity))
    for label, text in sorted(volume.zones.items()):
        values = tuple(sorted(text.split("__")))
        terms: list[tuple[Requirement, ...]] = [_UNZONED, (Requirement(label, "In", values),)]
        if label in _ZONES:
            terms.append((Requirement(label, "DoesNotExist"), Requirement(_ZONES[label], "In", values)))
        places.append((f"zone of {what}", tuple(terms)))
    return tuple(places)


class FlavorTolerance(msgspec.Struct, frozen=True, omit_defaults=True):
    """Flavors, one of each resource's, that tolerate more than the pod does on the nodes that have all their labels."""

    tolerations: tuple[Toleration, ...]
    nodes: tuple[Requirement, ...] = ()


class FlavorDemand(msgspec.Struct, frozen=True, omit_defaults=True):
    """The demand of a queue's flavors: the nodes to which they let a pod go.

    Attributes:
        queue: name; empty where there is nothing to say.
        unknown: flavors that the queue names and that do not exist; the pod waits for them.
        places: node selector terms, any of which must hold; each with what asks for it.
        tolerances: what is tolerated besides what the pod says, and where.
    """

    queue: str = ""
    unknown: tuple[str, ...] = ()
    places: tuple[tuple[str, tuple[tuple[Requirement, ...], ...]], ...] = ()
    tolerances: tuple[FlavorTolerance, ...] = ()


#: Any node will do.
ANY_FLAVOR = FlavorDemand()

#: Terms that no node meets.
_NOWHERE: tuple[tuple[Requirement, ...], ...] = ((),)


def flavor_demand(
    queue: Queue, flavors: Mapping[str, ResourceFlavor], *, requests: Amounts, tolerations: tuple[Toleration, ...]
) -> FlavorDemand:
    """Return where a queue's flavors let a pod go.

    Args:
        flavors: those that exist, by name. Without any, a queue's flavors are only names.
    """
    if not flavors:
        return ANY_FLAVOR
    by_flavors: dict[tuple[str, ...], list[str]] = {}
    for resource in sorted(requests):
        named = tuple(quota.flavor for quota in queue.flavors if resource in quota.quotas)
        if named:
            by_flavors.setdefault(named, []).append(resource)
    unknown = sorted({name for named in by_flavors for name in named} - set(flavors))
    if unknown:
        return FlavorDemand(queue.name, unknown=tuple(unknown))
    places = []
    choices = []
    for named, resources in by_flavors.items():
        usable = [flavors[name] for name in named if _tolerated(flavors[name], tolerations)]
        choices.append(usable)
        terms = tuple(dict.fromkeys(_term(flavor) for flavor in usable))
        if () not in terms:
            what = f"{queue.name}: {', '.join(resources)} of {' or '.join(named)}"
            places.append((what, terms or _NOWHERE))
    tolerances = tuple(dict.fromkeys(_tolerances(choices)))
    if not places and not tolerances:
        return ANY_FLAVOR
    return FlavorDemand(queue.name, places=tuple(places), tolerances=tolerances)


def _tolerances(choices: Iterable[list[ResourceFlavor]]) -> Iterable[FlavorTolerance]:
    for chosen in product(*choices):
        # One flavor may be that of several resources.
        together = tuple(dict.fromkeys(flavor.name for flavor in chosen))
        flavors = {flavor.name: flavor for flavor in chosen}
        tolerations = tuple(dict.fromkeys(one for name in together for one in flavors[name].tolerations))
        if tolerations:
            terms = (requirement for name in together for requirement in _term(flavors[name]))
            yield FlavorTolerance(tolerations, tuple(dict.fromkeys(terms)))


def _tolerated(flavor: ResourceFlavor, tolerations: tuple[Toleration, ...]) -> bool:
    return all(tolerates((*tolerations, *flavor.tolerations), taint) for taint in flavor.node_taints)


def _term(flavor: ResourceFlavor) -> tuple[Requirement, ...]:
    return tuple(Requirement(key, "In", (value,)) for key, value in sorted(flavor.node_labels.items()))
