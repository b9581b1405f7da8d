"""A connection to NATS that reconnects by itself and reports at once when it is lost.

nats-py can reconnect for ever, but a caller that waits for an answer as the connection breaks waits until the timeout.
After some errors its client is closed for good. Here everything under way ends with `BusUnavailable` as soon as the
connection does, and a closed client is replaced. No exception of nats-py leaves this module.

Urls of NATS servers have our credentials and the trusted authority, as the urls of Postgres have:

```
nats://user:password@host:4222      a password is sent: only where nobody else can listen
nats://SU…@host:4222                the seed of a key, which is not sent
tls://host:4222?nkey=FILE&ca=FILE   the seed in a file, and the authority that signed the server's certificate
```

With `tls://` the server must show a certificate for its host's name, by an authority in `ca` (by default one that the
system trusts), before anything is sent to it. `cert` and `key` are files of a client's certificate.
"""

import asyncio
import itertools
import logging
import os
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import nats.errors
from nats.aio.subscription import Subscription

from kaicore.errors import BusUnavailable, ConfigurationError
from kaicore.interpreter import end
from kaicore.ledger.bus.client import Incoming, NatsClient, Outgoing
from kaicore.ledger.nkeys import Nkey, key_of
from kaicore.spelling import did_you_mean

#: What a url may say behind `?`: names of files.
_FILES = ("nkey", "ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """The settings for reaching servers.

    Attributes:
        servers: their urls, without secrets of keys.
        key: who we are; None where the urls say so otherwise, or not at all.
        tls: how servers are to prove who they are; None without TLS.
    """

    servers: Sequence[str]
    key: Nkey | None
    tls: ssl.SSLContext | None


def server_access(urls: str) -> ServerAccess:
    """Read urls, with commas between them; what one of them says of keys and certificates holds for all.

    Raises ConfigurationError: a url cannot be one, or a file of it cannot be read.
    """
    servers: list[str] = []
    keys: list[Nkey] = []
    files: dict[str, str] = {}
    for url in (_checked(one.strip()) for one in urls.split(",")):
        parts = urlsplit(url)
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name not in _FILES:
                raise ConfigurationError(
                    f"nats url: ?{name}= is none of {', '.join(_FILES)}{did_you_mean(name, _FILES)}"
                )
            files[name] = value
        server, key = key_of(urlunsplit(parts._replace(query="")))
        servers.append(server)
        keys += [] if key is None else [key]
    if "nkey" in files:
        keys.insert(0, Nkey(_text(files["nkey"], "nkey").strip()))
    schemes = {urlsplit(server).scheme for server in servers}
    if schemes != {"tls"}:
        for name in ("ca", "cert", "key"):
            if name in files:
                raise ConfigurationError(f"nats url: ?{name}= is of TLS: every url must begin with tls://")
        if "tls" in schemes:
            raise ConfigurationError("nats url: some begin with tls:// and some do not: all must, or none")
        return ServerAccess(servers, keys[0] if keys else None, None)
    return ServerAccess(servers, keys[0] if keys else None, _context(files))


def _context(files: dict[str, str]) -> ssl.SSLContext:
    _text(files.get("ca", os.devnull), "ca")
    try:
        context = ssl.create_default_context(cafile=files.get("ca"))
        if "cert" in files:
            context.load_cert_chain(files["cert"], files.get("key"))
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(f"nats url: its certificates cannot be used: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _text(path: str, name: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "is no text"
        raise ConfigurationError(f"nats url: ?{name}={path}: {problem}") from error


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"nats", "tls"} and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        # Without user information, which may hold a password.
        raise ConfigurationError(
            f"no url of a NATS server, such as nats://host:4222 or tls://host:4222: {url.rpartition('@')[2]!r}"
        )
    return url


_log = logging.getLogger(__name__)

#: Seconds between two attempts to connect.
_RECONNECT_S = 0.5

#: Seconds that an answer may take on a connection that is up.
_ANSWER_S = 5.0

#: Seconds between pings; a server that leaves two of them unanswered is given up.
_PING_S = 5

#: Seconds without one good answer after which another server is tried, where there are several: one that was cut off
#: from the others keeps its clients, and cannot do for them what takes a majority.
_LEAVE_S = 3.0

#: In an answer of JetStream: the server has lost the majority (error 10008); it may answer other questions.
_NO_MAJORITY = b'"err_code":10008'

#: Seconds without such an answer after which that is over.
_MAJORITY_AGAIN_S = 10.0

#: What nats-py raises.
_TROUBLE = (nats.errors.Error, OSError, TimeoutError)


class Inbox:
    """A subject of our own, and what is sent to it for as long as the connection lasts.

    It does not survive the connection: what a server was about to send is gone with it.
    """

    def __init__(
        self, client: NatsClient, subject: str, subscription: Subscription, lost: asyncio.Future[None]
    ) -> None:
        self.subject = subject
        self._client = client
        self._subscription = subscription
        self._lost = lost
        self._on_lost: Callable[[asyncio.Future[None]], None] | None = None

    def when_lost(self, action: Callable[[], None]) -> None:
        """Have `action` called once if the connection breaks before the inbox is closed."""
        self._on_lost = lambda _: action()
        self._lost.add_done_callback(self._on_lost)

    async def close(self) -> None:
        """Stop receiving. Never raises."""
        if self._on_lost is not None:
            self._lost.remove_done_callback(self._on_lost)
        self._client.hear_no_more(self._subscription)
        with suppress(*_TROUBLE):
            await self._subscription.unsubscribe()


class Connection:
    """A connection to one of some NATS servers, dialled until it is closed."""

    def __init__(self, url: str, *, name: str) -> None:
        """Args:
            url: of the servers, with commas between them (`kaicore.ledger.bus.connection`).
            name: the client's, for the server's logs.

        Raises:
            ConfigurationError: a url cannot be one.
        """
        self._access = server_access(url)
        # When the first of the questions was asked that had no good answer since the last one that had.
        self._unanswered_since: float | None = None
        # First and last time that it answered to have lost the majority.
        self._alone: tuple[float, float] | None = None
        self._leaving: asyncio.Future[None] | None = None
        self._name = name
        self._client: NatsClient | None = None
        self._up = asyncio.Event()
        self._lost: asyncio.Future[None] | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._closed = False
        self._trouble = "connecting"
        self._answers: Inbox | None = None
        self._tokens = itertools.count()
        self._asked: dict[str, asyncio.Future[Incoming]] = {}

    @property
    def up(self) -> bool:
        """True if the connection is up."""
        return self._up.is_set()

    @property
    def max_payload(self) -> int:
        """Bytes of headers and data that the server last connected to takes in one message."""
        return self._client.max_payload if self._client is not None else 1 << 20

    def dial(self) -> None:
        """Begin to connect, unless that is under way."""
        if not self._closed and (self._dialling is None or self._dialling.done()):
            self._dialling = asyncio.ensure_future(self._dial())

    async def wait_up(self, *, timeout_s: float) -> bool:
        """Wait until the connection is up, at most `timeout_s`; return whether it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        return self.up

    async def ask(self, messages: Iterable[Outgoing]) -> Incoming:
        """Send messages, the last of them with a subject to answer to; return the answer.

        Raises BusUnavailable: there was no answer in `_ANSWER_S`, or the connection broke, which ends the wait at once.
        """
        client, lost = self._current()
        assert self._answers is not None
        token = str(next(self._tokens))
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        answer: asyncio.Future[Incoming] = loop.create_future()
        self._asked[token] = answer
        good = False
        try:
            with _translated():
                await client.send(messages, reply=self._answers.subject.replace("*", token))
                async with asyncio.timeout(_ANSWER_S):
                    message = await answer
                if _NO_MAJORITY in message.data:
                    self.doubt()
                else:
                    good = not message.status
                return message
        finally:
            if lost is self._lost:
                self._note(good, asked_at)
            del self._asked[token]
            if not answer.cancel() and not answer.cancelled():
                # The caller may be gone by now.
                answer.exception()

    async def send(self, message: Outgoing, *, reply: str = "") -> None:
        """Send a message; that it left says nothing of its arrival."""
        client, _ = self._current()
        with _translated():
            await client.send([message], reply=reply)

    async def open_inbox(self, on_message: Callable[[Incoming], None]) -> Inbox:
        """Return a new inbox.

        Args:
            on_message: called with one message after the other; must be quick and must not raise.
        """
        client, lost = self._current()
        with _translated():
            return await _open_inbox(client, client.new_inbox(), on_message, lost)

    async def close(self) -> None:
        """End the connection and everything on it. Never raises."""
        self._closed = True
        if self._dialling is not None:
            await end(self._dialling)
        self._mark_lost("closed")
        await self._discard(self._client, self._answers)

    def _note(self, good: bool, asked_at: float) -> None:
        """Leave a server that has given no good answer for a while."""
        if good:
            self._unanswered_since = None
            return
        if self._unanswered_since is None:
            self._unanswered_since = asked_at
        if asyncio.get_running_loop().time() - self._unanswered_since >= _LEAVE_S:
            self._leave()

    def doubt(self) -> None:
        """Take note of an answer by which the server is without a majority; after a while of these it is left."""
        now = asyncio.get_running_loop().time()
        first, last = self._alone or (now, now)
        self._alone = (first if now - last < _MAJORITY_AGAIN_S else now, now)
        if now - self._alone[0] >= _LEAVE_S:
            self._leave()

    def _leave(self) -> None:
        """Connect to another server, where there is one."""
        self._unanswered_since = self._alone = None
        if len(self._access.servers) < 2 or not self.up:
            return
        self._mark_lost("it has no good answers: trying another server")
        if self._client is not None and not self._client.is_closed:
            self._leaving = asyncio.ensure_future(self._client.force_reconnect())

    def _current(self) -> tuple[NatsClient, asyncio.Future[None]]:
        if self._client is not None and self._client.is_closed:
            # Its callbacks do not report every way in which a client ends.
            self._mark_lost("the client is closed")
            self.dial()
        if self._client is None or self._lost is None or not self.up:
            raise BusUnavailable(f"NATS: not connected: {self._trouble}")
        return self._client, self._lost

    async def _dial(self) -> None:
        while True:
            client = NatsClient(self._access.key, tls=self._access.tls is not None)
            answers: Inbox | None = None
            lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            try:
                await client.connect(
                    list(self._access.servers),
                    name=self._name,
                    error_cb=self._on_error,
                    disconnected_cb=self._on_disconnected,
                    reconnected_cb=self._on_reconnected,
                    closed_cb=self._on_closed,
                    signature_cb=client.signature,
                    tls=self._access.tls,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=_RECONNECT_S,  # type: ignore[arg-type]  # seconds, whole or not
                    ping_interval=_PING_S,
                    pending_size=0,
                )
                answers = await _open_inbox(client, f"{client.new_inbox()}.*", self._on_answer, lost)
            except _TROUBLE as error:
                await self._on_error(error)
                await self._discard(client, answers)
                await asyncio.sleep(_RECONNECT_S)
            except asyncio.CancelledError:
                await self._discard(client, answers)
                raise
            else:
                self._client, self._answers = client, answers
                self._mark_up(lost)
                return

    async def _on_reconnected(self) -> None:
        # The inbox of answers is subscribed to again by nats-py.
        self._mark_up(asyncio.get_running_loop().create_future())

    async def _on_disconnected(self) -> None:
        self._mark_lost("disconnected")

    async def _on_closed(self) -> None:
        self._mark_lost("closed by the server")
        self.dial()

    async def _on_error(self, error: Exception) -> None:
        # Comes with each failed attempt; one line for each kind of trouble is enough.
        trouble = f"{type(error).__name__}: {error}"
        if trouble != self._trouble:
            _log.warning("NATS: %s", trouble)
            self._trouble = trouble

    def _on_answer(self, message: Incoming) -> None:
        answer = self._asked.get(message.subject.rpartition(b".")[2].decode())
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _mark_up(self, lost: asyncio.Future[None]) -> None:
        self._lost = lost
        self._trouble = ""
        self._up.set()
        _log.info("NATS: connected")

    def _mark_lost(self, why: str) -> None:
        if not self.up or self._lost is None:
            return
        if not self._closed:
            _log.warning("NATS: connection lost: %s", why)
        self._trouble = self._trouble or why
        self._up.clear()
        self._lost.set_result(None)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(BusUnavailable(f"NATS: connection lost: {why}"))

    async def _discard(self, client: NatsClient | None, answers: Inbox | None) -> None:
        # Inboxes first: a client that fails to write what it still had to write leaves their tasks behind.
        if answers is not None:
            await answers.close()
        if client is not None:
            with suppress(*_TROUBLE):
                await client.close()


async def _open_inbox(
    client: NatsClient, subject: str, on_message: Callable[[Incoming], None], lost: asyncio.Future[None]
) -> Inbox:
    return Inbox(client, subject, await client.listen(subject, on_message), lost)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise BusUnavailable(f"NATS: no answer in {_ANSWER_S:.0f} s") from error
    except _TROUBLE as error:
        raise BusUnavailable(f"NATS: {type(error).__name__}: {error}") from error
