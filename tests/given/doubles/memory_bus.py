"""A bus in memory: the obvious implementation, for tests and for everything that runs in one process.

It can lose messages like a real one: `disconnect`, `reconnect` and `wipe` act like a server's failures.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kaicore.errors import BusUnavailable
from kaicore.ledger.bus.port import Limits, Message, StreamState, check_follows
from kaicore.ledger.bus.wire import check_cluster


@dataclass(slots=True, eq=False)
class _Stream:
    first: int
    limits: Limits
    messages: deque[Message] = field(default_factory=deque)
    size: int = 0
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    ended: str = ""

    @property
    def last(self) -> int:
        return self.first + len(self.messages) - 1

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self.size += len(message.data)
        self.trim()

    def trim(self) -> None:
        while 0 <= self.limits.max_bytes < self.size:
            self.size -= len(self.messages.popleft().data)
            self.first += 1

    def wake(self) -> None:
        self.grown.set()
        self.grown = asyncio.Event()

    def end(self, why: str) -> None:
        self.ended = why
        self.wake()


class MemorySubscription:
    """A subscription to a stream in memory; it holds only its place there.

    See `kaicore.ledger.bus.port.Subscription`.
    """

    def __init__(self, stream: _Stream, after: int) -> None:
        self._stream = stream
        self._next = after + 1
        self._ended = ""

    async def ready(self, *, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while self._next > self._stream.last:
                    if why := self._ended or self._stream.ended:
                        raise BusUnavailable(why)
                    await self._stream.grown.wait()
        except TimeoutError:
            return False
        return True

    def take(self, limit: int) -> list[Message]:
        stream = self._stream
        start = max(self._next, stream.first)
        taken = [stream.messages[position - stream.first] for position in range(start, stream.last + 1)[:limit]]
        if taken:
            self._next = taken[-1].position + 1
        return taken

    async def close(self) -> None:
        self._ended = self._ended or "the subscription is closed"
        self._stream.wake()


class MemoryBus:
    """The bus in memory, for tests; see `kaicore.ledger.bus.port.Bus`."""

    def __init__(self, *, max_data: int = 1 << 20) -> None:
        """Args: max_data: bytes of data that a message may have."""
        self._max_data = max_data
        self._streams: dict[str, _Stream] = {}
        self._connected = asyncio.Event()
        self._connected.set()

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    @property
    def max_data(self) -> int:
        return self._max_data

    def disconnect(self) -> None:
        """Cut the connection: subscriptions end, and nothing works before `reconnect`."""
        self._connected.clear()
        self._end_subscriptions("the connection is lost")

    def reconnect(self) -> None:
        """Restore the connection; the streams are as they were."""
        self._connected.set()

    def wipe(self) -> None:
        """Lose all streams, as a server does after its store was deleted."""
        self._end_subscriptions("the store is gone")
        self._streams.clear()

    async def wait_connected(self, *, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
        except TimeoutError:
            return False
        return True

    async def stream(self, cluster: str) -> StreamState | None:
        stream = self._find(cluster)
        return None if stream is None else StreamState(stream.first, stream.last, stream.size)

    async def create_stream(self, cluster: str, *, first: int, limits: Limits) -> None:
        if self._find(cluster) is None:
            self._streams[cluster] = _Stream(first, limits)

    async def set_limits(self, cluster: str, limits: Limits) -> None:
        stream = self._get(cluster)
        stream.limits = limits
        stream.trim()

    async def delete_stream(self, cluster: str) -> None:
        if self._find(cluster) is not None:
            self._streams.pop(cluster).end("the stream is deleted")

    async def read(self, cluster: str, position: int) -> Message | None:
        stream = self._find(cluster)
        if stream is None or not stream.first <= position <= stream.last:
            return None
        return stream.messages[position - stream.first]

    async def publish(self, cluster: str, messages: Sequence[Message]) -> None:
        stream = self._get(cluster)
        try:
            for message in messages:
                check_follows(cluster, message.position, last=stream.last)
                stream.add(message)
        finally:
            stream.wake()

    async def subscribe(self, cluster: str, *, after: int) -> MemorySubscription:
        return MemorySubscription(self._get(cluster), after)

    async def close(self) -> None:
        self.disconnect()

    def _find(self, cluster: str) -> _Stream | None:
        check_cluster(cluster)
        if not self.connected:
            raise BusUnavailable("not connected")
        return self._streams.get(cluster)

    def _get(self, cluster: str) -> _Stream:
        stream = self._find(cluster)
        if stream is None:
            raise BusUnavailable(f"cluster {cluster} has no stream")
        return stream

    def _end_subscriptions(self, why: str) -> None:
        for name, stream in list(self._streams.items()):
            self._streams[name] = _Stream(stream.first, stream.limits, stream.messages.copy(), stream.size)
            stream.end(why)
