"""Notifications: rules of the operator's file say which notices of the log go to which target.

What is to be sent is written to Postgres together with the position up to which notices were made, before the read
models move on. So no event is skipped, whenever the process dies. A target's notices are sent in order, and deleted
once it took them. Who dies in between sends a notice again, with the same id: a receiver that honours CloudEvents ids
acts once. A notice that is not taken some times is set aside: later ones go on, and it is sent again now and then.
After three days it is dropped, as is one that a target refuses for good. Both are counted.
"""

import asyncio
import smtplib
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from email.message import EmailMessage
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, LiteralString

import aiohttp
import msgspec
from kaicore.analysis.replay.log_states import fold_through, pages_of, restored
from kaicore.errors import EventsRetired, LogError
from kaicore.ledger.connections import Connection, Connections
from kaicore.ledger.feed import Retry
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.runtime.service.logs import Logger
from kaicore.runtime.service.settings import StrictPart
from prometheus_client import Counter, Gauge
from pydantic import Field, HttpUrl, model_validator

from kai_projector.notices import Notice, NoticeKind, notices

#: Seconds that a receiver may take; until it is asked again, doubled each time up to the second; between two looks.
_ANSWER_S, _RETRY_S, _RETRY_MAX_S, _LOOK_S = 10.0, 1.0, 300.0, 30.0
#: Statuses below 500 after which the same is sent again; after any other error it is dropped.
_AGAIN = frozenset({408, 425, 429})
#: How often a notice is sent until later ones go on.
_IN_ORDER = 5
#: What happened longer ago is nobody's news when it is read: a log that was caught up with would send all of it.
_MOST_AGE_US = 3 * 86_400_000_000
#: Notices that are read at once.
_BATCH = 50


