"""A verdict that a row takes over from another one with equal hints is the one that the walk over it finds."""

from random import Random

import pytest
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.zones.numa_verdicts import NumaVerdicts
from kaicore.rules.model.pod import QosClass
from kaicore.rules.model.quantity import CPU, MEMORY
from kaicore.rules.numa.kubelet.admission import admit
from kaicore.rules.numa.kubelet.memory_manager import MemoryBlock
from kaicore.rules.numa.kubelet.verdict import Admitted, predicted_placement
from kaicore.rules.numa.kubelet.zones import ZoneCharge
from kaicore.rules.numa.own_policy import spans
from kaicore.rules.numa.scoring import NumaScoring, score

from tests.given.cluster.factory import GI, GPU, Cluster, amounts, container, pod

_KUBELETS = ("restricted", "container"), ("restricted", "pod"), ("best-effort", "container")
_DOUBTS = "certain", "certain", "certain", "uncertain", "repeated"
_MAIN, _SIDE = container(cpu=2, memory=2, gpu=1), container("side", cpu=1, memory=1)
_ASKED = {
    "one": pod("p", _MAIN),
    "of-two-zones": pod("p", container(cpu=0.5, memory=5)),
    "no-device": pod("p", _SIDE),
    "only-devices": pod("p", _MAIN, qos=QosClass.BURSTABLE),
    "two": pod("p", container(cpu=2), container("side", cpu=1)),
}


def _charge(random: Random) -> ZoneCharge:
    """Draw what a pod holds of two zones; what it has of CPUs and GPUs may be uncertain, or of another zone."""
    zone, size, doubt = random.randrange(2), random.randrange(4), random.choice(_DOUBTS)
    taken = ((zone, CPU, random.randrange(4) * 1000), (zone, GPU, random.randrange(3)))
    blocks = (MemoryBlock(MEMORY, random.randint(1, 3), size * GI),) if size else ()
    return ZoneCharge(taken, blocks, (CPU, GPU) if doubt != "certain" else (), taken if doubt == "repeated" else ())


@pytest.mark.parametrize(("policy", "scope"), _KUBELETS)
@pytest.mark.parametrize("asked", _ASKED)
def test_a_verdict_taken_over_from_a_row_with_equal_hints_is_that_of_the_walk(
    policy: str, scope: str, asked: str
) -> None:
    cluster, zone, random = Cluster(), amounts(cpu=4, memory=4, gpu=2), Random(1)
    for row in range(80):
        cluster.add_node(f"n{row}", zone, zone, policy=policy, scope=scope)
        for _ in range(random.randrange(4)):
            cluster.state.columns.zones.charge(row, _charge(random))
    cluster.add_pod(_ASKED[asked])
    columns, pod_class = cluster.state.columns, cluster.state.classes[cluster.state.pods["uid-p"].class_key]
    verdicts, request = NumaVerdicts(columns, pod_class, EngineConfig()), pod_class.aligned
    for row in range(80):
        node = columns.node_zones(row)
        if node.repeated:
            verdicts.verdict(row)
            continue
        exact, found = admit(node, request), verdicts.verdict(row)
        assert isinstance(found, Admitted) == isinstance(exact, Admitted)
        if isinstance(exact, Admitted):
            assert found == exact
            value = score(columns.zones, row, spans(columns.zones, row, exact), request, scoring=NumaScoring())
            assert request.one_device or verdicts.fit(row)[2] == value
            assert verdicts.predict(row) == predicted_placement(exact, ["node-0", "node-1"])
