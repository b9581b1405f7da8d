"""Verify and repair: what counts as a miss, who is evicted when, and that it never becomes a loop."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.deciding.cycle_input import idle, next_retry
from kaicore.rules.deciding.why import notes, story_of
from kaicore.rules.engine.actions.cycle import CycleResult
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.model.placement import ContainerPlacement, SpanAmount, ZoneAmount
from kaicore.rules.model.pod import Owner, Pod
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import Stage
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import GPU, Cluster, amounts, pod
from tests.given.examples import examples
from tests.given.logs.replaying import replayed
from tests.given.work.groups import job

SECOND = 1_000_000
ZONE = amounts(cpu=8, gpu=2)


def asking(
    name: str, *, owner: str | Owner = "rs", repair: str = "true", policy: str = "single-numa-node", **kwargs: Any
) -> Pod:
    """A pod of an owner that asks for two GPUs on one zone, and to be repaired."""
    annotations = {"kai.scheduler/numa-policy": policy, "kai.scheduler/numa-repair": repair}
    by = owner if isinstance(owner, Owner) else Owner("ReplicaSet", owner, f"uid-{owner}") if owner else None
    return pod(name, cpu=2, gpu=2, owner=by, annotations=annotations, **kwargs)


class Fleet(Cluster):
    """Best-effort nodes with kubelets that put pods where a test says."""

    def __init__(self, nodes: int = 2) -> None:
        super().__init__()
        self.add_nodes(nodes, ZONE, ZONE, policy="best-effort")

    def run(self, name: str, *gpu_zones: int, **kwargs: Any) -> str:
        """Place a pod and have it run with its GPUs on zones; its node."""
        one = self.add_pod(asking(name, **kwargs))
        self.cycle()
        return self.start(one, *gpu_zones)

    def start(self, one: Pod, *gpu_zones: int) -> str:
        node = self.state.pods[one.uid].node
        assert node
        self.add_pod(msgspec.structs.replace(one, node_name=node, phase="Running"))
        self.observe(one.name, node, *gpu_zones)
        return node

    def observe(self, name: str, node: str, *gpu_zones: int) -> None:
        held = ZoneAmount(f"node-{gpu_zones[0]}", amounts(cpu=2))
        gpus = [ZoneAmount(f"node-{zone}", {GPU: 2 // len(gpu_zones)}) for zone in gpu_zones]
        self.report(pod(name), ContainerPlacement("main", (), (held, *gpus)), node=node)

    def after(self, seconds: int, config: EngineConfig | None = None) -> CycleResult:
        """A cycle some time later."""
        self.now += seconds * SECOND
        return self.cycle(config)

    def end(self, name: str) -> None:
        entry = self.state.pods[f"uid-{name}"]
        self.record(entry_stream(name), payloads.PodEvicted(entry.pod.uid, "default", name, entry.node))
        self.delete_pod(entry.pod)

    def notes(self, name: str) -> str:
        return "; ".join(notes(self.state.pods[f"uid-{name}"], self.state))

    def repaired(self, result: CycleResult) -> list[str]:
        return [repair.name for repair in result.repairs]


def entry_stream(name: str) -> str:
    return f"pod/uid-{name}"


def test_a_pod_that_missed_its_zone_is_evicted_once_and_its_successor_goes_elsewhere() -> None:
    fleet = Fleet()
    node = fleet.run("a", 0, 1)
    assert fleet.repaired(fleet.after(0)) == [], "the observation may yet be corrected"
    assert (
        next_retry(fleet.state, EngineConfig(), now=fleet.now) == fleet.state.pods["uid-a"].misaligned_at + 10 * SECOND
    )
    (repair,) = fleet.after(10).repairs
    assert (repair.name, repair.node, repair.missed) == ("a", node, f"cpu on node-0, {GPU} on node-0+node-1")
    assert fleet.repaired(fleet.after(3600)) == [], "once is enough"
    fleet.end("a")
    successor = fleet.add_pod(asking("b"))
    assert fleet.cycle().placements[0].node != node, "not where its predecessor missed, if there is another"
    fleet.start(successor, 0, 1)
    assert fleet.repaired(fleet.after(7200)) == []
    assert "it stays where it is: it replaces a pod that was evicted from n0 already" in fleet.notes("b")
    story = [line.text for line in story_of([event for event in fleet if event.stream == entry_stream("a")])]
    assert any("decided to repair it: its own NUMA policy was missed" in text for text in story)
    assert "evicted from n0" in story


def test_an_observation_that_is_corrected_in_time_needs_no_repair() -> None:
    fleet = Fleet()
    node = fleet.run("a", 0, 1)
    assert not idle(fleet.state)
    fleet.observe("a", node, 1, 1)
    assert idle(fleet.state)
    assert fleet.repaired(fleet.after(60)) == []


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"owner": ""}, "it has no controller that would make another"),
        ({"repair": "false"}, "it did not ask to be placed anew"),
        ({"repair": "yes"}, "it did not ask to be placed anew"),
    ],
)
def test_misaligned_pod_that_is_not_repaired_has_its_cause(kwargs: dict[str, str], why: str) -> None:
    fleet = Fleet()
    fleet.run("a", 0, 1, **kwargs)
    assert fleet.repaired(fleet.after(60)) == []
    assert f"it stays where it is: {why}" in fleet.notes("a")
    assert idle(fleet.state)


def test_no_pod_is_repaired_without_a_better_node() -> None:
    fleet = Fleet(nodes=1)
    fleet.run("a", 0, 1)
    assert fleet.repaired(fleet.after(60)) == []
    assert "once another node would keep its policy" in fleet.notes("a")
    fleet.add_node("n9", ZONE, policy="best-effort")
    assert fleet.repaired(fleet.cycle()) == ["a"]


@pytest.mark.parametrize(("limit", "repaired"), [(1, ["a"]), (0, [])])
def test_no_pod_is_repaired_whose_job_would_fail_by_it(limit: int, repaired: list[str]) -> None:
    fleet = Fleet()
    fleet.run("a", 0, 1, owner=job(fleet, spec={"backoffLimit": limit}))
    assert fleet.repaired(fleet.after(10)) == repaired
    assert ("its Job counts evictions as failures and allows no more" in fleet.notes("a")) is not bool(repaired)


def test_waiting_pods_come_first() -> None:
    fleet = Fleet()
    fleet.run("a", 0, 1)
    fleet.now += 60 * SECOND
    fleet.add_pod(asking("w1", owner="other"))
    fleet.add_pod(asking("w2", owner="other"))
    result = fleet.cycle()
    assert len(result.placements) == 2
    assert fleet.repaired(result) == []


def test_repair_that_is_switched_off_evicts_no_pod() -> None:
    fleet = Fleet()
    fleet.run("a", 0, 1)
    assert fleet.repaired(fleet.after(60, EngineConfig(repair=False))) == []
    assert "repair is switched off (setting repair)" in fleet.notes("a")


def test_alike_pods_of_one_owner_are_evicted_one_after_another() -> None:
    fleet = Fleet(nodes=6)
    names = ["a", "b", "c"]
    for name in names:
        fleet.run(name, 0, 1)
    assert fleet.repaired(fleet.after(10)) == ["a"]
    assert fleet.repaired(fleet.after(59)) == []
    assert fleet.repaired(fleet.after(1)) == ["b"]
    assert fleet.repaired(fleet.after(119)) == []
    assert fleet.repaired(fleet.after(1)) == ["c"]


def test_an_eviction_that_fails_is_tried_again_later_and_leaves_no_mark() -> None:
    fleet = Fleet()
    node = fleet.run("a", 0, 1)
    fleet.after(10)
    refused = payloads.EvictionFailed("uid-a", "default", "a", node, 429, "TooManyRequests", "budget", 9)
    fleet.record(entry_stream("a"), refused)
    assert fleet.state.counters.eviction_failures == {"TooManyRequests": 1}
    assert fleet.repaired(fleet.after(1)) == []
    fleet.add_pod(asking("b"))
    assert not fleet.state.pods["uid-b"].replaces_on
    assert fleet.repaired(fleet.after(60)) == ["a"]


def test_a_mark_survives_a_successor_that_is_rejected() -> None:
    fleet = Fleet()
    fleet.run("a", 0, 1)
    fleet.after(10)
    fleet.end("a")
    fleet.add_pod(asking("b"))
    assert fleet.state.pods["uid-b"].replaces_on == "n0"
    fleet.add_pod(asking("b", node_name="n1", phase="Failed", reason="TopologyAffinityError"))
    fleet.record(entry_stream("b"), payloads.PodRejected("uid-b", "default", "b", "n1", "TopologyAffinityError"))
    fleet.add_pod(asking("c"))
    assert fleet.state.pods["uid-c"].replaces_on == "n0"


def test_restricted_allows_as_many_zones_as_it_takes() -> None:
    """Four GPUs never fit a zone of two; two do."""
    fleet = Fleet()
    policy = {"kai.scheduler/numa-policy": "restricted", "kai.scheduler/numa-resources": GPU}
    one = fleet.add_pod(pod("wide", cpu=2, gpu=4, annotations=policy))
    fleet.cycle()
    fleet.start(one, 0, 1)
    assert not fleet.state.misaligned
    fleet.run("narrow", 0, 1, policy="restricted", owner="other")
    assert fleet.state.misaligned == {"uid-narrow"}


def test_observation_without_known_zones_is_no_miss() -> None:
    fleet = Fleet()
    node = fleet.run("a", 0)
    for zones in (("node-7", "node-8"), ("node-0", "node-7")):
        fleet.report(pod("a"), ContainerPlacement("main", (), (), (SpanAmount(zones, {GPU: 2}),)), node=node)
        assert not fleet.state.misaligned


def test_a_device_that_several_zones_reach_is_on_each_of_them() -> None:
    fleet = Fleet()
    node = fleet.run("a", 0)
    span = SpanAmount(("node-0", "node-1"), {GPU: 1})
    gpu, cpus = ZoneAmount("node-0", {GPU: 1}), ZoneAmount("node-1", amounts(cpu=2))
    for held, missed in (((gpu,), False), ((gpu, cpus), True), ((), False)):
        fleet.report(pod("a"), ContainerPlacement("main", (), held, (span,)), node=node)
        assert bool(fleet.state.misaligned) is missed


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_there_are_never_more_evictions_than_pods_made_without_any(data: st.DataObject) -> None:
    """Kubelets that miss always, owners that replace what ends, restarts anywhere: it comes to an end, and replays."""
    fleet = Fleet(nodes=4)
    config = EngineConfig(repair_backoff_us=SECOND, repair_after_us=0)
    made, organic = 0, 0
    for _ in range(data.draw(st.integers(5, 25))):
        match data.draw(st.sampled_from(("make", "cycle", "cycle", "reject", "gone", "restart", "fail"))):
            case "make" if made < 6:
                made, organic = made + 1, organic + 1
                fleet.add_pod(asking(f"p{made}"))
            case "reject":
                if placed := _some(fleet, Stage.BOUND):
                    node, one = placed.node, placed.pod
                    rejected = msgspec.structs.replace(one, phase="Failed", reason="TopologyAffinityError")
                    fleet.add_pod(rejected)
                    refusal = payloads.PodRejected(one.uid, "default", one.name, node, "TopologyAffinityError")
                    fleet.record(f"pod/{one.uid}", refusal)
                    marked = any(record.awaited for record in fleet.state.repairs.records.values())
                    made, organic = made + 1, organic + (not marked)
                    fleet.add_pod(asking(f"p{made}"))
            case "gone":
                for entry in [entry for entry in fleet.state.pods.values() if entry.repairing]:
                    fleet.end(entry.pod.name)
                    made += 1
                    fleet.add_pod(asking(f"p{made}"))
            case "fail":
                for entry in [entry for entry in fleet.state.pods.values() if entry.repairing]:
                    failed = payloads.EvictionFailed(entry.pod.uid, "default", entry.pod.name, entry.node, 429, "Busy")
                    fleet.record(f"pod/{entry.pod.uid}", failed)
            case "restart":
                saved = encode_state(fleet.state)
                fleet.state = decode_state(saved)
                assert encode_state(fleet.state) == saved
            case _:
                fleet.after(3600, config)
                for entry in list(fleet.state.pods.values()):
                    if entry.stage is Stage.PLACED:
                        fleet.start(entry.pod, 0, 1)
        tally = fleet.state.counters
        assert tally.evictions_decided.get("Repaired", 0) - sum(tally.eviction_failures.values()) <= organic
    assert encode_state(ClusterState("test").fold_all(fleet.events)) == encode_state(fleet.state)
    assert replayed(fleet.events).differences == []


def _some(fleet: Fleet, stage: Stage) -> Any:
    entries = [fleet.state.pods[uid] for uid in sorted(fleet.state.pods)]
    return next((entry for entry in entries if entry.stage is stage and not entry.repairing), None)
