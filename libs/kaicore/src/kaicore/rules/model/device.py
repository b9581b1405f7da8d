"""Devices of dynamic resource allocation (DRA): slices, classes and claims, reduced to what an allocation depends on.

Amounts of capacities and counters are thousandths, because Kubernetes compares exact quantities, fractions included.
Names of attributes are written in full: `domain/name`, with the driver as domain where none is given. Names of
capacities stay as drivers and claims write them, because Kubernetes compares them in that form.
"""

import re

import msgspec

from kaicore.rules.model.selector import Requirement

#: How many devices a request is for.
EXACT_COUNT = "ExactCount"
ALL = "All"

#: Effects of taints: no request is given the device; pods that have it are evicted as well. Any other does nothing.
NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"

#: Words of taints that say that a device has failed, and of those that say that somebody plans something with it. The
#: first are those of NVIDIA's and Intel's drivers and of Kubernetes' documentation, with their like.
_FAILURE = re.compile(
    r"(?<![a-z])(?:bad|broken|critical|dead|defective|degraded|ecc|errors?|fail(?:ed|ing|ure)?|fault|faulty|lost"
    r"|survivability|unhealthy|wedged|xid)(?![a-z])"
)
_PLANNED = re.compile(r"(?<![a-z])(?:drain(?:ed|ing)?|maintenance|planned|upgrad(?:e|ing))(?![a-z])")

#: Amounts in thousandths, by name.
Thousandths = dict[str, int]


