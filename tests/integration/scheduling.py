"""A watcher's facts and a running scheduler, for tests on a real log."""

import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kai_scheduler.metrics import SchedulerMetrics
from kai_scheduler.replicas import Live
from kai_scheduler.scheduler import CyclePace, Scheduler
from kaicore.analysis.replay.log_states import restored
from kaicore.ledger.feed import EventFeed
from kaicore.ledger.log.port import EventLog
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import Payload
from kaicore.runtime.service import Health, ServiceContext, get_logger
from prometheus_client import CollectorRegistry

from tests.given.cluster.factory import amounts, node, pod, topology
from tests.given.processes.tasks import going
from tests.given.processes.waiting import until_payloads


class Facts:
    """The appends of a watcher; two on one log need two names."""

    def __init__(self, log: EventLog, cluster: str, name: str = "fact") -> None:
        self._log, self.cluster, self._name, self._count = log, cluster, name, 0

    async def append(self, *items: tuple[str, Payload]) -> None:
        units = []
        for stream, payload in items:
            self._count += 1
            event_id = derived_id(self.cluster, self._name, str(self._count))
            subject = payload.pod.subject if isinstance(payload, payloads.PodObserved) else ""
            units.append(Unit((NewEvent(event_id, stream, payload, "watcher", 0, subject),)))
        await self._log.append(self.cluster, units)

    async def add_nodes(self, count: int) -> None:
        zone = amounts(cpu=16, memory=64, gpu=4)
        for index in range(count):
            name = f"n{index}"
            await self.append(
                (f"node/{name}", payloads.NodeObserved(node(name, cpu=32, memory=128, gpu=8))),
                (f"nrt/{name}", payloads.TopologyObserved(topology(name, zone, zone))),
            )

    async def add_pods(self, *names: str, **spec: int) -> None:
        await self.append(*((f"pod/uid-{name}", payloads.PodObserved(pod(name, **spec))) for name in names))


async def facts_of(log: EventLog, cluster: str, *, nodes: int) -> Facts:
    """The appends of a watcher that has seen so many nodes."""
    facts = Facts(log, cluster)
    await facts.add_nodes(nodes)
    return facts


@asynccontextmanager
async def scheduling(
    log: EventLog,
    cluster: str,
    *,
    shard: str = "default",
    replica: str = "",
    live: Live | None = None,
    instance: str = "one",
    pace: CyclePace | None = None,
    config: EngineConfig | None = None,
    policies: PolicyBook = NO_POLICIES,
    ahead_s: int = 0,
) -> AsyncIterator[Scheduler]:
    context = ServiceContext("scheduler", Health("state"), get_logger())
    state = await restored(log, cluster)
    feed = EventFeed(log, None, cluster, after=state.position)
    scheduler = Scheduler(
        log=log,
        feed=feed,
        state=state,
        config=config or EngineConfig(),
        shard=shard,
        replica=replica,
        live=live,
        instance=instance,
        context=context,
        metrics=SchedulerMetrics(CollectorRegistry()),
        pace=pace or CyclePace(period_ms=0, standby_ms=200),
        policies=policies,
        clock=lambda: time.time_ns() // 1000 + ahead_s * 1_000_000,
    )
    try:
        async with going(scheduler.run(), until=context.stopping):
            yield scheduler
    finally:
        await feed.close()
        await scheduler.save_snapshot()


async def placed(log: EventLog, cluster: str, count: int) -> dict[str, str]:
    """Wait until `count` decisions are recorded; the pods' nodes by name."""
    decisions = await until_payloads(log, cluster, "PodPlaced", holds=lambda decided: len(decided) >= count)
    names = Counter(item.name for item in decisions)
    assert set(names.values()) == {1}, "a pod was decided on twice"
    return {item.name: item.node for item in decisions}


@asynccontextmanager
async def deciding(log: EventLog, cluster: str, *, nodes: int) -> AsyncIterator[Facts]:
    """A scheduler of so many nodes that has placed pod `a`; it goes on until the block ends."""
    facts = await facts_of(log, cluster, nodes=nodes)
    async with scheduling(log, cluster):
        await facts.add_pods("a", cpu=2, gpu=1)
        await placed(log, cluster, 1)
        yield facts
