"""No device is ever given twice, whatever comes in which order: decisions, bindings that fail, facts, ends of pods."""

from collections import Counter
from itertools import cycle

from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.events import payloads
from kaicore.rules.model.device import Allocation
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster import devices as dra
from tests.given.cluster.factory import Cluster
from tests.given.examples import examples
from tests.given.processes.replicas import Replicas

REPLICAS = ("r0", "r1", "r2")

STEPS = st.lists(
    st.tuples(st.sampled_from(("pod", "shared", "cycle", "fail", "shown", "end", "gone", "slice")), st.integers(0, 9)),
    min_size=4,
    max_size=25,
)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(steps=STEPS)
def test_no_device_is_given_to_two_claims(steps: list[tuple[str, int]]) -> None:
    story = _Story(dra.devices(a=2, b=1))
    for what, which in steps:
        getattr(story, what)(which)
        assert story.given_twice() == []
    state = story.cluster.state
    assert encode_state(decode_state(encode_state(state))) == encode_state(state)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(steps=STEPS, orders=st.lists(st.permutations(REPLICAS), min_size=1, max_size=4))
def test_replicas_that_decide_at_once_give_no_device_of_a_pool_of_all_nodes_twice(
    steps: list[tuple[str, int]], orders: list[list[str]]
) -> None:
    story = _StoryOfReplicas(orders)
    for what, which in steps:
        getattr(story, what)(which)
        assert story.given_twice() == []


class _Story:
    """A cluster of three devices, and what happens there."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        dra.add_claim(self.cluster, "shared", dra.exactly(count=1))
        self._made = 0

    def taken(self) -> Counter[object]:
        keys = {
            *self.cluster.state.constraints.devices.claims,
            *(f"default/{name}" for name, _ in self.promises()),
        }
        return Counter(device.id for key in keys for device in self.devices_of(key))

    def given_twice(self) -> list[object]:
        return [device for device, count in self.taken().items() if count > 1]

    def promises(self) -> set[tuple[str, tuple[object, ...]]]:
        """The devices that decisions gave to claims, by the claim's name."""
        charged = [entry for entry in self.cluster.state.pods.values() if entry.charged]
        return {(name, given.devices) for entry in charged for name, given in entry.devices.items()}

    def devices_of(self, key: str) -> tuple[object, ...]:
        allocation: Allocation | None = self.cluster.state.constraints.devices.allocation(key)
        return () if allocation is None else allocation.devices

    def pod(self, which: int) -> None:
        self._made += 1
        dra.from_template(self.cluster, dra.exactly(count=1 + which % 2), name=f"p{self._made}")

    def shared(self, which: int) -> None:
        self._made += 1
        dra.using(self.cluster, "shared", name=f"s{self._made}")

    def cycle(self, which: int) -> None:
        self.cluster.cycle()

    def _of(self, which: int) -> str:
        uids = sorted(uid for uid, entry in self.cluster.state.pods.items() if entry.charged)
        return uids[which % len(uids)] if uids else ""

    def fail(self, which: int) -> None:
        uid = self._of(which)
        if uid:
            entry = self.cluster.state.pods[uid]
            failed = payloads.BindFailed(
                uid, "default", entry.pod.name, entry.node, 409, "Conflict", gone=bool(which % 2)
            )
            self.cluster.record(f"pod/{uid}", failed)

    def shown(self, which: int) -> None:
        """The watcher sees what was decided."""
        uid = self._of(which)
        for name, allocation in self.cluster.state.pods[uid].devices.items() if uid else ():
            claim = self.cluster.state.constraints.devices.claims.get(f"default/{name}")
            if claim is None:
                continue
            results = [
                {"request": one.request, "driver": dra.DRIVER, "pool": one.pool, "device": one.device}
                for one in allocation.devices
            ]
            owner = self.cluster.state.pods[uid].pod if claim.owner else None
            request = dra.exactly(count=claim.requests[0].count)
            status = {"allocation": {"devices": {"results": results}}}
            dra.add_claim(self.cluster, name, request, owner=owner, status=status)

    def end(self, which: int) -> None:
        uid = self._of(which)
        if uid:
            self.cluster.delete_pod(self.cluster.state.pods[uid].pod)

    def gone(self, which: int) -> None:
        registry = self.cluster.state.constraints.devices
        for claim in list(registry.claims.values()):
            if claim.owner and claim.owner not in self.cluster.state.pods:
                gone = payloads.ResourceClaimDeleted(claim.uid, claim.namespace, claim.name)
                self.cluster.record(f"resourceclaim/{claim.key}", gone)

    def slice(self, which: int) -> None:
        gpus = [dra.gpu(f"gpu-{number}") for number in range(1 + which % 3)]
        dra.add_slice(self.cluster, dra.slice_document("a", *gpus, pool={"generation": 2 + which}))


class _StoryOfReplicas(_Story):
    """Replicas that always decide at once, over a pool that both nodes use."""

    def __init__(self, orders: list[list[str]]) -> None:
        super().__init__(dra.devices(a=0, b=0))
        self.slice(2)
        self._replicas, self._orders = Replicas(self.cluster), cycle(orders)
        self._replicas.list(REPLICAS)

    def cycle(self, which: int) -> None:
        order = next(self._orders)
        begun = [name for name in order if self._replicas.begin(name)]
        for name in begun:
            self._replicas.end(name)

    def slice(self, which: int) -> None:
        gpus = [dra.gpu(f"gpu-{number}") for number in range(1 + which % 3)]
        dra.add_slice(self.cluster, dra.slice_document("net", *gpus, pool={"generation": 2 + which}, allNodes=True))
