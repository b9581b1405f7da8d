"""The time when a waiting group would become schedulable: with smaller requests, or after others have ended."""

from collections.abc import Callable

import pytest
from kaicore.rules.deciding.cycle_input import cycle_input
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.explain.remedies import MOST_ENDS, Remedies
from kaicore.rules.events.reasons.making_room import FitsAfter, FitsIf
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.groups.labels import KAI_POD_GROUP, KAI_QUEUE_LABEL, SIGS_POD_GROUP
from kaicore.rules.model.group import PodSet
from kaicore.rules.model.pod import Owner, PodRules, PodTerm, QosClass
from kaicore.rules.model.selector import PodSelector, Requirement

from tests.given.cluster.factory import GI, amounts, container, pod
from tests.given.cluster.hierarchy import queue
from tests.given.cluster.sharing_cluster import ON, SharingCluster
from tests.given.work.workloads import Workloads
from tests.unit.engine.test_queues_in_cycles import cluster_of, of


def helps(cluster: Workloads, group: str, config: EngineConfig | None = None) -> tuple[Reason, ...]:
    """The time when a group would become schedulable, of a pod alone or a gang, by its name."""
    config = config or EngineConfig()
    given = cycle_input(cluster.state, config, now=cluster.state.recorded_at)
    key = f"{SIGS_POD_GROUP}/default/{group}"
    return Remedies(given, config).of(key if key in given.workloads else f"Pod/default/{group}").reasons


def nodes(*zones: dict[str, int], count: int = 1, **kwargs: object) -> Workloads:
    """Nodes n0, n1, … that are alike."""
    cluster = Workloads()
    for number in range(count):
        cluster.add_node(f"n{number}", *zones, **kwargs)  # type: ignore[arg-type]
    return cluster


def wants(cluster: Workloads, **spec: object) -> Workloads:
    """A pod called `new` comes, and a cycle finds no node for it."""
    cluster.add_pod(pod("new", created_at=9, **spec))
    assert "new" not in cluster.placed(cluster.cycle())
    return cluster


def runs(cluster: Workloads, name: str, **spec: object) -> Workloads:
    cluster.full(cluster.add_pod(pod(name, **spec)))
    return cluster


ZONE = amounts(cpu=16, memory=60, gpu=4)


def _memory_now() -> Workloads:
    return wants(runs(nodes(cpu=16, memory=118), "old", cpu=1, memory=18), cpu=4, memory=110)


def _one_zone_now() -> Workloads:
    cluster = nodes(ZONE, ZONE)
    for name in ("a", "b"):
        runs(cluster, name, cpu=1, memory=1, gpu=3)
    return wants(cluster, cpu=1, memory=1, gpu=2)


def _gang() -> Workloads:
    cluster = nodes(cpu=16, memory=100, count=2)
    cluster.gang("new", 4, cpu=1, memory=60)
    cluster.cycle()
    return cluster


def _two_containers() -> Workloads:
    cluster = nodes(cpu=16, memory=100)
    cluster.add_pod(pod("new", container("main", memory=90), container("log", memory=20)))
    cluster.cycle()
    return cluster


def _fits_now() -> Workloads:
    cluster = nodes(cpu=4)
    cluster.add_pod(pod("new", cpu=4))
    return cluster


def _gang_incomplete() -> Workloads:
    cluster = nodes(cpu=4)
    cluster.gang("new", 2, least=3, cpu=8)
    cluster.cycle()
    return cluster


def _fewest_then_oldest() -> Workloads:
    cluster = nodes(cpu=8, count=3)
    cluster.full(cluster.gang("two", 2, cpu=4))
    for name, age in (("young", 5), ("older", 4)):
        runs(cluster, name, cpu=8, created_at=age)
    return wants(cluster, cpu=8)


def _only_a_whole_job_does() -> Workloads:
    cluster = nodes(cpu=8, count=2)
    cluster.full(cluster.gang("wide", 4, cpu=3))
    for name in ("a", "b"):
        runs(cluster, name, cpu=2)
    return wants(cluster, cpu=6)


def _no_single_end() -> Workloads:
    cluster = nodes(cpu=8)
    for name in ("a", "b"):
        runs(cluster, name, cpu=4)
    return wants(cluster, cpu=8)


def _leaving() -> Workloads:
    cluster = runs(nodes(cpu=8), "old", cpu=4)
    cluster.see(cluster.state.pods["uid-old"].pod, deletion_at=1_700_000_000)
    return wants(cluster, cpu=8)


def _other_scheduler() -> Workloads:
    cluster = nodes(cpu=8)
    other = pod("theirs", cpu=8, scheduler_name="default-scheduler", node_name="n0", phase="Running")
    cluster.add_pod(other)
    return wants(cluster, cpu=8)


def _gang_after_a_gang() -> Workloads:
    cluster = nodes(ZONE, ZONE, count=2)
    cluster.full(cluster.gang("old", 4, cpu=1, memory=1, gpu=4))
    cluster.gang("new", 3, cpu=1, memory=1, gpu=4, created_at=9)
    cluster.cycle()
    return cluster