class DeviceAttribute(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attribute of a device.

    Attributes:
        kind: `int`, `bool`, `string` or `version`.
        values: one, or those of a list.
        listed: it is a list.
    """

    kind: str
    values: tuple[int | bool | str, ...]
    listed: bool = False


class CapacityPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The requestable range of a capacity, and the amount given for a request.

    Attributes:
        default: given to requests that do not name the capacity; None for all of it.
        values: what can be given, ascending; a request gets the first that is enough.
        least: what can be given at least; None where there is no range.
        most: at most; None for no bound.
        step: from the least on, in such steps; None for any amount.
    """

    default: int | None = None
    values: tuple[int, ...] = ()
    least: int | None = None
    most: int | None = None
    step: int | None = None


class DeviceCapacity(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device's amount of one capacity."""

    value: int
    policy: CapacityPolicy | None = None


class CounterUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device's use of the counters that it shares with others of its pool."""

    counter_set: str
    counters: Thousandths


class DeviceTaint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A taint of a device; of the effects only `NoSchedule` and `NoExecute` keep requests off."""

    key: str
    effect: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.key}{'=' if self.value else ''}{self.value}:{self.effect}"

    @property
    def says_failed(self) -> bool:
        """True if its words say that the device has failed, and its effect that this is no application's doing.

        Sources: kubernetes-sigs/dra-driver-nvidia-gpu 0.4.0, `gpu-health-checking.md`: an XID that an application may
        have caused has the effect `None`; intel/intel-resource-drivers-for-kubernetes, `health.go`: an error is
        `Critical`, and what may become one `Warning`.
        """
        words = f"{self.key.rpartition('/')[2]} {self.value}".lower()
        fails = self.effect in (NO_SCHEDULE, NO_EXECUTE) and _FAILURE.search(words) is not None
        return fails and _PLANNED.search(words) is None


class DeviceTaintRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A taint that someone other than the driver gives devices.

    Attributes:
        none: it says of no device that it is for it.
        driver: of the devices; empty for any. So are pool and device.
    """

    uid: str
    name: str
    resource_version: str
    taint: DeviceTaint
    none: bool = False
    driver: str = ""
    pool: str = ""
    device: str = ""

    def is_for(self, driver: str, pool: str, device: str) -> bool:
        """Tell whether a device has the taint."""
        if self.none:
            return False
        return self.driver in ("", driver) and self.pool in ("", pool) and self.device in ("", device)


class NodeSelection(msgspec.Struct, frozen=True, omit_defaults=True):
    """From which nodes devices can be used: one node by name, all nodes, or those that meet any of the terms.

    Attributes:
        node: its name; empty for others.
        terms: of which a node has to meet any; None for no selector.
    """

    node: str = ""
    everywhere: bool = False
    terms: tuple[tuple[Requirement, ...], ...] | None = None


class Device(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device of a slice.

    Attributes:
        name: in its pool.
        attributes: by full name.
        consumes: what it takes of its pool's counters while any claim has it.
        nodes: from where it can be used, where its slice leaves that to each device; None otherwise.
        shared: several claims may have it at a time (`allowMultipleAllocations`).
        binds_to_node: a claim that has it can be used on the node it was allocated for, and on no other.
        binding_conditions: conditions that have to be true before a pod that uses it is bound.
        failure_conditions: conditions of which any being true ends waiting for those.
    """

    name: str
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes: tuple[CounterUse, ...] = ()
    nodes: NodeSelection | None = None
    taints: tuple[DeviceTaint, ...] = ()
    shared: bool = False
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] = ()
    failure_conditions: tuple[str, ...] = ()


class ResourceSlice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a driver's pool of devices.

    Attributes:
        generation: of the pool as this slice has it; slices of older generations do not count.
        slices: how many slices the pool has in that generation.
        nodes: from where its devices can be used; None where each device says that itself.
        counters: counter sets that devices of the pool share: amounts by counter, by set.
        partial: it has devices that could not be read; nothing is allocated from its pool.
    """

    uid: str
    name: str
    resource_version: str
    driver: str
    pool: str
    generation: int = 0
    slices: int = 1
    nodes: NodeSelection | None = None
    devices: tuple[Device, ...] = ()
    counters: dict[str, Thousandths] = {}
    partial: bool = False


class DeviceClass(msgspec.Struct, frozen=True, omit_defaults=True):
    """A class of devices.

    Attributes:
        selectors: CEL expressions, all of which a device has to meet.
        extended_resource: requests of containers for this resource are for devices of the class; empty for none.
        created_at: seconds since the epoch.
        unsupported: parts of it that this version cannot honour.
    """

    uid: str
    name: str
    resource_version: str
    selectors: tuple[str, ...] = ()
    extended_resource: str = ""
    created_at: int = 0
    unsupported: tuple[str, ...] = ()


class DeviceToleration(msgspec.Struct, frozen=True, omit_defaults=True):
    """A toleration of device taints; an empty key with `Exists` is for all, an empty effect for every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: DeviceTaint) -> bool:
        """Tell whether it is for a taint."""
        if (self.effect and self.effect != taint.effect) or (self.key and self.key != taint.key):
            return False
        return self.operator == "Exists" or (self.operator == "Equal" and self.value == taint.value)


def untolerated(taints: tuple[DeviceTaint, ...], tolerations: tuple[DeviceToleration, ...]) -> DeviceTaint | None:
    """Return the first taint that keeps a request off which has some tolerations; None for none."""
    for taint in taints:
        if taint.effect in (NO_SCHEDULE, NO_EXECUTE) and not any(one.tolerates(taint) for one in tolerations):
            return taint
    return None


class DeviceRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request of a claim.

    Attributes:
        device_class: name of the class; empty where there are alternatives.
        mode: `ExactCount`, or `All` that match.
        count: how many devices.
        admin: access beside the claim that has the device, for watching it.
        alternatives: requests of which the first that can be served is.
    """

    name: str
    device_class: str = ""
    selectors: tuple[str, ...] = ()
    mode: str = EXACT_COUNT
    count: int = 1
    admin: bool = False
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: Thousandths = {}
    alternatives: tuple["DeviceRequest", ...] = ()


class DeviceConstraint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A property that the devices of some requests share, or must not share.

    Attributes:
        requests: names of requests, `request/alternative` among them; none for all.
        match: full name of an attribute in which all devices agree; lists agree when they share a value.
        distinct: full name of an attribute in which no two devices agree.
    """

    requests: tuple[str, ...] = ()
    match: str = ""
    distinct: str = ""


class AllocatedDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device that a claim has.

    Attributes:
        request: for which request, `request/alternative` where it had alternatives.
        admin: beside another claim that has it.
        consumed: what it takes of a shared device's capacity; None of one that is not shared.
        conditions: that have to be true before a pod that uses it is bound (`bindingConditions`).
        failures: that end waiting for those.
        numa: NUMA zones that it is close to, as its driver said when it was chosen; empty where it did not, and in what
            the API server tells of claims.
        tolerations: of its request.
    """

    request: str
    driver: str
    pool: str
    device: str
    admin: bool = False
    consumed: Thousandths | None = None
    conditions: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    numa: tuple[int, ...] = ()
    tolerations: tuple[DeviceToleration, ...] = ()

    @property
    def id(self) -> tuple[str, str, str]:
        """Driver, pool and name."""
        return self.driver, self.pool, self.device


class Allocation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A claim's allocation.

    Attributes:
        terms: node selector terms of which a node has to meet any for the claim to be used there; None for any node.
    """

    devices: tuple[AllocatedDevice, ...] = ()
    terms: tuple[tuple[Requirement, ...], ...] | None = None


class ResourceClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """A claim.

    Attributes:
        owner: uid of the pod that it was made for; empty for none.
        group: name of the `scheduling.k8s.io` PodGroup that it was made for, for all pods of it; empty for none.
        requests: what it asks for.
        constraints: what its devices must have in common, or not.
        allocation: what it has; None before.
        reserved_for: uids of the pods that may use it.
        deleting: it is about to go.
        unsupported: parts of it that this version cannot honour; pods that use it wait.
    """

    uid: str
    namespace: str
    name: str
    resource_version: str
    owner: str = ""
    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    allocation: Allocation | None = None
    reserved_for: tuple[str, ...] = ()
    deleting: bool = False
    unsupported: tuple[str, ...] = ()
    group: str = ""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class ExtendedMapping(msgspec.Struct, frozen=True, omit_defaults=True):
    """A container uses the devices of a request for an extended resource."""

    container: str
    resource: str
    request: str


class ExtendedClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """A claim that is to be made for the extended resources of a pod that devices stand for on its node.

    Attributes:
        requests: with names, classes and counts.
        mappings: which containers use them for which resources (`status.extendedResourceClaimStatus` of the pod).
    """

    name: str
    requests: tuple[DeviceRequest, ...]
    mappings: tuple[ExtendedMapping, ...]


class PodClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """A claim that a pod uses.

    Attributes:
        name: by which its containers name it.
        claim: the claim's name; empty as long as it is to be made from a template.
        template: the template's name; empty where the pod names a claim that several may use.
        needless: its controller has found that no claim is needed.
    """

    name: str
    claim: str = ""
    template: str = ""
    needless: bool = False
