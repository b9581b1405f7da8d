"""Schedulers on a real log: they decide what comes, once, also beside other schedulers."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import pytest
from kai_cli.main import main
from kai_scheduler.metrics import SchedulerMetrics
from kai_scheduler.scheduler import CyclePace
from kaicore.analysis.replay.log_states import fold_through, restored
from kaicore.analysis.replay.replay import replay_log
from kaicore.analysis.replay.self_check import DIFFERENCES
from kaicore.ledger.log import snapshots
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.deciding.replay import KNOWN_BEFOREHAND, Replay
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.work.gang_planner import GangPlanner
from kaicore.rules.engine.work.pending_group import PendingGroup
from kaicore.rules.events import payloads, quarantine
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.groups.labels import SIGS_POD_GROUP
from kaicore.rules.groups.membership import SIGS_GROUP_LABEL
from kaicore.rules.model.group import GroupSource
from kaicore.rules.queues.division import FairShareConfig
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import decode_state, encode_state
from prometheus_client import CollectorRegistry, generate_latest

from tests.conftest import module_database_url as superuser_url
from tests.given.cluster.factory import GI, GPU, node, pod, topology
from tests.given.cluster.hierarchy import queue
from tests.given.logs.new_events import attempt, break_fold_of, forged
from tests.given.processes.waiting import eventually, until_events, until_payloads
from tests.integration.scheduling import Facts, facts_of, placed, scheduling

__all__ = ["superuser_url"]

Kai = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture
def kai(monkeypatch: pytest.MonkeyPatch) -> Kai:
    """Runs `kai` with arguments; returns its exit code and what it said."""

    async def run(*arguments: str) -> tuple[int, str]:
        said = StringIO()
        monkeypatch.setattr(sys, "argv", ["kai", *arguments])
        with pytest.raises(SystemExit) as ended, redirect_stdout(said), redirect_stderr(said):
            await asyncio.to_thread(main)
        return int(ended.value.code or 0), said.getvalue()

    return run


async def check_replay(log: EventLog, cluster: str) -> ClusterState:
    """Replay the whole log: no differences; and no zone is over-committed."""
    beforehand = await log.read(cluster, where=Filter(types=KNOWN_BEFOREHAND), limit=100_000)
    replay = Replay(ClusterState(cluster), beforehand)
    for event in await log.read(cluster, limit=100_000):
        replay.take(event)
    assert replay.finish().differences == []
    zones = replay.state.columns.zones
    assert (zones.used <= zones.allocatable).all()
    return replay.state


async def test_scheduler_decides_on_pods_as_they_come(postgres_log: EventLog, cluster_name: str) -> None:
    facts = await facts_of(postgres_log, cluster_name, nodes=2)
    async with scheduling(postgres_log, cluster_name):
        await facts.add_pods("a", "b", cpu=2, gpu=1)
        assert await placed(postgres_log, cluster_name, 2) == {"a": "n0", "b": "n0"}
        await facts.add_pods("big", cpu=20, gpu=1)
        await facts.add_pods("c", cpu=2, gpu=4)
        assert (await placed(postgres_log, cluster_name, 3))["c"] in {"n0", "n1"}
    state = await check_replay(postgres_log, cluster_name)
    (reasons,) = state.reasons.by_class.values()
    assert reasons["default"].reasons[0].code == "NumaNeverFits"


async def test_event_that_cannot_be_decoded_stops_its_node_and_pod_until_the_owner_sets_it_aside(
    postgres_log: EventLog,
    cluster_name: str,
    database_url: str,
    superuser_url: str,
    kai: Kai,
) -> None:
    facts = await facts_of(postgres_log, cluster_name, nodes=2)
    async with scheduling(postgres_log, cluster_name) as scheduler:
        await facts.add_pods("a", cpu=2, gpu=4)
        assert await placed(postgres_log, cluster_name, 1) == {"a": "n0"}
        await facts.append(("pod/uid-a", payloads.PodDeleted("uid-a", "default", "a")))
        no_bodies = {
            "node/n0": f'{{"node": {{"name": "n0", "uid": "u", "allocatable": {{"cpu": {10**30}}}}}}}',
            "pod/uid-b": '{"no": ["thing", 1]}',
            "queue/q": "[]",
        }
        for stream, type_ in (("node/n0", "NodeObserved"), ("pod/uid-b", "PodObserved"), ("queue/q", "QueueObserved")):
            versions = await postgres_log.stream_versions(cluster_name, [stream])
            row = forged(stream, type_, version=versions[stream] + 1, body=no_bodies[stream])
            assert await attempt(database_url, cluster_name, row) == ""
        first = (await postgres_log.head(cluster_name)).position - 2
        await facts.add_pods("b", "c", cpu=2, gpu=4)
        assert await placed(postgres_log, cluster_name, 2) == {"a": "n0", "c": "n1"}
        report = scheduler._context.health.report()
        assert (
            f"[!]quarantine: event {first} (NodeObserved on node/n0, by mallory) cannot be decoded and 2 more" in report
        )
        metrics = CollectorRegistry()
        SchedulerMetrics(metrics).watch(scheduler.state, EngineConfig(), lambda: 0)
        assert b"kai_quarantined_events 3.0" in generate_latest(metrics)
        again = decode_state(encode_state(scheduler.state))
        assert again.quarantined == scheduler.state.quarantined
        assert again.columns.unschedulable[again.columns.row("n0")]
        flags = ["--reason", "appended by whoever had the watcher's password", "--cluster", cluster_name]
        assert (await kai("audit", "set-aside", str(first), *flags, "--database-url", database_url))[0] == 2
        for position in range(first, first + 3):
            code, said = await kai("audit", "set-aside", str(position), *flags, "--database-url", superuser_url)
            assert code == 0
            assert f"event {position} (" in said
            assert "by mallory: " in said
        await facts.add_pods("d", cpu=2, gpu=4)
        assert await placed(postgres_log, cluster_name, 4) == {"a": "n0", "c": "n1", "b": "n1", "d": "n0"}
        assert "quarantine" not in scheduler._context.health.report()
        code, said = await kai("audit", "set-aside", "1", *flags, "--database-url", superuser_url)
        assert code == 2
        assert "can be decoded and folded: it stays what it is" in said
    state = await check_replay(postgres_log, cluster_name)
    assert state.quarantined == {}


@pytest.mark.parametrize("poison", [(13, "be folded"), (2**63, "be decoded")], ids=["folded", "decoded"])
async def test_event_that_no_state_can_take_in_stops_its_node_until_the_owner_sets_it_aside(  # noqa: PLR0917  # fixtures
    postgres_log: EventLog,
    cluster_name: str,
    superuser_url: str,
    kai: Kai,
    poison: tuple[int, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu, cannot = poison
    facts = await facts_of(postgres_log, cluster_name, nodes=2)
    beyond = topology("n0", {"cpu": cpu, "memory": 64 * GI, GPU: 4})
    if cannot == "be folded":
        break_fold_of(payloads.TopologyObserved(beyond), monkeypatch)
    flags = ["--cluster", cluster_name, "--database-url", superuser_url]
    async with scheduling(postgres_log, cluster_name) as scheduler:
        await facts.add_pods("a", cpu=2, gpu=4)
        assert await placed(postgres_log, cluster_name, 1) == {"a": "n0"}
        await facts.append(
            ("pod/uid-a", payloads.PodDeleted("uid-a", "default", "a")), ("nrt/n0", payloads.TopologyObserved(beyond))
        )
        await facts.add_pods("b", cpu=2, gpu=4)
        assert await placed(postgres_log, cluster_name, 2) == {"a": "n0", "b": "n1"}
        ((bad, found),) = scheduler.state.quarantined.items()
        report = scheduler._context.health.report()
        assert f"[!]quarantine: event {bad} (TopologyObserved on nrt/n0, by watcher) cannot {cannot}" in report
        assert ("OverflowError: no such amount" if cpu == 13 else f"does not fit into 64 bits: {2**63}") in report
        # A process that never met the event, and folds the log from its beginning.
        monkeypatch.setattr(quarantine, "_problems", {})
        code, said = await kai("audit", "verify", *flags)
        assert code == 0
        assert f"quarantined: event {bad} (TopologyObserved on nrt/n0, by watcher): {found.error}" in said
        monkeypatch.setattr(quarantine, "_problems", {})
        code, said = await kai("audit", "set-aside", str(bad), "--reason", "a broken exporter", *flags)
        assert code == 0
        assert found.error in said
        await facts.add_pods("c", "d", cpu=2, gpu=4)
        assert sorted((await placed(postgres_log, cluster_name, 4)).values()) == ["n0", "n0", "n1", "n1"]
        assert "quarantine" not in scheduler._context.health.report()
        assert f"set aside: event {bad} (on nrt/n0): a broken exporter" in (await kai("audit", "verify", *flags))[1]
    monkeypatch.setattr(quarantine, "_problems", {})
    anew, upto = ClusterState(cluster_name), scheduler.state.position
    await fold_through(postgres_log, anew, await postgres_log.read(cluster_name, upto=upto, limit=100_000))
    assert encode_state(anew) == encode_state(scheduler.state)
    # As a worker of a parallel replay begins.
    monkeypatch.setattr(quarantine, "_problems", {})
    report = await replay_log(postgres_log, cluster_name)
    assert report.cycles > 1
    assert report.differences == []
    assert (await check_replay(postgres_log, cluster_name)).quarantined == {}


async def test_queues_are_reported_when_their_work_changes_also_when_nothing_waits(
    postgres_log: EventLog, cluster_name: str
) -> None:
    facts = Facts(postgres_log, cluster_name)
    await facts.append(("queue/a", payloads.QueueObserved(queue("a", quota=4))))
    await facts.add_nodes(1)
    config = EngineConfig(fair_share=FairShareConfig(report_every_us=1000))
    labels = {"kai.scheduler/queue": "a"}
    async with scheduling(postgres_log, cluster_name, config=config):
        await facts.append(("pod/uid-p", payloads.PodObserved(pod("p", cpu=2, gpu=2, labels=labels))))
        await reported(postgres_log, cluster_name, {"gpu": 2})
        await facts.append(("pod/uid-p", payloads.PodDeleted("uid-p", "default", "p")))
        await reported(postgres_log, cluster_name, {})
    state = await check_replay(postgres_log, cluster_name)
    assert state.queue_registry.reported["a"].allocated == {}


async def reported(log: EventLog, cluster: str, allocated: dict[str, int]) -> None:
    """Wait until the last report says what a queue's work holds."""
    await until_payloads(
        log, cluster, "QueuesReported", holds=lambda told: told and told[-1].queues[0].allocated == allocated
    )


