"""A subscription that pulls from a JetStream consumer ahead of its reader, and never further than a window.

The consumer lives in the server's memory and needs no acknowledgements: a reader that lost something makes a new one.
Messages come by callback, because nats-py's `fetch` and its iterators cost a timer for each message.
"""

import asyncio
import logging
from collections import deque
from typing import Self

from nats.aio.msg import Msg

from kaicore.errors import BusUnavailable
from kaicore.ledger.bus.connection import Connection, Inbox, Outgoing
from kaicore.ledger.bus.port import Message

_log = logging.getLogger(__name__)

#: Messages that may be on their way or waiting to be taken.
_WINDOW = 1000

#: Bytes that may wait to be taken before more is asked for; a request asks for no more than as much again.
_WINDOW_BYTES = 4 << 20

#: Nanoseconds that a request for messages stands.
_REQUEST_NS = 30 * 1_000_000_000

#: Ends of a request after which another one makes sense (ADR-13 of NATS): nothing came, or its limit was reached.
_FINISHED = ("404", "408")
_LIMIT_REACHED = ("Batch Completed", "Message Size Exceeds MaxBytes")


class PullSubscription:
    """A subscription by JetStream's pull requests; see `kaicore.ledger.bus.port.Subscription`."""

    def __init__(self, connection: Connection, *, stream: str, consumer: str) -> None:
        """Prefer `open`."""
        self._connection = connection
        self._consumer = f"{stream}.{consumer}"
        self._max_bytes = max(_WINDOW_BYTES, 2 * connection.max_payload)
        self._inbox: Inbox | None = None
        self._arrived: deque[Message] = deque()
        self._arrived_bytes = 0
        self._requested = 0
        self._wake = asyncio.Event()
        self._ended = ""

    @classmethod
    async def open(cls, connection: Connection, *, stream: str, consumer: str) -> Self:
        """Open an inbox to pull from a consumer.

        Raises:
            BusUnavailable: not connected.
        """
        subscription = cls(connection, stream=stream, consumer=consumer)
        subscription._inbox = await connection.open_inbox(subscription._on_message)
        subscription._inbox.when_lost(lambda: subscription._end("the connection is lost"))
        return subscription

    async def ready(self, *, timeout_s: float) -> bool:
        """See `Subscription.ready`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._request()
                while not self._arrived:
                    if self._ended:
                        raise BusUnavailable(f"{self._consumer}: {self._ended}")
                    self._wake.clear()
                    await self._wake.wait()
                    await self._request()
        except TimeoutError:
            return False
        return True

    def take(self, limit: int) -> list[Message]:
        """See `Subscription.take`."""
        taken = [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]
        self._arrived_bytes -= sum(len(message.data) for message in taken)
        return taken

    async def close(self) -> None:
        """See `Subscription.close`."""
        self._end("the subscription is closed")
        if self._inbox is not None:
            await self._inbox.close()
        try:
            await self._connection.send(Outgoing(f"$JS.API.CONSUMER.DELETE.{self._consumer}", b""))
        except BusUnavailable as error:
            _log.debug("%s is left for the server to clean up: %s", self._consumer, error)

    async def _request(self) -> None:
        """Ask for more messages when half the window is free."""
        free = _WINDOW - self._requested - len(self._arrived)
        if self._ended or free < _WINDOW // 2 or self._arrived_bytes > _WINDOW_BYTES:
            return
        assert self._inbox is not None
        self._requested += free
        request = b'{"batch":%d,"max_bytes":%d,"expires":%d}' % (free, self._max_bytes, _REQUEST_NS)
        message = Outgoing(f"$JS.API.CONSUMER.MSG.NEXT.{self._consumer}", request)
        try:
            await self._connection.send(message, reply=self._inbox.subject)
        except BusUnavailable as error:
            self._end(str(error))

    async def _on_message(self, message: Msg) -> None:
        headers = message.headers
        if headers and "Status" in headers:
            self._on_status(headers["Status"], headers)
        else:
            self._requested -= 1
            trace = headers.get("traceparent", "") if headers else ""
            event_type = message.subject.rpartition(".")[2]
            self._arrived.append(Message(_sequence(message.reply), event_type, message.data, trace))
            self._arrived_bytes += len(message.data)
            self._wake.set()
        await self._request()

    def _on_status(self, status: str, headers: dict[str, str]) -> None:
        description = headers.get("Description", "")
        if status == "100":
            return
        if status in _FINISHED or description in _LIMIT_REACHED:
            self._requested = max(0, self._requested - int(headers.get("Nats-Pending-Messages", "0")))
        else:
            self._end(f"{status} {description.strip()}")

    def _end(self, why: str) -> None:
        self._ended = self._ended or why
        self._wake.set()


def _sequence(reply: str) -> int:
    """Return the stream sequence that a delivered message's reply subject tells (ADR-15 of NATS)."""
    tokens = reply.split(".")
    return int(tokens[5] if len(tokens) == 9 else tokens[7])
