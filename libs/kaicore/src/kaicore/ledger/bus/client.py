"""nats-py's client, made fast where each event passes: what is sent is one piece, what comes is handed on at once.

nats-py matches each message against patterns, reads all of its headers, and wakes a task for it. That is half of what a
reader of a busy log pays for an event. Messages for inboxes are cut out of what has arrived before nats-py sees it.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

from kaicore.ledger.nkeys import Nkey


class Outgoing(NamedTuple):
    """A message to send."""

    subject: str
    data: bytes
    headers: dict[str, str] | None = None


class Incoming(NamedTuple):
    """A message for an inbox, its headers as they came."""

    subject: bytes
    reply: bytes
    headers: bytes
    data: bytes

    @property
    def status(self) -> str:
        """The server's own words about a request, as `404 No Messages`; empty of any other message."""
        if not self.headers.startswith(_STATUS):
            return ""
        return self.headers[len(_STATUS) : self.headers.find(b"\r\n")].decode(errors="replace").strip()

    def header(self, name: str) -> str:
        """Return a header, empty where it has none of that name."""
        _, found, rest = self.headers.partition(f"\r\n{name}:".encode())
        return rest.partition(b"\r\n")[0].decode(errors="replace").strip() if found else ""


#: Begins the headers of a message by the server itself.
_STATUS = b"NATS/1.0 "
_BLANK = re.compile(r"\s")


class InboxParser(Parser):
    """Cuts messages for inboxes out of what arrives; nats-py's own parser takes everything else."""

    nc: "NatsClient"

    async def parse(self, data: bytes = b"") -> None:
        """Take what has arrived."""
        if self.state == AWAITING_CONTROL_LINE:
            if self.buf:
                data = bytes(self.buf) + data
                self.buf.clear()
            data = data[self._take(data) :]
        await super().parse(data)

    def _take(self, data: bytes) -> int:
        """Hand on the messages for inboxes that it begins with, and return where they end."""
        inboxes, at = self.nc.inboxes, 0
        while data.startswith((b"HMSG ", b"MSG "), at):
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            try:
                _, subject, number, *replies = data[at:end].split()
                total = int(replies.pop())
                head = int(replies.pop()) if data.startswith(b"H", at) else 0
            except (ValueError, IndexError):
                break
            take, begin = inboxes.get(number), end + 2
            if take is None or len(data) < begin + total + 2:
                break
            reply = replies[0] if replies else b""
            take(Incoming(subject, reply, data[begin : begin + head], data[begin + head : begin + total]))
            at = begin + total + 2
        return at


class NatsClient(Client):
    """A client of nats-py that may have a key; nats-py itself can only read one with a package more.

    Where TLS is asked for, a server that offers none is left before anything is sent to it; nats-py goes on in clear.

    Attributes:
        inboxes: by number of a subscription, what takes its messages; must be quick and must not raise.
    """

    def __init__(self, key: Nkey | None, *, tls: bool = False) -> None:
        """Args:
        tls: whether servers must prove who they are.
        """
        super().__init__()
        self._ps = InboxParser(self)
        self.inboxes: dict[bytes, Callable[[Incoming], None]] = {}
        self._tls = tls
        if key is not None:
            self._public_nkey = key.public
        self.signature = None if key is None else key.sign

    async def listen(self, subject: str, take: Callable[[Incoming], None]) -> Subscription:
        """Subscribe to a subject to which nothing is sent yet; who listens says how much may come."""
        subscription = await self.subscribe(subject)
        self.inboxes[self._number(subscription)] = take
        return subscription

    def hear_no_more(self, subscription: Subscription) -> None:
        """Leave what still comes."""
        self.inboxes.pop(self._number(subscription), None)

    def _number(self, subscription: Subscription) -> bytes:
        return next((b"%d" % number for number, one in self._subs.items() if one is subscription), b"")

    async def send(self, messages: Iterable[Outgoing], *, reply: str) -> None:
        """Send messages, the last of them with a subject to answer to."""
        pieces: list[bytes] = []
        *others, last = messages
        for message in others:
            pieces += self._pieces(message, "")
        pieces += self._pieces(last, reply)
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        if not self.is_connected:
            raise nats.errors.OutboundBufferLimitError
        await self._send_command(b"".join(pieces))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    def _pieces(self, message: Outgoing, reply: str) -> tuple[bytes, ...]:
        subject, data, headers = message
        if len(data) > self.max_payload:
            raise nats.errors.MaxPayloadError
        if _BLANK.search(subject) or _BLANK.search(reply):
            raise nats.errors.BadSubjectError
        to = f"{subject} {reply}" if reply else subject
        if headers is None:
            return f"PUB {to} {len(data)}\r\n".encode(), data, b"\r\n"
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        head = f"NATS/1.0\r\n{lines}\r\n".encode()
        return f"HPUB {to} {len(head)} {len(head) + len(data)}\r\n".encode(), head, data, b"\r\n"

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        take = self.inboxes.get(b"%d" % sid)
        if take is not None:
            take(Incoming(subject, reply, headers or b"", data))
            return
        await super()._process_msg(sid, subject, reply, data, headers)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if self._tls and initial_connection and not info.get("tls_required"):
            raise nats.errors.Error("the server offers no TLS")
        await super()._process_info(info, initial_connection)

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except BaseException:
            # A stream below a TLS handshake that failed never hears that it is closed; nats-py would wait for that.
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]
                self._transport = None
            raise
