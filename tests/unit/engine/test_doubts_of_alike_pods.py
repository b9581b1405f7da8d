"""Alike pods that are put on a node in a row are asked about one by one where its zones are in doubt."""

from kaicore.rules.engine.constraints.zones.doubts import Doubts, EndingPods
from kaicore.rules.engine.placement.statement import Statement
from kaicore.rules.model.pod import Pod
from kaicore.rules.numa.arrivals import Arrival
from kaicore.rules.numa.kubelet.requests import aligned_request

from tests.given.cluster.factory import amounts, pod
from tests.given.work.workloads import NO_PROMISES, Workloads
from tests.property.test_arrivals import Node


def _observed(cluster: Workloads, one: Pod) -> None:
    entry = cluster.state.pods[one.uid]
    assert entry.predicted is not None
    cluster.report(one, *entry.predicted.containers, node=entry.node, init=entry.predicted.init)


def test_alike_pods_on_a_node_in_doubt_are_as_many_as_fit_whatever_is_so() -> None:
    cluster = Workloads()
    for name in ("n1", "n2"):
        cluster.add_node(name, amounts(cpu=5, memory=64, gpu=4), amounts(cpu=9, memory=64, gpu=1), labels={"is": name})
        ends, stays = (
            pod(f"{what}-{name}", cpu=cpu, memory=1, node_selector={"is": name})
            for what, cpu in (("ends", 1), ("stays", 5))
        )
        for one in (ends, stays):
            cluster.full(cluster.add_pod(one))
        _observed(cluster, ends)
        if name == "n1":
            _observed(cluster, stays)
        cluster.see(ends, deletion_at=cluster.now // 1_000_000)
    cluster.add_node("n3", amounts(cpu=32, memory=64, gpu=8), labels={"is": "n3"})
    cluster.gang("g", 4, cpu=4, memory=1, gpu=1)
    # On n2, the kubelet may have freed `ends` first and have put `stays` in its zone: then one pod fits beside it.
    placed = cluster.cycle(NO_PROMISES).placements
    assert [decision.node for decision in placed] == ["n1", "n1", "n2", "n3"]


def test_alike_pods_older_than_one_that_came_before_are_as_many_as_fit_in_any_order() -> None:
    cluster = Workloads()
    for name in ("n1", "n2"):
        cluster.add_node(name, amounts(cpu=5, memory=64), amounts(cpu=8, memory=64), labels={"is": name})
    cluster.add_node("n3", amounts(cpu=32, memory=64), labels={"is": "n3"})
    seen = cluster.add_pod(pod("seen", cpu=1, memory=1, node_selector={"is": "n3"}))
    cluster.full(seen)
    _observed(cluster, seen)
    for name, created_at in (("n1", 0), ("n2", 100)):
        spec = {"cpu": 5, "memory": 1, "priority": 9, "created_at": created_at}
        cluster.add_pod(pod(f"first-{name}", node_selector={"is": name}, **spec))
    cluster.gang("g", 4, cpu=4, memory=1, created_at=50)
    # On n2 the kubelet may see two of them first: then the first zone is not left to the younger pod.
    placed = cluster.placed(cluster.cycle(NO_PROMISES))
    assert [node for name, node in placed.items() if not name.startswith("first")] == ["n1", "n1", "n2", "n3"]


class _OneEndsAndOneComes:
    def __init__(self, comes: Arrival) -> None:
        self._comes = comes

    def arrivals(self, _: int) -> tuple[Arrival, ...]:
        return (self._comes,)

    def ending(self, _: int) -> EndingPods:
        return EndingPods({"cpu": (1000, 0)})


def test_an_answer_about_a_pod_that_is_gone_is_never_given_for_another() -> None:
    zones = amounts(cpu=5, memory=64, gpu=4), amounts(cpu=9, memory=64, gpu=1)
    node = Node(zones, "single-numa-node", "container")
    node.put(aligned_request(pod("ends", cpu=1, memory=1)))
    comes = aligned_request(pod("comes", cpu=5, memory=1))
    charge = node.put(comes)
    assert charge is not None
    matters = _OneEndsAndOneComes(Arrival(comes, charge))

    def certain(doubts: Doubts, gpus: int) -> bool:
        request = aligned_request(pod("p", cpu=4, memory=1, gpu=gpus))
        return doubts.admits(0, request, created_at=0, node=lambda: node.columns.node_zones(0))

    asked = [1 + number % 2 for number in range(64)]
    doubts = Doubts(matters, Statement(node.columns))
    by_one = [certain(doubts, gpus) for gpus in asked]
    assert by_one == [certain(Doubts(matters, Statement(node.columns)), gpus) for gpus in asked]
    assert {*by_one} == {True, False}