def _zone_freed() -> Workloads:
    cluster = nodes(ZONE, ZONE)
    for name, gpu, age in (("a", 3, 1), ("b", 1, 2), ("c", 3, 3)):
        runs(cluster, name, cpu=1, memory=1, gpu=gpu, created_at=age)
    return wants(cluster, cpu=1, memory=1, gpu=4)


def _kept_apart() -> Workloads:
    cluster = nodes(cpu=8, labels={"host": "n0"})
    runs(cluster, "old", cpu=1, labels={"app": "a"})
    selector = PodSelector(("default",), None, (Requirement("app", "In", ("a",)),))
    return wants(cluster, cpu=1, rules=PodRules(anti_affinity=(PodTerm("host", selector),)))


def _queue_limit() -> Workloads:
    cluster = cluster_of(queue("a", quota=4, limit=4), queue("b", quota=4))
    cluster.full(cluster.add_pod(of("first", "a", 3)), cluster.add_pod(of("b", "b", 1)))
    cluster.add_pod(of("new", "a", 3, created_at=9))
    assert not cluster.cycle().placements
    return cluster


def _no_such_queue() -> Workloads:
    cluster = cluster_of(queue("a", quota=4))
    cluster.full(cluster.add_pod(of("old", "a", 8)))
    cluster.add_pod(of("new", "b", 4))
    cluster.cycle()
    return cluster


def _two_kinds() -> Workloads:
    cluster = nodes(cpu=8, count=2)
    cluster.gang("g", 0, sets=(PodSet(), PodSet("a", "", 1), PodSet("b", "", 1)))
    cluster.subgroup("a", "g", 1, cpu=12)
    cluster.subgroup("b", "g", 1, cpu=10)
    cluster.cycle()
    return cluster


def _gangs_that_start_at_once() -> Workloads:
    together = {"together": ("default/new", "default/workers")}
    cluster = nodes(cpu=3)
    cluster.gang("new", 1, group=together, cpu=1)
    cluster.gang("workers", 3, group=together, cpu=1)
    cluster.cycle()
    return cluster


def _room_is_kept() -> Workloads:
    cluster = runs(nodes(cpu=8), "old", cpu=8)
    wants(cluster, cpu=8, priority=9)
    assert cluster.state.nominated
    return cluster


def _kept_for_others() -> Workloads:
    cluster = _room_is_kept()
    cluster.delete_pod(cluster.state.pods["uid-old"].pod)
    cluster.add_pod(pod("late", cpu=2, created_at=10))
    return cluster


CASES: list[tuple[str, Callable[[], Workloads], list[str]]] = [
    (
        "memory: as much as the largest node has",
        lambda: wants(nodes(cpu=16, memory=118), cpu=4, memory=200),
        ["if memory ≤ 118Gi (such as n0)"],
    ),
    (
        "memory that others hold: less of it, or after them",
        _memory_now,
        ["if memory ≤ 100Gi (such as n0)", "if Pod default/old ends (on n0)"],
    ),
    (
        "two resources are short: less of one would not help",
        lambda: wants(nodes(cpu=16, memory=118), cpu=20, memory=200),
        [],
    ),
    ("CPUs: whole ones", lambda: wants(nodes(cpu=48, memory=8), cpu=64), ["if cpu ≤ 48 (such as n0)"]),
    (
        "CPUs below one: by 100m",
        lambda: wants(runs(nodes(cpu=1.5), "old", cpu=1), cpu=1),
        ["if cpu ≤ 500m (such as n0)", "if Pod default/old ends (on n0)"],
    ),
    (
        "GPUs of one zone",
        lambda: wants(nodes(ZONE, ZONE), cpu=1, memory=1, gpu=5),
        ["if nvidia.com/gpu ≤ 4 (such as n0)"],
    ),
    (
        "GPUs that are free on one zone",
        _one_zone_now,
        ["if nvidia.com/gpu ≤ 1 (such as n0)", "if Pod default/a ends (on n0)"],
    ),
    (
        "restricted: as many as lie where the CPUs do",
        lambda: wants(nodes(ZONE, ZONE, policy="restricted"), cpu=1, memory=1, gpu=5),
        ["if nvidia.com/gpu ≤ 4 (such as n0)"],
    ),
    ("a gang: per pod, all placed", _gang, ["if memory ≤ 50Gi per pod (such as n0)"]),
    (
        "gangs that start at once: none above it, all placed",
        _gangs_that_start_at_once,
        ["if cpu ≤ 700m per pod (such as n0)"],
    ),
    ("two containers: less in the largest", _two_containers, ["if memory ≤ 100Gi by less in main (such as n0)"]),
    ("of one GPU there is no less", lambda: wants(nodes(cpu=4), cpu=1, gpu=1), []),
    (
        "a label is no matter of amounts, nor of time",
        lambda: wants(runs(nodes(cpu=4), "old", cpu=4), cpu=2, node_selector={"disk": "ssd"}),
        [],
    ),
    ("what fits needs no help", _fits_now, []),
    ("what is gated is not tried", lambda: wants(nodes(cpu=4), cpu=8, scheduling_gates=("quota",)), []),
    ("nor a gang without its pods", _gang_incomplete, []),
    (
        "of those with an end that helps: fewest pods, then the oldest",
        _fewest_then_oldest,
        ["if Pod default/older ends (on n2)"],
    ),
    (
        "no pod's end, but a whole group's",
        _only_a_whole_job_does,
        ["if PodGroup default/wide ends (its 4 pods, such as on n0)"],
    ),
    ("where it takes two ends, none is named", _no_single_end, []),
    (
        "a DaemonSet's pods do not end",
        lambda: wants(runs(nodes(cpu=8), "agent", cpu=1, owner=Owner("DaemonSet", "agent", "uid-agent")), cpu=8),
        ["if cpu ≤ 7 (such as n0)"],
    ),
    (
        "a pod that leaves is waited for, and no other is named",
        _leaving,
        ["if cpu ≤ 4 (such as n0)", "when the pods that are ending are gone (such as n0)"],
    ),
    (
        "a pod that room is kept for waits for those",
        _room_is_kept,
        ["when the pods that are ending are gone (such as n0)"],
    ),
    ("pods of other schedulers end too", _other_scheduler, ["if Pod default/theirs ends (on n0)"]),
    ("a gang after a gang", _gang_after_a_gang, ["if PodGroup default/old ends (its 4 pods, such as on n0)"]),
    (
        "a zone, and not only so many GPUs, has to be free",
        _zone_freed,
        ["if nvidia.com/gpu ≤ 1 (such as n0)", "if Pod default/c ends (on n0)"],
    ),
    ("no end and no less makes a queue that is not there", _no_such_queue, []),
    ("who keeps it away ends", _kept_apart, ["if Pod default/old ends (on n0)"]),
    (
        "a queue's limit: less, or after work of that queue",
        _queue_limit,
        ["if nvidia.com/gpu ≤ 1 (such as n0)", "if Pod default/first ends (on n0)"],
    ),
]


