"""Pods that wait a moment, because it is not observed yet what others hold, or because others may end."""

from typing import Any

from kaicore.rules.deciding.cycle_input import next_retry
from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.groups.membership import SIGS_GROUP_LABEL
from kaicore.rules.model.pod import Amounts, ContainerKind, Pod

from tests.given.cluster.factory import Cluster, amounts, container, on_zone, pod
from tests.given.work.workloads import OWNER, Workloads

SECOND = 1_000_000


class Node(Cluster):
    """A node of two zones, the first with GPUs, where a pod of six CPUs has the first zone; exporters report."""

    def __init__(self, *, observing: bool = True, kind: str = "n1") -> None:
        super().__init__()
        self.add_node(kind, amounts(cpu=8, gpu=4), amounts(cpu=8, gpu=0))
        self.old = self.come(pod("old", cpu=6))
        if observing:
            self.observe(self.old, "node-0")

    def come(self, one: Pod) -> Pod:
        self.add_pod(one)
        self.cycle()
        return one

    def is_placed(self, one: Pod) -> bool:
        return one.uid not in self.state.waiting

    def observe(self, one: Pod, zone: str) -> None:
        self.report(one, *(on_zone(zone, item.requests, item.name) for item in one.containers), init=())

    def runs(self, one: Pod, *, seconds: int) -> None:
        self.add_pod(pod(one.name, *one.containers, node_name="n1", phase="Running"))
        self.now += seconds * SECOND

    def reasons(self, one: Pod) -> list[str]:
        shown = self.state.reasons.by_class[self.state.pods[one.uid].class_key].values()
        return [reason.code for item in shown for reason in item.reasons]


def beside_an_unobserved_pod(*, observing: bool = True, beside: Amounts | None = None) -> tuple[Node, Pod, Pod]:
    """`next` was to go to the second zone; if `old` ended early it is on the first, where `late` needs a GPU.

    With an empty node of one zone `beside`, which is less full.
    """
    node = Node(observing=observing)
    unobserved = node.come(pod("next", cpu=4))
    if beside is not None:
        node.add_node("n2", beside)
    return node, unobserved, node.come(pod("late", cpu=2, gpu=1))


def test_a_pod_waits_where_an_unobserved_one_may_have_taken_its_zone() -> None:
    node, unobserved, late = beside_an_unobserved_pod()
    assert not node.is_placed(late)
    assert node.reasons(late) == ["NotObservedYet"]
    (shown,) = [
        reason for item in node.state.reasons.by_class.values() for one in item.values() for reason in one.reasons
    ]
    assert "just starting or ending" in str(shown)
    stirred = node.state.revision
    node.observe(unobserved, "node-1")
    assert node.state.revision > stirred, "a cycle is due"
    node.cycle()
    assert node.is_placed(late)


def test_a_best_effort_kubelet_must_have_the_memory_wherever_unobserved_pods_are() -> None:
    """`next` was to go to the second zone. If `old` ended early it is on the first, which alone can hold `late`."""
    node = Cluster().add_node("n1", amounts(cpu=8, memory=11), amounts(cpu=8, memory=6), policy="best-effort")
    old, unobserved, late = pod("old", cpu=6), pod("next", cpu=4, memory=5), pod("late", cpu=1, memory=7)
    for one in (old, unobserved):
        node.add_pod(one)
        assert node.cycle().placements
        if one is old:
            node.report(one, on_zone("node-0", one.containers[0].requests), init=())
    node.add_pod(late)
    assert node.cycle().placements == ()
    node.delete_pod(old)
    node.report(unobserved, on_zone("node-0", unobserved.containers[0].requests), init=())
    assert node.cycle().placements == (), "the kubelet has not the memory on any zone"
    node.delete_pod(unobserved)
    assert [one.name for one in node.cycle().placements] == ["late"]


def test_a_kubelet_without_policy_must_have_the_cpus_though_unobserved_init_containers_keep_the_most() -> None:
    node = Node()
    node.delete_pod(node.old)
    node.add_node("n1", amounts(cpu=9), policy="none")
    _staged(node, "staged")
    assert node.cycle().placements
    late = node.come(pod("late", cpu=5))
    assert not node.is_placed(late), "`staged` keeps four CPUs, or five"
    node.now += 60 * SECOND
    node.runs(node.state.pods["uid-staged"].pod, seconds=6)
    node.cycle()
    assert node.is_placed(late)


