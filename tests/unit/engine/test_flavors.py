"""Kueue's ResourceFlavors in cycles: on which nodes the work of a queue may be."""

from typing import Any

import pytest
from kaicore.rules.events import payloads
from kaicore.rules.model.node import Taint
from kaicore.rules.model.pod import Toleration
from kaicore.rules.model.queue import FlavorQuota, Queue, QueueShare, ResourceFlavor

from tests.given.cluster.factory import pod
from tests.given.work.workloads import Workloads

GPU = "nvidia.com/gpu"
NAME = "ClusterQueue/a"
TAINT = Taint("spot", "NoSchedule")
FLAVORS = {
    "any": ResourceFlavor("any"),
    "h100": ResourceFlavor("h100", node_labels={"gpu": "h100"}),
    "a100": ResourceFlavor("a100", node_labels={"gpu": "a100"}),
    "spot": ResourceFlavor("spot", node_labels={"gpu": "a100"}, node_taints=(TAINT,)),
    "open": ResourceFlavor(
        "open", node_labels={"gpu": "a100"}, node_taints=(TAINT,), tolerations=(Toleration("spot"),)
    ),
}


def cluster_of(*quotas: FlavorQuota, flavors: tuple[str, ...] = tuple(FLAVORS)) -> Workloads:
    cluster = Workloads()
    for gpu in ("a100", "b200", "h100"):
        cluster.add_node(gpu, cpu=64, gpu=8, labels={"gpu": gpu})
    cluster.add_node("none", cpu=64)
    for name in flavors:
        cluster.record(f"flavor/{name}", payloads.FlavorObserved(FLAVORS[name]))
    shares = {resource: QueueShare(quota=10**6) for quota in quotas for resource in quota.quotas}
    queue = Queue(NAME, uid="q", shares=shares, only_named=True, flavors=quotas)
    cluster.record(f"queue/{NAME}", payloads.QueueObserved(queue))
    return cluster


def of(name: str, **kwargs: Any) -> Any:
    return pod(name, labels={"kai.scheduler/queue": NAME}, **({"cpu": 1} | kwargs))


def quota(flavor: str, *resources: str) -> FlavorQuota:
    return FlavorQuota(flavor, dict.fromkeys(resources or ("cpu", GPU), 10**6))


@pytest.mark.parametrize(
    ("quotas", "gpu", "nodes"),
    [
        ((quota("h100"),), 8, {"h100"}),
        ((quota("h100"), quota("a100")), 8, {"a100", "h100"}),
        ((quota("h100"), quota("any")), 8, {"a100", "b200", "h100"}),
        # A group of resources with flavors of its own, and one for all nodes.
        ((quota("any", "cpu"), quota("h100", GPU)), 8, {"h100"}),
        ((quota("any", "cpu"), quota("h100", GPU)), 0, {"a100", "b200", "h100", "none"}),
        # Two groups have to agree on a node.
        ((quota("a100", "cpu"), quota("h100", GPU)), 8, set()),
        ((quota("spot"),), 8, set()),
        ((quota("open"),), 8, {"a100"}),
    ],
)
def test_pods_go_to_nodes_of_their_queues_flavors(quotas: tuple[FlavorQuota, ...], gpu: int, nodes: set[str]) -> None:
    cluster = cluster_of(*quotas)
    for number in range(4):
        # One per node: each asks for all GPUs, or for more than half of the CPUs.
        cluster.add_pod(of(f"p{number}", gpu=gpu) if gpu else of(f"p{number}", cpu=40))
    cluster.restart()
    result = cluster.cycle()
    assert set(cluster.placed(result).values()) == nodes
    if not nodes:
        assert "NodeFlavorMismatch" in {reason.code for one in result.pending for reason in one.reasons}


def test_the_reason_names_the_queue_and_its_flavors() -> None:
    cluster = cluster_of(quota("h100"))
    for number in range(2):
        cluster.add_pod(of(f"p{number}", gpu=8))
    (pending,) = cluster.cycle().pending
    texts = [str(reason) for reason in pending.reasons]
    assert f"3 nodes not of the flavors of its queue {NAME}: cpu, {GPU} of h100 (such as a100)" in texts


def test_pods_on_nodes_of_other_flavors_are_not_evicted() -> None:
    cluster = cluster_of(quota("h100"))
    for node in ("a100", "b200", "h100"):
        cluster.add_pod(of(f"on-{node}", gpu=8, node_name=node, phase="Running", priority=int(node == "h100")))
    cluster.add_pod(of("high", gpu=8, priority=9))
    assert set(cluster.evicted(cluster.cycle())) == {"on-h100"}


