"""A kind of objects that is recorded: its API path, and the conversion of its objects into facts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

import msgspec

from kaicore.errors import Lost
from kaicore.kube.api.reflector_core import ObjectKey
from kaicore.kube.wire.resources import ObjectT, OptionalResource, Resource
from kaicore.rules.events.payloads import Payload
from kaicore.rules.model.device import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from kaicore.rules.model.group import GroupSource
from kaicore.rules.model.node import HyperNode, Node, NodeTopology, TopologyDefinition
from kaicore.rules.model.pod import Namespace, Pod, PodDisruptionBudget, PriorityClass
from kaicore.rules.model.queue import Queue, ResourceFlavor
from kaicore.rules.model.reservation import NodeReservation
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim, StorageClass
from kaicore.rules.objects.provisioning import ProvisioningRequest

Model = (
    GroupSource
    | Node
    | NodeTopology
    | Pod
    | PriorityClass
    | ProvisioningRequest
    | Queue
    | NodeReservation
    | ResourceFlavor
    | Namespace
    | TopologyDefinition
    | HyperNode
    | PersistentVolumeClaim
    | PersistentVolume
    | StorageClass
    | PodDisruptionBudget
    | ResourceSlice
    | ResourceClaim
    | DeviceClass
    | DeviceTaintRule
)


@dataclass(frozen=True, slots=True)
class Kind(Generic[ObjectT]):
    """One row of the table of kinds (`kaicore.kube.kinds.table`).

    Attributes:
        resource: where its objects are served, and how one is decoded.
        normalize: wire to model; tells what it leaves out, and raises `InvalidObject` where the rest makes no sense.
        observed: payload of the fact of an object; the model is its only field.
        deleted: payload of the fact that an object is gone; its fields are among kind, uid, namespace, name and node.
        key: what the stream of an object is called, with {kind}, {namespace}, {name} and {uid} filled in.
        called: what facts call an object instead of its name, with {namespace} and {name} filled in.
    """

    resource: Resource[ObjectT] | OptionalResource[ObjectT]
    normalize: Callable[[ObjectT, Lost], Model]
    observed: Callable[[Any], Payload]
    deleted: type[Payload]
    key: str
    called: str = "{name}"

    @property
    def name(self) -> str:
        """As Kubernetes calls it, with the API group where that is not one of Kubernetes' own."""
        return self.resource.kind

    def decode(self, data: bytes) -> ObjectT:
        """Decode an object, in the version that is preferred where there are several.

        Raises InvalidObject: naming the field with the wrong JSON type.
        """
        return self.resource.at(self.resource.versions[0]).decode(data)

    def stream(self, key: ObjectKey, uid: str) -> str:
        """Return the stream of an object's facts."""
        return self.key.format(kind=self.name, namespace=key.namespace, name=self._called(key), uid=uid)

    def gone(self, key: ObjectKey, uid: str) -> Payload:
        """Return the fact that an object is gone."""
        name = self._called(key)
        values = {"kind": self.name, "uid": uid, "namespace": key.namespace, "name": name, "node": name}
        return self.deleted(**{field: values[field] for field in self.deleted.__struct_fields__})

    def _called(self, key: ObjectKey) -> str:
        return self.called.format(namespace=key.namespace, name=key.name)


def without_version(model: Model) -> Model:
    """Return what is material of an object: all but its resourceVersion."""
    return msgspec.structs.replace(model, resource_version="")
