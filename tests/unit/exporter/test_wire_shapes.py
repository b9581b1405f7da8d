"""The forms of podresources from kubelet to kubelet, 1.26 to 1.37, with the same result.

Sources: `k8s.io/kubelet` v0.31.14 and v0.37.2, `pkg/apis/podresources/v1/api.proto`; `pkg/kubelet/apis/podresources`.
"""

from kai_exporter.holdings import ContainerHoldings, SpanHolding, ZoneHolding, pod_holdings
from kai_exporter.kubelet import decode_pod, pod_messages
from kaicore.kube.wire.podresources import ContainerMemory, ContainerResources, PodResources

from tests.given.cluster.podresources import answer, container, numa, pod

GI = 2**30
ZONES = {cpu: cpu // 8 for cpu in range(16)}


def held(one: PodResources) -> tuple[ContainerHoldings, ...]:
    """A pod after a way over the wire."""
    (message,) = pod_messages(answer(one), subject="n1")
    return pod_holdings(decode_pod(message, subject="n1"), ZONES).containers


def memory(gibibytes: int, *nodes: int) -> ContainerMemory:
    return ContainerMemory(memory_type="memory", size=gibibytes * GI, topology=numa(*nodes))


def test_containers_with_what_is_theirs() -> None:
    """All versions, for pods without resources of their own."""
    one = pod("p", container("main", cpus=[0, 1], memory=[("memory", GI, (0,))]), container("helper"))
    main = ContainerHoldings("main", (ZoneHolding("node-0", {"cpu": 2000, "memory": GI}),))
    assert held(one) == (main, ContainerHoldings("helper"))


def test_what_a_pod_has_as_a_whole_is_told_once_since_1_37() -> None:
    """kubernetes/kubernetes#138738: the pod's `cpu_ids` and `memory` have those of its containers among them."""
    own = ContainerResources(name="main", cpu_ids=[0, 1], memory=[memory(1, 0)])
    one = PodResources(
        name="p",
        namespace="default",
        containers=[own, ContainerResources(name="helper")],
        cpu_ids=[0, 1, 2, 3, 8],
        memory=[memory(4, 0), memory(2, 0, 1)],
    )
    main, helper, shared = held(one)
    assert main == ContainerHoldings("main", (ZoneHolding("node-0", {"cpu": 2000, "memory": GI}),))
    assert helper == ContainerHoldings("helper")
    assert shared == ContainerHoldings(
        "",
        (ZoneHolding("node-0", {"cpu": 2000, "memory": 3 * GI}), ZoneHolding("node-1", {"cpu": 1000})),
        (SpanHolding(("node-0", "node-1"), {"memory": 2 * GI}),),
    )


def test_cpus_that_containers_of_a_pod_share_count_once_in_1_36() -> None:
    """With PodLevelResourceManagers each container that shares shows all that is shared."""
    one = pod("p", container("main", cpus=[0, 1]), container("a", cpus=[2, 3]), container("b", cpus=[2, 3]))
    assert [item.zones for item in held(one)] == [
        (ZoneHolding("node-0", {"cpu": 2000}),),
        (ZoneHolding("node-0", {"cpu": 2000}),),
        (),
    ]


def test_fields_of_later_kubelets_are_passed_over() -> None:
    one = pod("p", container("main", cpus=[0]))
    later = one.SerializeToString() + b"\xfa\x01\x03new"
    assert pod_holdings(decode_pod(later, subject="n1"), ZONES).containers == held(one)


def test_pods_that_have_ended_hold_nothing_whichever_kubelet_lists_them() -> None:
    """Up to 1.33 they are listed (kubernetes/kubernetes#132028), without what was freed."""
    assert pod_holdings(pod("done", container("main")), ZONES).empty
