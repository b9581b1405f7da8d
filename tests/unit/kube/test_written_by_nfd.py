"""Objects that nfd-topology-updater v0.19.0 itself wrote to a kube-apiserver 1.37.2 (decision 0405).

Its machine and kubelet are those of `test_written_by_rte`, with one more pod that shares CPUs and has memory of node 1.
The second object is the first one with a method that RTE left in it, updated when no pod was listed any more.
"""

from pathlib import Path

from kai_exporter.publishing import pods_fingerprint
from kaicore.errors import InvalidObject
from kaicore.kube.normalize.node import normalize_topology
from kaicore.kube.wire.resources import TOPOLOGIES
from kaicore.rules.model.node import NodeTopology, TopologyPolicy, TopologyScope

from tests.given.cluster.factory import amounts_of

GI = 2**30
GPU = "nvidia.com/gpu"
PODS = ("aligned", "wide", "half", "shared")


def read() -> list[NodeTopology]:
    lost: list[InvalidObject] = []
    lines = (Path(__file__).parent / "nfd-v0.19.0.jsonl").read_bytes().splitlines()
    topologies = [normalize_topology(TOPOLOGIES.at("v1alpha2").decode(line), lost.append) for line in lines]
    assert lost == []
    return topologies


def test_policy_and_scope_are_those_of_the_kubelets_configuration() -> None:
    assert [(one.policy, one.scope) for one in read()] == [(TopologyPolicy.RESTRICTED, TopologyScope.POD)] * 2


def test_fingerprint_of_the_last_pods_stays_on_an_empty_node_with_what_another_publisher_said_of_it() -> None:
    with_pods, empty = read()
    assert with_pods.fingerprint == pods_fingerprint(("default", name) for name in PODS)
    assert (with_pods.fingerprint_method, empty.fingerprint_method) == ("all", "with-exclusive-resources")
    assert empty.fingerprint == with_pods.fingerprint
    assert all(each.available == each.allocatable for zone in empty.zones for each in zone.resources.values())


def test_memory_of_two_zones_counts_on_the_first_and_capacity_is_the_machines() -> None:
    """RTE counts it in full on both, and takes what is allocatable for the capacity."""
    first, second = read()[0].zones
    assert [amounts_of(one) for one in (first, second)] == [
        {"cpu": (8, 7, 4), "memory": (32, 30, 22), GPU: (1, 1, 0)},
        {"cpu": (8, 8, 7), "hugepages-2Mi": (1, 1, 1), "memory": (32, 31, 30), GPU: (1, 1, 1)},
    ]
    assert second.costs == {"node-0": 21, "node-1": 10}
