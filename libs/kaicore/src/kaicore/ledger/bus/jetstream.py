"""The bus on NATS JetStream: one stream per cluster, in which sequence equals position.

JetStream's API is spoken directly. nats-py's own context for it waits out its timeouts when a connection breaks, its
`publish_async` never ends on an error, and it takes one round trip per message otherwise. `docs/explanation/bus.md` has
figures.

A publisher sends with each message the sequence that must be the stream's last. The messages of a batch therefore form
a chain: when the last of them has been stored, every position before it has been, once. So only the last message of a
batch asks for a confirmation, and the very first one, which shows whether this publisher may extend the stream. That
one goes alone unless we published the message before it.

A subscription pulls from a consumer ahead of its reader, and never further than a window. The consumer lives in the
server's memory and needs no acknowledgements: a reader that lost something makes a new one.

The store of leases uses the same requests, answers and meanings of errors.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import msgspec

from kaicore.errors import BusUnavailable, NoRoom
from kaicore.ledger.bus.client import Incoming, Outgoing
from kaicore.ledger.bus.connection import Connection, Inbox
from kaicore.ledger.bus.port import Limits, Message, StreamState, check_follows
from kaicore.ledger.bus.wire import stream_name, subject_prefix

#: Error codes (https://github.com/nats-io/nats-server/blob/main/server/errors.json).
STREAM_NOT_FOUND = 10059
MESSAGE_NOT_FOUND = 10037
NAME_IN_USE = 10058
WRONG_LAST_SEQUENCE = 10071
_NO_ROOM = (10002, 10023, 10047)

NANOSECONDS = 1_000_000_000

#: Servers tell each other each second that they are there.
_SILENT_NS = 6 * NANOSECONDS


class ApiError(msgspec.Struct, frozen=True):
    """An error that JetStream answers."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream's state; `subjects` only where it was requested."""

    messages: int
    first_seq: int
    last_seq: int
    bytes: int = 0
    subjects: dict[str, int] = {}


class Stored(msgspec.Struct, frozen=True):
    """A message in a stream."""

    subject: str
    seq: int
    data: bytes = b""


class Peer(msgspec.Struct, frozen=True):
    """One of the other servers that hold a stream; `active` is how long it has been silent, nanoseconds."""

    active: int = 0


class StreamServers(msgspec.Struct, frozen=True):
    """The servers that hold a stream, as the one sees it that answers."""

    replicas: tuple[Peer, ...] = ()

    @property
    def majority(self) -> bool:
        """True if most servers were heard of lately: a leader that was cut off goes on answering for a while."""
        heard = 1 + sum(peer.active < _SILENT_NS for peer in self.replicas)
        return 2 * heard > 1 + len(self.replicas)


class ApiAnswer(msgspec.Struct, frozen=True):
    """JetStream's answer to any request."""

    error: ApiError | None = None
    state: StreamInfo | None = None
    config: dict[str, Any] = {}
    message: Stored | None = None
    name: str = ""
    seq: int = 0
    cluster: StreamServers = StreamServers()


_decoder = msgspec.json.Decoder(ApiAnswer)
_encoder = msgspec.json.Encoder()


class JetStreamApi:
    """JetStream's API on a connection."""

    def __init__(self, connection: Connection) -> None:
        """Args: connection: to NATS."""
        self._connection = connection

    async def ask(
        self, subject: str, request: dict[str, Any] | None = None, *, absent: tuple[int, ...] = ()
    ) -> ApiAnswer | None:
        """Ask something; return None for an error code in `absent`.

        Raises BusUnavailable: there is no answer, or it is another error.
        """
        data = b"" if request is None else _encoder.encode(request)
        answer = read_answer(await self._connection.ask([Outgoing(f"$JS.API.{subject}", data)]))
        if answer.error is not None:
            if answer.error.err_code in absent:
                return None
            raise unavailable(subject, answer.error)
        return answer


def read_answer(message: Incoming) -> ApiAnswer:
    """Decode an answer. Raises BusUnavailable: it says that nobody answers, or cannot be read."""
    if message.status:
        raise BusUnavailable("NATS: no answer: no such stream, or JetStream is not ready")
    try:
        return _decoder.decode(message.data)
    except msgspec.DecodeError as error:
        raise BusUnavailable(f"NATS: unreadable answer: {error}") from error


