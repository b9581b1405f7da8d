"""Three clusters under one hub: dispatches are placed, moved when a cluster is drained or lost, and never run twice."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from kai_cli.running import clusters as cluster_commands
from kai_cli.running import dispatches as dispatch_commands
from kai_cli.sources.source import HubSource
from kai_hub.hub import STATE, Hub, HubMetrics, HubOptions
from kaicore.analysis.ask.hub_rows import HubInquiry
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.trial.dispatching import HubLog, read_dispatch, replay_choices
from kaicore.analysis.trial.simulation import Located
from kaicore.errors import ClusterUnavailable, ConfigurationError, InvalidObject, KaiError
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.audit import verify
from kaicore.rules.events.payloads import (
    ClusterDrained,
    ClusterRegistered,
    DispatchGiven,
    DispatchWithdrawn,
    QueueBounded,
)
from kaicore.rules.hub.cluster_side import DISPATCH_MARK
from kaicore.rules.hub.hub_state import DispatchEntry, DispatchStage, cluster_stream, dispatch_stream, queue_stream
from kaicore.runtime.service import Health, ServiceContext, get_logger
from prometheus_client import CollectorRegistry

from tests.given.processes.tasks import going
from tests.given.processes.waiting import eventually
from tests.given.servers.kube import PODS, Api, simulated
from tests.integration.binder.conftest import RunningBinder
from tests.integration.scheduling import scheduling
from tests.integration.watcher.conftest import RunningWatcher

PATIENCE_S = 60.0
LEASE_S = 3.0


class Member:
    """A cluster of the hub, in this process."""

    def __init__(self, name: str, api: Api, log: PostgresLog) -> None:
        self.name, self.api, self._log = name, api, log
        self._scheduler = AsyncExitStack()
        self.start()

    def start(self) -> None:
        """Start what is next to the API server."""
        self.watcher = RunningWatcher(self.api, self._log, self.name, recheck_s=30)
        self.binder = RunningBinder(self.api, self._log, self.name, hub_lease_s=LEASE_S)

    async def schedule(self) -> None:
        await self._scheduler.enter_async_context(scheduling(self._log, self.name))

    async def stop_scheduling(self) -> None:
        await self._scheduler.aclose()

    async def stop(self) -> None:
        await self._scheduler.aclose()
        await self.binder.kill()
        await self.watcher.kill()

    async def pods(self) -> dict[str, str]:
        """Of dispatches: the node of each pod by its name, empty for none."""
        return {
            pod["metadata"]["name"]: pod["spec"].get("nodeName", "")
            for pod in await self.api.items(PODS)
            if DISPATCH_MARK in pod["metadata"].get("annotations", {})
        }


class Fleet:
    """The hub's log, its clusters, and one hub."""

    def __init__(self, log: PostgresLog) -> None:
        self.log, self.hub = log, HubLog(log)
        self.members: dict[str, Member] = {}

    async def append(self, stream: str, payload: Any) -> None:
        await self.hub.refresh()
        await self.hub.append(stream, payload, subject=stream.partition("/")[2])

    async def submit(
        self, name: str, *clusters: str, cpu: int = 1, more: Any = (), data: tuple[str, ...] = (), **labels: str
    ) -> None:
        pods = [manifest(f"{name}-{number}", cpu=cpu, **labels) for number in range(2)]
        objects = [Located(name, one) for one in (*more, *pods)]
        await self.append(dispatch_stream(name), read_dispatch(name, objects, clusters=clusters, data=data))

    async def until(self, name: str, condition: Callable[[DispatchEntry], bool]) -> DispatchEntry:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                entry = (await self.hub.refresh()).dispatches.get(name)
                if entry is not None and condition(entry):
                    return entry
                await self.log.wait_beyond("hub", self.hub.state.position, timeout_s=1)

    async def running(self, name: str, *, pods: int = 2) -> str:
        """Wait until all pods of a dispatch are bound; the cluster that has them, which is the only one."""
        await self.until(name, lambda entry: entry.stage is DispatchStage.STARTED)

        async def bound() -> bool:
            return sum(map(len, (await self.bound_in(name)).values())) >= pods

        await eventually(bound)
        (cluster,) = await self.bound_in(name)
        return cluster

    async def bound_in(self, name: str) -> dict[str, list[str]]:
        """By cluster, the bound pods of a dispatch."""
        there = {}
        for member in self.members.values():
            pods: list[str] = []
            with suppress(ClusterUnavailable):
                pods = [pod for pod, node in (await member.pods()).items() if node and pod.startswith(f"{name}-")]
            if pods:
                there[member.name] = pods
        return there


