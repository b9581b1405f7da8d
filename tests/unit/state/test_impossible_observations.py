"""Observations of more than a pod or a zone can hold: they are not believed, and it is said."""

import pytest
from kai_scheduler.metrics import SchedulerMetrics
from kaicore.rules.deciding.why import notes, story_of
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.model.placement import ContainerPlacement, SpanAmount, ZoneAmount
from kaicore.rules.model.pod import Amounts, ContainerKind, Pod
from kaicore.rules.state.snapshot import decode_state, encode_state
from prometheus_client import CollectorRegistry

from tests.given.cluster.factory import GPU, NIC, Cluster, amounts, container, pod

ZONE = amounts(cpu=4, memory=16, gpu=2)


def held(name: str = "main", *zones: Amounts, span: Amounts | None = None) -> ContainerPlacement:
    """A container's amounts of node-0, node-1, ..., and of the first two together."""
    zone_amounts = tuple(ZoneAmount(f"node-{index}", amount) for index, amount in enumerate(zones))
    return ContainerPlacement(name, zones=zone_amounts, spans=(SpanAmount(("node-0", "node-1"), span),) if span else ())


class Node(Cluster):
    """A node of two zones."""

    def __init__(self) -> None:
        super().__init__()
        self.add_node("n1", ZONE, ZONE)

    def run(self, *containers: ContainerPlacement, one: Pod) -> str:
        """Have a pod run and observe it; why that is not believed."""
        self.add_pod(one)
        self.report(one, *containers)
        return self.state.pods[one.uid].implausible

    def fits(self, **asked: int) -> bool:
        self.add_pod(pod("next", **asked))
        return bool(self.cycle().placements)


def running(*containers: object, **asked: int) -> Pod:
    return pod("a", *containers, node_name="n1", phase="Running", **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (held("main", amounts(cpu=100_000)), "containers[main].cpu: the container asks for 2 at most: '100000'"),
        (held("main", amounts(cpu=1), amounts(cpu=2)), "containers[main].cpu: the container asks for 2 at most"),
        (held("main", amounts(gpu=1), span={GPU: 1}), "containers[main].nvidia.com/gpu: the container asks for 1"),
        (held("main", {"foo/bar": 1}), "containers[main].foo/bar: the container asks for 0 at most: '1'"),
        (held("zzz", amounts(cpu=1)), "containers[zzz]: is none of the pod's containers (main): 'zzz'"),
        (held("", amounts(cpu=400)), "placement.cpu: the pod's containers ask for 2 at most: '400'"),
    ],
)
def test_more_than_the_pod_asks_for_changes_nothing_and_is_said(record: ContainerPlacement, problem: str) -> None:
    cluster = Node()
    registry = CollectorRegistry()
    SchedulerMetrics(registry).watch(cluster.state, EngineConfig(), lambda: 0)
    one = running(cpu=2, gpu=1)
    assert problem in cluster.run(record, one=one)
    entry = cluster.state.pods[one.uid]
    assert entry.observed is None
    assert f"its last observation is not believed: Pod default/a: {problem}" in notes(entry, cluster.state)[0]
    assert f"which is not believed: Pod default/a: {problem}" in story_of(cluster.events[2:])[-1].text
    assert registry.get_sample_value("kai_observations_disbelieved_total", {"node": "n1"}) == 1
    assert decode_state(encode_state(cluster.state)).pods[one.uid].implausible == entry.implausible
    cluster.report(one, held("main", amounts(cpu=2, gpu=1)))
    assert entry.implausible == ""
    assert notes(entry, cluster.state) == []
    assert cluster.fits(cpu=4), "the other zone is free"


def test_an_earlier_observation_stands() -> None:
    cluster = Node()
    one = running(cpu=2)
    assert not cluster.run(held("main", amounts(cpu=2)), one=one)
    believed = cluster.state.pods[one.uid].observed
    cluster.report(one, held("main", {}, amounts(cpu=3)))
    assert cluster.state.pods[one.uid].observed == believed


def test_no_zone_gives_more_cpus_or_memory_than_it_has() -> None:
    """A container may ask for more than one zone has, and then holds several; of devices the zone may show too few."""
    one = running(cpu=6, memory=32, gpu=4)
    assert "node-0.cpu: the zone has 4: '6'" in Node().run(held("main", amounts(cpu=6)), one=one)
    assert "node-1.memory: the zone has" in Node().run(held("main", {}, amounts(memory=17)), one=one)
    assert not Node().run(held("main", amounts(cpu=4, gpu=3), amounts(cpu=2), span=amounts(memory=32)), one=one)


def test_what_kubelets_do_give_is_believed() -> None:
    init = container("init", ContainerKind.INIT, cpu=4)
    side, main = container("side", ContainerKind.SIDECAR, cpu=1), container("main", cpu=2, gpu=1, nic=1)
    holding = held("main", amounts(cpu=2), amounts(gpu=1), span={NIC: 1}), held("side", amounts(cpu=1))
    assert not Node().run(*holding, one=running(init, side, main))
    shared = pod("a", container("x"), node_name="n1", phase="Running", pod_resources=amounts(cpu=4))
    assert not Node().run(held("x", amounts(cpu=4)), one=shared), "the pod's own resources are any container's"
    device_of_both = held("", amounts(cpu=2, gpu=1), amounts(gpu=1))
    assert not Node().run(device_of_both, one=running(cpu=2, gpu=1)), "an annotation names it on each of its zones"
