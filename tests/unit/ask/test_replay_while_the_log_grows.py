"""A replay of a cluster that goes on: what is appended between its passes is no difference."""

from kaicore.analysis.replay.replay import replay_log
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import Filter
from kaicore.rules.deciding.decide import decide
from kaicore.rules.deciding.replay import KNOWN_BEFOREHAND
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.cluster_state import ClusterState

from tests.given.cluster.factory import pod
from tests.integration.scheduling import Facts

C = "c"


class GoingOn(MemoryLog):
    """A log to which a cycle is added whenever a replay has read all cycles there are."""

    def __init__(self) -> None:
        super().__init__(lambda: 1_000_000)
        self.cycles = 0

    async def cycle(self) -> None:
        self.cycles += 1
        facts = Facts(self, C)
        facts._count = 1000 * self.cycles
        name = f"p{self.cycles}"
        await facts.append((f"pod/uid-{name}", payloads.PodObserved(pod(name, cpu=1))))
        state = ClusterState(C).fold_all(await super().read(C, limit=10_000))
        proposal = decide(state, EngineConfig(), shard="default", now=2_000_000 + self.cycles, actor="scheduler")
        await self.append(C, proposal.units, expect=proposal.expect)

    async def read(
        self, cluster: str, *, after: int = 0, upto: int | None = None, limit: int = 1000, where: Filter | None = None
    ) -> list[Event]:
        page = await super().read(cluster, after=after, upto=upto, limit=limit, where=where)
        if where is not None and where.types == KNOWN_BEFOREHAND and not page:
            await self.cycle()
        return page


async def test_a_replay_of_a_running_cluster_reports_no_cycle_that_came_while_it_ran() -> None:
    log = GoingOn()
    await Facts(log, C).add_nodes(1)
    await log.cycle()
    await log.cycle()
    head = (await log.head(C)).position
    report = await replay_log(log, C)
    assert log.cycles == 3
    assert report.differences == []
    assert (report.cycles, report.decisions, report.position) == (2, 2, head)