def manifest(name: str, *, cpu: int = 1, scheduler: str = "", **labels: str) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"limits": {"cpu": str(cpu), "memory": "1Gi"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"containers": [container], **({"schedulerName": scheduler} if scheduler else {})},
    }


@asynccontextmanager
async def hub_on(log: PostgresLog) -> AsyncIterator[Hub]:
    context = ServiceContext("hub", Health(STATE), get_logger())
    hub = Hub(
        log=log,
        bus=None,
        context=context,
        metrics=HubMetrics(registry=CollectorRegistry()),
        instance="one",
        clock=lambda: time.time_ns() // 1000,
        monotonic=lambda: time.monotonic_ns() // 1000,
        options=HubOptions(period_ms=20),
    )
    async with going(hub.run(), until=context.stopping):
        yield hub


@pytest.fixture
async def fleet(database_url: str) -> AsyncIterator[Fleet]:
    """Clusters a, b and c with 6, 3 and 1 nodes of 8 CPUs, so that a is preferred to b, and b to c; c has images."""
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(await PostgresLog.open(database_url))
        fleet = Fleet(log)
        for name, nodes in (("a", 6), ("b", 3), ("c", 1)):
            api = await stack.enter_async_context(simulated())
            for number in range(nodes):
                await api.node(f"{name}{number}")
            member = fleet.members[name] = Member(name, api, log)
            stack.push_async_callback(member.stop)
            await fleet.append(
                cluster_stream(name), ClusterRegistered(cluster=name, data=("images",) if name == "c" else ())
            )
            await member.schedule()
        await stack.enter_async_context(hub_on(log))

        async def all_ready() -> bool:
            rows = await Inquiry(log).clusters()
            return len(rows) == 3 and all(row.state == "Ready" and row.position for row in rows)

        await eventually(all_ready)
        yield fleet


