"""The world: all objects at the beginning of a simulation, with the defaults of an API server.

The surroundings of its pods are part of it: namespaces, volumes, devices and disruption budgets.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from kaicore.analysis.trial.simulation.resource_claims import RESOURCE_CLAIM_KIND, ClaimTemplates, check_budget
from kaicore.errors import InvalidObject, Lost, unheard
from kaicore.kube.kinds.kind import Kind
from kaicore.kube.kinds.table import BUDGET, CLAIM, DEVICE_KINDS, NAMESPACE, STORAGE_CLASS, VOLUME
from kaicore.kube.normalize.storage import BOUND_ANNOTATION, normalize_namespace
from kaicore.kube.wire.objects import (
    NodeObject,
    PodObject,
    PriorityClassObject,
    TopologyObject,
)
from kaicore.rules.model.group import GroupSource
from kaicore.rules.model.placement import ContainerPlacement
from kaicore.rules.model.pod import Namespace
from kaicore.rules.objects.mappings import Object, derived_uid, spec_of
from kaicore.rules.objects.wire import KubernetesObject, ObjectMeta, PlainObject

_RECORDED: tuple[Kind[Any], ...] = (NAMESPACE, STORAGE_CLASS, VOLUME, CLAIM, BUDGET, *DEVICE_KINDS)
#: The kinds, by group and kind; in the order in which they are recorded.
KINDS: dict[tuple[str, str], Kind[Any]] = {(kind.resource.group, kind.name): kind for kind in _RECORDED}

_CLAIM = ("", "PersistentVolumeClaim")
_VOLUME = ("", "PersistentVolume")
_NAMESPACE = ("", "Namespace")
_BUDGET = ("policy", "PodDisruptionBudget")
_STORAGE_CLASS = ("storage.k8s.io", "StorageClass")
_NAME_LABEL = "kubernetes.io/metadata.name"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"

_encoder = msgspec.json.Encoder()


class Surroundings:
    """The surroundings of a world's pods."""

    def __init__(self) -> None:
        self._wires: list[tuple[tuple[str, str], Any]] = []
        #: Of which resource claims are made for pods.
        self.claim_templates = ClaimTemplates()

    def copy(self) -> "Surroundings":
        """Return surroundings that a simulation can change."""
        other = Surroundings()
        other._wires, other.claim_templates = list(self._wires), self.claim_templates
        return other

    def add(self, kind: tuple[str, str], item: Object, lost: Lost = unheard) -> None:
        """Take an object in; `lost` is called with what of it makes no sense and is left out.

        Raises InvalidObject: naming the field that says something impossible.
        """
        recorded = KINDS[kind]
        wire = recorded.decode(_encoder.encode(item))
        recorded.normalize(wire, lost)
        if kind == _BUDGET:
            check_budget(wire)
        self._wires.append((kind, wire))

    def add_made(self, claim: Object) -> None:
        """Take in a claim that a controller would make, unless it is there. Raises InvalidObject: see `add`."""
        meta = claim["metadata"]
        if not any(
            kind == _CLAIM and _key(wire.metadata) == (meta["namespace"], meta["name"]) for kind, wire in self._wires
        ):
            self.add(_CLAIM, claim)

    def add_group(self, group: Object) -> None:
        """Take in the claims that are made for a PodGroup; see `ClaimTemplates.add_group`."""
        for claim in self.claim_templates.add_group(group):
            self.add(RESOURCE_CLAIM_KIND, claim)

    def resource_claims_of(self, pod: Object) -> tuple[Object, list[tuple[Kind[Any], Any]]]:
        """Make the resource claims of a pod's templates; see `ClaimTemplates.make`.

        Returns:
            the pod, and the claims with their kind.
        """
        kind = KINDS[RESOURCE_CLAIM_KIND]
        pod, claims = self.claim_templates.make(pod)
        return pod, [(kind, kind.decode(_encoder.encode(claim))) for claim in claims]

    def namespaces(self) -> list[Namespace]:
        """Return the namespaces that objects tell of."""
        return list(map(normalize_namespace, self._of(_NAMESPACE)))

    def recorded(self, namespaces: Iterable[str]) -> list[tuple[Kind[Any], Any]]:
        """Return all objects in the order in which they are to be recorded, with their kinds.

        Args:
            namespaces: of the pods; those that no object tells of are there as well.
        """
        there = {wire.metadata.name for wire in self._of(_NAMESPACE)}
        wires = list(self._wires)
        for name in sorted(set(namespaces) - there):
            meta = ObjectMeta(name=name, uid=derived_uid("", "Namespace", "", name))
            wires.append((_NAMESPACE, KubernetesObject(metadata=meta)))
        default = self._default_class()
        order = list(KINDS)
        wires.sort(key=lambda item: (order.index(item[0]), _key(item[1].metadata)))
        self._wires = [(kind, _admitted(kind, wire, default)) for kind, wire in wires]
        return [(KINDS[kind], wire) for kind, wire in self._wires]

    def bind(self, claim: tuple[str, str], volume: str) -> list[tuple[Kind[Any], Any]]:
        """Bind a claim and a volume to each other, as the PersistentVolume controller does.

        Returns:
            both as they are then, with their kinds.
        """
        claim_at, volume_at = self._place(_CLAIM, claim), self._place(_VOLUME, ("", volume))
        wire, other = self._wires[claim_at][1], self._wires[volume_at][1]
        self._wires[claim_at] = (_CLAIM, _annotated(_with(wire, "Bound", volumeName=volume)))
        reference = {"namespace": claim[0], "name": claim[1], "uid": wire.metadata.uid}
        self._wires[volume_at] = (_VOLUME, _with(other, "Bound", claimRef=reference))
        return [(KINDS[kind], item) for kind, item in (self._wires[volume_at], self._wires[claim_at])]

    def _place(self, kind: tuple[str, str], key: tuple[str, str]) -> int:
        places = (at for at, (of, wire) in enumerate(self._wires) if of == kind and _key(wire.metadata) == key)
        return next(places)

    def _of(self, kind: tuple[str, str]) -> list[Any]:
        return [wire for of, wire in self._wires if of == kind]

    def budgets(self) -> list[PlainObject]:
        """Return the disruption budgets."""
        return self._of(_BUDGET)

    def _default_class(self) -> str:
        """Return the default storage class; of several the first by name, for creation times are seldom given."""
        classes = [wire.metadata for wire in self._of(_STORAGE_CLASS)]
        names = [one.name for one in classes if (one.annotations or {}).get(_DEFAULT_CLASS) == "true"]
        return min(names, default="")


