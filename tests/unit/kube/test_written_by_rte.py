"""Objects that resource-topology-exporter v0.10.0 itself wrote to a kube-apiserver 1.37.2 (decision 0405).

Its kubelet was ours (`tests.given.cluster.podresources`): 16 CPUs on two NUMA nodes, one of them reserved, a GPU on
each, policy `restricted`, scope `pod`; a pod on node 0, one with memory of both nodes, and one with nothing of its own.
"""

from pathlib import Path

import msgspec
import pytest
from kai_exporter.publishing import pods_fingerprint
from kaicore.errors import InvalidObject
from kaicore.kube.normalize.node import normalize_topology
from kaicore.kube.wire.resources import TOPOLOGIES
from kaicore.rules.model.node import NodeTopology, TopologyPolicy, TopologyScope

from tests.given.cluster.factory import amounts_of

GI = 2**30
GPU = "nvidia.com/gpu"
PODS = ("aligned", "wide", "shared")

BY_CONFIG, WITH_FINGERPRINT, BY_FLAGS = (Path(__file__).parent / "rte-v0.10.0.jsonl").read_bytes().splitlines()


def read(line: bytes) -> NodeTopology:
    lost: list[InvalidObject] = []
    topology = normalize_topology(TOPOLOGIES.at("v1alpha2").decode(line), lost.append)
    assert lost == []
    return topology


@pytest.mark.parametrize(
    ("line", "policy", "published"),
    [(BY_CONFIG, TopologyPolicy.RESTRICTED, ""), (BY_FLAGS, TopologyPolicy.SINGLE_NUMA_NODE, "container")],
)
def test_policy_of_the_kubelets_configuration_is_told_by_the_old_field_alone(
    line: bytes, policy: TopologyPolicy, published: str
) -> None:
    """Attributes are empty unless RTE gets flags; the old field says no scope, so `pod` is lost on the way."""
    written = {item["name"]: item["value"] for item in msgspec.json.decode(line)["attributes"]}
    assert written["topologyManagerScope"] == published
    assert (read(line).policy, read(line).scope) == (policy, TopologyScope.CONTAINER)


def test_fingerprint_is_of_all_pods_as_we_make_it() -> None:
    topology = read(WITH_FINGERPRINT)
    assert topology.fingerprint == pods_fingerprint(("default", name) for name in PODS)
    assert topology.fingerprint_method == "all"
    assert read(BY_CONFIG).fingerprint == ""


def test_zones_are_read_with_what_is_counted_on_each() -> None:
    """Memory of two NUMA nodes counts in full on both, a device of none on none, memory's capacity is allocatable."""
    first, second = read(BY_CONFIG).zones
    assert [amounts_of(one) for one in (first, second)] == [
        {"cpu": (8, 7, 4), "memory": (30, 30, 24), GPU: (1, 1, 0)},
        {"cpu": (8, 8, 7), "hugepages-2Mi": (1, 1, 1), "memory": (31, 31, 29), GPU: (1, 1, 0)},
    ]
    assert second.costs == {"node-0": 21, "node-1": 10}
