"""Results that are worked out once for pods that are alike: what differs between two of them is not taken over."""

import tracemalloc

import msgspec
from kaicore.rules.events import payloads
from kaicore.rules.model.group import Group, PodSet
from kaicore.rules.model.placement import ContainerPlacement, ZoneAmount
from kaicore.rules.model.pod import ContainerKind, Pod
from kaicore.rules.numa.kubelet.zones import ZoneCharge
from kaicore.rules.state.indexes.workload_index import WorkloadIndex
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import GI, Cluster, amounts, container, pod
from tests.given.work.workloads import OWNER, Workloads

ZONE = amounts(cpu=8, memory=8)
MAIN = ContainerPlacement("main", zones=(ZoneAmount("node-1", {"cpu": 2000, "memory": GI}),))
SETUP = ContainerPlacement("setup", zones=(ZoneAmount("node-1", {"cpu": 2000, "memory": 3 * GI}),))


class Observed(Cluster):
    """Two nodes with two zones, and a smaller one; pods run there unplanned and are observed."""

    def __init__(self) -> None:
        super().__init__()
        self.add_nodes(2, ZONE, ZONE).add_node("small", ZONE)

    def run(self, one: Pod, *held: ContainerPlacement, init: tuple[str, ...] | None = None) -> PodEntry:
        self.add_pod(one)
        self.report(one, *held, node=one.node_name, init=init)
        return self.state.pods[one.uid]


def starting(name: str, node: str, phase: str) -> Pod:
    setup = container("setup", ContainerKind.INIT, cpu=2, memory=3)
    return pod(name, setup, container("main", cpu=2, memory=1), node_name=node, phase=phase)


def test_memory_of_init_containers_alike_pods_counts_only_where_these_still_run() -> None:
    cluster = Observed()
    pending = cluster.run(starting("a", "n0", "Pending"), MAIN, SETUP, init=("setup",))
    running = cluster.run(starting("b", "n1", "Running"), MAIN, SETUP, init=("setup",))
    assert [sum(block.size for block in one.zone_charge.blocks) for one in (pending, running)] == [4 * GI, GI]


def test_prediction_of_init_containers_alike_pods_counts_only_where_the_observation_is_silent() -> None:
    cluster = Cluster().add_nodes(2, ZONE)
    for name in ("a", "b"):
        cluster.add_pod(pod(name, container("setup", ContainerKind.INIT, cpu=6), container("main", cpu=2)))
    cluster.cycle()
    entries = [cluster.state.pods[f"uid-{name}"] for name in ("a", "b")]
    for entry, init in zip(entries, (None, ()), strict=True):
        assert entry.predicted is not None
        held = (one for one in entry.predicted.containers if one.container == "main")
        cluster.report(entry.pod, *held, node=entry.node, init=init)
    assert [sum(amount for _, _, amount in one.zone_charge.amounts) for one in entries] == [6000, 2000]


def test_record_of_a_zone_that_another_node_lacks_charges_nothing_there() -> None:
    cluster = Observed()
    one, other = (
        cluster.run(pod(name, cpu=2, memory=1, node_name=node), MAIN) for name, node in (("a", "n0"), ("b", "small"))
    )
    assert (one.zone_charge != ZoneCharge(), one.unrecorded) == (True, False)
    assert (other.zone_charge, other.unrecorded) == (ZoneCharge(), True)


def test_record_that_one_pod_can_hold_is_not_believed_of_one_that_asks_for_less() -> None:
    cluster = Observed()
    one, other = (cluster.run(pod(name, cpu=cpu, memory=1, node_name="n0"), MAIN) for name, cpu in (("a", 2), ("b", 1)))
    assert not one.implausible
    assert other.implausible


def test_pod_that_stays_active_in_another_set_counts_there() -> None:
    sets = (PodSet(), PodSet("a", ""), PodSet("b", ""))
    group, index = Group(key="g", namespace="default", name="g", sets=sets), WorkloadIndex()
    entry = PodEntry(pod("one", cpu=1, node_name="n0"), stage=Stage.BOUND, node="n0", group="g", pod_set="a")
    for name in ("a", "b"):
        entry.pod_set = name
        index.seat(entry, group, waiting=False, at=1)
        assert index.workloads["g"].counts == {name: 1}


def running(count: int) -> Workloads:
    """Pods of one owner that a cycle placed, seven on a node, all alike; each fact of them decoded anew."""
    cluster = Workloads()
    cluster.add_nodes(count // 7, amounts(cpu=64, memory=64))
    for number in range(count):
        one = pod(f"p{number:04}", owner=OWNER, labels={"app": "trains-a-model"}, cpu=8, memory=8)
        cluster.add_pod(msgspec.convert(msgspec.to_builtins(one), Pod))
    for decision in cluster.cycle().placements:
        cluster.see(cluster.state.pods[decision.uid].pod, node_name=decision.node, phase="Running")
    return cluster


def test_restored_pods_that_are_alike_have_in_common_what_is_the_same() -> None:
    state = decode_state(encode_state(running(7).state))
    one, other = (state.pods[f"uid-p000{number}"] for number in (1, 2))
    for name in ("requests", "queue_charge", "predicted", "class_key", "node", "cycle", "volumes", "devices"):
        assert getattr(one, name) is getattr(other, name), name
    for name in ("containers", "owner", "labels", "annotations", "node_name", "scheduler_name"):
        assert getattr(one.pod, name) is getattr(other.pod, name), name
    charges = {id(entry.zone_charge) for entry in state.pods.values()}
    assert len(charges) == 1


def test_pod_that_is_seen_again_keeps_the_parts_that_did_not_change() -> None:
    cluster = running(7)
    before = cluster.state.pods["uid-p0001"].pod
    again = msgspec.convert(msgspec.to_builtins(before) | {"resource_version": "9", "labels": {"app": "new"}}, Pod)
    cluster.record(f"pod/{before.uid}", payloads.PodObserved(again))
    after = cluster.state.pods["uid-p0001"].pod
    assert (after.resource_version, after.labels) == ("9", {"app": "new"})
    for name in ("uid", "name", "owner"):
        assert getattr(after, name) is getattr(before, name), name


def test_restored_state_of_alike_pods_takes_less_than_3000_bytes_for_each() -> None:
    body = encode_state(running(700).state)
    tracemalloc.start()
    try:
        state = decode_state(body)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(state.pods) == 700
    assert held < 700 * 3000, held / 700
    assert peak - held < 700 * 500, (peak - held) / 700
