"""JetStream's API as the bus and the store of leases use it: requests, answers, and the meaning of errors."""

from typing import Any

import msgspec
from nats.aio.msg import Msg

from kaicore.errors import BusUnavailable, NoRoom
from kaicore.ledger.bus.connection import Connection, Outgoing

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
    """What a stream holds; `subjects` only where it was asked for."""

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
        """Whether most of them have been heard of lately: a leader that was cut off goes on answering for a while."""
        heard = 1 + sum(peer.active < _SILENT_NS for peer in self.replicas)
        return 2 * heard > 1 + len(self.replicas)


class ApiAnswer(msgspec.Struct, frozen=True):
    """What JetStream answers, whatever it was asked."""

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

        Raises:
            BusUnavailable: there is no answer, or it is another error.
        """
        data = b"" if request is None else _encoder.encode(request)
        answer = read_answer(await self._connection.ask([Outgoing(f"$JS.API.{subject}", data)]))
        if answer.error is not None:
            if answer.error.err_code in absent:
                return None
            raise unavailable(subject, answer.error)
        return answer


def read_answer(message: Msg) -> ApiAnswer:
    """Decode an answer.

    Raises:
        BusUnavailable: it says that nobody answers, or cannot be read.
    """
    if message.headers and "Status" in message.headers:
        raise BusUnavailable("NATS: no answer: no such stream, or JetStream is not ready")
    try:
        return _decoder.decode(message.data)
    except msgspec.DecodeError as error:
        raise BusUnavailable(f"NATS: unreadable answer: {error}") from error


def unavailable(what: str, error: ApiError) -> BusUnavailable:
    """Return the error to raise for one that JetStream answered."""
    kind = NoRoom if error.err_code in _NO_ROOM else BusUnavailable
    return kind(f"NATS: {what}: {error.description} ({error.err_code})")
