"""Watchers that end anywhere, API servers that fail, logs that are away: the log ends up with the truth, said once."""

import asyncio
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import msgspec
import pytest
from kai_cli.output import listing_text
from kai_watcher.watcher import API, LOG, SNAPSHOT_SCHEMA
from kaicore.analysis.ask.answers import RowSelection
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.json_spelling import time_text
from kaicore.errors import LogUnavailable, StaleExpectation
from kaicore.kube.api.reflector_core import ObjectKey
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.envelope import Unit, UnitOutcome
from kaicore.rules.events.payloads import NodeObserved

from tests.given.cluster import wire
from tests.given.doubles.unreliable import UnreliableLog
from tests.given.logs.new_events import new_event
from tests.given.processes.service_task import PATIENCE_S, killed_process
from tests.given.servers.kube import NODES, PODS, TOPOLOGIES, Api, simulated
from tests.integration.watcher.conftest import World, shown
from tests.integration.watcher.test_watching import populate


async def churn(api: Api, *, pods: int = 20, prefix: str = "c") -> None:
    """Pods come, change, are bound and go; one name is used twice."""
    for number in range(pods):
        name = f"{prefix}{number}"
        await api.pod(name, labels={"n": str(number)})
        if number % 2:
            target = {"target": {"kind": "Node", "name": "n0"}, "metadata": {"name": name}}
            await api.post(f"{PODS}/{name}/binding", target)
        if number % 4 == 1:
            await api.pod_status(name, phase="Running")
        if number % 5 == 0:
            await api.delete_pod(name)
        if number % 10 == 0:
            await api.pod(name, labels={"again": "yes"})
        await api.merge(f"{NODES}/n1", {"metadata": {"labels": {"seen": str(number)}}})


async def test_a_new_watcher_has_nothing_to_say_of_what_did_not_change_whether_it_has_a_snapshot_or_not(
    world: World,
) -> None:
    await populate(world)
    await (await world.start().ready()).stop()
    await world.converged()
    snapshot = await world.log.load_snapshot(world.cluster, name="watcher", schema=SNAPSHOT_SCHEMA)
    assert snapshot is not None
    assert snapshot.position <= await world.head()
    for body in (snapshot.body, b"nonsense"):
        kept = type(snapshot)(snapshot.name, snapshot.position, snapshot.schema, body)
        await world.log.save_snapshot(world.cluster, kept)
        start = await world.head()
        await (await world.start().ready()).stop()
        assert [event.type for event in await world.events(after=start)] == ["WatcherStarted"]


async def test_nodes_that_the_watcher_cannot_list_are_said_to_be_unlisted(world: World) -> None:
    await world.api.node("n0")
    world.api.faults(verb="list", kind="unauthorized", resource="nodes", every=1)
    watcher = world.start()
    await world.until(bool)
    await watcher.unready(API)
    (started,) = await world.events("WatcherStarted")
    ask = Inquiry(world.log).listing
    for kind in ("nodes", "zones"):
        text = listing_text(await ask(world.cluster, kind, RowSelection()))
        assert text.startswith(f"no {kind} recorded since the watcher started at {time_text(started.recorded_at)}"), (
            text
        )
    assert listing_text(await ask(world.cluster, "queues", RowSelection())) == "no queues"
    world.api.server.faults.rules.clear()
    await watcher.ready()
    await world.converged()
    assert "n0" in listing_text(await ask(world.cluster, "nodes", RowSelection()))
    assert listing_text(await ask(world.cluster, "zones", RowSelection())) == "no zones"


@pytest.mark.parametrize("snapshot_events", [1, 1_000_000])
async def test_changes_while_the_watcher_is_down_are_found(world: World, snapshot_events: int) -> None:
    await populate(world)
    watcher = await world.settled(snapshot_events=snapshot_events)
    await (watcher.stop() if snapshot_events == 1 else watcher.kill())
    await churn(world.api)
    for name in ("p0", "p1", "p2"):
        await world.api.delete_pod(name)
    await world.api.pod("p2")
    await world.api.client.delete(f"{NODES}/n0")
    await world.api.node("n0", zone="b")
    await world.api.client.delete(f"{TOPOLOGIES}/n2")
    await world.settled()
    deleted = {payload.name for payload in await world.payloads("PodDeleted")}
    assert {"p0", "p1", "p2"} <= deleted
    assert len(await world.events("NodeDeleted")) == 1