def ephemeral_claims(pod: Object) -> Iterator[Object]:
    """Yield the claims that a pod's ephemeral volumes are given, as the controller of such volumes makes them."""
    meta = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
    for volume in pod["spec"].get("volumes") or ():
        if isinstance(volume.get("ephemeral"), dict):
            template = volume["ephemeral"].get("volumeClaimTemplate")
            yield _claim(f"{meta['name']}-{volume.get('name')}", meta["namespace"], template, ownerReferences=[owner])


def template_claims(owner: Object, pod: Object) -> Iterator[Object]:
    """Yield the claims that a StatefulSet makes for one of its pods.

    Raises InvalidObject: a template is not what it should be.
    """
    if owner["kind"] != "StatefulSet":
        return
    meta = pod["metadata"]
    for template in spec_of(owner).items("volumeClaimTemplates"):
        volume = template.inside("metadata").text("name")
        yield _claim(f"{volume}-{meta['name']}", meta["namespace"], template.value)


def _claim(name: str, namespace: str, template: object, **metadata: Any) -> Object:
    uid = derived_uid("", "PersistentVolumeClaim", namespace, name)
    spec = template.get("spec") or {} if isinstance(template, dict) else {}
    return {"metadata": {"name": name, "namespace": namespace, "uid": uid, **metadata}, "spec": spec}


