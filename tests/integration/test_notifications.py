"""Notifications reach their targets at least once, with the same id each time, whatever dies in between."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session
from kai_projector import main, notifications
from kai_projector.main import ProjectorMetrics
from kai_projector.notifications import NotificationFile, Notifications, Outbox
from kaicore.analysis.ask.projections.building import Builder
from kaicore.analysis.ask.projections.store import ViewStore
from kaicore.errors import ConfigurationError, LogUnavailable
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.envelope import Event, Unit
from kaicore.runtime.service import Health, ServiceContext, get_logger
from prometheus_client import CollectorRegistry

from tests.conftest import as_role
from tests.given.cluster.factory import amounts, pod
from tests.given.logs.new_events import as_new
from tests.given.processes.tasks import going
from tests.given.processes.waiting import eventually
from tests.given.servers.http_app import served_routes
from tests.given.servers.ports import free_port
from tests.given.work.workloads import Workloads


class Receiver:
    """Answers what it is to answer next, and takes all else.

    Attributes:
        answers: statuses of the next answers; 0 is none at all within the sender's patience.
        asked: how often it was asked.
        taken: the bodies that it took, in order.
        fails_for: a text; the answer to what has it is an error of the server for ever.
    """

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.asked = 0
        self.taken: list[Any] = []
        self.types: set[str] = set()
        self.fails_for = ""
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook/secret-of-the-address"

    @asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        """It is there until the block ends, at the same port each time."""
        async with served_routes(web.post("/hook/{secret}", self._take), port=self.port):
            yield

    async def _take(self, request: web.Request) -> web.Response:
        self.asked += 1
        status = self.answers.pop(0) if self.answers else 204
        if self.fails_for and self.fails_for in await request.text():
            status = 500
        if not status:
            await asyncio.sleep(1)
        elif status < 300:
            self.taken.append(json.loads(await request.read()))
            self.types.add(request.content_type)
        return web.Response(status=status)


class Mailboxes:
    """Keeps the mails that come, as `aiosmtpd` asks of a handler."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.mails: list[str] = []

    async def handle_DATA(self, _: SMTP, __: Session, envelope: Envelope) -> str:  # noqa: N802
        if self.answers:
            return self.answers.pop(0)
        assert isinstance(envelope.content, bytes)
        self.mails.append(envelope.content.decode())
        return "250 OK"


def running(count: int) -> tuple[list[Event], list[Event]]:
    """A log that begins a minute ago: its beginning, and so many pods that come to run."""
    made = Workloads("c1")
    made.now = int((time.time() - 60) * 1e6)
    made.add_node("n", amounts(cpu=16, memory=64, gpu=4))
    begun = len(made.events)
    made.full([made.add_pod(pod(f"p{number}", cpu=1, memory=1)) for number in range(count)])
    return made.events[:begun], made.events[begun:]


async def append(database_url: str, events: Sequence[Event]) -> None:
    now = 0
    async with await PostgresLog.open(database_url, clock=lambda: now) as log:
        for event in events:
            now = event.recorded_at
            await log.append("c1", [Unit((as_new(event),))])


@pytest.fixture
async def after(database_url: str) -> list[Event]:
    """Events of two pods that come to run, to be appended to a log that has begun."""
    before, after = running(2)
    await append(database_url, before)
    return after


class Projecting:
    """Builds read models and notices, and sends them, as the process that leads does."""

    def __init__(self, log: EventLog, superuser_url: str, file: Path) -> None:
        self._log, self._file = log, file
        self._url = as_role(superuser_url, "kai_project")
        self.registry = CollectorRegistry()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Builder]:
        """It runs until the block ends, and has taken in all events when it begins."""
        metrics = ProjectorMetrics(registry=self.registry)
        async with (
            await ViewStore.open(self._url, application="test") as views,
            Notifications.opened(
                self._file, self._url, ended=metrics.notices, oldest=metrics.oldest_notice, logger=get_logger()
            ) as opened,
        ):
            assert opened is not None
            builder = await Builder.resume(self._log, views, "c1")
            builder.watcher = await opened.maker(self._log, "c1", upto=builder.generation.position)
            await builder.catch_up()
            async with going(opened.run()):
                yield builder
        self.registry = CollectorRegistry()

    def count(self, target: str, result: str) -> float:
        labels = {"target": target, "result": result}
        return self.registry.get_sample_value("kai_projector_notices_total", labels) or 0.0