async def test_a_scheduler_whose_clock_is_ahead_keeps_its_nominations(
    postgres_log: EventLog, cluster_name: str
) -> None:
    facts = Facts(postgres_log, cluster_name)
    running = pod("low", cpu=1, gpu=8, priority=1, node_name="n0", phase="Running")
    await facts.append(
        ("node/n0", payloads.NodeObserved(node("n0", cpu=32, memory=128, gpu=8))),
        ("pod/uid-low", payloads.PodObserved(running)),
        ("pod/uid-high", payloads.PodObserved(pod("high", cpu=1, gpu=8, priority=9))),
    )
    async with scheduling(postgres_log, cluster_name, ahead_s=3600):
        await until_events(postgres_log, cluster_name, "PodNominated")
        for count, name in enumerate(("a", "b", "c"), start=1):
            await facts.add_pods(name, cpu=1)
            await placed(postgres_log, cluster_name, count)
    of_nominations = Filter(types=("PodNominated", "NominationCleared"))
    assert len(await postgres_log.read(cluster_name, where=of_nominations)) == 1
    await check_replay(postgres_log, cluster_name)


async def test_scheduler_wakes_up_when_a_delay_is_over(postgres_log: EventLog, cluster_name: str) -> None:
    """Long before it would look again anyway."""
    facts = Facts(postgres_log, cluster_name)
    await facts.append(("node/n0", payloads.NodeObserved(node("n0", cpu=32, memory=128, gpu=8))))
    group = GroupSource(
        kind=SIGS_POD_GROUP,
        uid="uid-g",
        namespace="default",
        name="g",
        resource_version="1",
        created_at=int(time.time()),
        preemption_delay_us=1_500_000,
    )
    running = pod("low", cpu=1, gpu=8, priority=1, node_name="n0", phase="Running")
    waiting = pod("high", cpu=1, gpu=8, priority=9, labels={SIGS_GROUP_LABEL: "g"})
    await facts.append(
        ("pod/uid-low", payloads.PodObserved(running)),
        (f"group/{group.key}", payloads.GroupSourceObserved(group)),
        ("pod/uid-high", payloads.PodObserved(waiting)),
    )
    config = EngineConfig(recheck_us=3_600_000_000)
    async with scheduling(postgres_log, cluster_name, config=config):
        evictions = await until_events(postgres_log, cluster_name, "EvictionDecided")
    assert [event.subject for event in evictions] == ["default/low"]