async def test_submit_shows_where_work_goes_and_why_not_elsewhere(
    fleet: Fleet, database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wide.yaml"
    file.write_text(json.dumps(manifest("wide", cpu=8)))
    submit = partial(dispatch_commands.submit, file, source=HubSource(database_url=database_url), wait_s=PATIENCE_S)
    await asyncio.to_thread(submit, cluster=["a,b"])
    shown = capsys.readouterr().out
    assert "in cluster a: " in shown
    assert "; not b: " in shown
    file.write_text(json.dumps(manifest("too-wide", cpu=9)))
    await asyncio.to_thread(submit)
    shown = capsys.readouterr().out
    assert "waits at the hub" in shown
    assert all(f"{cluster}: " in shown for cluster in "abc")
    (row,) = [row for row in await HubInquiry(fleet.log).dispatches() if row.name == "wide"]
    assert row.message.startswith("not b: ")


async def test_dispatches_are_placed_moved_from_what_is_drained_or_lost_and_never_run_twice(fleet: Fleet) -> None:
    a, b, _ = fleet.members.values()
    await fleet.submit("first")
    assert await fleet.running("first") == "a"

    # Drained: what waits there goes, what runs there stays.
    await a.stop_scheduling()
    await fleet.submit("waits", "a", "b")
    await fleet.until("waits", lambda entry: entry.cluster == "a")
    await fleet.append(cluster_stream("a"), ClusterDrained(cluster="a"))
    assert await fleet.running("waits") == "b"
    assert set(await a.pods()) == {"first-0", "first-1"}
    assert (await fleet.bound_in("first")) == {"a": ["first-0", "first-1"]}

    # Lost: the API server and the binder are gone, and nobody is asked.
    await b.stop_scheduling()
    await fleet.submit("stranded", "b", "c")
    await fleet.until("stranded", lambda entry: entry.cluster == "b")
    await eventually(lambda: _has(b, "stranded-0"))
    await b.binder.kill()
    await b.watcher.kill()
    b.api.faults(kind="reset")
    assert await fleet.running("stranded") == "c"
    entry = fleet.hub.state.dispatches["stranded"]
    assert (entry.term, entry.left) == (2, {"b": 1})
    assert fleet.hub.state.dispatches["waits"].cluster == "b", "what had started stays, whatever is heard of it"

    # Back again: what is not its any more is cleared, and what runs there goes on.
    b.api.server.faults.clear()
    b.start()
    await b.schedule()
    await fleet.until("stranded", lambda entry: not entry.left)
    assert await fleet.bound_in("stranded") == {"c": ["stranded-0", "stranded-1"]}
    assert await fleet.bound_in("waits") == {"b": ["waits-0", "waits-1"]}

    # Ended: its objects stay, for people to look at.
    for pod in ("first-0", "first-1"):
        await a.api.pod_status(pod, phase="Succeeded")
    assert (await fleet.until("first", lambda entry: entry.stage is DispatchStage.FINISHED)).outcome == "Succeeded"
    assert set(await a.pods()) == {"first-0", "first-1"}

    answer = await Inquiry(fleet.log).why("c", "Pod", "default", "stranded-0")
    assert answer.dispatch is not None
    assert answer.dispatch.correlation == "dispatch/stranded"
    assert [line.text.split(";")[0] for line in answer.dispatch.story] == [
        "submitted to b, c",
        "given to cluster b (term 1)",
        "taken from cluster b: LeaseOver",
        "given to cluster c (term 2)",
        "starts in cluster c: its first pod is bound",
        "cluster b has nothing of term 1 any more",
    ]
    assert (await verify(fleet.log, "hub")).ok
    assert (await replay_choices(fleet.log)).differences == []


async def test_dispatch_that_is_refused_bounded_or_withdrawn_goes_elsewhere_waits_or_goes(fleet: Fleet) -> None:
    a, b, _ = fleet.members.values()
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "default"}}
    await a.api.post("/api/v1/namespaces/default/configmaps", settings)
    await fleet.submit("taken", "a", "b", more=[settings])
    assert await fleet.running("taken") == "b"
    assert "is none of this dispatch's" in fleet.hub.state.dispatches["taken"].refusals["a"]

    await fleet.submit("near", data=("images",))
    assert await fleet.running("near") == "c", "near to its data outweighs room"

    await fleet.append(queue_stream("team"), QueueBounded(queue="team", limits={"cpu": 3000}))
    await fleet.submit("two", **{"kai.scheduler/queue": "team"})
    await fleet.running("two")
    await fleet.submit("over", **{"kai.scheduler/queue": "team"})
    entry = await fleet.until("over", lambda entry: entry.waits is not None)
    assert entry.waits is not None
    assert entry.waits.reason == "queue team: may hold 3000 cpu in all clusters, holds 2000, 2000 asked for"

    await fleet.submit("never", cpu=99)
    entry = await fleet.until("never", lambda entry: entry.waits is not None)
    assert entry.waits is not None
    assert [offer.prospect for offer in entry.waits.offers] == ["Waits"] * 3
    assert all("cpu: 99 needed" in offer.why for offer in entry.waits.offers), "it says what for"

    await fleet.append(dispatch_stream("two"), DispatchWithdrawn(dispatch="two"))
    for pod in ("two-0", "two-1"):
        # As its kubelet would, which is not there.
        await eventually(lambda: _leaves(a, pod))  # noqa: B023
        await a.api.delete_pod(pod)
    await fleet.until("two", lambda entry: entry.stage is DispatchStage.WITHDRAWN and not entry.left)
    assert await fleet.bound_in("two") == {}
    assert await fleet.running("over") == "a"
    await b.api.client.delete("/api/v1/namespaces/default/configmaps/settings")
    await b.api.delete_pod("taken-0")
    await b.api.delete_pod("taken-1")
    await fleet.until("taken", lambda entry: entry.outcome == "Deleted")


