"""Of several nodes with devices for a claim, the one with the best devices for the pod gets it."""

from kaicore.analysis.ask.queries import Inquiry
from kaicore.rules.numa.own_policy import POLICY_ANNOTATION, RESOURCES_ANNOTATION

from tests.given.cluster.devices import DRIVER, add_slice, devices, exactly, from_template, gpu, slice_document
from tests.given.cluster.factory import Cluster, amounts, pod
from tests.given.logs.stored import stored
from tests.given.work.workloads import Workloads

ZONE = amounts(cpu=8, memory=32)


def two_zones(made: Cluster | None = None, **gpus: int) -> Cluster:
    """Nodes of two zones with a GPU on one of these; exclusive CPUs come from zone 0 first."""
    cluster = devices(made)
    for node, zone in gpus.items():
        cluster.add_node(node, ZONE, ZONE)
        add_slice(cluster, slice_document(node, gpu("gpu-0", numa=zone)))
    return cluster


def nodes(cluster: Cluster) -> dict[str, str]:
    return {one.name: one.node for one in cluster.cycle().placements}


async def test_node_whose_device_is_on_the_zone_of_the_cpus_gets_the_pod_and_why_says_so() -> None:
    made = Workloads("c")
    from_template(two_zones(made, a=1, b=0), cpu=4)
    made.cycle()
    placed = (await Inquiry(await stored(made)).why("c", "Pod", "default", "p")).placement
    assert placed is not None
    assert [(one.node, one.chosen, one.near) for one in placed.nodes] == [("b", True, 100), ("a", False, 0)]
    assert (
        placed.because
        == "devices of its claims that are close to its CPUs: 100 % against 0 % on a, the next of 2 nodes"
    )


def test_node_with_an_earlier_alternative_gets_the_pod_though_another_one_is_fuller() -> None:
    cluster = devices()
    for node, memory in (("a", "40Gi"), ("b", "80Gi")):
        cluster.add_node(node, cpu=8, memory=64)
        add_slice(cluster, slice_document(node, gpu("gpu-0", memory=memory)))
    large = f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("60Gi"))'
    first, second = exactly("large", DRIVER, large), exactly("any")
    alternatives = [{"name": one["name"], **one["exactly"]} for one in (first, second)]
    from_template(cluster, {"name": "gpu", "firstAvailable": alternatives})
    assert nodes(cluster) == {"p": "b"}


def test_partition_of_a_card_that_is_broken_up_is_taken_before_a_whole_card() -> None:
    cluster = devices()
    for node in ("a", "b"):
        cluster.add_node(node, cpu=8, memory=64, labels={"name": node})
        use = [{"counterSet": "card", "counters": {"slots": {"value": "1"}}}]
        parts = [gpu(f"part-{number}", consumesCounters=use) for number in range(2)]
        pool = {"resourceSliceCount": 2}
        add_slice(cluster, slice_document(node, *parts, pool=pool))
        card = [{"name": "card", "counters": {"slots": {"value": "2"}}}]
        add_slice(cluster, slice_document(node, name=f"{node}-card", sharedCounters=card, pool=pool))
    from_template(cluster, name="first", node_selector={"name": "b"})
    assert nodes(cluster) == {"first": "b"}
    # Node a is fuller, and would be taken for that.
    cluster.add_pod(pod("filler", cpu=6, node_selector={"name": "a"}))
    cluster.cycle()
    from_template(cluster, name="second")
    assert nodes(cluster) == {"second": "b"}


def test_pod_whose_own_policy_is_binding_waits_for_a_device_on_the_zone_of_its_cpus() -> None:
    cluster = two_zones(a=1)
    policy = {POLICY_ANNOTATION: "single-numa-node"}
    from_template(cluster, name="strict", cpu=4, annotations=policy)
    result = cluster.cycle()
    assert not result.placements
    assert "devices that its resource claims could have are not all close to its CPUs" in str(
        result.pending[0].reasons[0]
    )
    about_cpus = {**policy, RESOURCES_ANNOTATION: "cpu"}
    from_template(cluster, name="about-cpus", cpu=4, annotations=about_cpus)
    assert nodes(cluster) == {"about-cpus": "a"}
    cluster.add_node("b", ZONE, ZONE)
    add_slice(cluster, slice_document("b", gpu("gpu-0", numa=[0, 1])))
    assert nodes(cluster) == {"strict": "b"}
