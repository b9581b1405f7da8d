"""One scheduler, or two replicas: pods come into the log at a steady rate, and scheduler processes place them.

Between them are what is there in use: Postgres, the relay, NATS. What is measured is how many pods it placed per second
and the CPU time of the scheduler per pod, which tells what one core would sustain on a machine that does nothing else.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import uvloop
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import NewEvent, Unit

from tests.given.cluster.factory import Cluster, amounts, pod
from tests.given.logs.new_events import as_new, new_event
from tests.given.work.workloads import Workloads
from tests.measured.bench.figures import Figure, figure
from tests.measured.bench.scale.services import Servers, ServiceProcess, durable_servers, recorded
from tests.measured.bench.scale.shapes import shape

_ZONE = amounts(cpu=64, memory=512, gpu=4)
_GPUS = 8
_TICK_S = 0.1
_PAGE = 2_000


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a measurement: nodes, pods, pods per second, repetitions.

    Attributes:
        replicas: how many there are, one measurement each.
        gang: how many pods start together.
    """

    nodes: int
    pods: int
    per_s: int
    runs: int
    replicas: tuple[int, ...] = (1,)
    gang: int = 1

    @property
    def placed(self) -> int:
        """The number of pods that have room."""
        return min(self.pods, (self.nodes * _GPUS - 1) // self.gang * self.gang)


#: The last one has room for 59 % of the pods.
FULL = (
    Size(nodes=10_000, pods=40_000, per_s=2_000, runs=2),
    Size(nodes=10_000, pods=10_000, per_s=2_000, runs=3, replicas=(1, 2)),
    Size(nodes=10_000, pods=10_000, per_s=2_000, runs=1, replicas=(1, 2), gang=8),
    Size(nodes=30_000, pods=10_000, per_s=2_000, runs=1, replicas=(1, 2)),
    Size(nodes=30_000, pods=10_000, per_s=2_000, runs=1, replicas=(1, 2), gang=8),
    Size(nodes=150, pods=2_040, per_s=2_000, runs=3, replicas=(1, 2)),
)


@dataclass(frozen=True, slots=True)
class Sustained:
    """A scheduler's work on pods that came at a steady rate.

    Attributes:
        placed_per_s: from the first pod in the log to the last placement.
        events_per_pod: that were appended, by whomever.
        conflicts: the part of the units of decisions that were stale, 0 to 1.
        scheduler_us: CPU microseconds of the schedulers per placed pod.
        relay_us: of the relay, per event.
        postgres_us: of Postgres, per event.
    """

    placed_per_s: float
    events_per_pod: float
    conflicts: float
    scheduler_us: float
    relay_us: float
    postgres_us: float


def nodes(count: int) -> list[NewEvent]:
    """Nodes of 8 GPUs on two zones."""
    cluster = Cluster()
    for number in range(count):
        cluster.add_node(f"n{number:05}", _ZONE, _ZONE, policy="restricted")
    return [as_new(event) for event in cluster.events]


def waiting_pods(count: int) -> list[NewEvent]:
    """Pods of one GPU, of 40 classes, just created: for a moment they wait for other replicas (decision 0404)."""
    made, now = [], int(time.time())
    for number in range(count):
        one = pod(f"p{number:06}", created_at=now, **shape(number))
        made.append(new_event(f"pod/{one.uid}", payload=payloads.PodObserved(one), subject=f"default/{one.name}"))
    return made


def waiting_gangs(pods: int, gang: int) -> list[NewEvent]:
    """Groups of so many pods of one GPU each, alike within a group; a group comes before its pods."""
    made, now = Workloads("gangs"), int(time.time())
    for number in range(pods // gang):
        made.gang(f"g{number:06}", gang, created_at=now, **shape(number))
    return [as_new(event) for event in made.events]


async def fill(log: PostgresLog, cluster: str, events: Sequence[NewEvent]) -> None:
    for start in range(0, len(events), _PAGE):
        await log.append(cluster, [Unit((event,)) for event in events[start : start + _PAGE]])


async def sustained(servers: Servers, cluster: str, size: Size, *, replicas: int = 1) -> Sustained:
    """Offer pods at a rate, and measure what becomes of it."""
    settings = servers.settings(cluster)
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(await PostgresLog.open(servers.database_url))
        await fill(log, cluster, nodes(size.nodes))
        relay = await stack.enter_async_context(ServiceProcess("kai_relay.main", settings))
        schedulers = [
            await stack.enter_async_context(ServiceProcess("kai_scheduler.main", settings | replica))
            for replica in ([{}] if replicas == 1 else [{"REPLICA": f"r{number}"} for number in range(replicas)])
        ]
        if replicas > 1:
            await _all_listed(log, cluster, replicas)
        # One pod first: once it is placed, everything is up.
        first, *others = waiting_pods(1 if size.gang > 1 else size.pods)
        await fill(log, cluster, [first])
        await recorded(log, cluster, "PodPlaced", count=1)
        others += waiting_gangs(size.pods, size.gang) if size.gang > 1 else []
        count = size.placed - (size.gang == 1 and size.placed == size.pods)

        def used() -> tuple[float, float, float]:
            return relay.cpu_s, sum(one.cpu_s for one in schedulers), servers.postgres_cpu_s

        before = used()
        head = await log.head(cluster)
        offering = asyncio.create_task(_offer(log, cluster, others, per_s=size.per_s))
        placed = await recorded(log, cluster, "PodPlaced", count=count, after=head.position)
        await offering
        after = used()
        (first_event,) = await log.read(cluster, after=head.position, limit=1)
        events = (await log.head(cluster)).position - head.position
        counts = [await one.metrics() for one in schedulers]
    relay_us, scheduler_us, postgres_us = ((late - early) * 1e6 for early, late in zip(before, after, strict=True))
    stale = sum(count.get("kai_stale_decisions_total", 0.0) for count in counts)
    units = sum(count["kai_decided_units_total"] for count in counts)
    return Sustained(
        placed_per_s=count / (placed[-1].recorded_at - first_event.recorded_at) * 1e6,
        events_per_pod=events / count,
        conflicts=stale / units,
        scheduler_us=scheduler_us / count,
        relay_us=relay_us / events,
        postgres_us=postgres_us / events,
    )


async def _all_listed(log: PostgresLog, cluster: str, replicas: int) -> None:
    after = 0
    while True:
        for event in await recorded(log, cluster, "ReplicasChanged", count=1, after=after):
            after, changed = event.position, decode_payload(event)
            assert isinstance(changed, payloads.ReplicasChanged)
            if len(changed.replicas) == replicas:
                return


async def _offer(log: PostgresLog, cluster: str, pods: Sequence[NewEvent], *, per_s: int) -> None:
    tick = max(1, round(per_s * _TICK_S))
    began = time.monotonic()
    for number, start in enumerate(range(0, len(pods), tick)):
        await asyncio.sleep(max(0.0, began + number * _TICK_S - time.monotonic()))
        await fill(log, cluster, pods[start : start + tick])


async def measured_once(size: Size) -> Sustained:
    """Measure one scheduler once, with servers of its own."""
    async with durable_servers() as servers:
        return await sustained(servers, "once", size)


async def _measured(size: Size, replicas: int) -> list[Sustained]:
    async with durable_servers() as servers:
        return [await sustained(servers, f"run-{number}", size, replicas=replicas) for number in range(size.runs)]


def figures(sizes: Sequence[Size] = FULL) -> Iterator[Figure]:
    for size in sizes:
        for replicas in size.replicas:
            yield from _figures(size, replicas, uvloop.run(_measured(size, replicas)))


def _figures(size: Size, replicas: int, runs: Sequence[Sustained]) -> Iterator[Figure]:
    who = "one scheduler" if replicas == 1 else f"{replicas} replicas"
    kind = "pods" if size.gang == 1 else f"pods in gangs of {size.gang}"
    room = "" if size.placed == size.pods else f", room for {size.placed}"
    what = f"scale: {who}, {size.nodes} nodes, {size.pods} {kind} at {size.per_s}/s{room}"
    yield figure(f"{what}: placed", [run.placed_per_s for run in runs], "pods/s")
    yield figure(f"{what}: conflicts", [run.conflicts * 100 for run in runs], "% of units")
    yield figure(f"{what}: CPU of the schedulers", [run.scheduler_us for run in runs], "us per pod")
    yield figure(f"{what}: a core each would place", [replicas * 1e6 / run.scheduler_us for run in runs], "pods/s")
    yield figure(f"{what}: CPU of the relay", [run.relay_us for run in runs], "us per event")
    yield figure(f"{what}: CPU of Postgres", [run.postgres_us for run in runs], "us per event")