async def test_log_that_says_another_thing_than_the_api_server_is_found_and_mended(world: World) -> None:
    await populate(world)
    watcher = await world.settled(check_s=0.05)
    (seen,) = [one for one in await world.payloads("NodeObserved") if one.node.name == "n0"]
    forged = NodeObserved(msgspec.structs.replace(seen.node, labels={"zone": "forged"}))
    await world.log.append(world.cluster, [Unit((new_event("node/n0", payload=forged),))])
    # Watches end, and kinds are compared.
    world.api.faults(verb="watch", kind="drop-watch", every=1)
    async with asyncio.timeout(PATIENCE_S):
        for number in count():
            if len(await world.events("DifferenceFound")) == 2:
                break
            await world.api.node(f"more-{number}")
            await asyncio.sleep(0.05)
    found = {one.check: one for one in await world.payloads("DifferenceFound")}
    assert found["watcher"].parts[0].startswith("/Node/")
    assert found["api-server"].parts == ("Node n0",)
    await world.until(lambda events: shown(events)["Node"][ObjectKey("", "n0")].labels == seen.node.labels)
    assert watcher.health.ready


async def test_watchers_that_are_ended_anywhere_record_each_fact_once(world: World) -> None:
    await populate(world)
    churning = asyncio.create_task(churn(world.api))
    for seen in range(1, 8):
        watcher = world.start(batch=5, snapshot_events=10)
        reached = await world.head() + 3 * seen
        await world.until(lambda events, reached=reached: len(events) >= reached or churning.done())
        await watcher.kill()
    await churning
    await world.settled()


async def test_two_watchers_at_once(world: World) -> None:
    await populate(world)
    first = await world.start().ready()
    churning = asyncio.create_task(churn(world.api))
    await world.until(lambda events: any(event.subject == "default/c3" for event in events))
    second = await world.start().ready()
    await churning
    # As soon as the first one has something to say that the other has not said, it learns that it is no longer asked.
    number = 0
    while not first.task.done():
        await world.api.pod(f"last{number}")
        await asyncio.wait([first.task], timeout=0.1)
        number += 1
    with pytest.raises(StaleExpectation):
        await first.task
    await world.converged()
    assert not second.task.done()


#: All of a row strike in one run.
FAULTS: dict[str, list[wire.Wire]] = {
    "watches": [
        {"verb": "watch", "kind": "drop-watch", "every": 7},
        {"verb": "watch", "kind": "duplicate-event", "every": 3},
        {"verb": "watch", "kind": "delay-event", "every": 5, "seconds": 0.01},
        {"verb": "watch", "kind": "gone", "every": 11, "times": 10},
    ],
    "lists, and watches that cannot be opened": [
        {"verb": "list", "kind": "internal-error", "every": 3, "times": 6},
        {"verb": "list", "kind": "reset", "after": 1, "every": 4, "times": 4},
        {"verb": "list", "kind": "gone", "after": 2, "every": 5, "times": 4},
        {"verb": "list", "kind": "unauthorized", "every": 2, "times": 4},
        {"verb": "watch", "kind": "gone", "when": "open", "every": 2, "times": 6},
        {"verb": "watch", "kind": "gone", "every": 20, "times": 3},
    ],
}


@pytest.mark.parametrize("rules", FAULTS.values(), ids=FAULTS)
async def test_an_api_server_that_fails(world: World, rules: list[wire.Wire]) -> None:
    await populate(world)
    for rule in rules:
        # What the test itself asks is not meant.
        match, fault = {"verb": rule["verb"], "userAgent": "kai-watcher"}, dict(rule)
        del fault["verb"]
        world.api.server.faults.add({"match": match, "fault": fault})
    watcher = world.start()
    await churn(world.api, pods=10)
    await watcher.ready()
    await churn(world.api, prefix="d")
    await world.converged()
    assert [rule for rule in world.api.server.faults.report() if not rule["hits"]] == []


