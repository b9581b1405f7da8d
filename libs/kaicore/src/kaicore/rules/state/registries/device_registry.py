"""Device classes, slices and resource claims of a cluster, and their effect on the pods that use them.

A claim has its devices by a fact (`status.allocation`) or, until that is seen, by the decision that gave them to it for
a pod. Either way they are counted once, so that no other claim gets them. Slices have the taints that rules give their
devices. The pods that use a claim are kept, of resource claims and of persistent volume claims alike.

A device class may stand for an extended resource. A node with a kubelet that has no such resource offers the devices of
the class that it can use, as if they were so much of the resource. So queues, scores and totals count them; the devices
of a pod are decided beside that. A node with a kubelet that has the resource, by a device plugin, offers that alone.

Source: kube-scheduler 1.37, plugin DynamicResources; `extendedresourcecache` of `k8s.io/dynamic-resource-allocation`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from kaicore.rules.devices.allocation import MOST_DEVICES
from kaicore.rules.devices.extended_requests import IMPLICIT_PREFIX, ExtendedRequests, extended_claim, extended_requests
from kaicore.rules.devices.pools import PooledDevice, consumed_capacity
from kaicore.rules.devices.selectors import SelectorFailed, selector_problem
from kaicore.rules.engine.constraints.claims.demands import NO_DEVICES, DeviceDemand, WantedClaim
from kaicore.rules.engine.constraints.claims.supplies import DeviceSupply, GivenClaim, PodDevices
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.events import payloads
from kaicore.rules.model.device import (
    NO_EXECUTE,
    AllocatedDevice,
    Allocation,
    Device,
    DeviceClass,
    DeviceRequest,
    DeviceTaint,
    DeviceTaintRule,
    PodClaim,
    ResourceClaim,
    ResourceSlice,
    untolerated,
)
from kaicore.rules.model.node import Node
from kaicore.rules.model.pod import Amounts, Pod


class ClaimUsers:
    """The pods that use each claim."""

    def __init__(self) -> None:
        self._uids: dict[str, set[str]] = {}

    def add(self, uid: str, claims: Iterable[str]) -> None:
        """Know that a pod uses claims, by `namespace/name`; harmless when it is known."""
        for key in claims:
            self._uids.setdefault(key, set()).add(uid)

    def remove(self, uid: str, claims: Iterable[str]) -> None:
        """Forget that a pod uses claims; harmless when it is not known."""
        for key in claims:
            uids = self._uids.get(key, set())
            uids.discard(uid)
            if not uids:
                self._uids.pop(key, None)

    def of(self, claim: str) -> Collection[str]:
        """Return the uids of the pods that use a claim."""
        return self._uids.get(claim, ())

    def is_shared(self, claim: str) -> bool:
        """Tell whether several pods use a claim."""
        return len(self.of(claim)) > 1


class DeviceSlices:
    """Slices and taint rules at one position of a cluster's log; the supply has each slice with all its taints.

    Source: `k8s.io/dynamic-resource-allocation/resourceslice/tracker` 0.37.
    """

    def __init__(self, supply: DeviceSupply, *, changed: Callable[[ResourceSlice], None]) -> None:
        """Args:
        changed: is called with slices once the supply has them as they are.
        """
        #: By name.
        self.slices: dict[str, ResourceSlice] = {}
        self.rules: dict[str, DeviceTaintRule] = {}
        self._supply = supply
        self._changed = changed

    def set_slice(self, seen: ResourceSlice) -> None:
        """A slice is new, or has changed."""
        self.forget_slice(seen.name)
        self.slices[seen.name] = seen
        self._supply.set_slice(self._tainted(seen))
        self._changed(seen)

    def forget_slice(self, name: str) -> None:
        """A slice is gone; harmless where it is not known."""
        before = self.slices.pop(name, None)
        if before is not None:
            self._supply.forget_slice(before)
            self._changed(before)

    def set_rule(self, rule: DeviceTaintRule) -> None:
        """A taint rule is new, or has changed."""
        before = self.rules.get(rule.name)
        self.rules[rule.name] = rule
        self._taint_anew(*filter(None, (before, rule)))

    def forget_rule(self, name: str) -> None:
        """A taint rule is gone; harmless where it is not known."""
        before = self.rules.pop(name, None)
        if before is not None:
            self._taint_anew(before)

    def taints(self, driver: str, pool: str, device: str) -> Iterator[DeviceTaint]:
        """Yield the taints of a device, whether a slice still has it or not."""
        for one in self._supply.slices_of_pool((driver, pool)):
            for each in one.slice.devices:
                if each.name == device:
                    yield from each.taints
                    return
        yield from self._taints_by_rules(driver, pool, device)

    def failed_on(self, node: str) -> tuple[str, ...]:
        """Return the devices of a node alone that taints call failed, each with the first of these taints.

        A rule that names no pool is for devices of several nodes: it says nothing about this one.
        """
        found = set()
        for one in self._supply.slices_of_node(node):
            of = self.slices[one.slice.name]
            for device in of.devices:
                rules = (rule for _, rule in sorted(self.rules.items()) if rule.pool)
                by_rules = [rule.taint for rule in rules if rule.is_for(of.driver, of.pool, device.name)]
                taint = next((each for each in (*device.taints, *by_rules) if each.says_failed), None)
                found |= set() if taint is None else {f"{device.name} {taint}"}
        return tuple(sorted(found))

    def _taint_anew(self, *rules: DeviceTaintRule) -> None:
        for one in self.slices.values():
            if any(rule.is_for(one.driver, one.pool, device.name) for rule in rules for device in one.devices):
                self._supply.set_slice(self._tainted(one))
                self._changed(one)

    def _tainted(self, one: ResourceSlice) -> ResourceSlice:
        if not self.rules:
            return one
        return msgspec.structs.replace(one, devices=tuple(self._tainted_device(one, each) for each in one.devices))

    def _tainted_device(self, of: ResourceSlice, device: Device) -> Device:
        more = tuple(self._taints_by_rules(of.driver, of.pool, device.name))
        return msgspec.structs.replace(device, taints=(*device.taints, *more)) if more else device

    def _taints_by_rules(self, driver: str, pool: str, device: str) -> Iterator[DeviceTaint]:
        for _, rule in sorted(self.rules.items()):
            if rule.is_for(driver, pool, device):
                yield rule.taint


_NOTHING: Amounts = {}


class ExtendedResources:
    """Device classes by the extended resources that they stand for."""

    def __init__(self, columns: NodeColumns) -> None:
        """Args: columns: have offered what nodes offer."""
        self._columns = columns
        #: All device classes, by name; `classes_changed` follows each change of them.
        self.classes: dict[str, DeviceClass] = {}
        #: How many classes of pods ask for each resource that no class names.
        self._asked: Counter[str] = Counter()
        self._served: dict[str, DeviceClass] = {}
        columns.offer_of = self.offer

    def requests(self, pod: Pod) -> ExtendedRequests:
        """Return the requests for devices that stand for what a pod asks for."""
        if not self._served:
            return ExtendedRequests()
        asked = {name for container in pod.containers for name in container.requests}
        return extended_requests(pod, {name: self._served[name].name for name in asked & self._served.keys()})

    def serves(self, asked: Iterable[str]) -> bool:
        """Tell whether device classes stand for any of some resources."""
        return bool(self._served) and not self._served.keys().isdisjoint(asked)

    # Changes.

    def asked_for(self, resources: Iterable[str], *, sign: int) -> None:
        """A class of pods is new that asks for some resources, or is no more (`sign=-1`)."""
        implicit = [name for name in resources if name.startswith(IMPLICIT_PREFIX)]
        if implicit:
            self._asked.update(dict.fromkeys(implicit, sign))
            self.classes_changed()

    def classes_changed(self) -> None:
        """Device classes are others, or have changed."""
        served: dict[str, DeviceClass] = {}
        # Of two classes for one resource the newer one, as while moving from one to the other; by name among those.
        for one in sorted(self.classes.values(), key=lambda one: (-one.created_at, one.name)):
            if one.extended_resource:
                served.setdefault(one.extended_resource, one)
            if self._asked[f"{IMPLICIT_PREFIX}{one.name}"] > 0:
                served.setdefault(f"{IMPLICIT_PREFIX}{one.name}", one)
        if served != self._served:
            self._served = served
            self._offer_anew(self._columns.rows.values())

    def slice_changed(self, of: ResourceSlice) -> None:
        """A slice is new, gone or other than before."""
        if not self._served:
            return
        rows = self._columns.rows
        if of.nodes is not None and of.nodes.node:
            self._offer_anew([rows[of.nodes.node]] if of.nodes.node in rows else ())
        else:
            self._offer_anew(rows.values())

    def _offer_anew(self, rows: Iterable[int]) -> None:
        for row in rows:
            node = self._columns.facts[row]
            if node is not None and self.offer(node) != self._columns.offers.get(row, _NOTHING):
                self._columns.set_node(node, row)

    # What a node offers.

    def offer(self, node: Node) -> Amounts:
        """Return how much of each resource a node offers by its devices."""
        if not self._served:
            return _NOTHING
        offers: Amounts = {}
        devices = [
            device
            for pool in self._columns.devices.pools(node)
            if not pool.problem
            for device in pool.devices
            if untolerated(device.device.taints, ()) is None
        ]
        for resource, device_class in self._served.items():
            if node.allocatable.get(resource):
                continue
            count = sum(_shares(device) for device in devices if _is_of(device, device_class))
            if count:
                offers[resource] = count
        return offers


def _is_of(device: PooledDevice, device_class: DeviceClass) -> bool:
    try:
        return device.meets(device_class.selectors)
    except SelectorFailed:
        return False


def _shares(device: PooledDevice) -> int:
    """Return to how many requests a device can be given at a time."""
    one = device.device
    consumed = consumed_capacity(one, {})
    if consumed is None:
        return 0
    if not one.shared:
        return 1
    shares = (one.capacity[name].value // amount for name, amount in consumed.items() if amount)
    return min(shares, default=MOST_DEVICES)


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
        """Args: columns: their supply gets every slice, and all devices of claims."""
        supply = columns.devices
        #: Device classes, and which of them stand for extended resources.
        self.extended = ExtendedResources(columns)
        self.slices = DeviceSlices(supply, changed=self.extended.slice_changed)
        #: By `namespace/name`.
        self.claims: dict[str, ResourceClaim] = {}
        self._supply = supply
        self.users = ClaimUsers()
        #: What decisions gave to claims for placed pods, by claim, by the pod's uid.
        self._promised: dict[str, dict[str, Allocation]] = {}
        self._of_pod: dict[str, Mapping[str, Allocation]] = {}
        #: Claims for extended resources that decisions promised, each with the uid of its pod.
        self._made_for: dict[str, str] = {}
        #: What the supply counts, by claim: the uid of the pod that owns the claim, and its devices.
        self._counted: dict[str, tuple[str, tuple[AllocatedDevice, ...]]] = {}
        #: The same of pods' own claims, by the pod's uid, by claim.
        self._own: dict[str, dict[str, tuple[AllocatedDevice, ...]]] = {}

    @property
    def classes(self) -> dict[str, DeviceClass]:
        """Device classes, by name."""
        return self.extended.classes

    def promise(self, pod: Pod, devices: Mapping[str, Allocation]) -> bool:
        """Have what a decision gave to a pod's claims counted, and nothing else; return whether anything changed.

        Args:
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

    # Questions of cycles.

    def demand(self, pod: Pod, *, again: bool = False) -> DeviceDemand:
        """Return what the pod's resource claims ask of its node, that for its extended resources among them.

        Args:
            again: of the pod that takes its place, for which claims are made once more that are the pod's own.
        """
        extended = self.extended.requests(pod).requests
        if not pod.resource_claims and not extended:
            return NO_DEVICES
        waits: list[str] = []
        places = []
        for use in pod.resource_claims:
            key = f"{pod.namespace}/{use.claim}"
            claim = self.claims.get(key)
            own = again and claim is not None and claim.owner == pod.uid
            if not use.needless:
                problems = self._problems(pod, use, claim, again=own)
                waits += [f"claim {use.claim or use.name} {problem}" for problem in problems]
            allocation = None if own else self.allocation(key)
            if allocation is not None and allocation.terms is not None:
                places.append(("node selector of an allocated claim", allocation.terms))
        for one in extended:
            waits += (f"extended resource {one.resource} {problem}" for problem in self._request_problems(one.request))
        wanted = () if waits else tuple(want for want, _ in self._wanted(pod, again=again))
        return DeviceDemand(tuple(dict.fromkeys(waits)), tuple(dict.fromkeys(places)), wanted)

    def given(self, pod: Pod, claims: Sequence[GivenClaim]) -> PodDevices:
        """Return what becomes of a placed pod's claims.

        Args:
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

    def _wanted(self, pod: Pod, *, again: bool = False) -> list[tuple[WantedClaim, ResourceClaim | None]]:
        """Return a pod's claims that have nothing yet, in the order in which they choose; with `again` its own, too.

        The last one may be none that there is: it is for extended resources.
        """
        wanted: list[tuple[WantedClaim, ResourceClaim | None]] = []
        for key in dict.fromkeys(resource_claim_keys(pod)):
            claim = self.claims.get(key)
            if claim is not None and ((again and claim.owner == pod.uid) or self.allocation(key) is None):
                shared = key if self.users.is_shared(key) else ""
                requests = tuple(map(self._with_class, claim.requests))
                wanted.append((WantedClaim(requests, claim.constraints, shared), claim))
        extended = self.extended.requests(pod).requests
        if extended:
            requests = tuple(self._with_class(one.request) for one in extended)
            wanted.append((WantedClaim(requests, extended=tuple(one.resource for one in extended)), None))
        return wanted

    def _with_class(self, request: DeviceRequest) -> DeviceRequest:
        if request.alternatives:
            return msgspec.structs.replace(request, alternatives=tuple(map(self._with_class, request.alternatives)))
        device_class = self.classes.get(request.device_class)
        selectors = () if device_class is None else device_class.selectors
        return msgspec.structs.replace(request, selectors=(*selectors, *request.selectors))

    def _problems(self, pod: Pod, use: PodClaim, claim: ResourceClaim | None, *, again: bool) -> Iterator[str]:
        """Say what keeps a claim from being used at all, or one like it that is made `again`."""
        if not use.claim:
            yield f"is not made yet from template {use.template}"
        elif claim is None:
            yield "does not exist"
        elif use.template and not _is_made_for(claim, pod):
            yield "was not made for this pod, nor for its PodGroup"
        elif claim.deleting and not again:
            yield "is being deleted"
        elif not again and pod.uid not in claim.reserved_for and len(claim.reserved_for) >= _MOST_CONSUMERS:
            yield f"is reserved for {len(claim.reserved_for)} pods already"
        elif not again and (allocation := self.allocation(claim.key)) is not None:
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
