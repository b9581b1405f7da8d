"""The resources that are read: their API paths, and the decoding of their objects."""

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Generic, TypeVar

import msgspec

from kaicore.errors import InvalidObject
from kaicore.kube.wire import objects
from kaicore.rules.objects.mappings import Fields, misfit
from kaicore.rules.objects.wire import KubernetesObject, PlainObject, subject_of

ObjectT = TypeVar("ObjectT", bound=KubernetesObject)
PartT = TypeVar("PartT")

TOPOLOGY_GROUP = "topology.node.k8s.io"

#: Served versions of NodeResourceTopology that can be read, the one to prefer first.
TOPOLOGY_VERSIONS = ("v1alpha2", "v1alpha1")

#: API servers take 10,000 levels of JSON within each other; Python stops at 1,000, also where it skips them.
_LEVELS = 20_000


def decoded(decoder: msgspec.json.Decoder[PartT], data: bytes | msgspec.Raw) -> PartT:
    """Decode what an API server sends, however deep something in it is that is not even read.

    Raises msgspec.DecodeError: it is something else, or deeper than that.
    """
    try:
        return decoder.decode(data)
    except RecursionError:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + _LEVELS)
        try:
            return decoder.decode(data)
        except RecursionError as error:
            raise msgspec.DecodeError(str(error)) from error
        finally:
            sys.setrecursionlimit(limit)


@dataclass(frozen=True, slots=True)
class Resource(Generic[ObjectT]):
    """A resource; all of its objects in a cluster are read.

    Attributes:
        path: of the collection over all namespaces.
        type: what its objects are decoded as.
        optional: whether a cluster may do without it.
    """

    kind: str
    path: str
    type: type[ObjectT]
    namespaced: bool = True
    optional: bool = False
    _decoder: msgspec.json.Decoder[ObjectT] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_decoder", msgspec.json.Decoder(self.type))

    @property
    def group(self) -> str:
        """API group; empty for the core group."""
        return self.path.split("/")[2] if self.path.startswith("/apis/") else ""

    @property
    def plural(self) -> str:
        """The resource's name in paths and in rights."""
        return self.path.rpartition("/")[2]

    @property
    def versions(self) -> tuple[str, ...]:
        """The only version in which it is served."""
        return (self.path.split("/")[-2],)

    def at(self, version: str) -> "Resource[ObjectT]":
        """Return it in a served version, of which there is one."""
        assert version in self.versions, f"{self.kind}: {version}"
        return self

    def decode(self, data: bytes | msgspec.Raw) -> ObjectT:
        """Decode one object. Raises InvalidObject: naming the field with the wrong JSON type."""
        try:
            return decoded(self._decoder, data)
        except msgspec.DecodeError as error:
            raise _refusal(self.kind, data, error) from error


PODS = Resource("Pod", "/api/v1/pods", objects.PodObject)
NODES = Resource("Node", "/api/v1/nodes", objects.NodeObject, namespaced=False)
PRIORITY_CLASSES = Resource(
    "PriorityClass", "/apis/scheduling.k8s.io/v1/priorityclasses", objects.PriorityClassObject, namespaced=False
)

NAMESPACES = Resource("Namespace", "/api/v1/namespaces", KubernetesObject, namespaced=False)
CLAIMS = Resource("PersistentVolumeClaim", "/api/v1/persistentvolumeclaims", PlainObject)
VOLUMES = Resource("PersistentVolume", "/api/v1/persistentvolumes", PlainObject, namespaced=False)
STORAGE_CLASSES = Resource(
    "StorageClass", "/apis/storage.k8s.io/v1/storageclasses", objects.StorageClassObject, namespaced=False
)
BUDGETS = Resource("PodDisruptionBudget", "/apis/policy/v1/poddisruptionbudgets", PlainObject)