def _admitted(kind: tuple[str, str], wire: Any, default_class: str) -> Any:
    if kind == _NAMESPACE:
        labels = {**(wire.metadata.labels or {}), _NAME_LABEL: wire.metadata.name}
        return msgspec.structs.replace(wire, metadata=msgspec.structs.replace(wire.metadata, labels=labels))
    if kind not in (_CLAIM, _VOLUME):
        return wire
    spec, phase = wire.spec or {}, (wire.status or {}).get("phase")
    if kind == _CLAIM:
        unnamed = spec.get("storageClassName") is None and default_class
        return _annotated(_with(wire, phase, storageClassName=default_class) if unnamed else wire)
    return _with(wire, "Available") if phase is None and spec.get("claimRef") is None else wire


def _with(wire: PlainObject, phase: str | None, **fields: Any) -> PlainObject:
    """Return an object in a phase, with fields of its spec set."""
    return msgspec.structs.replace(wire, spec={**(wire.spec or {}), **fields}, status={"phase": phase})


def _annotated(claim: PlainObject) -> PlainObject:
    """Say of a claim that is written down as bound what its controller says of it then."""
    if not (claim.spec or {}).get("volumeName") or (claim.status or {}).get("phase") != "Bound":
        return claim
    annotations = {**(claim.metadata.annotations or {}), BOUND_ANNOTATION: "yes"}
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, annotations=annotations))


def _key(meta: ObjectMeta) -> tuple[str, str]:
    return meta.namespace, meta.name


#: Microseconds since the epoch at which a world without any times begins: 2026-01-01T00:00:00Z.
NO_TIMES = 1_767_225_600_000_000


class WorldPod(NamedTuple):
    """A pod: as its JSON says it, and as it is read; `zones` is what annotations say of its placement."""

    where: str
    object: Object
    wire: PodObject
    predicted: ContainerPlacement | None = None
    observed: ContainerPlacement | None = None


@dataclass(slots=True)
class World:
    """Everything that a simulation begins with, each kind in order of name.

    Attributes:
        now: when it begins, microseconds since the epoch: a second after the latest time that any object names.
        nodes: by name, with the object as its JSON says it.
        group_sources: objects that say how pods belong together, with their kinds.
        queues: of KAI and Kueue, and flavors, with their kinds.
        network_topologies: objects that define them, with their kinds.
        missing_owners: owners that pods name and that are not there: their pods are taken to start one by one.
        warnings: what was left out, one line each.
        problems: what is wrong with objects; a world with problems is not to be simulated.
    """

    now: int = NO_TIMES
    nodes: dict[str, tuple[Object, NodeObject]] = field(default_factory=dict)
    topologies: dict[str, tuple[Object, TopologyObject]] = field(default_factory=dict)
    priority_classes: dict[str, PriorityClassObject] = field(default_factory=dict)
    surroundings: Surroundings = field(default_factory=Surroundings)
    pods: list[WorldPod] = field(default_factory=list)
    group_sources: list[tuple[Kind[Any], KubernetesObject]] = field(default_factory=list)
    queues: list[tuple[Kind[Any], KubernetesObject]] = field(default_factory=list)
    network_topologies: list[tuple[Kind[Any], KubernetesObject]] = field(default_factory=list)
    missing_owners: list[GroupSource] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[InvalidObject] = field(default_factory=list)


def created(pod: WorldPod, *, now: int) -> WorldPod:
    """Return a pod that has a creation time: its own, or `now` (microseconds since the epoch) where it has none."""
    if pod.wire.metadata.creation_timestamp is not None:
        return pod
    time = datetime.fromtimestamp(now // 1_000_000, tz=UTC)
    metadata = {**pod.object["metadata"], "creationTimestamp": time.isoformat()}
    meta = msgspec.structs.replace(pod.wire.metadata, creation_timestamp=time)
    wire = msgspec.structs.replace(pod.wire, metadata=meta)
    return pod._replace(object={**pod.object, "metadata": metadata}, wire=wire)
