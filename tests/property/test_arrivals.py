"""A pod that is admitted for certain is admitted by a kubelet that frees what it likes, whenever, in any order."""

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.model.pod import ContainerKind, Pod
from kaicore.rules.numa.arrivals import Arrival, is_certain
from kaicore.rules.numa.kubelet.admission import admit
from kaicore.rules.numa.kubelet.requests import AlignedRequest, aligned_request
from kaicore.rules.numa.kubelet.verdict import Admitted, predicted_placement
from kaicore.rules.numa.kubelet.zones import ZoneCharge

from tests.given.cluster.factory import Cluster, amounts, container, pod
from tests.given.examples import examples
from tests.property.test_early_release import REQUEST, ZONES

NODE = "n1"
POLICY = st.sampled_from(["single-numa-node", "restricted"])
#: An init container or none, a sidecar or none, an app container, the second of its creation.
PODS = st.tuples(st.integers(0, 3), st.integers(0, 2), REQUEST, st.integers(0, 2))


def request_of(drawn: Any) -> AlignedRequest:
    init, side, app, _ = drawn
    containers = [container("init", ContainerKind.INIT, cpu=init)] if init else []
    containers += [container("side", ContainerKind.SIDECAR, cpu=side)] if side else []
    one: Pod = pod("p", *containers, container(**app))
    return aligned_request(one)


def needs_several_zones(request: AlignedRequest, layout: Any) -> bool:
    """True if a container, or under pod scope the pod, asks for more of something than any zone has."""
    asked = [*(container.amounts for container in request.containers), request.pod]
    return any(amount > max(zone.get(name, 0) for zone in layout) for one in asked for name, amount in one)


class Node:
    """A node's zones, filled and emptied."""

    def __init__(self, layout: Any, policy: str, scope: str) -> None:
        cluster = Cluster().add_node(NODE, *layout, policy=policy, scope=scope)
        self.columns = cluster.state.columns
        self.names = [f"node-{zone}" for zone in range(len(layout))]

    def put(self, request: AlignedRequest) -> ZoneCharge | None:
        admitted = admit(self.columns.node_zones(0), request)
        if not isinstance(admitted, Admitted):
            return None
        given = predicted_placement(admitted, self.names)
        return self.columns.zones.charge(0, given.charge if given is not None else ZoneCharge())


@settings(max_examples=examples(400), deadline=None)
@given(
    ZONES,
    st.tuples(POLICY, st.sampled_from(["container", "pod"])),
    st.lists(PODS, max_size=4),
    st.lists(PODS, max_size=4),
    st.integers(0, 2**16),
)
def test_a_pod_that_is_let_in_for_certain_is_let_in_whatever_ends_before_and_between(
    layout: Any, kubelet: tuple[str, str], running: Any, coming: Any, seed: int
) -> None:
    # How a container that needs several zones is split is not followed (decision 0112).
    if not coming or any(needs_several_zones(request_of(drawn), layout) for drawn in coming):
        return
    node, last = Node(layout, *kubelet), coming[-1]
    there = [charge for drawn in running if (charge := node.put(request_of(drawn))) is not None]
    before = node.columns.mark(0)
    ending: dict[str, list[int]] = {}
    for charge in there:
        for zone, resource, amount in charge.split:
            ending.setdefault(resource, [0] * len(layout))[zone] += amount
    arrivals = []
    for drawn in coming[:-1]:
        request = request_of(drawn)
        charge = node.put(request)
        if charge is not None:
            arrivals.append(Arrival(request, charge, drawn[3]))
    newcomer = Arrival(request_of(last), ZoneCharge(), last[3])
    accounted = node.columns.node_zones(0)
    if not isinstance(admit(node.columns.node_zones(0), newcomer.request), Admitted):
        return
    if not is_certain(accounted, arrivals, ending, newcomer.request, created_at=last[3]):
        return
    chance = random.Random(seed)
    for _ in range(6):
        node.columns.restore(0, before)
        assert follow(node, list(there), [*arrivals, newcomer], chance)


def follow(node: Node, there: list[ZoneCharge], pods: Sequence[Arrival], chance: random.Random) -> bool:
    """Have pods come as decided, or oldest first, and those that were there end at any time; is the last one let in?"""
    order = list(pods)
    if chance.random() < 0.5:
        order.sort(key=lambda arrival: arrival.created_at)
    came = False
    for arrival in order:
        for charge in [charge for charge in there if chance.random() < 0.4]:
            there.remove(charge)
            node.columns.zones.release(0, charge)
        came |= arrival is pods[-1]
        if node.put(arrival.request) is None and came:
            return False
    return True


def test_room_for_the_first_container_that_may_become_free_leads_the_others_astray() -> None:
    node = Node([amounts(cpu=8), amounts(cpu=8)], "single-numa-node", "container")
    assert node.put(request_of((0, 0, {"cpu": 8}, 0))) is not None
    staged, plain = request_of((2, 0, {"cpu": 6}, 0)), request_of((0, 0, {"cpu": 6}, 0))
    zones = node.columns.node_zones(0)
    assert is_certain(zones, (), {}, staged, created_at=0)
    assert not is_certain(zones, (), {"cpu": [3000, 0]}, staged, created_at=0)
    assert is_certain(zones, (), {"cpu": [3000, 0]}, plain, created_at=0)


def test_pods_that_are_alike_never_stand_in_each_others_way() -> None:
    node = Node([amounts(cpu=8, gpu=4)] * 2, "single-numa-node", "container")
    assert node.put(request_of((0, 0, {"cpu": 2, "gpu": 3}, 0))) is not None
    alike = request_of((0, 0, {"cpu": 1, "gpu": 1}, 0))
    arrivals: list[Arrival] = []
    while (charge := node.put(alike)) is not None:
        arrivals.append(Arrival(alike, charge))
        left = node.columns.node_zones(0)
        if isinstance(admit(node.columns.node_zones(0), alike), Admitted):
            assert is_certain(left, arrivals, {"cpu": [2000, 0], "nvidia.com/gpu": [3, 0]}, alike, created_at=0)
    assert len(arrivals) == 5


def test_an_older_pod_that_overtakes_others_must_leave_them_room() -> None:
    node = Node([amounts(cpu=8, gpu=0), amounts(cpu=8, gpu=4)], "single-numa-node", "container")
    plain, devices, late = (request_of((0, 0, held, 0)) for held in ({"cpu": 5}, {"cpu": 4, "gpu": 1}, {"cpu": 4}))
    arrivals = []
    for request in (plain, devices):
        charge = node.put(request)
        assert charge is not None
        arrivals.append(Arrival(request, charge, created_at=5))
    assert is_certain(node.columns.node_zones(0), arrivals, {}, late, created_at=5)
    assert not is_certain(node.columns.node_zones(0), arrivals, {}, late, created_at=4), (
        "plain goes to the devices' zone"
    )