async def _leaves(member: Member, pod: str) -> bool:
    return "deletionTimestamp" in (await member.api.get(f"{PODS}/{pod}"))["metadata"]


async def _has(member: Member, pod: str) -> bool:
    return pod in await member.pods()


def test_commands_of_the_hub_refuse_what_makes_no_sense_and_say_why(database_url: str, tmp_path: Path) -> None:
    url: dict[str, Any] = {"source": HubSource(database_url=database_url)}
    broken, dead, work = tmp_path / "broken", tmp_path / "dead", tmp_path / "work.yaml"
    broken.write_text("no: kubeconfig")
    dead.write_text(yaml.safe_dump(kubeconfig("http://127.0.0.1:9")))
    work.write_text(yaml.safe_dump(manifest("work")))
    with pytest.raises(ConfigurationError, match="the hub has no cluster"):
        dispatch_commands.submit(work, **url)
    asyncio.run(cluster_commands.cluster_add("near", data=["images"], cost=3, **url))
    for _ in range(2):  # the same again changes nothing
        asyncio.run(cluster_commands.cluster_add("far", **url))
    dispatch_commands.submit(work, cluster=["near,far"], **url)

    def add(name: str, **options: Any) -> Callable[[], object]:
        return lambda: asyncio.run(cluster_commands.cluster_add(name, **options, **url))

    for refused, message in (
        (add("near"), "cluster near: is registered already, otherwise"),
        (add("hub"), "the hub itself is called so"),
        (add("Not A Label"), "a DNS label"),
        (add("x", kubeconfig=[str(broken)]), "broken"),
        (add("x", kubeconfig=["/none"]), "/none: no such file"),
        (add("x", kubeconfig=[str(dead)]), "its API server does not answer"),
        (
            lambda: asyncio.run(cluster_commands.cluster_drain("nea", **url)),
            "no cluster 'nea' is registered.*did you mean 'near'",
        ),
        (lambda: asyncio.run(cluster_commands.cluster_resume("near", **url)), "near: is not being drained"),
        (lambda: asyncio.run(cluster_commands.cluster_bound("q", "gpu", **url)), "must be RESOURCE=AMOUNT"),
        (lambda: dispatch_commands.submit(work, **url), "dispatch work: is there already"),
        (lambda: dispatch_commands.submit(work, name="w", cluster=["fra"], **url), "cluster fra: is not registered"),
        (lambda: dispatch_commands.withdraw("wrok", **url), "knows of no dispatch wrok.*did you mean 'work'"),
    ):
        with pytest.raises(KaiError, match=message):
            refused()
    asyncio.run(_give(database_url, "work", "near"))
    with pytest.raises(ConfigurationError, match=r"near: has 1 dispatches still: work \(Given\); drain it first"):
        asyncio.run(cluster_commands.cluster_remove("near", **url))
    asyncio.run(cluster_commands.cluster_remove("far", **url))
    with pytest.raises(ConfigurationError, match="no cluster 'far' is registered any more"):
        asyncio.run(cluster_commands.cluster_remove("far", **url))
    asyncio.run(cluster_commands.cluster_remove("near", lost=True, **url))


async def _give(database_url: str, dispatch: str, cluster: str) -> None:
    async with await PostgresLog.open(database_url) as log:
        await Fleet(log).append(dispatch_stream(dispatch), DispatchGiven(dispatch=dispatch, term=1, cluster=cluster))


def kubeconfig(server: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "x", "cluster": {"server": server}}],
        "users": [{"name": "x", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "current-context": "x",
    }


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "only"}}], "make no pods"),
        ([{**manifest("x"), "metadata": {"generateName": "x-"}}], "generateName is not enough"),
        ([manifest("x", scheduler="default-scheduler")], "must be kai-ledger, or left out: another scheduler"),
        (
            [manifest("x", **{"kai.scheduler/queue": "a"}), manifest("y", **{"kai.scheduler/queue": "b"})],
            "must be one for all of its pods",
        ),
    ],
)
def test_dispatch_that_makes_no_sense_is_refused(objects: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InvalidObject, match=message):
        read_dispatch("x", [Located("work.yaml", one) for one in objects])
