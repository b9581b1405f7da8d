"""Device classes, slices and resource claims of a cluster, and their effect on the pods that use them.

A claim has its devices by a fact (`status.allocation`) or, until that is seen, by the decision that gave them to it for
a pod. Either way they are counted once, so that no other claim gets them.

Source: kube-scheduler's plugin DynamicResources.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from kaicore.rules.devices.extended_requests import extended_claim
from kaicore.rules.devices.selectors import selector_problem
from kaicore.rules.engine.constraints.device_demand import NO_DEVICES, DeviceDemand, WantedClaim
from kaicore.rules.engine.constraints.device_supply import GivenClaim, PodDevices
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.events import payloads
from kaicore.rules.model.device import (
    NO_EXECUTE,
    AllocatedDevice,
    Allocation,
    DeviceClass,
    DeviceRequest,
    DeviceTaintRule,
    PodClaim,
    ResourceClaim,
    ResourceSlice,
    untolerated,
)
from kaicore.rules.model.pod import Pod
from kaicore.rules.state.claim_users import ClaimUsers
from kaicore.rules.state.device_slices import DeviceSlices
from kaicore.rules.state.extended_resources import ExtendedResources

#: Facts that are for `DeviceRegistry.take`.
DEVICE_FACTS: tuple[type[payloads.Payload], ...] = (
    payloads.ResourceSliceObserved,
    payloads.ResourceSliceDeleted,
    payloads.DeviceClassObserved,
    payloads.DeviceClassDeleted,
    payloads.DeviceTaintRuleObserved,
    payloads.DeviceTaintRuleDeleted,
    payloads.ResourceClaimObserved,
    payloads.ResourceClaimDeleted,
)

#: So many pods may use a claim at a time (`ResourceClaimReservedForMaxSize`).
_MOST_CONSUMERS = 256

_NO_DEVICES: dict[str, Allocation] = {}


class DeviceRegistry:
    """Everything about devices, at one position of a cluster's log."""

    def __init__(self, columns: NodeColumns) -> None:
        """Args: columns: whose supply is told of every slice, and of all that claims have."""
        supply = columns.devices
        #: Device classes, and which of them stand for extended resources.
        self.extended = ExtendedResources(columns)
        self.slices = DeviceSlices(supply, changed=self.extended.slice_changed)
        #: By `namespace/name`.
        self.claims: dict[str, ResourceClaim] = {}
        self._supply = supply
        self._users = ClaimUsers()
        #: What decisions gave to claims for placed pods, by claim, by the pod's uid.
        self._promised: dict[str, dict[str, Allocation]] = {}
        self._of_pod: dict[str, Mapping[str, Allocation]] = {}
        #: Claims for extended resources that decisions promised, each with the uid of its pod.
        self._made_for: dict[str, str] = {}
        #: What the supply counts, by claim: the uid of the pod whose own the claim is, and its devices.
        self._counted: dict[str, tuple[str, tuple[AllocatedDevice, ...]]] = {}
        #: The same of pods' own claims, by the pod's uid, by claim.
        self._own: dict[str, dict[str, tuple[AllocatedDevice, ...]]] = {}

    @property
    def classes(self) -> dict[str, DeviceClass]:
        """Device classes, by name."""
        return self.extended.classes

    # Pods.

    def add_pod(self, pod: Pod) -> None:
        """Know of a pod that uses its claims; harmless when it is known."""
        self._users.add(pod.uid, resource_claim_keys(pod))

    def remove_pod(self, pod: Pod) -> None:
        """Forget a pod."""
        self._users.remove(pod.uid, resource_claim_keys(pod))

    def promise(self, pod: Pod, devices: Mapping[str, Allocation]) -> bool:
        """Have what a decision gave to a pod's claims counted, and nothing else; return whether anything changed.

        Args:
            pod: the pod.
            devices: by the claim's name; empty where the pod has no node any more.
        """
        before = self._of_pod.get(pod.uid, _NO_DEVICES)
        if before == devices:
            return False
        for name in before:
            promised = self._promised[f"{pod.namespace}/{name}"]
            del promised[pod.uid]
            if not promised:
                del self._promised[f"{pod.namespace}/{name}"]
            self._made_for.pop(f"{pod.namespace}/{name}", None)
        used = {key.partition("/")[2] for key in resource_claim_keys(pod)}
        for name, allocation in devices.items():
            self._promised.setdefault(f"{pod.namespace}/{name}", {})[pod.uid] = allocation
            if name not in used:
                self._made_for[f"{pod.namespace}/{name}"] = pod.uid
        if devices:
            self._of_pod[pod.uid] = devices
        else:
            del self._of_pod[pod.uid]
        for name in {**before, **devices}:
            self._count(f"{pod.namespace}/{name}")
        return True

    # Facts.

    def take(self, payload: payloads.Payload) -> None:
        """Take in one of `DEVICE_FACTS`."""
        match payload:
            case payloads.ResourceSliceObserved(resource_slice):
                self.slices.set_slice(resource_slice)
            case payloads.ResourceSliceDeleted(_, name):
                self.slices.forget_slice(name)
            case payloads.DeviceTaintRuleObserved(rule):
                self.slices.set_rule(rule)
            case payloads.DeviceTaintRuleDeleted(_, name):
                self.slices.forget_rule(name)
            case payloads.DeviceClassObserved(device_class):
                self.classes[device_class.name] = device_class
                self.extended.classes_changed()
            case payloads.DeviceClassDeleted(_, name):
                self.classes.pop(name, None)
                self.extended.classes_changed()
            case payloads.ResourceClaimObserved(claim):
                self.claims[claim.key] = claim
                self._count(claim.key)
            case payloads.ResourceClaimDeleted(_, namespace, name):
                self.claims.pop(f"{namespace}/{name}", None)
                self._count(f"{namespace}/{name}")
            case _:
                pass

    def restore(
        self,
        slices: Iterable[ResourceSlice],
        classes: Iterable[DeviceClass],
        claims: Iterable[ResourceClaim],
        taint_rules: Iterable[DeviceTaintRule],
    ) -> None:
        """Put the facts back, before any pod."""
        for rule in taint_rules:
            self.take(payloads.DeviceTaintRuleObserved(rule))
        for one in slices:
            self.take(payloads.ResourceSliceObserved(one))
        self.classes.update((one.name, one) for one in classes)
        self.extended.classes_changed()
        for claim in claims:
            self.take(payloads.ResourceClaimObserved(claim))

    # Questions of cycles.

    def demand(self, pod: Pod) -> DeviceDemand:
        """Return what the pod's resource claims ask of its node, that for its extended resources among them."""
        extended = self.extended.requests(pod).requests
        if not pod.resource_claims and not extended:
            return NO_DEVICES
        waits: list[str] = []
        places = []
        for use in pod.resource_claims:
            key = f"{pod.namespace}/{use.claim}"
            claim = self.claims.get(key)
            if not use.needless:
                waits += [f"claim {use.claim or use.name} {problem}" for problem in self._problems(pod, use, claim)]
            allocation = self.allocation(key)
            if allocation is not None and allocation.terms is not None:
                places.append(("node selector of an allocated claim", allocation.terms))
        for one in extended:
            waits += (f"extended resource {one.resource} {problem}" for problem in self._request_problems(one.request))
        wanted = () if waits else tuple(want for want, _ in self._wanted(pod))
        return DeviceDemand(tuple(dict.fromkeys(waits)), tuple(dict.fromkeys(places)), wanted)

    def given(self, pod: Pod, claims: Sequence[GivenClaim]) -> PodDevices:
        """Return what becomes of a placed pod's claims.

        Args:
            pod: the pod.
            claims: what it gets for each claim that its demand wants.
        """
        devices: dict[str, Allocation] = {}
        extended = None
        for (_, claim), one in zip(self._wanted(pod), claims, strict=True):
            if claim is None:
                extended = extended_claim(pod, self.extended.requests(pod), one.allocation)
            name = claim.name if claim is not None else extended.name if extended is not None else ""
            if name:
                devices[name] = one.allocation
        reserved: list[str] = []
        for key in dict.fromkeys(resource_claim_keys(pod)):
            claim = self.claims.get(key)
            if claim is None or claim.name in devices:
                continue
            promised = self._promised.get(key)
            if claim.allocation is not None:
                reserved.append(claim.name)
            elif promised:
                devices[claim.name] = promised[min(promised)]
        return PodDevices(devices, tuple(reserved), extended)

    def charged(self, decision: payloads.PodPlaced) -> Iterator[tuple[str, str]]:
        """Yield what a decision gives of devices that no node's stream guards: stream, and pool or claim."""
        for name, allocation in decision.devices.items():
            claim = self.claims.get(f"{decision.namespace}/{name}")
            made = decision.extended_claim is not None and decision.extended_claim.name == name
            if not made and (claim is None or claim.owner != decision.uid):
                yield f"claimdevices/{decision.namespace}/{name}", f"{decision.namespace}/{name}"
            for pool in {(device.driver, device.pool) for device in allocation.devices if not device.admin}:
                if not self._supply.is_of_one_node(pool):
                    yield f"devicepool/{pool[0]}/{pool[1]}", "/".join(pool)

    def allocation(self, key: str) -> Allocation | None:
        """Return what a claim has, by a fact or by a decision; None for nothing."""
        claim = self.claims.get(key)
        if claim is not None and claim.allocation is not None:
            return claim.allocation
        promised = self._promised.get(key)
        return promised[min(promised)] if promised else None

    def _wanted(self, pod: Pod) -> list[tuple[WantedClaim, ResourceClaim | None]]:
        """Return a pod's claims that have nothing yet, in the order in which they choose.

        The last one may be none that there is: it is for extended resources.
        """
        wanted: list[tuple[WantedClaim, ResourceClaim | None]] = []
        for key in dict.fromkeys(resource_claim_keys(pod)):
            claim = self.claims.get(key)
            if claim is not None and self.allocation(key) is None:
                shared = key if self._users.is_shared(key) else ""
                requests = tuple(map(self._with_class, claim.requests))
                wanted.append((WantedClaim(requests, claim.constraints, shared), claim))
        extended = self.extended.requests(pod).requests
        if extended:
            requests = tuple(self._with_class(one.request) for one in extended)
            wanted.append((WantedClaim(requests, extended=tuple(one.resource for one in extended)), None))
        return wanted

    def _with_class(self, request: DeviceRequest) -> DeviceRequest:
        """Return a request with the selectors of its class before its own."""
        if request.alternatives:
            return msgspec.structs.replace(request, alternatives=tuple(map(self._with_class, request.alternatives)))
        device_class = self.classes.get(request.device_class)
        selectors = () if device_class is None else device_class.selectors
        return msgspec.structs.replace(request, selectors=(*selectors, *request.selectors))

    def _problems(self, pod: Pod, use: PodClaim, claim: ResourceClaim | None) -> Iterator[str]:
        """Say what keeps a claim from being used at all."""
        if not use.claim:
            yield f"is not made yet from template {use.template}"
        elif claim is None:
            yield "does not exist"
        elif use.template and not _is_made_for(claim, pod):
            yield "was not made for this pod, nor for its PodGroup"
        elif claim.deleting:
            yield "is being deleted"
        elif pod.uid not in claim.reserved_for and len(claim.reserved_for) >= _MOST_CONSUMERS:
            yield f"is reserved for {len(claim.reserved_for)} pods already"
        elif (allocation := self.allocation(claim.key)) is not None:
            yield from self._evicting_taints(allocation)
        else:
            yield from (f"asks for what this version does not allocate: {part}" for part in claim.unsupported)
            for request in claim.requests:
                yield from self._request_problems(request)

    def _evicting_taints(self, allocation: Allocation) -> Iterator[str]:
        """Say which of a claim's devices have taints for which pods that use them are evicted."""
        for device in allocation.devices:
            taints = tuple(one for one in self.slices.taints(*device.id) if one.effect == NO_EXECUTE)
            # As that controller has it: a toleration without an effect lets a device be given, and does not keep it.
            tolerations = tuple(one for one in device.tolerations if one.effect == NO_EXECUTE)
            taint = untolerated(taints, tolerations)
            if taint is not None:
                yield f"has device {device.device} with taint {taint}, for which pods that use it are evicted"

    def _request_problems(self, request: DeviceRequest) -> Iterator[str]:
        for part in request.alternatives or (request,):
            device_class = self.classes.get(part.device_class)
            if device_class is None:
                yield f"asks for device class {part.device_class}, which does not exist"
                continue
            for problem in device_class.unsupported:
                yield f"asks for device class {part.device_class}, of which {problem}"
            for expression in (*device_class.selectors, *part.selectors):
                problem = selector_problem(expression)
                if problem:
                    yield f"has a selector that this version cannot evaluate: {expression!r}: {problem}"

    # The supply.

    def _count(self, key: str) -> None:
        """Have the supply count what a claim has now."""
        allocation, claim = self.allocation(key), self.claims.get(key)
        owner = self._made_for.get(key, "") if claim is None else claim.owner
        devices = () if allocation is None else allocation.devices
        before_owner, before = self._counted.pop(key, ("", ()))
        if devices:
            self._counted[key] = owner, devices
        if (before_owner, before) == (owner, devices):
            return
        self._supply.hold(before, sign=-1)
        self._supply.hold(devices)
        if before_owner:
            self._own[before_owner].pop(key)
        if owner and devices:
            self._own.setdefault(owner, {})[key] = devices
        for uid in {before_owner, owner} - {""}:
            own = self._own.get(uid, {})
            self._supply.set_own(uid, tuple(one for held in own.values() for one in held))
            if not own:
                self._own.pop(uid, None)


def _is_made_for(claim: ResourceClaim, pod: Pod) -> bool:
    """Tell whether a claim of a template is the pod's own, or that of its PodGroup (`resourceclaim.IsForPod`, 1.37)."""
    group = "" if pod.workload is None or pod.workload.workload else pod.workload.group
    return claim.group == group if claim.group else claim.owner == pod.uid


def resource_claim_keys(pod: Pod) -> Iterator[str]:
    """Yield the pod's claims that are made as `namespace/name`."""
    for use in pod.resource_claims:
        if use.claim:
            yield f"{pod.namespace}/{use.claim}"
