"""Zones of pods that other schedulers bind: predicted until they are observed, where the log has all else."""

from random import Random

import msgspec
import pytest
from kaicore.rules.events import payloads
from kaicore.rules.model.pod import Amounts, Pod
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import Cluster, amounts, on_zone, pod, topology
from tests.given.logs.invariants import differences

ZONE = amounts(cpu=4)


def observe(cluster: Cluster, one: Pod, amount: Amounts, zone: str) -> None:
    cluster.report(one, on_zone(zone, amount))


def with_exporter(*, available: tuple[Amounts, ...] = (ZONE, ZONE)) -> Cluster:
    """A node of two zones of four CPUs with an exporter that has reported, and without pods."""
    cluster = Cluster().add_node("n1", ZONE, ZONE, available=available)
    first = cluster.add_pod(pod("first", cpu=1, scheduler_name="other", node_name="n1", phase="Running"))
    observe(cluster, first, amounts(cpu=1), "node-0")
    cluster.delete_pod(first)
    return cluster


def bind(cluster: Cluster, name: str, cpu: int) -> Pod:
    """Another scheduler's pod is seen waiting, then bound."""
    waiting = cluster.add_pod(pod(name, cpu=cpu, scheduler_name="other"))
    return cluster.add_pod(msgspec.structs.replace(waiting, node_name="n1"))


def used(cluster: Cluster) -> list[int]:
    zones = cluster.state.columns.zones
    figures: list[int] = zones.used[cluster.state.columns.row("n1"), :2, zones.resources["cpu"]].tolist()
    return figures


def zones_of_a_pod(cluster: Cluster, *, cpu: int) -> tuple[str, ...]:
    cluster.add_pod(pod("p", cpu=cpu))
    (placed,) = cluster.cycle().placements
    assert placed.placement is not None
    return placed.placement.containers[0].mask


def test_a_pod_beside_one_bound_by_another_scheduler_gets_the_other_zone() -> None:
    cluster = with_exporter()
    bind(cluster, "theirs", 3)
    assert zones_of_a_pod(cluster, cpu=3) == ("node-1",)


def test_a_pod_waits_where_pods_of_another_scheduler_leave_no_zone() -> None:
    cluster = with_exporter()
    bind(cluster, "x", 3)
    bind(cluster, "y", 3)
    cluster.add_pod(pod("p", cpu=2))
    (pending,) = cluster.cycle().pending
    assert pending.reasons[0].rejection == "TopologyAffinityError"


def test_what_a_node_published_before_a_pod_ended_is_not_believed() -> None:
    cluster = with_exporter(available=(ZONE, amounts(cpu=0)))
    bind(cluster, "theirs", 1)
    assert zones_of_a_pod(cluster, cpu=4) == ("node-1",)


def test_an_observation_replaces_what_was_foretold() -> None:
    cluster = with_exporter()
    theirs = bind(cluster, "theirs", 3)
    assert used(cluster) == [3000, 0]
    assert used_again(cluster) == [3000, 0]
    observe(cluster, theirs, amounts(cpu=3), "node-1")
    assert used(cluster) == [0, 3000]
    assert cluster.state.pods[theirs.uid].expected is None


def likeliest(cluster: Cluster) -> list[int]:
    """Return what is used, each pod counted once: one of ours may count on each zone that it may be on."""
    charges, total = cluster.state.charges, [0, 0]
    for entry in charges.held_on("n1"):
        for zone, _, amount in charges.predicted_charge(entry).amounts:
            total[zone] += amount
    return total


def used_again(cluster: Cluster) -> list[int]:
    restored = decode_state(encode_state(cluster.state))
    assert not differences(restored)
    zones = restored.columns.zones
    figures: list[int] = zones.used[restored.columns.row("n1"), :2, zones.resources["cpu"]].tolist()
    return figures


@pytest.mark.parametrize("end", ["deleted", "rejected", "succeeded"])
def test_a_pod_that_is_gone_holds_no_foretold_zone(end: str) -> None:
    cluster = with_exporter()
    theirs = bind(cluster, "theirs", 3)
    if end == "deleted":
        cluster.delete_pod(theirs)
    elif end == "succeeded":
        cluster.add_pod(msgspec.structs.replace(theirs, phase="Succeeded"))
    else:
        cluster.add_pod(msgspec.structs.replace(theirs, phase="Failed", reason="TopologyAffinityError"))
    assert used(cluster) == [0, 0]
    assert not differences(cluster.state)


@pytest.mark.parametrize("exporter", [False, True])
def test_what_a_node_without_an_exporter_publishes_of_pods_that_run_replaces_what_was_foretold(exporter: bool) -> None:
    cluster = with_exporter() if exporter else Cluster()
    if not exporter:
        cluster.add_node("n1", ZONE, ZONE)
    theirs = bind(cluster, "theirs", 3)
    publish(cluster, 4, 4)
    cluster.add_pod(msgspec.structs.replace(theirs, node_name="n1", phase="Running"))
    assert used(cluster) == [3000, 0], "it may have published that before the pod came"
    publish(cluster, 4, 1)
    assert used(cluster) == ([3000, 0] if exporter else [0, 0])
    assert (not cluster.partly_unknown("n1")) == exporter
    assert used_again(cluster) == used(cluster)
    assert not differences(cluster.state)


def publish(cluster: Cluster, *cpus: int) -> None:
    free = tuple(amounts(cpu=cpu) for cpu in cpus)
    cluster.record("nrt/n1", payloads.TopologyObserved(topology("n1", ZONE, ZONE, available=free)))


@pytest.mark.parametrize("doubt", ["not ready", "unknown pod", "seen running"])
def test_nothing_is_foretold_where_the_admission_is_in_doubt(doubt: str) -> None:
    cluster = with_exporter()
    if doubt == "not ready":
        cluster.add_node("n1", ZONE, ZONE, ready=False)
    if doubt == "unknown pod":
        cluster.add_pod(pod("before", cpu=1, scheduler_name="other", node_name="n1", phase="Running"))
    if doubt == "seen running":
        cluster.add_pod(pod("theirs", cpu=3, scheduler_name="other", node_name="n1", phase="Running"))
    else:
        bind(cluster, "theirs", 3)
    assert used(cluster) == [0, 0]
    assert cluster.partly_unknown("n1")


@pytest.mark.parametrize("seed", range(12))
def test_zones_are_never_over_committed_by_what_is_foretold(seed: int) -> None:
    """Pods of both schedulers come and go; predictions are observed as predicted, or never."""
    random, cluster = Random(seed), with_exporter()
    there: list[Pod] = []
    for number in range(16):
        if there and random.random() < 0.4:
            cluster.delete_pod(there.pop(random.randrange(len(there))))
        elif random.random() < 0.6:
            there.append(bind(cluster, f"theirs-{number}", random.randint(1, 4)))
            entry = cluster.state.pods[there[-1].uid]
            if entry.expected is None:
                cluster.delete_pod(there.pop())
            elif random.random() < 0.5:
                zone = entry.expected.containers[0].zones[0]
                observe(cluster, there[-1], zone.amount, zone.zone)
        else:
            there.append(cluster.add_pod(pod(f"ours-{number}", cpu=random.randint(1, 4))))
            if not cluster.cycle().placements:
                cluster.delete_pod(there.pop())
        assert max(likeliest(cluster)) <= 4000
        assert not differences(cluster.state)
        assert used_again(cluster) == used(cluster)