async def test_api_server_that_comes_back_without_its_history_is_listed_again(
    log: PostgresLog, cluster_name: str, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        async with simulated(data_dir=tmp_path) as api:
            port = int(api.server.http_url.rpartition(":")[2])
            world = await stack.enter_async_context(World(api, log, cluster_name))
            await populate(world)
            watcher = await world.settled()
        await watcher.unready(API)
        world.api = await stack.enter_async_context(simulated(data_dir=tmp_path, http_port=port))
        await world.api.delete_pod("p0")
        await churn(world.api, pods=10)
        await watcher.ready()
        await world.converged()
        await watcher.stop()


async def test_objects_after_a_restore_of_etcd_are_recorded(
    log: PostgresLog, cluster_name: str, tmp_path: Path
) -> None:
    """Objects go back to versions that were recorded long ago, and come back after they were deleted."""
    live, backup = tmp_path / "live", tmp_path / "backup"
    async with simulated(data_dir=live) as api, World(api, log, cluster_name) as world:
        await populate(world)
        await (await world.start().ready()).stop()
    shutil.copytree(live, backup)
    async with simulated(data_dir=live) as api, World(api, log, cluster_name) as world:
        watcher = await world.start().ready()
        await api.merge(f"{NODES}/n0", {"spec": {"unschedulable": True}})
        await api.delete_pod("p0")
        await api.reject("p1")
        await world.converged()
        await watcher.stop()
    async with simulated(data_dir=backup) as api, World(api, log, cluster_name) as world:
        await world.settled()


async def test_facts_wait_for_a_log_that_is_away(api: Api, cluster_name: str) -> None:
    log = UnreliableLog()
    async with World(api, log, cluster_name) as world:
        await populate(world)
        watcher = await world.start(buffer=10).ready()
        log.away = True
        await api.pod("while-away")
        await watcher.unready(LOG)
        await churn(api)
        assert watcher.metric("pending_facts") > 0
        log.away = False
        await watcher.ready()
        await world.converged()
        await watcher.stop()


async def test_watcher_waits_for_a_log_that_is_away_from_the_start(api: Api, cluster_name: str) -> None:
    log = UnreliableLog()
    log.away = True
    async with World(api, log, cluster_name) as world:
        await populate(world)
        watcher = world.start()
        await watcher.unready(LOG)
        log.away = False
        await watcher.ready()
        await world.converged()
        log.away = True
        other = world.start()
        await other.unready(LOG)
        await other.stop()


class ForgetfulLog(UnreliableLog):
    """Loses every third answer to an append."""

    appends = 0

    async def append(
        self, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        outcomes = await super().append(cluster, units, expect=expect)
        self.appends += 1
        if self.appends % 3 == 0:
            raise LogUnavailable("the answer was lost")
        return outcomes


async def test_facts_are_recorded_once_though_the_logs_answers_get_lost(api: Api, cluster_name: str) -> None:
    async with World(api, ForgetfulLog(), cluster_name) as world:
        await populate(world)
        watcher = await world.start(batch=3).ready()
        await churn(api)
        await world.converged()
        await watcher.stop()


#: Snapshots and pages so small that a kill meets some under way.
_FLAGS = ("--batch", "20", "--page", "20", "--snapshot-events", "50")


@pytest.mark.slow
async def test_watchers_that_are_killed_lose_no_fact(
    api: Api, log: EventLog, cluster_name: str, database_url: str, tmp_path: Path
) -> None:
    world = World(api, log, cluster_name)
    await populate(world)
    prefixes = ("a", "b")
    for prefix in prefixes:
        churning = asyncio.create_task(churn(api, pods=40, prefix=prefix))
        async with killed_process("watcher", api, cluster_name, database_url, tmp_path, *_FLAGS):
            reached = await world.head() + 40
            await world.until(lambda events, reached=reached: len(events) >= reached)
        await churning
    async with killed_process("watcher", api, cluster_name, database_url, tmp_path, *_FLAGS) as process:
        await world.until(lambda events: sum(event.type == "WatcherStarted" for event in events) > len(prefixes))
        await world.converged()
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0