@dataclass(frozen=True, slots=True)
class OptionalResource(Generic[ObjectT]):
    """A resource that a cluster may serve, in one of several versions.

    Attributes:
        kind: of its objects, as `Resource.kind`.
        group: API group.
        plural: what it is called in paths.
        versions: those that can be read, the one to prefer first.
        type: what its objects are decoded as, in any of these versions.
        namespaced: whether its objects are in namespaces.
    """

    kind: str
    group: str
    plural: str
    versions: tuple[str, ...]
    type: type[ObjectT]
    namespaced: bool = True

    def at(self, version: str) -> Resource[ObjectT]:
        """Return it in a served version."""
        return _at(self, version)


@cache
def _at(resource: OptionalResource[ObjectT], version: str) -> Resource[ObjectT]:
    """A resource has a decoder of its own, and each object of a simulation asks for it."""
    path = f"/apis/{resource.group}/{version}/{resource.plural}"
    return Resource(resource.kind, path, resource.type, resource.namespaced, optional=True)


TOPOLOGIES = OptionalResource(
    "NodeResourceTopology",
    TOPOLOGY_GROUP,
    "noderesourcetopologies",
    TOPOLOGY_VERSIONS,
    objects.TopologyObject,
    namespaced=False,
)

#: Served versions of dynamic resource allocation that can be read, the one to prefer first.
DEVICE_VERSIONS = ("v1", "v1beta2", "v1beta1")
_DRA = "resource.k8s.io"
RESOURCE_SLICES = OptionalResource("ResourceSlice", _DRA, "resourceslices", DEVICE_VERSIONS, PlainObject, False)
DEVICE_CLASSES = OptionalResource("DeviceClass", _DRA, "deviceclasses", DEVICE_VERSIONS, PlainObject, False)
#: They came later.
TAINT_RULES = OptionalResource(
    "DeviceTaintRule", _DRA, "devicetaintrules", ("v1", "v1beta2", "v1alpha3"), PlainObject, namespaced=False
)
RESOURCE_CLAIMS = OptionalResource("ResourceClaim", _DRA, "resourceclaims", DEVICE_VERSIONS, PlainObject)

RESERVATIONS = OptionalResource(
    "Reservation.kai.scheduler", "kai.scheduler", "reservations", ("v1alpha1",), PlainObject, namespaced=False
)

#: Both versions have the same fields (cluster-autoscaler 1.34).
PROVISIONING_REQUESTS = OptionalResource(
    "ProvisioningRequest.autoscaling.x-k8s.io",
    "autoscaling.x-k8s.io",
    "provisioningrequests",
    ("v1", "v1beta1"),
    PlainObject,
)

_identity_decoder = msgspec.json.Decoder(objects.Identified)


def identity(data: bytes | msgspec.Raw) -> objects.Identity | None:
    """Read which object this is, whatever else may be wrong with it; None when it does not say."""
    try:
        metadata = decoded(_identity_decoder, data).metadata
    except msgspec.DecodeError:
        return None
    return metadata if metadata.uid and metadata.name else None


def named_subject(kind: str, wire: KubernetesObject) -> str:
    """Return the same of an object that must have a name. Raises InvalidObject: it has none."""
    metadata = wire.metadata
    subject = subject_of(kind, metadata.namespace, metadata.name)
    if not metadata.name:
        raise InvalidObject(subject, "metadata.name", metadata.name, "is empty")
    return subject


def named_fields(kind: str, wire: PlainObject) -> Fields:
    """Return an object that must have a name as its mappings. Raises InvalidObject: it has none."""
    return Fields(named_subject(kind, wire), {"spec": wire.spec, "status": wire.status})


def _refusal(kind: str, data: bytes | msgspec.Raw, error: msgspec.DecodeError) -> InvalidObject:
    metadata = identity(data)
    subject = subject_of(kind, metadata.namespace, metadata.name) if metadata is not None else kind
    path, value, problem = _undecodable(data, error)
    return InvalidObject(subject, path.lstrip(".") or "object", value if path else bytes(data)[:80], problem)


def _undecodable(data: bytes | msgspec.Raw, error: Exception) -> tuple[str, object, str]:
    document: object = None
    with suppress(msgspec.DecodeError, RecursionError):
        document = msgspec.json.decode(data)
    return misfit(error, document)
