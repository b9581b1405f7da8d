"""The CPUs of a zone that a pod may keep when earlier pods' holdings are unknown, two CPUs to a core."""

from itertools import product

import pytest
from kaicore.rules.model.node import TopologyPolicy
from kaicore.rules.model.pod import ContainerKind
from kaicore.rules.model.quantity import CPU
from kaicore.rules.numa.kubelet.admission import admit
from kaicore.rules.numa.kubelet.memory_manager import MemoryZones
from kaicore.rules.numa.kubelet.requests import AlignedContainer, AlignedRequest
from kaicore.rules.numa.kubelet.settings import KubeletSettings
from kaicore.rules.numa.kubelet.verdict import Admitted
from kaicore.rules.numa.kubelet.zones import NodeZones

KUBELET = KubeletSettings(policy=TopologyPolicy.SINGLE_NUMA_NODE, static_cpu=True, threads_per_core=2)


def zone(*, free: int, perhaps_free: int = 0) -> NodeZones:
    """A node of one zone of 64 CPUs, with as many whole free cores as can be."""
    repeated = {CPU: [1000 * perhaps_free]} if perhaps_free else {}
    memory = MemoryZones({}, {}, [0], [0])
    return NodeZones(1, KUBELET, {CPU: [64000]}, {CPU: [1000 * free]}, memory, [0], repeated=repeated)


def request(*, inits: list[int], apps: list[int]) -> AlignedRequest:
    kinds = [(ContainerKind.INIT, cpus) for cpus in inits] + [(ContainerKind.APP, cpus) for cpus in apps]
    containers = tuple(
        AlignedContainer(f"c{number}", kind, ((CPU, 1000 * cpus),)) for number, (kind, cpus) in enumerate(kinds)
    )
    return AlignedRequest(containers, ())


def kept(node: NodeZones, *, inits: list[int], apps: list[int]) -> tuple[int, int]:
    """CPUs that init containers keep, and those that they perhaps keep besides."""
    verdict = admit(node, request(inits=inits, apps=apps))
    assert isinstance(verdict, Admitted)
    lent, perhaps = verdict.lent.get(CPU, [0]), verdict.perhaps.get(CPU, [0])
    return lent[0] // 1000, perhaps[0] // 1000


def test_more_kept_if_an_earlier_pod_holds_what_it_perhaps_holds_is_perhaps_kept() -> None:
    inits, apps = [1, 3], [1, 4]
    assert kept(zone(free=23), inits=inits, apps=apps) == (0, 0)
    assert kept(zone(free=22), inits=inits, apps=apps) == (1, 0)
    assert kept(zone(free=22, perhaps_free=1).likeliest(), inits=inits, apps=apps) == (0, 1)


@pytest.mark.parametrize("perhaps_free", [1, 2, 3])
def test_what_is_kept_is_counted_however_much_of_what_is_perhaps_held_is_held(perhaps_free: int) -> None:
    amounts = [1, 2, 3, 4]
    for first, second, app, other in product(amounts, repeat=4):
        pod = {"inits": [first, second], "apps": [app, other]}
        for free in (16, 17):
            counted = sum(kept(zone(free=free, perhaps_free=perhaps_free).likeliest(), **pod))
            real = [kept(zone(free=free + more), **pod)[0] for more in range(perhaps_free + 1)]
            assert counted == max(real), (free, pod)


def test_a_number_of_free_cpus_that_is_too_small_for_what_the_kubelet_took_counts_no_more() -> None:
    inits, apps = [1, 1], [4, 1]
    assert kept(zone(free=5), inits=inits, apps=apps) == (0, 0), "it takes 5 CPUs"
    assert kept(zone(free=3, perhaps_free=2).likeliest(), inits=inits, apps=apps) == (0, 0)
