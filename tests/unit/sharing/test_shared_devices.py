"""Two replicas that decide at once about what no node's stream guards: devices of all nodes, claims of several pods."""

from collections.abc import Callable

from kaicore.rules.deciding.share import Share
from kaicore.rules.model.pod import Pod

from tests.given.cluster import devices as dra
from tests.given.cluster.factory import Cluster
from tests.given.processes.replicas import Replicas


def given(cluster: Cluster) -> dict[str, list[tuple[str, str]]]:
    """Pool and name of the devices that decisions gave, by pod."""
    charged = [entry for entry in cluster.state.pods.values() if entry.charged]
    return {
        entry.pod.name: [(device.pool, device.device) for one in entry.devices.values() for device in one.devices]
        for entry in charged
    }


def one_pod_of_each(cluster: Cluster, make: Callable[[str], Pod]) -> Replicas:
    """Two replicas, and a waiting pod of each."""
    replicas = Replicas(cluster)
    replicas.list(("a", "b"))
    for name in ("a", "b"):
        for number in range(64):
            one = make(f"{name}{number}")
            if Share(cluster.state, "default/a").owner(cluster.state.pods[one.uid].group) == name:
                break
            cluster.delete_pod(one)
    return replicas


def both_at_once(replicas: Replicas) -> int:
    begun = [name for name in ("a", "b") if replicas.begin(name)]
    return sum(map(replicas.end, begun))


def test_a_device_that_all_nodes_use_is_given_to_one_of_two_claims() -> None:
    cluster = dra.devices(n1=0, n2=0)
    dra.add_slice(cluster, dra.slice_document("net", dra.gpu("one"), dra.gpu("two"), allNodes=True))
    replicas = one_pod_of_each(cluster, lambda name: dra.from_template(cluster, dra.exactly(), name=name))
    assert both_at_once(replicas) == 1
    assert replicas.tally.conflicts == 1
    assert both_at_once(replicas) == 1
    assert sorted(given(cluster).values()) == [[("net", "one")], [("net", "two")]]


def test_a_claim_that_two_pods_use_is_allocated_once() -> None:
    cluster = dra.devices(n1=1, n2=1)
    dra.add_claim(cluster, "shared", dra.exactly())
    replicas = one_pod_of_each(cluster, lambda name: dra.using(cluster, "shared", name=name))
    assert both_at_once(replicas) == 1
    assert both_at_once(replicas) == 1
    first, second = given(cluster).values()
    assert first == second


def test_devices_of_different_nodes_are_given_by_two_replicas_at_once() -> None:
    cluster = dra.devices(n1=1, n2=1)
    replicas = one_pod_of_each(cluster, lambda name: dra.from_template(cluster, dra.exactly(), name=name))
    assert both_at_once(replicas) == 2