@pytest.fixture
def hook() -> Receiver:
    return Receiver()


@pytest.fixture
def projecting(
    log: EventLog, superuser_url: str, hook: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Projecting:
    monkeypatch.setattr(notifications, "_ANSWER_S", 0.2)
    monkeypatch.setattr(notifications, "_RETRY_S", 0.01)
    monkeypatch.setattr(notifications, "_RETRY_MAX_S", 0.02)
    monkeypatch.setattr(notifications, "_IN_ORDER", 10**6)
    path = tmp_path / "rules.yaml"
    path.write_text(
        json.dumps({"targets": {"hook": {"webhook": hook.url}}, "rules": [{"on": ["started"], "to": ["hook"]}]})
    )
    return Projecting(log, superuser_url, path)


async def test_what_fails_is_slow_or_restarts_gets_each_notice_in_the_end_in_order(
    projecting: Projecting, database_url: str, hook: Receiver, after: list[Event]
) -> None:
    async with projecting.run() as builder:
        await append(database_url, after)
        hook.answers = [503, 0, 429]
        async with hook.up():
            await builder.catch_up()
            await eventually(lambda: hook.asked == 2)
        async with hook.up():
            await eventually(lambda: len(hook.taken) == 2)
        assert [one["subject"] for one in hook.taken] == ["default/p0", "default/p1"]
        assert (hook.types, hook.answers) == ({"application/cloudevents+json"}, [])
        assert {one["type"] for one in hook.taken} == {"kai.notice.started"}
        assert hook.taken[0]["data"]["text"] == "pod default/p0 (queue default) runs, on n; `kai why default/p0`"
        assert projecting.count("hook", "taken") == 2


async def test_a_notice_that_is_never_taken_lets_later_ones_go_on_and_expires_counted(
    projecting: Projecting, database_url: str, hook: Receiver, after: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "_IN_ORDER", 3)
    hook.fails_for = '"default/p0"'
    async with hook.up(), projecting.run() as builder:
        await append(database_url, after)
        await builder.catch_up()
        await eventually(lambda: len(hook.taken) == 1)
        before = hook.asked
        await eventually(lambda: hook.asked > before)
        assert projecting.registry.get_sample_value("kai_projector_notice_waiting_seconds", {"target": "hook"})
        monkeypatch.setattr(notifications, "_MOST_AGE_US", 1)
        await eventually(lambda: projecting.count("hook", "expired") == 1)
        age = {"target": "hook"}
        await eventually(lambda: projecting.registry.get_sample_value("kai_projector_notice_waiting_seconds", age) == 0)
    assert [one["subject"] for one in hook.taken] == ["default/p1"]


async def test_who_dies_between_delivery_and_record_sends_the_same_id_again(
    projecting: Projecting, database_url: str, hook: Receiver, after: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(*_: object) -> None:
        raise asyncio.CancelledError

    async with hook.up():
        async with projecting.run() as builder:
            await append(database_url, after)
            with monkeypatch.context() as patched:
                patched.setattr(Outbox, "done", dies)
                await builder.catch_up()
                await eventually(lambda: len(hook.taken) == 1)
        async with projecting.run():
            await eventually(lambda: len(hook.taken) == 3)
        async with projecting.run():
            pass
    first, again, other = hook.taken
    assert first == again
    assert other["id"] != first["id"]


async def test_who_dies_before_read_models_are_saved_or_has_them_made_elsewhere_loses_and_doubles_none(
    projecting: Projecting, database_url: str, hook: Receiver, *, after: list[Event], log: EventLog, superuser_url: str
) -> None:
    async with projecting.run() as builder:
        await append(database_url, after[:-3])

        async def unsaved(*_: object, **__: object) -> None:
            raise LogUnavailable("gone")

        builder._store.save = unsaved  # type: ignore[method-assign]
        with pytest.raises(LogUnavailable):
            await builder.catch_up()
    async with projecting.run():
        pass
    await append(database_url, after)
    async with await ViewStore.open(as_role(superuser_url, "kai_project"), application="test") as views:
        await (await Builder.anew(log, views, "c1")).catch_up()
    async with hook.up(), projecting.run():
        await eventually(lambda: len(hook.taken) == 2)
        await eventually(lambda: projecting.count("hook", "taken") == 2)
    assert [one["subject"] for one in hook.taken] == ["default/p0", "default/p1"]


async def test_each_target_has_its_own_form_and_none_waits_for_another(
    projecting: Projecting, database_url: str, hook: Receiver, after: list[Event], tmp_path: Path
) -> None:
    refusing, mailboxes = Receiver(), Mailboxes()
    mailboxes.answers = ["451 later"]
    server = Controller(mailboxes, hostname="127.0.0.1", port=free_port())
    email = {"host": "127.0.0.1", "port": server.port, "starttls": False, "sender": "kai@x.org", "to": ["ada@x.org"]}
    targets = {
        "slack": {"slack": hook.url},
        "refuses": {"webhook": refusing.url, "headers": {"Authorization": "Bearer x"}},
        "away": {"webhook": f"http://127.0.0.1:{free_port()}"},
        "mail": {"email": email},
    }
    rules = [
        {"on": ["started"], "group": "p*", "to": ["slack", "mail", "away"]},
        {"on": ["started"], "queue": "def*", "namespace": "default", "to": ["refuses", "slack"]},
        {"on": ["started"], "user": "ada", "to": ["mail"]},
        {"on": ["waiting"], "after_s": 60, "to": ["mail"]},
    ]
    projecting._file.write_text(json.dumps({"targets": targets, "rules": rules}))
    refusing.answers = [400, 410]
    server.start()
    try:
        async with hook.up(), refusing.up(), projecting.run() as builder:
            await append(database_url, after)
            await builder.catch_up()
            await eventually(lambda: len(hook.taken) == 2 and len(mailboxes.mails) == 2)
            await eventually(lambda: projecting.count("refuses", "refused") == 2)
            age = projecting.registry.get_sample_value("kai_projector_notice_waiting_seconds", {"target": "away"})
            assert age is not None
            assert age > 50
    finally:
        server.stop()
    text = hook.taken[0].pop("text")
    assert text == "pod default/p0 (queue default) runs, on n; `kai why default/p0` (cluster c1)"
    assert hook.taken[0] == {}
    assert "Subject: pod default/p0 (queue default) runs, on n" in mailboxes.mails[0]
    assert ".kai-ledger>" in mailboxes.mails[0]


async def test_the_service_sends_what_happens_while_it_leads_and_shows_no_address_in_its_log(
    projecting: Projecting,
    *,
    database_url: str,
    superuser_url: str,
    nats_url: str,
    hook: Receiver,
    after: list[Event],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(main, "ProjectorMetrics", lambda **_: ProjectorMetrics(registry=CollectorRegistry()))
    settings = main.ProjectorSettings(
        database_url=as_role(superuser_url, "kai_project"), nats_url=nats_url, notifications=projecting._file
    )
    context = ServiceContext("projector", Health("log", "states"), get_logger())
    hook.answers = [500]
    async with hook.up(), await ViewStore.open(settings.database_url, application="test") as views:
        serving = asyncio.create_task(main.serve(context, settings))
        try:
            await eventually(lambda: views.live("c1"), every_s=0.05)
            await append(database_url, after)
            await eventually(lambda: len(hook.taken) == 2)
        finally:
            context.stopping.set()
            await serving
    assert "secret-of-the-address" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("targets", "rule", "fault"),
    [
        ({"a": {}}, {}, "needs one of webhook, slack and email"),
        ({"a": {"webhook": "secret"}}, {}, "targets.a.webhook: Input should be a valid URL"),
        ({}, {}, "a rule names the target 'a', which is not there"),
        ({"a": {"slack": "http://x"}}, {"on": ["begun"]}, "rules.0.on.0: Input should be 'started'"),
        ({"a": {"slack": "http://x"}}, {"on": ["waiting"]}, "after_s goes with `waiting`"),
        ({"a": {"slack": "http://x"}}, {"queues": "q"}, "rules.0.queues: Extra inputs are not permitted"),
        (
            {"a": {"email": {"host": "h", "sender": "a@b", "to": ["c@d"], "password": "secret", "starttls": False}}},
            {},
            "a password needs starttls",
        ),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_without_its_secrets(
    targets: Any, rule: Any, fault: str, tmp_path: Path
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(json.dumps({"targets": targets, "rules": [{"on": ["started"], "to": ["a"], **rule}]}))
    with pytest.raises(ConfigurationError) as refused:
        NotificationFile.read(path, what="notifications")
    assert fault in str(refused.value)
    assert "secret" not in str(refused.value)
