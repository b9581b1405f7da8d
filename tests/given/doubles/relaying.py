"""Relays that run in virtual time, beside a log and a bus that fail on demand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kai_relay.relay import BUS, Readiness, Relay, RelayMetrics, RelayOptions
from kaicore.ledger.bus.wire import from_message
from kaicore.rules.events.envelope import Event
from kaicore.runtime.service import Health, get_logger
from kaicore.runtime.service.log_access import LOG
from prometheus_client import CollectorRegistry

from tests.given.doubles.memory_bus import MemoryBus
from tests.given.doubles.unreliable import UnreliableBus, UnreliableLog, append

C = "c"
OPTIONS = RelayOptions(batch=10, refill=20)


class Running:
    def __init__(self, log: UnreliableLog, bus: MemoryBus, clusters: tuple[str, ...], options: RelayOptions) -> None:
        self.registry = CollectorRegistry()
        self.health = Health(LOG, BUS)
        self.stopping = asyncio.Event()
        self.relay = Relay(
            log,
            bus,
            clusters=clusters,
            options=options,
            metrics=RelayMetrics(registry=self.registry, clock=lambda: 1.0),
            readiness=Readiness(self.health),
            logger=get_logger(),
        )
        self.task = asyncio.ensure_future(self.relay.run(self.stopping))

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"kai_relay_{name}", {"cluster": C, **labels}) or 0.0

    @property
    def active(self) -> bool:
        return self.value("active") == 1

    async def kill(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


@asynccontextmanager
async def relaying(
    log: UnreliableLog, bus: MemoryBus, *, clusters: tuple[str, ...] = (), options: RelayOptions = OPTIONS
) -> AsyncIterator[Running]:
    running = Running(log, bus, clusters, options)
    try:
        yield running
    finally:
        running.stopping.set()
        await asyncio.wait([running.task])
        if not running.task.cancelled():
            running.task.result()


async def holding(count: int) -> tuple[UnreliableLog, UnreliableBus]:
    """A log with so many events, and a bus without any."""
    log = UnreliableLog()
    await append(log, C, count)
    return log, UnreliableBus()


async def on_bus(bus: MemoryBus, cluster: str = C) -> list[Event]:
    state = await bus.stream(cluster)
    assert state is not None
    messages = [await bus.read(cluster, position) for position in range(state.first, state.last + 1)]
    events = [from_message(message) for message in messages if message is not None]
    return [event for event in events if event is not None]