def test_a_flavor_that_does_not_exist_is_waited_for() -> None:
    cluster = cluster_of(quota("h100"), flavors=("a100",))
    cluster.add_pod(of("p", gpu=1))
    (pending,) = cluster.cycle().pending
    assert [reason.code for reason in pending.reasons] == ["FlavorNotFound"]
    cluster.record("flavor/h100", payloads.FlavorObserved(FLAVORS["h100"]))
    assert cluster.placed(cluster.cycle()) == {"p": "h100"}


def test_without_any_flavors_their_names_say_nothing() -> None:
    cluster = cluster_of(quota("h100"), flavors=())
    cluster.add_pod(of("p", gpu=1))
    assert cluster.placed(cluster.cycle()) == {"p": "a100"}


def test_other_queues_work_goes_where_it_likes() -> None:
    cluster = cluster_of(quota("h100"))
    cluster.record("queue/free", payloads.QueueObserved(Queue("free", uid="free")))
    cluster.add_pod(pod("p", cpu=1, gpu=8, labels={"kai.scheduler/queue": "free"}))
    cluster.add_pod(of("q", gpu=8))
    assert cluster.placed(cluster.cycle()) == {"p": "a100", "q": "h100"}


# Taints of nodes.


def tainted(*quotas: FlavorQuota, effect: str = "NoSchedule", more: tuple[Taint, ...] = ()) -> Workloads:
    """The same cluster, its a100 node tainted as the flavor `open` tolerates, and others besides."""
    cluster = cluster_of(*quotas)
    cluster.add_node("a100", cpu=64, gpu=8, labels={"gpu": "a100"}, taints=(Taint("spot", effect), *more))
    return cluster


OPEN = ResourceFlavor("open", node_labels={"gpu": "a100"}, tolerations=(Toleration("spot", "Exists"),))
KEEN = ResourceFlavor("keen", node_labels={"gpu": "a100"}, tolerations=(Toleration("other", "Exists"),))
BARE = ResourceFlavor("bare", tolerations=(Toleration("spot", "Exists"),))


@pytest.mark.parametrize(
    ("quotas", "effect", "more", "node"),
    [
        # The flavor's own toleration is as good as the pod's.
        ((quota("open"),), "NoSchedule", (), "a100"),
        # What another flavor of the nodes tolerates, or none, does not help.
        ((quota("a100"),), "NoSchedule", (), None),
        ((quota("keen"),), "NoSchedule", (), None),
        # Of several flavors any will do, but it has to tolerate all taints of the node.
        ((quota("keen"), quota("open")), "NoSchedule", (), "a100"),
        ((quota("keen"), quota("open")), "NoSchedule", (Taint("other", "NoSchedule"),), None),
        # Flavors of different resources are of the same pod.
        ((quota("keen", "cpu"), quota("open", GPU)), "NoSchedule", (Taint("other", "NoSchedule"),), "a100"),
        # A flavor without labels is for all nodes.
        ((quota("bare", "cpu"), quota("a100", GPU)), "NoSchedule", (), "a100"),
        # A kubelet would refuse the pod, which does not tolerate it itself.
        ((quota("open"),), "NoExecute", (), None),
    ],
)
def test_what_a_flavor_tolerates_counts_like_the_pods_own_for_the_nodes_taints(
    quotas: tuple[FlavorQuota, ...], effect: str, more: tuple[Taint, ...], node: str | None
) -> None:
    cluster = tainted(*quotas, effect=effect, more=more)
    for flavor in (OPEN, KEEN, BARE):
        cluster.record(f"flavor/{flavor.name}", payloads.FlavorObserved(flavor))
    cluster.add_pod(of("p", gpu=8))
    cluster.restart()
    result = cluster.cycle()
    assert cluster.placed(result) == ({} if node is None else {"p": node})
    if node is None:
        assert "UntoleratedTaint" in {reason.code for one in result.pending for reason in one.reasons}


def test_a_soft_taint_that_a_flavor_tolerates_does_not_make_a_node_less_liked() -> None:
    cluster = tainted(quota("bare"), effect="PreferNoSchedule")
    cluster.record("flavor/bare", payloads.FlavorObserved(BARE))
    for name in ("b200", "h100"):
        cluster.add_node(name, cpu=64, gpu=8, taints=(Taint("hard", "NoSchedule"),))
    cluster.add_node("z", cpu=64, gpu=8)
    cluster.add_pod(of("p", gpu=1))
    assert cluster.placed(cluster.cycle()) == {"p": "a100"}


def test_work_of_another_queue_does_not_share_the_flavors_tolerations() -> None:
    cluster = tainted(quota("open"))
    cluster.record("flavor/open", payloads.FlavorObserved(OPEN))
    cluster.record("queue/free", payloads.QueueObserved(Queue("free", uid="free")))
    cluster.add_pod(pod("p", cpu=1, gpu=8, labels={"kai.scheduler/queue": "free"}, node_selector={"gpu": "a100"}))
    assert cluster.placed(cluster.cycle()) == {}
