"""Objects of `resource.k8s.io` on the wire, reduced to the fields that are read: see `kaicore.kube.wire.objects`.

`v1` and `v1beta2` have the same fields. `v1beta1` has the fields of `exactly` in the request itself, and those of a
device under `basic`. Both places are read in every version.
"""

import msgspec

from kaicore.kube.wire.objects import NodeSelector
from kaicore.kube.wire.resources import OptionalResource
from kaicore.rules.objects.wire import KubernetesObject, Wire

GROUP = "resource.k8s.io"
#: Served versions that can be read, the one to prefer first.
VERSIONS = ("v1", "v1beta2", "v1beta1")
#: The same of DeviceTaintRules, which came later.
TAINT_RULE_VERSIONS = ("v1", "v1beta2", "v1alpha3")


class AttributeWire(Wire):
    """An attribute's value; one of the fields is set."""

    int_value: int | None = msgspec.field(default=None, name="int")
    bool_value: bool | None = msgspec.field(default=None, name="bool")
    string_value: str | None = msgspec.field(default=None, name="string")
    version_value: str | None = msgspec.field(default=None, name="version")
    int_values: list[int] | None = msgspec.field(default=None, name="ints")
    bool_values: list[bool] | None = msgspec.field(default=None, name="bools")
    string_values: list[str] | None = msgspec.field(default=None, name="strings")
    version_values: list[str] | None = msgspec.field(default=None, name="versions")


class RangeWire(Wire):
    """The range of a capacity that can be requested."""

    min: str | int | None = None
    max: str | int | None = None
    step: str | int | None = None


class PolicyWire(Wire):
    """The requestable amounts of a capacity."""

    default: str | int | None = None
    valid_values: list[str | int] | None = None
    valid_range: RangeWire | None = None


class CapacityWire(Wire):
    """A device's amount of one capacity."""

    value: str | int = "0"
    request_policy: PolicyWire | None = None


class CounterWire(Wire):
    """An amount of a counter."""

    value: str | int = "0"


class CounterUseWire(Wire):
    """A device's use of a counter set."""

    counter_set: str = ""
    counters: dict[str, CounterWire] | None = None
    compatibility_groups: list[str] | None = None


class CounterSetWire(Wire):
    """Counters that devices share."""

    name: str = ""
    counters: dict[str, CounterWire] | None = None


class TaintWire(Wire):
    """A taint of a device."""

    key: str = ""
    value: str | None = None
    effect: str = ""


class TaintSelectorWire(Wire):
    """The devices that get a rule's taint; the last two fields existed until Kubernetes 1.34."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    device_class_name: str | None = None
    selectors: list[msgspec.Raw] | None = None


class TaintRuleSpec(Wire):
    """A taint, and the devices that have it."""

    device_selector: TaintSelectorWire | None = None
    taint: TaintWire = msgspec.field(default_factory=TaintWire)


class TaintRuleObject(KubernetesObject):
    """A DeviceTaintRule."""

    spec: TaintRuleSpec = msgspec.field(default_factory=TaintRuleSpec)


class BasicDeviceWire(Wire):
    """A device's description."""

    attributes: dict[str, AttributeWire] | None = None
    capacity: dict[str, CapacityWire] | None = None
    consumes_counters: list[CounterUseWire] | None = None
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: list[TaintWire] | None = None
    binds_to_node: bool | None = None
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None
    allow_multiple_allocations: bool | None = None


class DeviceWire(BasicDeviceWire):
    """A device, in `v1beta1` with all but its name under `basic`."""

    name: str = ""
    basic: BasicDeviceWire | None = None


class PoolWire(Wire):
    """The pool of a slice."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(Wire):
    """A slice's contents."""

    driver: str = ""
    pool: PoolWire = msgspec.field(default_factory=PoolWire)
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[DeviceWire] | None = None
    shared_counters: list[CounterSetWire] | None = None
    skip_node_operations: list[str] | None = None


class SliceObject(KubernetesObject):
    """A ResourceSlice."""

    spec: SliceSpec = msgspec.field(default_factory=SliceSpec)


class CelWire(Wire):
    """A CEL expression."""

    expression: str = ""


class SelectorWire(Wire):
    """A selection of devices."""

    cel: CelWire | None = None


class DeviceClassSpec(Wire):
    """The devices of a class."""

    selectors: list[SelectorWire] | None = None
    extended_resource_name: str | None = None


class DeviceClassObject(KubernetesObject):
    """A DeviceClass."""

    spec: DeviceClassSpec = msgspec.field(default_factory=DeviceClassSpec)


class TolerationWire(Wire):
    """A toleration of device taints."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class CapacityRequestWire(Wire):
    """The requested amount of each device."""

    requests: dict[str, str | int] | None = None


class ExactRequestWire(Wire):
    """A request for devices."""

    device_class_name: str | None = None
    selectors: list[SelectorWire] | None = None
    allocation_mode: str | None = None
    count: int | None = None
    admin_access: bool | None = None
    tolerations: list[TolerationWire] | None = None
    capacity: CapacityRequestWire | None = None
    derived_attributes: list[msgspec.Raw] | None = None


class AlternativeWire(ExactRequestWire):
    """One of several things, of which the first is taken that can be had."""

    name: str = ""


class RequestWire(ExactRequestWire):
    """A request; in `v1beta1` with the fields of `exactly`."""

    name: str = ""
    exactly: ExactRequestWire | None = None
    first_available: list[AlternativeWire] | None = None


class ConstraintWire(Wire):
    """A property that devices have in common."""

    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class ClaimDevices(Wire):
    """The devices that a claim asks for."""

    requests: list[RequestWire] | None = None
    constraints: list[ConstraintWire] | None = None


class ResourceClaimSpec(Wire):
    """A claim's spec."""

    devices: ClaimDevices = msgspec.field(default_factory=ClaimDevices)


class AllocatedDeviceWire(Wire):
    """A device that a claim has."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, str | int] | None = None
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None
    tolerations: list[TolerationWire] | None = None


class AllocatedDevicesWire(Wire):
    """The devices that a claim has."""

    results: list[AllocatedDeviceWire] | None = None


class AllocationWire(Wire):
    """A claim's allocation."""

    devices: AllocatedDevicesWire = msgspec.field(default_factory=AllocatedDevicesWire)
    node_selector: NodeSelector | None = None


class ConsumerWire(Wire):
    """A user of a claim: a pod, or another kind of object."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Wire):
    """A claim's status."""

    allocation: AllocationWire | None = None
    reserved_for: list[ConsumerWire] | None = None


class ResourceClaimObject(KubernetesObject):
    """A ResourceClaim."""

    spec: ResourceClaimSpec = msgspec.field(default_factory=ResourceClaimSpec)
    status: ResourceClaimStatus = msgspec.field(default_factory=ResourceClaimStatus)


RESOURCE_SLICES = OptionalResource("ResourceSlice", GROUP, "resourceslices", VERSIONS, SliceObject, namespaced=False)
DEVICE_CLASSES = OptionalResource("DeviceClass", GROUP, "deviceclasses", VERSIONS, DeviceClassObject, namespaced=False)
TAINT_RULES = OptionalResource(
    "DeviceTaintRule", GROUP, "devicetaintrules", TAINT_RULE_VERSIONS, TaintRuleObject, namespaced=False
)
RESOURCE_CLAIMS = OptionalResource("ResourceClaim", GROUP, "resourceclaims", VERSIONS, ResourceClaimObject)
