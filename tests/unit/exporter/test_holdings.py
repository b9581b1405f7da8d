"""A pod's holdings, in podresources' words."""

import pytest
from kai_exporter.holdings import ContainerHoldings, SpanHolding, UnknownCpus, ZoneHolding, pod_holdings
from kaicore.kube.wire.podresources import ContainerDevices, ContainerResources, PodResources

from tests.given.cluster.podresources import GPU, container, decoded, numa, pod

#: CPUs 0 to 3 on NUMA node 0, 4 to 7 on NUMA node 1.
CPUS = {cpu: cpu // 4 for cpu in range(8)}
GI = 2**30


def zone(number: int, **amount: int) -> ZoneHolding:
    return ZoneHolding(f"node-{number}", {name.replace("gpu", GPU): value for name, value in amount.items()})


@pytest.mark.parametrize(
    ("listed", "zones", "spans"),
    [
        pytest.param(container(), (), (), id="nothing"),
        pytest.param(container(cpus=[0, 1, 4]), (zone(0, cpu=2000), zone(1, cpu=1000)), (), id="cpus of two zones"),
        pytest.param(
            container(gpus={"a": [0], "b": [1], "c": [1]}), (zone(0, gpu=1), zone(1, gpu=2)), (), id="devices"
        ),
        pytest.param(container(gpus={"a": []}), (), (), id="device without topology"),
        pytest.param(container(gpus={"a": [-1]}), (), (), id="device on NUMA node -1"),
        pytest.param(
            container(gpus={"a": [1, 0], "b": [0]}),
            (zone(0, gpu=1),),
            (SpanHolding(("node-0", "node-1"), {GPU: 1}),),
            id="device of two zones, listed once for each",
        ),
        pytest.param(
            container(memory=[("memory", GI, (0,)), ("memory", 2 * GI, (0,)), ("hugepages-2Mi", 4096, (1,))]),
            (zone(0, memory=3 * GI), ZoneHolding("node-1", {"hugepages-2Mi": 4096})),
            (),
            id="memory blocks",
        ),
        pytest.param(
            container(memory=[("memory", 3 * GI, (1, 0))], cpus=[7]),
            (zone(1, cpu=1000),),
            (SpanHolding(("node-0", "node-1"), {"memory": 3 * GI}),),
            id="memory bound to two zones",
        ),
        pytest.param(container(memory=[("memory", 0, (0,)), ("memory", GI, ())]), (), (), id="memory of no account"),
        pytest.param(
            container(gpus={"a": [2], "b": [10]}), (zone(2, gpu=1), zone(10, gpu=1)), (), id="zones by number"
        ),
    ],
)
def test_container(listed: ContainerResources, zones: tuple[ZoneHolding, ...], spans: tuple[SpanHolding, ...]) -> None:
    held = pod_holdings(decoded(pod("p", listed)), CPUS)
    assert held.containers == (ContainerHoldings("main", zones, spans),)
    assert held.empty == (not zones and not spans)


def test_several_devices_of_one_entry() -> None:
    entry = ContainerDevices(resource_name=GPU, device_ids=["a", "b"], topology=numa(1))
    held = pod_holdings(decoded(pod("p", ContainerResources(name="main", devices=[entry]))), CPUS)
    assert held.containers[0].zones == (zone(1, gpu=2),)


def test_one_device_in_two_resources_is_two_devices() -> None:
    entries = [ContainerDevices(resource_name=name, device_ids=["0"], topology=numa(0)) for name in ("a/x", "a/y")]
    held = pod_holdings(decoded(pod("p", ContainerResources(name="main", devices=entries))), CPUS)
    assert held.containers[0].zones == (ZoneHolding("node-0", {"a/x": 1, "a/y": 1}),)


def test_containers_are_kept_apart_and_named_in_order() -> None:
    held = pod_holdings(decoded(pod("p", container("b", cpus=[0]), container("a", cpus=[4]), container("c"))), CPUS)
    assert [(one.name, [item.zone for item in one.zones]) for one in held.containers] == [
        ("b", ["node-0"]),
        ("a", ["node-1"]),
        ("c", []),
    ]


def test_a_cpu_that_sysfs_does_not_know_is_no_guess() -> None:
    with pytest.raises(UnknownCpus) as raised:
        pod_holdings(decoded(pod("p", container("x", cpus=[0, 99, 98]))), CPUS)
    assert (raised.value.container, raised.value.ids) == ("x", [98, 99])


def test_nothing_of_nothing() -> None:
    assert pod_holdings(decoded(PodResources(name="p", namespace="default")), CPUS).empty
