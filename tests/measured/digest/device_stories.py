"""Random stories of claims for devices: asked for in every way, given, and free again when their pods have ended.

What kube-controller-manager and the binder write of claims, a story has seen as the watcher sees it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.given.cluster.devices import (
    DRIVER,
    NUMA,
    Document,
    add_claim,
    add_slice,
    add_taint_rule,
    claim_document,
    exactly,
    gpu,
    read_class,
    slice_document,
)
from tests.given.cluster.factory import GPU, amounts, pod
from tests.given.work.workloads import OWNER
from tests.measured.digest.engine import Allocation, Pod, PodClaim, Recorder, allocation_document, payloads
from tests.measured.digest.stories import POLICIES, Story, config

#: The class of whole GPUs, which stands for the extended resource too.
WHOLE = "whole-gpus"
KINDS = ("cards", "cards", "parts", "shares", "plugin")
STEPS = (
    "bind",
    "bind",
    "fail",
    "finish",
    "finish",
    "delete",
    "go",
    "made",
    "gone",
    "restart",
    "time",
    "taint",
    "slice",
)

_LARGE = f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("60Gi"))'
_PART = f'device.attributes["{DRIVER}"].type == "part" && device.attributes["{DRIVER}"].slots <= '


def devices(recorder: Recorder, random: Random) -> None:
    """Claims of templates, shared ones and extended resources, of cards, partitions and devices to share."""
    _Devices(recorder, random).tell()


@dataclass(slots=True)
class _Claim:
    """A claim as the API server has it."""

    name: str
    asks: Document
    owner: Pod | None = None
    allocation: Document | None = None
    users: set[str] = field(default_factory=set)

    def document(self) -> Document:
        return claim_document(self.name, owner=self.owner, **self.asks)


class _Devices(Story):
    def __init__(self, recorder: Recorder, random: Random) -> None:
        super().__init__(recorder, random, config(random) if random.random() < 0.4 else None)
        self.claims: dict[str, _Claim] = {}
        #: The requests of pods without their claims yet, by uid.
        self.late: dict[str, Document] = {}
        #: Claims that nobody uses any more and that are still there.
        self.going: list[str] = []
        self.given: dict[str, payloads.PodPlaced] = {}
        self.tainted, self.generation = False, 1
        driver = f'device.driver == "{DRIVER}"'
        for one in (
            read_class(DRIVER, driver),
            read_class(WHOLE, driver, f'device.attributes["{DRIVER}"].type == "gpu"', extendedResourceName=GPU),
        ):
            recorder.record(f"deviceclass/{one.name}", payloads.DeviceClassObserved(one))
        self.nodes = {f"n{number}": random.choice(KINDS) for number in range(random.randint(1, 3))}
        self.nodes["n0"] = "cards"
        for name, kind in self.nodes.items():
            zone = amounts(cpu=8, memory=32, gpu=1 if kind == "plugin" else None)
            recorder.add_node(name, zone, zone, policy=random.choice(POLICIES))
            self._slices(name)
        self._shared("shared", {"requests": [exactly(count=random.randint(1, 2))]})

    def tell(self) -> None:
        random = self.random
        for _ in range(random.randint(3, 5)):
            for _ in range(random.randint(2, 5)):
                self._comes()
            self.cycle(run=False)
            for _ in range(random.randint(2, 7)):
                self._happens()
        self.cluster.now += 60_000_000
        self.rest(3)

    # Nodes.

    def _slices(self, node: str) -> None:
        """A driver publishes a node's devices, or publishes them anew."""
        random, kind = self.random, self.nodes[node]
        pool = {"generation": self.generation}
        if kind == "cards":
            cards = [
                gpu(f"gpu-{number}", numa=number % 2, memory=random.choice(("40Gi", "80Gi")))
                for number in range(random.randint(1, 4))
            ]
            add_slice(self.cluster, slice_document(node, *cards, pool=pool))
        elif kind == "shares":
            policy = {"default": "10Gi", "validValues": ["10Gi", "20Gi", "40Gi"]}
            capacity = {"memory": {"value": "80Gi", "requestPolicy": policy}}
            shares = [
                gpu(f"gpu-{number}", numa=[0, 1], allowMultipleAllocations=True, capacity=capacity)
                for number in range(random.randint(1, 2))
            ]
            add_slice(self.cluster, slice_document(node, *shares, pool=pool))
        elif kind == "parts":
            pool["resourceSliceCount"] = 2
            parts = [
                gpu(
                    f"part-{card}-{slots}-{number}",
                    numa=card,
                    attributes={"type": {"string": "part"}, "slots": {"int": slots}},
                    consumesCounters=[{"counterSet": f"card-{card}", "counters": {"slots": {"value": str(slots)}}}],
                )
                for card in range(2)
                for slots, count in ((4, 1), (2, 2), (1, 2))
                for number in range(count)
            ]
            cards = [{"name": f"card-{card}", "counters": {"slots": {"value": "4"}}} for card in range(2)]
            add_slice(self.cluster, slice_document(node, *parts, pool=pool))
            add_slice(self.cluster, slice_document(node, name=f"{node}-cards", sharedCounters=cards, pool=pool))

    # Pods and claims.

    def _comes(self) -> None:
        """A pod comes; nearly always its claim is made at once."""
        random = self.random
        self.count += 1
        name = f"p{self.count}"
        spec: dict[str, Any] = {
            "cpu": random.choice((1, 1, 2, 4)),
            "priority": random.randint(0, 2),
            "owner": OWNER,
            "created_at": self.count,
        }
        how = random.random()
        if how < 0.2:
            self.add(pod(name, gpu=random.randint(1, 2), **spec))
        elif how < 0.35:
            self.add(pod(name, resource_claims=(PodClaim("shared", "shared"),), **spec))
        else:
            one = self.add(pod(name, resource_claims=(PodClaim("gpu", template="of-the-story"),), **spec))
            self.late[one.uid] = self._asks()
            if random.random() < 0.85:
                self._made(one.uid)

    def _asks(self) -> Document:
        random = self.random
        what = random.choice(("one", "large", "matched", "part", "share", "either", "two-requests", "all"))
        if what == "large":
            return {"requests": [exactly("gpu", DRIVER, _LARGE, count=random.randint(1, 2))]}
        if what == "matched":
            return {"requests": [exactly(count=2)], "constraints": [{"matchAttribute": NUMA}]}
        if what == "part":
            return {"requests": [exactly("gpu", DRIVER, _PART + random.choice("124"))]}
        if what == "share":
            memory = random.choice(("5Gi", "15Gi", "40Gi"))
            request = exactly("gpu", DRIVER, "device.allowMultipleAllocations")
            request["exactly"]["capacity"] = {"requests": {"memory": memory}}
            return {"requests": [request]}
        if what == "either":
            both = exactly("large", DRIVER, _LARGE), exactly("any", WHOLE)
            return {
                "requests": [{"name": "gpu", "firstAvailable": [{"name": x["name"], **x["exactly"]} for x in both]}]
            }
        if what == "two-requests":
            constraint = {random.choice(("matchAttribute", "distinctAttribute")): NUMA}
            return {"requests": [exactly("first"), exactly("second", WHOLE)], "constraints": [constraint]}
        if what == "all":
            return {"requests": [exactly("gpu", WHOLE, allocationMode="All")]}
        return {"requests": [exactly("gpu", WHOLE)]}

    def _made(self, uid: str) -> None:
        """The claim of a pod's template is made, and named in the pod."""
        one = self.pods[uid]
        claim = _Claim(f"{one.name}-gpu", self.late.pop(uid), one)
        self.claims[claim.name] = claim
        self._see(claim)
        self.change(uid, resource_claims=(PodClaim("gpu", claim.name, "of-the-story"),))

    def _shared(self, name: str, asks: Document) -> None:
        self.claims[name] = claim = _Claim(name, asks)
        self._see(claim)

    def _see(self, claim: _Claim) -> None:
        status: Document = {}
        if claim.allocation is not None:
            status["allocation"] = claim.allocation
        if claim.users:
            status["reservedFor"] = [{"resource": "pods", "uid": uid} for uid in sorted(claim.users)]
        add_claim(self.cluster, claim.name, owner=claim.owner, status=status, **claim.asks)

    def _allocated(self, one: Pod, name: str, allocation: Allocation, placed: payloads.PodPlaced) -> None:
        """The binder has written what a decision gave to a claim."""
        made = placed.extended_claim
        if made is not None and made.name == name:
            requests = [exactly(part.name, part.device_class, count=part.count) for part in made.requests]
            self.claims[name] = _Claim(name, {"requests": requests}, one)
        claim = self.claims[name]
        if claim.allocation is None:
            claim.allocation = allocation_document(allocation, claim.document(), {})
        self._used(one, claim)

    def _used(self, one: Pod, claim: _Claim) -> None:
        claim.users.add(one.uid)
        self._see(claim)

    def _ended(self, one: Pod) -> None:
        """A pod uses its claims no more: its own go, now or later, and a shared one is free when it was the last."""
        for claim in list(self.claims.values()):
            if claim.owner is not None and claim.owner.uid == one.uid:
                if claim.name not in self.going:
                    self.going.append(claim.name)
                if self.random.random() < 0.7:
                    self._gone(claim.name)
            elif one.uid in claim.users:
                claim.users.discard(one.uid)
                if not claim.users:
                    claim.allocation = None
                self._see(claim)

    def _gone(self, name: str) -> None:
        self.going.remove(name)
        claim = self.claims.pop(name)
        gone = payloads.ResourceClaimDeleted(claim.document()["metadata"]["uid"], "default", name)
        self.cluster.record(f"resourceclaim/default/{name}", gone)

    # What a story does with pods.

    def cycle(self, *, run: bool = True, meanwhile: Callable[[], None] | None = None) -> int:
        before = len(self.cluster.events)
        count = super().cycle(run=False, meanwhile=meanwhile)
        for event in self.cluster.events[before:]:
            if event.type == "PodPlaced":
                placed = self.cluster.decoded(event)
                self.given[placed.uid] = placed
        for uid in sorted(self.placed) if run else ():
            self.bind(uid)
        return count

    def bind(self, uid: str) -> None:
        one, placed = self.pods[uid], self.given.pop(uid)
        for name, allocation in placed.devices.items():
            self._allocated(one, name, allocation, placed)
        for use in one.resource_claims:
            # A claim that had its devices before is only reserved for the pod.
            if use.claim not in placed.devices:
                self._used(one, self.claims[use.claim])
        super().bind(uid)

    def bind_fails(self, uid: str, reason: str = "ResourceClaimAllocated") -> None:
        self.given.pop(uid)
        super().bind_fails(uid, reason)

    def delete(self, uid: str) -> Pod:
        one = super().delete(uid)
        self.given.pop(uid, None)
        self.late.pop(uid, None)
        self._ended(one)
        return one

    def recreate(self, uid: str) -> None:
        self.delete(uid)
        self._comes()

    def _happens(self) -> None:
        random = self.random
        what = random.choice(STEPS)
        if what == "restart":
            self.cluster.restart()
        elif what == "time":
            self.cluster.now += 20_000_000
        elif what == "go":
            for uid in sorted(set(self.leaving)):
                self.delete(uid)
        elif what == "slice":
            self.generation += 1
            self._slices(random.choice(sorted(self.nodes)))
        elif what == "taint":
            self._taint()
        elif what == "gone" and self.going:
            self._gone(random.choice(sorted(self.going)))
        elif what == "made" and (uid := self.pick(self.late)):
            self._made(uid)
        elif what == "bind" and (uid := self.pick(self.placed)):
            self.bind(uid)
        elif what == "fail" and (uid := self.pick(self.placed)):
            self.bind_fails(uid)
        elif what == "delete" and (uid := self.pick(self.pods)):
            self.delete(uid)
        elif what == "finish" and (uid := self.pick(self.bound)):
            self.change(uid, phase="Succeeded")
            self.bound.pop(uid)
            self.leaving = [other for other in self.leaving if other != uid]
            self._ended(self.pods[uid])

    def _taint(self) -> None:
        """A rule taints the first card of every node, or is gone again."""
        if self.tainted:
            gone = payloads.DeviceTaintRuleDeleted("uid-broken", "broken")
            self.cluster.record("devicetaintrule/broken", gone)
        else:
            effect = self.random.choice(("NoSchedule", "NoExecute"))
            add_taint_rule(self.cluster, deviceSelector={"device": "gpu-0"}, taint={"effect": effect})
        self.tainted = not self.tainted
