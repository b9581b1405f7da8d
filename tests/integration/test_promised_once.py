"""A zone is promised once: what a kubelet did while a cycle ran makes that cycle's decision for the node late."""

import pytest
from kaicore.analysis.replay.log_states import events_of
from kaicore.ledger.log.port import Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.deciding.decide import Proposal, decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import NewEvent, Stale, Unit, derived_id
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.promises import PromiseCheck

from tests.given.cluster.factory import amounts, node, pod, topology
from tests.given.processes.ingest_service import Facts, RunningIngest, running_ingest
from tests.given.work.reports import pod_report, report
from tests.integration.ingest.conftest import ingest, log

__all__ = ["ingest", "log"]

NOW = 5_000_000_000


class Cluster:
    """One node of two zones of four CPUs; `first` runs on one, `second` waits."""

    def __init__(self, log: PostgresLog, cluster: str) -> None:
        self.log, self.name = log, cluster
        self.facts = Facts(log, cluster)

    async def begin(self) -> None:
        zone = amounts(cpu=4)
        await self.facts.append(
            ("node/n1", payloads.NodeObserved(node("n1", cpu=8))),
            ("nrt/n1", payloads.TopologyObserved(topology("n1", zone, zone))),
            ("pod/uid-first", payloads.PodObserved(pod("first", cpu=4))),
        )
        await self.record(await self.decide())
        await self.facts.append(
            ("pod/uid-first", payloads.PodBound("uid-first", "default", "first", "n1")),
            ("pod/uid-second", payloads.PodObserved(pod("second", cpu=4))),
        )

    async def decide(self) -> Proposal:
        state = ClusterState(self.name)
        async for event in events_of(self.log, self.name):
            state.fold(event)
        return decide(state, EngineConfig(), shard="default", now=NOW, actor="scheduler")

    async def record(self, proposal: Proposal) -> list[Stale | None]:
        outcomes = await self.log.append(self.name, proposal.units, expect=proposal.expect)
        return [outcome.stale for outcome in outcomes[1:]]

    async def node_version(self) -> int:
        return (await self.log.stream_versions(self.name, ["node/n1"]))["node/n1"]

    async def promises(self) -> PromiseCheck:
        check = PromiseCheck(ClusterState(self.name))
        async for event in events_of(self.log, self.name):
            check.take(event)
        return check


@pytest.fixture
async def cluster(log: PostgresLog, cluster_name: str) -> Cluster:
    scene = Cluster(log, cluster_name)
    await scene.begin()
    return scene


async def test_a_zone_is_not_promised_twice_when_its_kubelet_gave_it_to_another_pod_while_a_cycle_ran(
    cluster: Cluster, ingest: RunningIngest
) -> None:
    """`first` was predicted on node-0; its kubelet gives it node-1, which the cycle is about to promise to `second`."""
    proposal = await cluster.decide()
    status, answer = await ingest.post(report(pod_report("first", node_1={"cpu": 4000})))
    assert (status, answer["unknown"]) == (200, [])
    assert status == 200
    (stale,) = await cluster.record(proposal)
    assert stale is not None
    assert stale.stream == "node/n1"
    assert (await cluster.record(await cluster.decide())) == [None]
    check = await cluster.promises()
    assert check.report.twice == []
    assert check.report.decisions == 2
    assert ingest.counted("node_charges_total", why="account") == 1


async def test_an_observation_that_is_as_predicted_makes_no_decision_late(
    cluster: Cluster, ingest: RunningIngest
) -> None:
    before = await cluster.node_version()
    proposal = await cluster.decide()
    await ingest.post(report(pod_report("first", node_0={"cpu": 4000})))
    assert await cluster.node_version() == before
    assert await cluster.record(proposal) == [None]
    assert (await cluster.promises()).report.ok
    assert ingest.counted("observations_total", source="exporter") == 1
    assert ingest.counted("node_charges_total", why="account") == 0


async def test_an_observation_charges_to_be_safe_where_the_pod_has_changed_since_it_was_judged(
    cluster: Cluster, log: PostgresLog, cluster_name: str
) -> None:
    class Overtaken(PostgresLog):
        """Something becomes of the pod right before its observation is appended."""

        async def append(self, name, units, *, expect=None):  # type: ignore[no-untyped-def]
            if isinstance(units[0].events[0].payload, payloads.PlacementObserved):
                evicted = payloads.PodEvicted("uid-first", "default", "first", "n1")
                number = str((await self.head(name)).position)
                event = NewEvent(derived_id("meanwhile", number), "pod/uid-first", evicted, "binder", 0)
                await super().append(name, [Unit((event,))])
            return await super().append(name, units, expect=expect)

    overtaken = Overtaken(log.connections, clock=None, poll_s=0.1)
    before = await cluster.node_version()
    async with running_ingest(overtaken, cluster_name) as ingest:
        status, answer = await ingest.post(report(pod_report("first", node_0={"cpu": 4000})))
        assert (status, answer["status"]) == (200, "taken")
        assert ingest.counted("node_charges_total", why="late") == 1
    assert await cluster.node_version() == before + 1
    (charged,) = (await log.read(cluster_name, where=Filter(types=("NodeCharged",))))[1:]
    assert decode_payload(charged) == payloads.NodeCharged(node="n1", cycle="", pods=("uid-first",))
    assert len(await log.read(cluster_name, where=Filter(types=("PlacementObserved",)))) == 1