def test_a_prediction_stands_when_a_pod_is_not_observed_for_a_while() -> None:
    node, unobserved, late = beside_an_unobserved_pod()
    node.runs(unobserved, seconds=0)
    proposal = decide(node.state, EngineConfig(), shard="default", now=node.now, actor="test")
    assert proposal.result.placements == ()
    due = next_retry(node.state, EngineConfig(), now=node.now, due=proposal.result.due)
    assert due is not None
    assert 4 * SECOND < due - node.now < 6 * SECOND
    node.now = due
    node.cycle()
    assert node.is_placed(late)


def test_a_pod_that_its_kubelet_has_not_started_is_not_known_however_long_that_takes() -> None:
    node, _, late = beside_an_unobserved_pod()
    node.now += 20 * SECOND
    node.cycle()
    assert not node.is_placed(late)


def test_without_exporters_no_pod_waits_for_an_observation() -> None:
    node, _, late = beside_an_unobserved_pod(observing=False)
    assert node.is_placed(late)


def test_a_pod_with_an_init_container_waits_where_another_may_end_in_that_moment() -> None:
    node = Node()
    node.runs(node.old, seconds=1)
    staged = node.come(pod("staged", container("init", ContainerKind.INIT, cpu=4), container(cpu=8)))
    assert not node.is_placed(staged), "if `old` ends, `init` goes to the first zone, and `main` cannot follow"
    assert node.is_placed(node.come(pod("plain", cpu=1)))


def test_a_pod_that_has_run_for_a_minute_is_taken_to_stay() -> None:
    node = Node()
    node.runs(node.old, seconds=61)
    staged = node.come(pod("staged", container("init", ContainerKind.INIT, cpu=4), container(cpu=8)))
    assert node.is_placed(staged)


def test_no_pod_is_evicted_for_one_that_only_waits_for_an_observation() -> None:
    node = Node()
    node.come(pod("next", cpu=4))
    node.add_pod(pod("late", cpu=2, gpu=1, priority=100))
    assert node.cycle().evictions == ()


def test_a_pod_of_higher_priority_takes_the_reserved_room_that_its_kubelet_will_give_it() -> None:
    """A kubelet knows nothing of the room that is reserved: it gives `other` the first zone."""
    node = Node()
    node.runs(node.old, seconds=61)
    node.come(pod("side", cpu=6))
    first = pod("first", container("init", ContainerKind.INIT, cpu=1), container(cpu=6, gpu=1), priority=1)
    node.come(first)
    assert first.uid in node.state.waiting, "its room is reserved"
    node.delete_pod(node.state.pods["uid-side"].pod)
    node.delete_pod(node.old)
    node.add_pod(pod("other", cpu=7, priority=2))
    result = node.cycle()
    (placed,) = result.placements
    assert placed.placement is not None
    assert (placed.name, placed.placement.containers[0].mask) == ("other", ("node-0",))
    assert [one.name for one in result.cleared] == ["first"]
    assert not node.is_placed(first)


def test_a_pod_waits_beside_reserved_room_that_its_kubelet_would_give_it() -> None:
    """`kept` waits for `low` to leave the first zone; GPUs there are free, and the kubelet would take that first."""
    cluster = Cluster().add_node("n1", amounts(cpu=16, gpu=4), amounts(cpu=16, gpu=4))
    low, beside = pod("low", cpu=1, gpu=2), pod("beside", cpu=1, gpu=2, priority=1)
    for one, zone in ((low, "node-0"), (beside, "node-1")):
        cluster.add_pod(one)
        cluster.cycle()
        cluster.add_pod(pod(one.name, *one.containers, node_name="n1", phase="Running", priority=one.priority))
        cluster.report(one, on_zone(zone, one.containers[0].requests), init=())
    cluster.now += 120 * SECOND
    cluster.add_pod(pod("kept", cpu=1, gpu=3, priority=1))
    assert [one.name for one in cluster.cycle().evictions] == ["low"]
    late = pod("late", cpu=1, gpu=1, priority=1, created_at=1)
    cluster.add_pod(late)
    assert cluster.cycle().placements == ()
    assert "NotObservedYet" in [
        reason.code
        for one in cluster.state.reasons.by_class[cluster.state.pods[late.uid].class_key].values()
        for reason in one.reasons
    ]
    cluster.delete_pod(cluster.state.pods[low.uid].pod)
    placed = {one.name: one.placement for one in cluster.cycle().placements}
    assert {name: one.containers[0].mask for name, one in placed.items() if one is not None} == {
        "kept": ("node-0",),
        "late": ("node-0",),
    }


