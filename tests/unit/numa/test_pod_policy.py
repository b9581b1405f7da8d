"""A pod's own NUMA policy: where it is kept, where not, and what is said about it."""

from typing import Any

import pytest
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.node import TopologyPolicy
from kaicore.rules.model.pod import Pod, QosClass
from kaicore.rules.numa.own_policy import malformed_annotations, wants_repair

from tests.given.cluster.factory import GPU, NIC, Cluster, amounts, container, pod

SINGLE, RESTRICTED, BEST = "single-numa-node", "restricted", "best-effort"


def asking(policy: str = "", resources: str = "", **kwargs: Any) -> Pod:
    annotations = {"kai.scheduler/numa-policy": policy, "kai.scheduler/numa-resources": resources}
    name = kwargs.pop("name", "p")
    containers = kwargs.pop("containers", ())
    return pod(name, *containers, annotations={key: value for key, value in annotations.items() if value}, **kwargs)


#: Node's policy, its zones, the pod's policy and resources, what it asks for, and whether the node takes it.
CASES: dict[str, tuple[str, list[Any], str, str, dict[str, Any], bool]] = {
    "best-effort aligns what fits on one zone": (
        *(BEST, [amounts(cpu=8, gpu=4), amounts(cpu=8, gpu=4)], SINGLE, "", {"cpu": 4, "gpu": 2}, True),
    ),
    "best-effort would split what does not": (
        *(BEST, [amounts(cpu=8, gpu=1), amounts(cpu=8, gpu=1)], SINGLE, "", {"cpu": 4, "gpu": 2}, False),
    ),
    "the fewest zones that it could ever do with may be two": (
        *(BEST, [amounts(cpu=8, gpu=4), amounts(cpu=8, gpu=4)], RESTRICTED, "", {"cpu": 12, "gpu": 6}, True),
    ),
    "but one is what single-numa-node says": (
        *(BEST, [amounts(cpu=8, gpu=4), amounts(cpu=8, gpu=4)], SINGLE, "", {"cpu": 12, "gpu": 6}, False),
    ),
    "GPUs and CPUs free on different zones": (
        *(BEST, [amounts(cpu=2, gpu=4), amounts(cpu=8, gpu=0)], SINGLE, "", {"cpu": 4, "gpu": 2}, False),
    ),
    "of which only the GPUs matter, and they are free on one zone only": (
        *(BEST, [amounts(cpu=2, gpu=4), amounts(cpu=8, gpu=0)], SINGLE, GPU, {"cpu": 4, "gpu": 2}, True),
    ),
    "none: free devices on one zone only can come from nowhere else": (
        *("none", [amounts(gpu=4, nic=1), amounts(gpu=0, nic=0)], SINGLE, "", {"gpu": 2, "nic": 1}, True),
    ),
    "none: devices of any zone may be given": (
        *("none", [amounts(gpu=4), amounts(gpu=4)], SINGLE, "", {"gpu": 2}, False),
    ),
    "none: CPUs are packed, here from the fullest zone": (
        *("none", [amounts(cpu=8), amounts(cpu=4)], SINGLE, "", {"cpu": 3}, True),
    ),
    "none: a whole zone is packed first, and the rest comes from another": (
        *("none", [amounts(cpu=8), amounts(cpu=4)], SINGLE, "", {"cpu": 5}, False),
    ),
    "none: the memory manager takes the narrowest zones by itself": (
        *("none", [amounts(memory=8), amounts(memory=8)], SINGLE, "memory", {"cpu": 0.5, "memory": 6}, True),
    ),
    "restricted nodes keep to less than the pod asks for": (
        *(RESTRICTED, [amounts(cpu=8, gpu=4), amounts(cpu=8, gpu=4)], SINGLE, "", {"cpu": 12, "gpu": 6}, False),
    ),
    "single-numa-node nodes keep to any policy": (
        *(SINGLE, [amounts(cpu=8, gpu=4), amounts(cpu=8, gpu=4)], RESTRICTED, "", {"cpu": 4, "gpu": 2}, True),
    ),
    "a node that does not tell of a named resource": (
        *(BEST, [amounts(cpu=8), amounts(cpu=8)], SINGLE, f"cpu,{GPU}", {"cpu": 4, "gpu": 1}, False),
    ),
    "best-effort as a wish leaves no node out": (
        *(BEST, [amounts(cpu=8, gpu=1), amounts(cpu=8, gpu=1)], BEST, "", {"cpu": 4, "gpu": 2}, True),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_policy_of_a_pod_is_kept_on_the_expected_nodes(
    case: tuple[str, list[Any], str, str, dict[str, Any], bool],
) -> None:
    policy, zones, own, resources, asked, taken = case
    cluster = Cluster()
    cluster.add_node("n1", *zones, policy=policy, allocatable={**amounts(cpu=64, memory=64, gpu=8, nic=8), "pods": 9})
    cluster.add_pod(asking(own, resources, **asked))
    assert bool(cluster.cycle().placements) == taken


def test_containers_may_be_on_different_zones_unless_the_node_looks_at_pods() -> None:
    containers = (container("a", cpu=3, gpu=1), container("b", cpu=3, gpu=1))
    for scope, taken in (("container", True), ("pod", False)):
        cluster = Cluster().add_node("n1", *[amounts(cpu=4, gpu=1)] * 2, policy=BEST, scope=scope)
        cluster.add_pod(asking(SINGLE, containers=containers))
        assert bool(cluster.cycle().placements) == taken, scope


def reason_of(cluster: Cluster, one: Pod, config: EngineConfig | None = None) -> Reason:
    """The only reason for which a pod is not placed."""
    cluster.add_pod(one)
    (pending,) = cluster.cycle(config).pending
    (reason,) = pending.reasons
    return reason


def test_reasons_tell_never_from_not_now() -> None:
    cluster = Cluster().add_node("n1", *[amounts(cpu=8, gpu=2)] * 2, policy=BEST)
    never = reason_of(cluster, asking(SINGLE, GPU, name="never", cpu=1, gpu=3))
    assert never.code == "NumaPolicyNeverKept"
    assert str(never) == (
        "1 node that could never keep the pod's own policy "
        f"(single-numa-node for {GPU}: it may get container main: {GPU} on node-0+node-1) (such as n1)"
    )
    cluster.delete_pod(pod("never"))
    for number in range(2):
        cluster.add_pod(pod(f"taker{number}", cpu=7, gpu=1))
    assert len(cluster.cycle().placements) == 2
    assert reason_of(cluster, asking(SINGLE, GPU, name="now", cpu=1, gpu=2)).code == "NumaPolicyNotKept"


def test_nodes_that_do_not_tell_their_zones_keep_no_policy() -> None:
    cluster = Cluster().add_node("n1", cpu=8, gpu=2)
    reason = reason_of(cluster, asking(SINGLE, cpu=1, gpu=1))
    assert reason.code == "NumaPolicyUntold"
    assert "that do not report what is asked for by zone" in str(reason)
    assert asking(SINGLE, cpu=0.5, name="q").annotations, "of this one nothing is aligned anywhere"
    cluster.add_pod(asking(SINGLE, cpu=0.5, name="q"))
    assert [decision.name for decision in cluster.cycle().placements] == ["q"]


def test_a_wish_ranks_by_the_resources_it_names() -> None:
    cluster = Cluster()
    zone = amounts(cpu=8, gpu=2)
    cluster.add_node("a", zone, zone, policy="none")
    cluster.add_node("b", zone, amounts(cpu=8, gpu=0), policy="none")
    cluster.add_pod(asking(BEST, GPU, cpu=2, gpu=2))
    assert [decision.node for decision in cluster.cycle().placements] == ["b"]


def test_policies_make_classes() -> None:
    cluster = Cluster()
    same = [asking(SINGLE, resources, name=f"p{index}", cpu=1, gpu=1) for index, resources in enumerate(["", GPU, GPU])]
    for one in [*same, pod("plain", cpu=1, gpu=1)]:
        cluster.add_pod(one)
    keys = [cluster.state.pods[f"uid-p{index}"].class_key for index in range(3)]
    assert keys[1] == keys[2]
    assert len({*keys, cluster.state.pods["uid-plain"].class_key}) == 3


MALFORMED = {
    "no such policy": ({"numa-policy": "single"}, "numa-policy]: must be one of"),
    "none is no policy of a pod": ({"numa-policy": "none"}, "numa-policy]: must be one of"),
    "resources of no policy": ({"numa-resources": GPU}, "numa-policy]: must be one of"),
    "an empty name": ({"numa-policy": SINGLE, "numa-resources": f"{GPU},"}, "with commas between"),
    "nothing that it asks for": (
        {"numa-policy": SINGLE, "numa-resources": NIC},
        f"nothing that kubelets align of this pod (cpu, {GPU})",
    ),
}


@pytest.mark.parametrize(("annotations", "message"), MALFORMED.values(), ids=MALFORMED)
def test_pod_with_a_malformed_policy_waits(annotations: dict[str, str], message: str) -> None:
    named = {f"kai.scheduler/{name}": value for name, value in annotations.items()}
    one = pod("p", cpu=1, gpu=1, annotations=named)
    (problem,) = malformed_annotations(one)
    assert str(problem).startswith("Pod default/p: metadata.annotations[kai.scheduler/")
    assert message in str(problem)
    reason = reason_of(Cluster().add_node("n1", amounts(cpu=8, gpu=2)), one)
    assert reason.code == "Malformed"
    assert message in str(reason)


def test_a_malformed_request_for_repair_is_none() -> None:
    one = pod("p", cpu=1, annotations={"kai.scheduler/numa-repair": "yes"})
    (problem,) = malformed_annotations(one)
    assert "must be true or false: 'yes'" in str(problem)
    assert not wants_repair(one)
    assert wants_repair(pod("q", cpu=1, annotations={"kai.scheduler/numa-repair": "true"}))
    assert not list(malformed_annotations(pod("r", cpu=1, qos=QosClass.BURSTABLE)))


@pytest.mark.parametrize(
    ("annotations", "asks"),
    [
        ({"numa-heal": "true"}, True),
        ({"numa-heal": "true", "numa-repair": "false"}, False),
        ({"numa-heal": "false", "numa-repair": "true"}, True),
    ],
)
def test_request_for_repair_under_its_former_name_counts_where_the_current_one_is_missing(
    annotations: dict[str, str], asks: bool
) -> None:
    written = {f"kai.scheduler/{name}": value for name, value in annotations.items()}
    assert wants_repair(pod("p", cpu=1, annotations=written)) is asks


def test_a_policy_reads_as_it_is_written() -> None:
    cluster = Cluster()
    cluster.add_pod(asking(RESTRICTED, f" {NIC} ,{GPU}", cpu=1, gpu=1, nic=1))
    own = cluster.state.classes[cluster.state.pods["uid-p"].class_key].numa_policy
    assert own is not None
    assert (own.policy, own.resources) == (TopologyPolicy.RESTRICTED, (GPU, NIC))
