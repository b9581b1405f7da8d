"""A bus that loses, repeats, reorders and garbles, and a log that is away now and then."""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random

from kaicore.errors import EventsRetired, LogUnavailable
from kaicore.ledger.bus import Limits, Message, StreamState, Subscription
from kaicore.ledger.bus.wire import to_message
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import Filter, Head
from kaicore.rules.events.envelope import Event, NewEvent, Unit, UnitOutcome, derived_id
from kaicore.rules.events.payloads import PodDeleted

from tests.given.doubles.memory_bus import MemoryBus

LIMITS = Limits()


class UnreliableLog(MemoryLog):
    """A log in memory that can be away."""

    def __init__(self) -> None:
        self._now = 0
        super().__init__(self._tick)
        self.away = False

    def _tick(self) -> int:
        self._now += 1
        return self._now

    async def _reach(self) -> None:
        # A real one is never there at once; here a reader may be cancelled.
        await asyncio.sleep(0)
        if self.away:
            raise LogUnavailable("the log is away")

    async def append(
        self, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        await self._reach()
        return await super().append(cluster, units, expect=expect)

    async def head(self, cluster: str) -> Head:
        await self._reach()
        return await super().head(cluster)

    async def read(
        self, cluster: str, *, after: int = 0, upto: int | None = None, limit: int = 1000, where: Filter | None = None
    ) -> list[Event]:
        await self._reach()
        return await super().read(cluster, after=after, upto=upto, limit=limit, where=where)

    async def wait_beyond(self, cluster: str, position: int, *, timeout_s: float) -> int:
        await self._reach()
        return await super().wait_beyond(cluster, position, timeout_s=timeout_s)


class UnreliableSubscription:
    """A subscription's messages, garbled."""

    def __init__(self, inner: Subscription, bus: "UnreliableBus") -> None:
        self._inner = inner
        self._bus = bus
        self._random = bus.random

    async def ready(self, *, timeout_s: float) -> bool:
        return await self._inner.ready(timeout_s=timeout_s)

    async def close(self) -> None:
        await self._inner.close()

    def take(self, limit: int) -> list[Message]:
        taken = self._inner.take(limit)
        given: list[Message] = []
        for message in taken:
            if self._bus.deliver_only is not None and message.position not in self._bus.deliver_only:
                continue
            fault = self._random.choice(("drop", "twice", "swap", "garble")) if self._strikes() else ""
            if fault == "drop":
                continue
            if fault == "garble":
                given.append(message._replace(data=self._garbled(message.data)))
                continue
            given.append(message)
            if fault == "twice":
                given.append(message)
            if fault == "swap" and len(given) > 1:
                given[-1], given[-2] = given[-2], given[-1]
        return given

    def _garbled(self, data: bytes) -> bytes:
        # Some of these are still events.
        other = data.replace(b'"version":1', b'"version":2')
        return self._random.choice((other, other, data.replace(b"pod", b"pid"), b"", b"{", b"#", data[:-1]))

    def _strikes(self) -> bool:
        return self._random.random() < self._bus.faults


class UnreliableBus(MemoryBus):
    """A bus in memory with subscriptions that garble a share of the messages."""

    def __init__(self, seed: int = 0, *, max_data: int = 1 << 20) -> None:
        super().__init__(max_data=max_data)
        self.random = Random(seed)
        #: Share of messages that something happens to.
        self.faults = 0.0
        #: Positions of the only messages that get through; None for all.
        self.deliver_only: set[int] | None = None

    async def subscribe(self, cluster: str, *, after: int) -> UnreliableSubscription:  # type: ignore[override]
        await asyncio.sleep(0)
        return UnreliableSubscription(await super().subscribe(cluster, after=after), self)

    async def stream(self, cluster: str) -> StreamState | None:
        await asyncio.sleep(0)
        return await super().stream(cluster)


async def append(log: MemoryLog, cluster: str, count: int, *, origin: str = "") -> int:
    """Append events to a log; return the log's new head."""
    start = (await log.head(cluster)).position
    units = [
        Unit(
            (
                NewEvent(
                    id=derived_id(cluster, origin, str(number)),
                    stream=f"pod/{number}",
                    payload=PodDeleted(
                        uid=str(number),
                        namespace="default",
                        name=f"pod-{number}" + "x" * (200 if number % 10 == 0 else 0),
                    ),
                    actor=f"test{origin}",
                    occurred_at=number,
                ),
            )
        )
        for number in range(start + 1, start + count + 1)
    ]
    await log.append(cluster, units)
    return start + count


async def relay(log: MemoryLog, bus: MemoryBus, cluster: str, *, upto: int | None = None, keep: int = 1000) -> None:
    """Do what the relay does, in five lines: bring a cluster's stream to the log's head."""
    state = await bus.stream(cluster)
    if state is None:
        head = (await log.head(cluster)).position
        await bus.create_stream(cluster, first=max(1, head - keep + 1), limits=LIMITS)
        return await relay(log, bus, cluster, upto=upto)
    events = await log.read(cluster, after=state.last, upto=upto, limit=10**6)
    await bus.publish(cluster, [to_message(event, max_data=bus.max_data) for event in events])
    return None


class RetiringLog(UnreliableLog):
    """A log with retired first events: those up to `retired`."""

    retired = 0

    async def read(
        self, cluster: str, *, after: int = 0, upto: int | None = None, limit: int = 1000, where: Filter | None = None
    ) -> list[Event]:
        if after < self.retired:
            raise EventsRetired(cluster, self.retired)
        return await super().read(cluster, after=after, upto=upto, limit=limit, where=where)