async def test_scheduler_goes_on_from_its_snapshot(postgres_log: EventLog, cluster_name: str) -> None:
    facts = await facts_of(postgres_log, cluster_name, nodes=1)
    async with scheduling(postgres_log, cluster_name) as first:
        await facts.add_pods("a", cpu=2, gpu=2)
        await placed(postgres_log, cluster_name, 1)
    saved = await restored(postgres_log, cluster_name)
    assert saved.position == first.state.position > 0
    async with scheduling(postgres_log, cluster_name) as second:
        await facts.add_pods("b", cpu=2, gpu=4)
        await placed(postgres_log, cluster_name, 2)
    whole = await check_replay(postgres_log, cluster_name)
    assert encode_state(second.state) == encode_state(whole)


async def test_scheduler_leaves_a_trail_of_states_as_it_goes(
    postgres_log: PostgresLog, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_spacing", lambda _: 4)
    monkeypatch.setattr(snapshots, "SPACING", 4)
    facts = await facts_of(postgres_log, cluster_name, nodes=1)
    async with scheduling(postgres_log, cluster_name) as scheduler:
        for count, name in enumerate("abc", start=1):
            await facts.add_pods(name, cpu=1)
            await placed(postgres_log, cluster_name, count)
    places = await postgres_log.trail.places(cluster_name)
    assert len(places) >= 2, "not only as it ends"
    assert places[-1].position <= scheduler.state.position


async def test_state_in_memory_that_is_spoilt_is_folded_anew(postgres_log: EventLog, cluster_name: str) -> None:
    before = DIFFERENCES.labels("scheduler")._value.get()
    facts = await facts_of(postgres_log, cluster_name, nodes=1)
    async with scheduling(postgres_log, cluster_name, pace=CyclePace(period_ms=0, check_s=0.01)) as scheduler:
        await facts.add_pods("a", cpu=2, gpu=2)
        await placed(postgres_log, cluster_name, 1)
        columns = scheduler.state.columns
        columns.set_node(None, columns.row("n0"))
        await facts.add_pods("b", cpu=2, gpu=4)
        assert await placed(postgres_log, cluster_name, 2) == {"a": "n0", "b": "n0"}
    events = await postgres_log.read(cluster_name, limit=1000)
    whole = ClusterState(cluster_name).fold_all(events)
    (found,) = [decode_payload(event) for event in events if event.type == "DifferenceFound"]
    assert isinstance(found, payloads.DifferenceFound)
    assert (found.check, found.parts[0].split("/")[:2]) == ("scheduler", ["", "nodes"])
    assert DIFFERENCES.labels("scheduler")._value.get() == before + 1
    assert encode_state(scheduler.state) == encode_state(whole)
    assert encode_state(await restored(postgres_log, cluster_name)) == encode_state(whole)


async def test_two_of_one_shard_decide_once(postgres_log: EventLog, cluster_name: str) -> None:
    facts = await facts_of(postgres_log, cluster_name, nodes=4)
    eager = CyclePace(period_ms=0, standby_ms=0)
    async with (
        scheduling(postgres_log, cluster_name, instance="one", pace=eager),
        scheduling(postgres_log, cluster_name, instance="two", pace=eager),
    ):
        for number in range(20):
            await facts.add_pods(f"p{number}", cpu=2, gpu=1)
        await placed(postgres_log, cluster_name, 20)
    await check_replay(postgres_log, cluster_name)


async def test_scheduler_that_stands_by_takes_over(postgres_log: EventLog, cluster_name: str) -> None:
    facts = await facts_of(postgres_log, cluster_name, nodes=1)
    async with scheduling(postgres_log, cluster_name, instance="second"):
        async with scheduling(postgres_log, cluster_name, instance="first"):
            await facts.add_pods("a", cpu=1)
            await placed(postgres_log, cluster_name, 1)
        await facts.add_pods("b", cpu=1)
        await placed(postgres_log, cluster_name, 2)
    await check_replay(postgres_log, cluster_name)


async def test_shards_that_want_the_same_never_promise_a_zone_twice(postgres_log: EventLog, cluster_name: str) -> None:
    """Two shards that know nothing of each other, on the same nodes and pods: the log decides who was first."""
    facts = await facts_of(postgres_log, cluster_name, nodes=2)
    async with (
        scheduling(postgres_log, cluster_name, shard="a"),
        scheduling(postgres_log, cluster_name, shard="b"),
    ):
        for number in range(16):
            await facts.add_pods(f"p{number}", cpu=2, gpu=1)
        nodes = await placed(postgres_log, cluster_name, 16)
    assert Counter(nodes.values()) == {"n0": 8, "n1": 8}
    await check_replay(postgres_log, cluster_name)


class Roll:
    """The live members, as a test has them."""

    settled = fresh = True

    def __init__(self, *live: str) -> None:
        self.live = live

    def start(self) -> None:
        pass

    def pulse(self) -> None:
        pass


async def test_replicas_that_begin_at_once_without_a_bus_place_all(postgres_log: EventLog, cluster_name: str) -> None:
    facts, roll = Facts(postgres_log, cluster_name), Roll("a", "b")
    await facts.add_nodes(6)
    await facts.add_pods(*(f"p{number}" for number in range(16)), cpu=2, gpu=1)
    async with (
        scheduling(postgres_log, cluster_name, replica="a", live=roll),
        scheduling(postgres_log, cluster_name, replica="b", live=roll),
    ):
        await placed(postgres_log, cluster_name, 16)
    await check_replay(postgres_log, cluster_name)


async def test_replicas_share_the_groups_and_take_over_from_one_that_is_gone(
    postgres_log: EventLog, cluster_name: str
) -> None:
    facts, roll = Facts(postgres_log, cluster_name), Roll("a", "b")
    await facts.add_nodes(6)
    async with scheduling(postgres_log, cluster_name, replica="a", live=roll) as one:
        async with scheduling(postgres_log, cluster_name, replica="b", live=roll) as other:
            await eventually(lambda: one.state.replicas == other.state.replicas == {"default": ("a", "b")})
            await facts.add_pods(*(f"p{number}" for number in range(16)), cpu=2, gpu=1)
            await placed(postgres_log, cluster_name, 16)
        events = await postgres_log.read(cluster_name, where=Filter(types=("PodPlaced", "ReplicasChanged")))
        assert {event.actor for event in events} == {"scheduler/default/a/one", "scheduler/default/b/one"}
        roll.live = ("a",)
        await facts.add_pods(*(f"q{number}" for number in range(8)), cpu=2, gpu=1)
        await placed(postgres_log, cluster_name, 24)
    state = await check_replay(postgres_log, cluster_name)
    assert state.replicas == {"default": ("a",)}


async def test_metrics_tell_what_the_state_counts(postgres_log: EventLog, cluster_name: str) -> None:
    facts = await facts_of(postgres_log, cluster_name, nodes=1)
    registry = CollectorRegistry()
    async with scheduling(postgres_log, cluster_name) as scheduler:
        await facts.add_pods("a", cpu=2, gpu=1)
        await placed(postgres_log, cluster_name, 1)
        rejected = payloads.PodRejected("uid-a", "default", "a", "n0", "TopologyAffinityError")
        await facts.append(("pod/uid-a", rejected))
        await facts.add_pods("b", cpu=1)
        await placed(postgres_log, cluster_name, 2)
        SchedulerMetrics(registry).watch(scheduler.state, EngineConfig(), lambda: 0)
        text = generate_latest(registry).decode()
    assert 'kai_kubelet_rejections_total{reason="TopologyAffinityError"} 1.0' in text
    assert 'kai_pods{stage="finished"} 1.0' in text


async def test_group_that_makes_cycles_raise_is_left_out_and_all_else_goes_on(
    postgres_log: EventLog, cluster_name: str, superuser_url: str, kai: Kai, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = GangPlanner.joint_steps

    def planned(self: GangPlanner, group: PendingGroup) -> Any:
        if any(member.pod.name == "poison" for member in group.workload.waiting.values()):
            raise ZeroDivisionError("no such rule")
        return plan(self, group)

    monkeypatch.setattr(GangPlanner, "joint_steps", planned)
    facts, flags = Facts(postgres_log, cluster_name), ["--cluster", cluster_name, "--database-url", superuser_url]
    await facts.add_nodes(2)
    async with scheduling(postgres_log, cluster_name) as scheduler:
        await facts.add_pods("a", "poison", "b", cpu=2, gpu=4)
        assert (await placed(postgres_log, cluster_name, 2)).keys() == {"a", "b"}
        await facts.add_pods("c", cpu=2, gpu=4)
        assert (await placed(postgres_log, cluster_name, 3)).keys() == {"a", "b", "c"}
        why = "no cycle with it comes to an end: ZeroDivisionError"
        report = scheduler._context.health.report()
        assert "[!]cycle: group Pod default/poison" in report
        assert f"{why}: no such rule" in report
        assert scheduler._context.health.ready
        code, said = await kai("audit", "verify", *flags)
        assert code == 0
        assert "left out of cycles: group Pod default/poison" in said
        code, said = await kai("why", "default/poison", *flags)
        assert code == 0
        assert why in said
        assert (await check_replay(postgres_log, cluster_name)).waiting == {"uid-poison"}
        monkeypatch.setattr(GangPlanner, "joint_steps", plan)
        await facts.add_pods("d", cpu=2, gpu=4)
        assert len(await placed(postgres_log, cluster_name, 4)) == 4
        assert "[!]cycle" not in scheduler._context.health.report()


async def test_cycle_that_raises_whatever_is_left_out_does_not_end_the_scheduler(
    postgres_log: EventLog, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, accounts = Facts(postgres_log, cluster_name), ClusterState.queue_accounts

    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("queues")

    await facts.add_nodes(1)
    async with scheduling(postgres_log, cluster_name) as scheduler:
        monkeypatch.setattr(ClusterState, "queue_accounts", broken)
        await facts.add_pods("a", cpu=2, gpu=4)
        await eventually(lambda: "KeyError: 'queues'" in scheduler._context.health.report())
        monkeypatch.setattr(ClusterState, "queue_accounts", accounts)
        await facts.add_pods("b", cpu=2, gpu=4)
        assert len(await placed(postgres_log, cluster_name, 2)) == 2
        assert "[!]cycle" not in scheduler._context.health.report()