def unavailable(what: str, error: ApiError) -> BusUnavailable:
    """Return the error to raise for one that JetStream answered."""
    kind = NoRoom if error.err_code in _NO_ROOM else BusUnavailable
    return kind(f"NATS: {what}: {error.description} ({error.err_code})")


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
        self._requesting: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, connection: Connection, *, stream: str, consumer: str) -> Self:
        """Open an inbox to pull from a consumer."""
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

    @property
    def _free(self) -> int:
        """Number of messages that may be asked for now; 0 until half the window is free."""
        free = _WINDOW - self._requested - len(self._arrived)
        return 0 if self._ended or free < _WINDOW // 2 or self._arrived_bytes > _WINDOW_BYTES else free

    async def _request(self) -> None:
        """Ask for more messages when half the window is free."""
        free = self._free
        if not free:
            return
        assert self._inbox is not None
        self._requested += free
        request = b'{"batch":%d,"max_bytes":%d,"expires":%d}' % (free, self._max_bytes, _REQUEST_NS)
        message = Outgoing(f"$JS.API.CONSUMER.MSG.NEXT.{self._consumer}", request)
        try:
            await self._connection.send(message, reply=self._inbox.subject)
        except BusUnavailable as error:
            self._end(str(error))

    def _on_message(self, message: Incoming) -> None:
        if status := message.status:
            self._on_status(status, message)
        elif not message.reply.startswith(b"$JS.ACK."):
            # Of no stream.
            return
        else:
            self._requested -= 1
            event_type = message.subject.rpartition(b".")[2].decode()
            trace = message.header("traceparent")
            self._arrived.append(Message(_sequence(message.reply), event_type, message.data, trace))
            self._arrived_bytes += len(message.data)
        self._wake.set()
        if self._free and (self._requesting is None or self._requesting.done()):
            # Where the reader is away.
            self._requesting = asyncio.ensure_future(self._request())

    def _on_status(self, status: str, message: Incoming) -> None:
        code, _, description = status.partition(" ")
        if code == "100":
            return
        if code in _FINISHED or description in _LIMIT_REACHED:
            self._requested = max(0, self._requested - int(message.header("Nats-Pending-Messages") or "0"))
        else:
            self._end(status)

    def _end(self, why: str) -> None:
        self._ended = self._ended or why
        self._wake.set()


def _sequence(reply: bytes) -> int:
    """Return the stream sequence that a delivered message's reply subject tells (ADR-15 of NATS)."""
    tokens = reply.split(b".")
    return int(tokens[5] if len(tokens) == 9 else tokens[7])


#: Bytes that are left free for headers below the server's limit for a message.
_HEADERS = 512

#: Messages and bytes sent before their confirmation is waited for. A stream queues 10,000 messages at most.
_BATCH_MESSAGES = 1000
_BATCH_BYTES = 4 << 20

#: A consumer that was not asked for this long is deleted by the server.
_INACTIVE_S = 120

_wrong_last_sequence = re.compile(r"wrong last sequence: (\d+)")


