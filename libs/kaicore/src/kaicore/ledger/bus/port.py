"""The port to the message bus: the promises of every implementation.

A cluster has one stream. In it the sequence number of a message is the position of the event that it carries. The
publisher gives the numbers, not the bus: it states after which position a message belongs. Two publishers can therefore
not both extend a stream, and a reader sees by arithmetic that something is missing. The bus is a cache of the log's
tail. It may lose messages, or all of them, at any time; `kaicore.ledger.feed` makes up for that.

`tests/contract/test_bus.py` checks every implementation against it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kaicore.errors import BusUnavailable, Fenced


class Message(NamedTuple):
    """An event on its way.

    Attributes:
        position: the event's position, and the message's sequence in its stream.
        type: the event's type, the last token of the message's subject.
        data: see `kaicore.ledger.bus.wire`.
        traceparent: the event's place in its trace, as its header has it; empty for none, and from `Bus.read`.
    """

    position: int
    type: str
    data: bytes
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream's contents.

    Attributes:
        first: position of the oldest message; `last + 1` in an empty stream.
        last: position of the newest message ever published, or one less than the first that may be.
        size: bytes of the messages, as the bus counts them.
    """

    first: int
    last: int
    size: int = field(default=0, compare=False)

    @property
    def empty(self) -> bool:
        """True if there is no message in the stream."""
        return self.first > self.last


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The length of the log's tail in a stream; the oldest messages go first.

    Attributes:
        max_age_s: seconds that a message is kept; 0 is without end.
        max_bytes: size of the stream; -1 is without limit.
        replicas: servers that hold the stream.
    """

    max_age_s: int = 48 * 3600
    max_bytes: int = 1 << 30
    replicas: int = 1


class Subscription(Protocol):
    """Messages of one stream in order, as long as nothing goes wrong; then it ends, and another has to be made.

    Messages may be missing or come twice. The subscription holds a bounded number of them and asks for more only as
    they are taken.
    """

    async def ready(self, *, timeout_s: float) -> bool:
        """Wait until there is something to take, at most `timeout_s`; return whether there is.

        Raises BusUnavailable: the subscription has ended, and all that came before was taken.
        """

    def take(self, limit: int) -> list[Message]:
        """Take what has arrived, at most `limit` messages; never waits."""

    async def close(self) -> None:
        """End the subscription; waiters get `BusUnavailable`. Never raises."""


class Bus(Protocol):
    """Streams of messages, one per cluster.

    Every method but `close` raises `BusUnavailable` when the bus does not answer, and `InvalidObject` for a cluster
    if its name cannot be part of a subject.
    """

    @property
    def connected(self) -> bool:
        """True if there is a connection at this moment."""

    @property
    def max_data(self) -> int:
        """Size in bytes of the largest message data that the bus carries."""

    async def wait_connected(self, *, timeout_s: float) -> bool:
        """Wait for a connection, at most `timeout_s`; return whether there is one."""

    async def stream(self, cluster: str) -> StreamState | None:
        """Return what the cluster's stream holds; None when there is no stream."""

    async def create_stream(self, cluster: str, *, first: int, limits: Limits) -> None:
        """Create the stream with a first message at position `first`, unless there is a stream already.

        Raises NoRoom: the limit of bytes is more than the bus has left.
        """

    async def set_limits(self, cluster: str, limits: Limits) -> None:
        """Give an existing stream these limits."""

    async def delete_stream(self, cluster: str) -> None:
        """Delete the stream and all that is in it, if there is one; its subscriptions end."""

    async def read(self, cluster: str, position: int) -> Message | None:
        """Return one message; None when it is not, or no longer, in the stream."""

    async def publish(self, cluster: str, messages: Sequence[Message]) -> None:
        """Append messages of consecutive positions; returns when the bus has confirmed all of them.

        After an error some of them may be in the stream.

        Raises:
            Fenced: the stream is further than where the messages begin, or another publisher has got ahead meanwhile.
            BusUnavailable: also when there is no stream, or when it has lost what should come before the messages.
        """

    async def subscribe(self, cluster: str, *, after: int) -> Subscription:
        """Subscribe to the messages after a position, those in the stream already first.

        Raises BusUnavailable: also when there is no stream.
        """

    async def close(self) -> None:
        """Close the connection and end all subscriptions. Never raises."""


#: Of the room that a stream could have, the part that it gets, and the least and most bytes whatever there is.
_SHARE, _LEAST, _MOST = 10, 64 << 20, 4 << 30


def stream_bytes(*, free: int, used: int) -> int:
    """Return how large a stream may be on a disk: a tenth of what is free or its own, in whole MiB."""
    return min(_MOST, max(_LEAST, (free + used) // _SHARE >> 20 << 20))


def check_follows(cluster: str, position: int, *, last: int) -> None:
    """Check that a message may follow one at position `last`.

    Raises:
        Fenced: another publisher has published further.
        BusUnavailable: the stream has lost what comes before.
    """
    if position <= last:
        raise Fenced(f"cluster {cluster}: the stream is at {last}, so another relay has published {position}")
    if position > last + 1:
        raise BusUnavailable(f"cluster {cluster}: the stream has fallen back to {last}, so {position} cannot follow")