class Email(StrictPart):
    """A mailbox, by SMTP; the password is sent only with TLS."""

    host: str = Field(min_length=1)
    port: int = Field(587, ge=1, le=65535)
    starttls: bool = True
    user: str = ""
    password: str = Field("", repr=False)
    sender: str = Field(min_length=3)
    to: list[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _password_needs_tls(self) -> "Email":
        if self.password and not self.starttls:
            raise ValueError("a password needs starttls")
        return self


class NotificationTarget(StrictPart):
    """A receiver of notices: exactly one of a webhook, a Slack-shaped one, and a mailbox."""

    webhook: HttpUrl | None = Field(None, repr=False)
    slack: HttpUrl | None = Field(None, repr=False)
    email: Email | None = None
    headers: dict[str, str] = Field({}, repr=False)

    @model_validator(mode="after")
    def _one_way(self) -> "NotificationTarget":
        if sum(way is not None for way in (self.webhook, self.slack, self.email)) != 1:
            raise ValueError("needs one of webhook, slack and email")
        return self


class NotificationRule(StrictPart):
    """Notices of these kinds, about such work, go to these targets; an empty part admits all, `*` stands for any text.

    Attributes:
        queue: the work's, or one above it.
        group: the name of the group; of a pod that is in none, of the pod.
        after_s: seconds of waiting after which there is a notice `waiting`.
    """

    on: list[NoticeKind] = Field(min_length=1)
    cluster: str = "*"
    queue: str = "*"
    namespace: str = "*"
    group: str = "*"
    user: str = "*"
    after_s: int = Field(0, ge=0)
    to: list[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _waits_for_some_time(self) -> "NotificationRule":
        if (NoticeKind.WAITING in self.on) != (self.after_s > 0):
            raise ValueError("after_s goes with `waiting`, and `waiting` with after_s")
        return self

    def admits(self, notice: Notice) -> bool:
        """Tell whether a notice is wanted."""
        return (
            notice.kind in self.on
            and (notice.kind is not NoticeKind.WAITING or notice.waited_s == self.after_s)
            and fnmatchcase(notice.cluster, self.cluster)
            and (self.queue == "*" or any(fnmatchcase(queue, self.queue) for queue in notice.queues))
            and fnmatchcase(notice.namespace, self.namespace)
            and fnmatchcase(notice.name, self.group)
            and fnmatchcase(notice.user, self.user)
        )


class NotificationFile(StrictPart):
    """The contents of the file."""

    targets: dict[str, NotificationTarget]
    rules: list[NotificationRule]

    @model_validator(mode="after")
    def _targets_are_there(self) -> "NotificationFile":
        for rule in self.rules:
            for name in rule.to:
                if name not in self.targets:
                    raise ValueError(f"a rule names the target {name!r}, which is not there")
        return self

    def targets_of(self, notice: Notice) -> list[str]:
        """Return where a notice goes, each target once."""
        return list(dict.fromkeys(name for rule in self.rules if rule.admits(notice) for name in rule.to))


class Outbox:
    """The notices that wait, in Postgres."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        #: Is set whenever there may be something new.
        self.grown: dict[str, asyncio.Event] = {}

    async def begin(self, cluster: str, position: int) -> int:
        """Return the position up to which notices were made; `position`, and from now on, where none were."""

        async def work(connection: Connection) -> int:
            await connection.execute(
                "INSERT INTO notices.progress VALUES (%s, %s) ON CONFLICT DO NOTHING", (cluster, position)
            )
            return await _position(connection, cluster)

        return await self._connections.run(work)

    async def add(self, cluster: str, made: Sequence[tuple[int, str, int, str]], *, upto: int) -> None:
        """Keep notices, those that no one else has kept.

        Args:
            made: position, target, time and body.
            upto: the position up to which these are all.
        """

        async def work(connection: Connection) -> None:
            async with connection.transaction():
                before = await _position(connection, cluster)
                if before >= upto:
                    return
                await connection.cursor().executemany(
                    "INSERT INTO notices.waiting (target, cluster, made_at, body) VALUES (%s, %s, %s, %s)",
                    [(target, cluster, at, body) for position, target, at, body in made if position > before],
                )
                await connection.execute(
                    "UPDATE notices.progress SET position = %s WHERE cluster = %s", (upto, cluster)
                )

        await self._connections.run(work)
        for target in {target for _, target, _, _ in made}:
            self.grown[target].set()

    async def oldest(self, target: str, *, besides: Sequence[int]) -> list[tuple[int, int, str]]:
        """Return number, time and body of the notices that wait the longest for a target, besides some numbers."""
        text = (
            "SELECT number, made_at, body FROM notices.waiting WHERE target = %s AND number <> ALL(%s::bigint[]) "
            "ORDER BY number LIMIT %s"
        )
        return await self._execute(text, target, list(besides), _BATCH)

    async def done(self, number: int) -> None:
        """Forget a notice that its target took, or refused for good."""
        await self._execute("DELETE FROM notices.waiting WHERE number = %s", number)

    async def drop_all_but(self, targets: Sequence[str]) -> None:
        """Forget what waits for targets that are not in the file any more."""
        await self._execute("DELETE FROM notices.waiting WHERE target <> ALL(%s)", list(targets))

    async def _execute(self, text: LiteralString, *values: Any) -> list[Any]:
        async def work(connection: Connection) -> list[Any]:
            cursor = await connection.execute(text, values)
            return await cursor.fetchall() if cursor.description else []

        return await self._connections.run(work)


async def _position(connection: Connection, cluster: str) -> int:
    text = "SELECT position FROM notices.progress WHERE cluster = %s FOR UPDATE"
    row = await (await connection.execute(text, (cluster,))).fetchone()
    assert row is not None
    position: int = row[0]
    return position


class NoticeMaker:
    """Makes one cluster's notices as its read models are built; an `EventWatcher`."""

    def __init__(self, outbox: Outbox, file: NotificationFile, cluster: str, *, position: int) -> None:
        """Args: position: up to which notices were made."""
        self._outbox, self._file, self._cluster = outbox, file, cluster
        self._position = position
        self._waits_s = sorted({rule.after_s for rule in file.rules if rule.after_s})
        self._made: list[tuple[int, str, int, str]] = []

    def look(self, state: ClusterState, event: Event) -> None:
        """See `EventWatcher`."""
        if event.position <= self._position or event.recorded_at < time.time() * 1e6 - _MOST_AGE_US:
            return
        for notice in notices(state, event, waits_s=self._waits_s):
            targets = self._file.targets_of(notice)
            if targets:
                body = msgspec.json.encode(notice.as_cloud_event(event)).decode()
                self._made += [(event.position, target, event.recorded_at, body) for target in targets]

    async def keep(self, position: int) -> None:
        """See `EventWatcher`."""
        if position > self._position:
            await self._outbox.add(self._cluster, self._made, upto=position)
            self._position, self._made = position, []


class NotificationRefused(Exception):
    """A receiver will not take a notice, however often it is sent."""


class NotificationUndelivered(Exception):
    """A receiver did not take a notice this time."""


@dataclass(slots=True)
class _Tries:
    """The times that a notice was not taken; by the event loop's clock when it was set aside, and is sent again."""

    count: int = 0
    aside_at: float = 0.0
    due: float = 0.0


class Sender:
    """Sends one target's notices, in order but for those that it does not take."""

    def __init__(
        self,
        outbox: Outbox,
        name: str,
        target: NotificationTarget,
        *,
        ended: Counter,
        oldest: Gauge,
        logger: Logger,
    ) -> None:
        """Args: name: the target's, by which it is counted: its address may be a secret."""
        self._outbox, self._name, self._target = outbox, name, target
        self._ended, self._oldest = ended, oldest.labels(name)
        self._logger = logger.bind(target=name)
        self._grown = outbox.grown[name] = asyncio.Event()
        self._retry = Retry(first_s=_RETRY_S, most_s=_RETRY_MAX_S)
        self._tries: dict[int, _Tries] = {}
        self._took_at = 0.0

    async def run(self) -> None:
        """Send until cancelled."""
        timeout, now = aiohttp.ClientTimeout(total=_ANSWER_S), asyncio.get_running_loop().time
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                self._grown.clear()
                try:
                    while waiting := await self._outbox.oldest(self._name, besides=self._aside(now())):
                        for number, made_at, body in waiting:
                            if not await self._send(session, number, made_at, body):
                                break
                            await self._outbox.done(number)
                            self._tries.pop(number, None)
                    if not self._tries:
                        self._oldest.set(0)
                except LogError as error:
                    self._logger.warning("notices wait for the database", error=str(error))
                due = min((one.due - now() for one in self._tries.values()), default=_LOOK_S)
                try:
                    async with asyncio.timeout(min(max(due, 0.0), _LOOK_S)):
                        await self._grown.wait()
                except TimeoutError:
                    continue

    def _aside(self, now: float) -> list[int]:
        return [number for number, tries in self._tries.items() if tries.due > now]

    async def _send(self, session: aiohttp.ClientSession, number: int, made_at: int, body: str) -> bool:
        """Send a notice once; tell whether it is over: the target took it, refused it for good, or it is too old."""
        age_s = time.time() - made_at / 1e6
        if age_s * 1e6 > _MOST_AGE_US:
            return self._over("expired", "a notice was not taken for days, and is dropped")
        await asyncio.sleep(self._retry.remaining_s)
        try:
            await self._deliver(session, body)
        except NotificationUndelivered as error:
            self._oldest.set(age_s)
            self._logger.warning("a notice was not taken, and is sent again", error=str(error))
            self._failed(number)
            return False
        except NotificationRefused as error:
            over = self._over("refused", f"a notice was refused, and is dropped: {error}")
        else:
            over = self._over("taken", "")
        self._retry.succeeded()
        self._took_at = asyncio.get_running_loop().time()
        return over

    def _over(self, result: str, why: str) -> bool:
        if why:
            self._logger.error(why)
        self._ended.labels(self._name, result).inc()
        return True

    def _failed(self, number: int) -> None:
        now, tries = asyncio.get_running_loop().time(), self._tries.setdefault(number, _Tries())
        tries.count += 1
        if tries.count >= _IN_ORDER:
            tries.aside_at = tries.aside_at or now
            tries.due = now + min(_RETRY_MAX_S, _RETRY_S * 2.0 ** min(tries.count, 30))
        # Where the target took others meanwhile it is the notice's fault, and nothing else waits for it.
        if not 0 < tries.aside_at < self._took_at:
            self._retry.failed()

    async def _deliver(self, session: aiohttp.ClientSession, body: str) -> None:
        target = self._target
        if target.email is not None:
            await asyncio.to_thread(_mail, target.email, msgspec.json.decode(body))
        elif target.slack is not None:
            notice = msgspec.json.decode(body)["data"]
            text = {"text": f"{notice['text']} (cluster {notice['cluster']})"}
            await self._post(session, str(target.slack), msgspec.json.encode(text), "application/json")
        else:
            await self._post(session, str(target.webhook), body.encode(), "application/cloudevents+json")

    async def _post(self, session: aiohttp.ClientSession, url: str, body: bytes, media_type: str) -> None:
        headers = {**self._target.headers, "Content-Type": media_type}
        try:
            async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                status = response.status
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Not its text, which may have the address. A header that is none is a ValueError.
            raise NotificationUndelivered(type(error).__name__) from None
        if status >= 500 or status in _AGAIN:
            raise NotificationUndelivered(f"status {status}")
        if status >= 300:
            raise NotificationRefused(f"status {status}")


def _mail(to: Email, event: dict[str, Any]) -> None:
    notice, message = event["data"], EmailMessage()
    message["From"], message["To"] = to.sender, ", ".join(to.to)
    message["Subject"] = " ".join(notice["text"].split())[:200]
    # A mailbox that honours it shows a notice that comes again once.
    message["Message-ID"] = f"<{event['id']}@{notice['cluster']}.kai-ledger>"
    message.set_content(f"{notice['text']}\n\ncluster {notice['cluster']}, {event['time']}\n")
    try:
        with smtplib.SMTP(to.host, to.port, timeout=_ANSWER_S) as server:
            if to.starttls:
                server.starttls(context=ssl.create_default_context())
            if to.user:
                server.login(to.user, to.password)
            server.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        codes = {code for code, _ in error.recipients.values()}
        refused = all(code >= 500 for code in codes)
        raise (NotificationRefused if refused else NotificationUndelivered)(f"recipients: {sorted(codes)}") from None
    except smtplib.SMTPAuthenticationError as error:
        raise NotificationUndelivered(f"login: {error.smtp_code}") from None
    except smtplib.SMTPResponseException as error:
        refused = error.smtp_code >= 500
        raise (NotificationRefused if refused else NotificationUndelivered)(f"code {error.smtp_code}") from None
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise NotificationUndelivered(type(error).__name__) from None


class Notifications:
    """The notices of all clusters, and what sends them."""

    def __init__(
        self, file: NotificationFile, outbox: Outbox, *, ended: Counter, oldest: Gauge, logger: Logger
    ) -> None:
        """Prefer `opened`."""
        self._file, self._outbox, self._logger = file, outbox, logger
        self._senders = [
            Sender(outbox, name, target, ended=ended, oldest=oldest, logger=logger)
            for name, target in file.targets.items()
        ]

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, path: Path, url: str, *, ended: Counter, oldest: Gauge, logger: Logger
    ) -> AsyncIterator["Notifications"]:
        """Open what sends the notices that a file asks for.

        Raises:
            ConfigurationError: the file makes no sense, or the database is not migrated.
            LogUnavailable: the database does not answer.
        """
        file = NotificationFile.read(path, what="notifications")
        connections = Connections(url, size=2, patience_s=15.0, application="kai-projector notices")
        await connections.open()
        try:
            yield cls(file, Outbox(connections), ended=ended, oldest=oldest, logger=logger)
        finally:
            await connections.close()

    async def maker(self, log: EventLog, cluster: str, *, upto: int) -> NoticeMaker:
        """Return what makes a cluster's notices, after all have been made up to a position.

        Mostly they are there: notices are kept before read models move on. Where something else made those, as
        `kai project --rebuild` does, the events in between are read here.
        """
        position = await self._outbox.begin(cluster, (await log.head(cluster)).position)
        maker = NoticeMaker(self._outbox, self._file, cluster, position=position)
        if position >= upto:
            return maker
        try:
            state = await restored(log, cluster, upto=position)
            async with aclosing(pages_of(log, cluster, after=state.position, upto=upto)) as pages:
                async for page in pages:
                    for event in page:
                        maker.look(state, event)
                        await fold_through(log, state, (event,))
                    await maker.keep(page[-1].position)
        except EventsRetired as error:
            self._logger.error("there are no notices of events that are gone", cluster=cluster, error=str(error))
            await maker.keep(upto)
        return maker

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            await self._outbox.drop_all_but(list(self._file.targets))
        except LogError as error:
            self._logger.warning("notices of former targets are still there", error=str(error))
        await asyncio.gather(*(sender.run() for sender in self._senders))