class NatsBus:
    """The bus on NATS JetStream; see `kaicore.ledger.bus.port.Bus`."""

    def __init__(self, connection: Connection) -> None:
        """Prefer `open`."""
        self._connection = connection
        #: By cluster, the position that we published last.
        self._published: dict[str, int] = {}
        self._api = JetStreamApi(connection)

    @classmethod
    async def open(cls, url: str, *, name: str) -> Self:
        """Begin to connect, and return without waiting for it. Raises ConfigurationError: a url cannot be one.

        Args:
            url: of the servers, with commas between them.
            name: the client's, for the server's logs.
        """
        connection = Connection(url, name=name)
        connection.dial()
        return cls(connection)

    @classmethod
    @asynccontextmanager
    async def of_service(cls, name: str, url: str | None) -> AsyncIterator[Self | None]:
        """Give the bus under a service's name, and close it; None without a url: events then come from the log alone.

        Raises ConfigurationError: the url is none.
        """
        bus = await cls.open(url, name=f"kai-{name}") if url else None
        try:
            yield bus
        finally:
            if bus is not None:
                await bus.close()

    @property
    def connected(self) -> bool:
        """See `Bus.connected`."""
        return self._connection.up

    @property
    def max_data(self) -> int:
        """See `Bus.max_data`."""
        return self._connection.max_payload - _HEADERS

    async def wait_connected(self, *, timeout_s: float) -> bool:
        """See `Bus.wait_connected`."""
        return await self._connection.wait_up(timeout_s=timeout_s)

    async def stream(self, cluster: str) -> StreamState | None:
        """See `Bus.stream`."""
        answer = await self._api.ask(f"STREAM.INFO.{stream_name(cluster)}", absent=(STREAM_NOT_FOUND,))
        if answer is None or answer.state is None:
            return None
        if not answer.cluster.majority:
            self._connection.doubt()
            raise BusUnavailable(f"NATS: {stream_name(cluster)}: most of its servers are silent")
        state = answer.state
        return StreamState(state.first_seq if state.messages else state.last_seq + 1, state.last_seq, state.bytes)

    async def create_stream(self, cluster: str, *, first: int, limits: Limits) -> None:
        """See `Bus.create_stream`."""
        name = stream_name(cluster)
        config = {
            "name": name,
            "description": f"events of cluster {cluster}; sequence = position in its log",
            "subjects": [f"{subject_prefix(cluster)}>"],
            "storage": "file",
            "retention": "limits",
            "discard": "old",
            "first_seq": first,
            "max_consumers": -1,
            "max_msgs": -1,
            "max_msgs_per_subject": -1,
            "max_msg_size": -1,
            "allow_direct": True,
            "deny_delete": True,
            "deny_purge": True,
            **_limits(limits),
        }
        await self._api.ask(f"STREAM.CREATE.{name}", config, absent=(NAME_IN_USE,))

    async def set_limits(self, cluster: str, limits: Limits) -> None:
        """See `Bus.set_limits`."""
        name = stream_name(cluster)
        answer = await self._api.ask(f"STREAM.INFO.{name}")
        assert answer is not None
        wanted = _limits(limits)
        if any(answer.config.get(field) != value for field, value in wanted.items()):
            await self._api.ask(f"STREAM.UPDATE.{name}", answer.config | wanted)

    async def delete_stream(self, cluster: str) -> None:
        """See `Bus.delete_stream`."""
        await self._api.ask(f"STREAM.DELETE.{stream_name(cluster)}", absent=(STREAM_NOT_FOUND,))

    async def read(self, cluster: str, position: int) -> Message | None:
        """See `Bus.read`."""
        name = stream_name(cluster)
        absent = (STREAM_NOT_FOUND, MESSAGE_NOT_FOUND)
        answer = await self._api.ask(f"STREAM.MSG.GET.{name}", {"seq": position}, absent=absent)
        if answer is None or answer.message is None:
            return None
        stored = answer.message
        return Message(stored.seq, stored.subject.rpartition(".")[2], stored.data)

    async def publish(self, cluster: str, messages: Sequence[Message]) -> None:
        """See `Bus.publish`."""
        ours = bool(messages) and self._published.pop(cluster, -1) == messages[0].position - 1
        batches = list(_batches(messages))
        together = 2 if ours else 1
        for group in (batches[:together], *([batch] for batch in batches[together:])):
            answers = await asyncio.gather(*(self._send(cluster, batch) for batch in group))
            for batch, answer in zip(group, answers, strict=True):
                _check_stored(cluster, batch, answer.error)
        if messages:
            self._published[cluster] = messages[-1].position

    async def _send(self, cluster: str, batch: Sequence[Message]) -> ApiAnswer:
        prefix = subject_prefix(cluster)
        outgoing = (Outgoing(f"{prefix}{message.type}", message.data, _headers(message)) for message in batch)
        return read_answer(await self._connection.ask(outgoing))

    async def subscribe(self, cluster: str, *, after: int) -> PullSubscription:
        """See `Bus.subscribe`."""
        name = stream_name(cluster)
        config = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": after + 1,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _INACTIVE_S * NANOSECONDS,
        }
        answer = await self._api.ask(f"CONSUMER.CREATE.{name}", {"stream_name": name, "config": config})
        assert answer is not None
        return await PullSubscription.open(self._connection, stream=name, consumer=answer.name)

    async def close(self) -> None:
        """See `Bus.close`."""
        await self._connection.close()


def _check_stored(cluster: str, batch: Sequence[Message], error: ApiError | None) -> None:
    if error is None:
        return
    mismatch = _wrong_last_sequence.search(error.description)
    if error.err_code != WRONG_LAST_SEQUENCE or mismatch is None:
        raise unavailable(f"publishing on {stream_name(cluster)}", error)
    check_follows(cluster, batch[0].position, last=int(mismatch[1]))
    raise BusUnavailable(f"cluster {cluster}: the bus has dropped message {batch[0].position}")


def _headers(message: Message) -> dict[str, str]:
    expected = {"Nats-Expected-Last-Sequence": str(message.position - 1)}
    return {**expected, "traceparent": message.traceparent} if message.traceparent else expected


def _limits(limits: Limits) -> dict[str, int]:
    return {
        "max_age": limits.max_age_s * NANOSECONDS,
        "max_bytes": limits.max_bytes,
        "num_replicas": limits.replicas,
        # We send no message ids, and a window longer than the age would be refused.
        "duplicate_window": NANOSECONDS,
    }


def _batches(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    if messages:
        yield messages[:1]
    batch: list[Message] = []
    size = 0
    for message in messages[1:]:
        batch.append(message)
        size += len(message.data)
        if len(batch) >= _BATCH_MESSAGES or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
