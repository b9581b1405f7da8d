"""Results that are worked out once for pods that are alike: what differs between two of them is not taken over."""

from kaicore.rules.events import payloads
from kaicore.rules.model.group import Group, PodSet
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount
from kaicore.rules.model.pod import ContainerKind, Pod
from kaicore.rules.numa.kubelet.zones import ZoneCharge
from kaicore.rules.state.indexes.workload_index import WorkloadIndex
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage

from tests.given.cluster.factory import GI, Cluster, amounts, container, pod

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
        seen = Placement(Provenance.OBSERVED, held, init=init)
        self.record(f"pod/{one.uid}", payloads.PlacementObserved(one.uid, one.namespace, one.name, one.node_name, seen))
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
        held = tuple(one for one in entry.predicted.containers if one.container == "main")
        ids = entry.pod.uid, "default", entry.pod.name, entry.node
        seen = Placement(Provenance.OBSERVED, held, init=init)
        cluster.record(f"pod/{entry.pod.uid}", payloads.PlacementObserved(*ids, seen))
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
