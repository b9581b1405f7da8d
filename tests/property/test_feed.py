"""Whatever happens to the bus and the log, a feed yields the log: all of it, in order, once."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kaicore.ledger.bus.wire import message_hash, to_message
from kaicore.ledger.feed import EventFeed, FeedOptions
from kaicore.ledger.log.chain import event_hash
from kaicore.rules.events.envelope import Event

from tests.given.doubles.unreliable import LIMITS, UnreliableBus, UnreliableLog, append, relay
from tests.given.doubles.virtual_time import VirtualTimeLoop
from tests.given.examples import examples

T = TypeVar("T")

CLUSTER = "c"


class FeedMachine(RuleBasedStateMachine):
    """A log, a relay, a bus and a feed, and everything that can happen to them in any order."""

    @initialize(
        history=st.integers(0, 30), after=st.integers(0, 30), batch=st.sampled_from((1, 3, 500)), seed=st.integers(0)
    )
    def start(self, history: int, after: int, batch: int, seed: int) -> None:
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.log = UnreliableLog()
        self.bus = self.run(self.make_bus(seed))
        self.run(append(self.log, CLUSTER, history))
        self.start_at = min(after, history)
        self.read: list[Event] = []
        self.feed = EventFeed(
            self.log, self.bus, CLUSTER, after=self.start_at, options=FeedOptions(batch=batch, check_s=0.5)
        )

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    async def make_bus(self, seed: int) -> UnreliableBus:
        # Every tenth event is too large for this bus.
        return UnreliableBus(seed, max_data=500)

    def expected(self) -> list[Event]:
        return self.log._clusters[CLUSTER].events[self.start_at :] if CLUSTER in self.log._clusters else []

    @rule(counts=st.lists(st.integers(1, 12), min_size=1, max_size=8), lag=st.sampled_from((0, 0, 0, 2)))
    @precondition(lambda self: not self.log.away)
    def flow(self, counts: list[int], lag: int) -> None:
        """Events are appended, relayed and read."""

        async def flowing() -> None:
            for count in counts:
                head = await append(self.log, CLUSTER, count)
                await self.relay_to(head - lag)
                self.read += await self.feed.next_batch(timeout_s=0.1)

        self.run(flowing())

    @rule(count=st.integers(1, 20))
    @precondition(lambda self: not self.log.away)
    def append(self, count: int) -> None:
        self.run(append(self.log, CLUSTER, count))

    @rule(seconds=st.sampled_from((0.0, 0.1, 0.6, 5.0)))
    def take(self, seconds: float) -> None:
        self.read += self.run(self.feed.next_batch(timeout_s=seconds))

    @rule(steps=st.integers(0, 12))
    def take_and_cancel(self, steps: int) -> None:
        async def cancelling() -> list[Event]:
            task = asyncio.ensure_future(self.feed.next_batch())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            try:
                return await task
            except asyncio.CancelledError:
                return []

        self.read += self.run(cancelling())

    @rule(short_of_head=st.integers(0, 10))
    @precondition(lambda self: not self.log.away)
    def catch_up(self, short_of_head: int) -> None:
        async def catching_up() -> list[Event]:
            return await self.feed.catch_up((await self.log.head(CLUSTER)).position - short_of_head)

        self.read += self.run(catching_up())

    @rule(
        disaster=st.sampled_from(("garble", "garble much", "wipe", "cut", "log away", "foreign stream", "lost end")),
        first=st.integers(1, 40),
        count=st.integers(0, 40),
    )
    def disaster(self, disaster: str, first: int, count: int) -> None:
        match disaster:
            case "garble":
                self.bus.faults = 0.1
            case "garble much":
                self.bus.faults = 0.5
            case "wipe":
                self.bus.wipe()
            case "cut":
                self.bus.disconnect()
            case "log away":
                self.log.away = True
            case "foreign stream":
                self.run(self.replace_stream(first, count))
            case _:
                self.run(self.leave_lost_end(count % 5))

    @rule()
    def heal(self) -> None:
        self.bus.faults = 0.0
        self.bus.reconnect()
        self.log.away = False

    async def relay_to(self, position: int) -> None:
        if not self.bus.connected:
            return
        state = await self.bus.stream(CLUSTER)
        if state is not None and not state.empty:
            # As the real one does: is this our stream?
            last = await self.bus.read(CLUSTER, state.last)
            ours = self.log._clusters[CLUSTER].events[state.last - 1 : state.last]
            if last is None or not ours or message_hash(last) != ours[0].hash:
                await self.bus.delete_stream(CLUSTER)
        await relay(self.log, self.bus, CLUSTER, upto=position, keep=15)

    async def leave_lost_end(self, count: int) -> None:
        """The state of the bus when the log lost its last events, and they were on the bus already."""
        self.bus.reconnect()
        # That takes a while.
        await asyncio.sleep(10)
        events = list(self.log._clusters[CLUSTER].events) if CLUSTER in self.log._clusters else []
        if not events:
            return
        for _ in range(count):
            following = msgspec.structs.replace(events[-1], position=events[-1].position + 1, actor="lost")
            events.append(msgspec.structs.replace(following, hash=event_hash(events[-1].hash, following)))
        kept = events[-15:]
        await self.bus.delete_stream(CLUSTER)
        await self.bus.create_stream(CLUSTER, first=kept[0].position, limits=LIMITS)
        await self.bus.publish(CLUSTER, [to_message(event, max_data=self.bus.max_data) for event in kept])

    async def replace_stream(self, first: int, count: int) -> None:
        self.bus.reconnect()
        other = UnreliableLog()
        await append(other, CLUSTER, first + count, origin="elsewhere")
        await self.bus.delete_stream(CLUSTER)
        await self.bus.create_stream(CLUSTER, first=first, limits=LIMITS)
        await relay(other, self.bus, CLUSTER)

    @invariant()
    def what_was_read_is_the_log(self) -> None:
        if hasattr(self, "log"):
            assert self.read == self.expected()[: len(self.read)]
            assert self.feed.position == self.start_at + len(self.read)

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        try:
            self.log.away = False
            self.run(self.read_the_rest())
            assert self.read == self.expected()
        finally:
            self.run(self.feed.close())
            self.runner.close()

    async def read_the_rest(self) -> None:
        head = (await self.log.head(CLUSTER)).position
        async with asyncio.timeout(1000):
            while self.feed.position < head:
                self.read += await self.feed.next_batch()
        assert await self.feed.next_batch(timeout_s=10) == []


FeedMachine.TestCase.settings = settings(max_examples=examples(250), stateful_step_count=40, deadline=None)
TestFeed = FeedMachine.TestCase