@pytest.mark.parametrize(("make", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_group_that_waits_says_when_it_would_become_schedulable(
    make: Callable[[], Workloads], expected: list[str]
) -> None:
    assert [str(reason) for reason in helps(make(), "new")] == [f"would become schedulable {when}" for when in expected]


def test_pods_of_two_kinds_are_told_what_none_may_exceed() -> None:
    cluster = _two_kinds()
    given = cycle_input(cluster.state, EngineConfig(), now=cluster.state.recorded_at)
    (remedy,) = Remedies(given, EngineConfig()).of(f"{KAI_POD_GROUP}/default/g").reasons
    assert str(remedy) == "would become schedulable if cpu ≤ 8 per pod (such as n0)"


def test_limit_of_a_queue_that_parts_of_gpus_use_up_is_passed_once_a_pod_with_a_part_has_ended() -> None:
    cluster = SharingCluster().queues(queue("a", limit=1))
    for name, milli in (("large", 700), ("small", 300), ("new", 500)):
        cluster.share(name, milli, labels={KAI_QUEUE_LABEL: "a"}, created_at=len(cluster.state.pods))
        cluster.turn()
    expected = "would become schedulable if Pod default/large ends (on n0)"
    assert [str(reason) for reason in helps(cluster, "new", ON)] == [expected]


def test_room_that_is_kept_for_others_is_not_free() -> None:
    assert helps(_kept_for_others(), "late") == ()


def test_remedy_as_data_has_its_fields() -> None:
    smaller, later = helps(_memory_now(), "new")
    assert smaller == FitsIf(resource="memory", most=100 * GI, example="n0")
    assert later == FitsAfter(pods=1, example="n0", group="Pod default/old")


def test_remedy_is_empty_when_too_many_would_have_to_be_tried() -> None:
    cluster = nodes(ZONE, ZONE, count=1, pods=3000)
    selector = PodSelector(("default",), None, (Requirement("app", "In", ("a",)),))
    cluster.add_node("far", cpu=4, pods=3000)
    for number in range(MOST_ENDS + 1):
        cluster.add_pod(pod(f"p{number}", node_name="far", phase="Running", qos=QosClass.BEST_EFFORT))
    cluster.add_node("n1", cpu=4, labels={"host": "n1"})
    cluster.add_pod(pod("last", node_name="n1", phase="Running", labels={"app": "a"}, created_at=1))
    rules = PodRules(anti_affinity=(PodTerm("host", selector),))
    wants(cluster, node_selector={"host": "n1"}, cpu=1, rules=rules)
    assert helps(cluster, "new") == ()


def test_looking_for_remedies_changes_no_column() -> None:
    cluster = _gang_after_a_gang()
    used = cluster.state.columns.used.copy()
    assert helps(cluster, "new") == helps(cluster, "new")
    assert (cluster.state.columns.used == used).all()
