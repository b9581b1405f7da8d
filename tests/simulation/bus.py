"""The bus as a server in memory, and as a process reaches it over the network."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from kaicore.errors import BusUnavailable
from kaicore.ledger.bus.port import Limits, Message, StreamState

from tests.given.doubles.memory_bus import MemoryBus, MemorySubscription
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.network import Network, Server

T = TypeVar("T")

#: Seconds that a caller waits for an answer.
_PATIENCE_S = 2.0

#: Messages that a subscription is sent at once.
_BATCH = 500


class BusServer(MemoryBus):
    """The bus, and the subscriptions of all processes."""

    def __init__(self) -> None:
        super().__init__()
        self.subscriptions: dict[NetworkSubscription, None] = {}

    async def publish(self, cluster: str, messages: Sequence[Message]) -> None:
        try:
            await super().publish(cluster, messages)
        finally:
            self.send()

    def send(self) -> None:
        for subscription in list(self.subscriptions):
            subscription.send()

    def restart(self) -> None:
        """Go down and come back, with all streams."""
        self.disconnect()
        self.reconnect()
        self._drop("the server is restarted")

    def lose_everything(self) -> None:
        self.wipe()
        self._drop("the store is gone")

    async def delete_stream(self, cluster: str) -> None:
        await super().delete_stream(cluster)
        self._drop("the stream is deleted")

    def _drop(self, why: str) -> None:
        subscriptions, self.subscriptions = list(self.subscriptions), {}
        for subscription in subscriptions:
            subscription.end_soon(why)


class NetworkSubscription:
    """See `kaicore.ledger.bus.port.Subscription`; messages arrive in order, some not, some twice."""

    def __init__(self, loop: SimulatedLoop, process: Process, network: Network, bus: BusServer) -> None:
        self._loop, self._process, self._bus = loop, process, bus
        self._link = network.link(process.role, "bus")
        self._at_server: MemorySubscription | None = None
        self._arrived: deque[Message] = deque()
        self._grown = asyncio.Event()
        self._ended = ""
        #: When the last message that was sent arrives: none overtakes another.
        self._last_at = 0.0

    def begin(self, at_server: MemorySubscription) -> None:
        self._at_server = at_server
        self._bus.subscriptions[self] = None
        self.send()

    def send(self) -> None:
        if self._at_server is None:
            return
        messages = self._at_server.take(_BATCH)
        link = self._link
        if link.lossy:
            draw = link.chance.random
            messages = [
                message
                for message in messages
                for _ in range(0 if draw() < link.lossy else 2 if draw() < link.lossy else 1)
            ]
        if messages:
            self._deliver(lambda: self._take_in(messages))

    def end_soon(self, why: str) -> None:
        """Break; the other side hears of it a little later."""
        self._at_server = None
        self._deliver(lambda: self._end(why))

    def _deliver(self, do: Callable[[], None]) -> None:
        self._last_at = max(self._loop.time() + self._link.delay(), self._last_at + 1e-6)
        self._loop.call_at(self._last_at, do, context=self._process.context)

    def _take_in(self, messages: list[Message]) -> None:
        if not self._ended:
            self._arrived.extend(messages)
            self._grown.set()

    def _end(self, why: str) -> None:
        self._ended = self._ended or why
        self._grown.set()

    async def ready(self, *, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while not self._arrived:
                    if self._ended:
                        raise BusUnavailable(self._ended)
                    self._grown.clear()
                    await self._grown.wait()
        except TimeoutError:
            return False
        return True

    def take(self, limit: int) -> list[Message]:
        return [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]

    async def close(self) -> None:
        self._end("the subscription is closed")
        self._bus.subscriptions.pop(self, None)


class NetworkBus:
    """See `kaicore.ledger.bus.port.Bus`."""

    def __init__(self, loop: SimulatedLoop, process: Process, network: Network, server: Server, bus: BusServer) -> None:
        self._loop, self._process, self._network, self._server, self._bus = loop, process, network, server, bus
        self._link = network.link(process.role, server.name)

    async def _ask(self, name: str, serve: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._network.ask(
            self._process, self._server, name, serve, error=BusUnavailable, patience_s=_PATIENCE_S
        )

    @property
    def connected(self) -> bool:
        return self._server.up and self._link.whole

    @property
    def max_data(self) -> int:
        return self._bus.max_data

    async def wait_connected(self, *, timeout_s: float) -> bool:
        end = self._loop.time() + timeout_s
        while not self.connected and self._loop.time() < end:  # noqa: ASYNC110  # as a client's library notices it
            await asyncio.sleep(min(_PATIENCE_S, end - self._loop.time()) / 4)
        return self.connected

    async def stream(self, cluster: str) -> StreamState | None:
        return await self._ask("stream", lambda: self._bus.stream(cluster))

    async def create_stream(self, cluster: str, *, first: int, limits: Limits) -> None:
        await self._ask("create", lambda: self._bus.create_stream(cluster, first=first, limits=limits))

    async def set_limits(self, cluster: str, limits: Limits) -> None:
        await self._ask("limits", lambda: self._bus.set_limits(cluster, limits))

    async def delete_stream(self, cluster: str) -> None:
        await self._ask("delete", lambda: self._bus.delete_stream(cluster))

    async def read(self, cluster: str, position: int) -> Message | None:
        return await self._ask("read", lambda: self._bus.read(cluster, position))

    async def publish(self, cluster: str, messages: Sequence[Message]) -> None:
        await self._ask("publish", lambda: self._bus.publish(cluster, messages))

    async def subscribe(self, cluster: str, *, after: int) -> NetworkSubscription:
        subscription = NetworkSubscription(self._loop, self._process, self._network, self._bus)

        async def begin() -> None:
            subscription.begin(await self._bus.subscribe(cluster, after=after))

        await self._ask("subscribe", begin)
        return subscription

    async def close(self) -> None:
        """See `Bus.close`; the server goes on."""