def _staged(cluster: Cluster, *names: str, **spec: Any) -> list[Pod]:
    """Pods that keep four CPUs, or five where cores are of two CPUs and one is left half free."""
    stages = (container("init", ContainerKind.INIT, cpu=1), container("side", ContainerKind.SIDECAR, cpu=1))
    return [cluster.add_pod(pod(name, *stages, container(cpu=3), **spec)) for name in names]


def _with_an_empty_node() -> Workloads:
    """A node of one zone for two pods of four CPUs; an exporter has reported a pod that is gone."""
    cluster = Workloads().add_node("n1", amounts(cpu=8), scope="pod")
    before = cluster.add_pod(pod("before", cpu=1))
    cluster.cycle()
    cluster.report(before, on_zone("node-0", before.containers[0].requests), init=())
    cluster.delete_pod(before)
    return cluster


def test_a_gang_starts_where_it_fits_if_only_what_its_own_pods_get_is_uncertain() -> None:
    cluster = _with_an_empty_node()
    cluster.gang("gang", 0, least=2)
    _staged(cluster, "gang-0", "gang-1", labels={SIGS_GROUP_LABEL: "gang"}, owner=OWNER)
    assert set(cluster.placed(cluster.cycle())) == {"gang-0", "gang-1"}


def test_a_gang_waits_for_what_pods_of_another_group_get() -> None:
    cluster = _with_an_empty_node()
    cluster.gang("gang", 0, least=2)
    other = cluster.add_pod(pod("other", container("init", ContainerKind.INIT, cpu=1), container(cpu=1), priority=1))
    stages = (container("init", ContainerKind.INIT, cpu=1), container(cpu=3))
    for name in ("gang-0", "gang-1"):
        cluster.add_pod(pod(name, *stages, labels={SIGS_GROUP_LABEL: "gang"}, owner=OWNER))
    assert set(cluster.placed(cluster.cycle())) == {"other"}
    assert not cluster.placed(cluster.cycle())
    cluster.report(other, on_zone("node-0", other.containers[1].requests), init=())
    cluster.see(other, node_name="n1", phase="Running")
    cluster.now += 120 * SECOND
    assert set(cluster.placed(cluster.cycle())) == {"gang-0", "gang-1"}


def test_single_pods_wait_for_each_other_where_a_gang_does_not() -> None:
    cluster = _with_an_empty_node()
    _staged(cluster, "first", "second")
    assert set(cluster.placed(cluster.cycle())) == {"first"}


def test_a_pod_fits_with_one_cpu_per_core_and_with_two_where_that_is_not_reported() -> None:
    def admits(labels: dict[str, str]) -> bool:
        cluster = Cluster().add_node("n1", amounts(cpu=4), amounts(cpu=16), labels=labels)
        one = pod(
            "one",
            container("init", ContainerKind.INIT, cpu=1),
            container("side", ContainerKind.SIDECAR, cpu=2),
            container(cpu=12),
        )
        for each in (pod("old", cpu=1), one):
            cluster.add_pod(each)
            cluster.cycle()
        return one.uid not in cluster.state.waiting

    shown = "feature.node.kubernetes.io/cpu-hardware_multithreading"
    # With two to a core `init` lends the other half of the core of `old`, `side` leaves it alone, and `main`, which has
    # to have what is lent, cannot go to the second zone.
    assert admits({shown: "false"})
    assert not admits({shown: "true"})
    assert not admits({})
