"""The peculiarities of Postgres in the log in Postgres."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from kaicore.errors import ConfigurationError, CorruptLog, InvalidObject, LogError, LogUnavailable
from kaicore.interpreter import end
from kaicore.ledger import connections
from kaicore.ledger.connections import Connections
from kaicore.ledger.log.port import Snapshot
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.postgres.append import Appender
from kaicore.ledger.log.seals.audit import verify
from kaicore.rules.events.codec import encode_payload
from kaicore.rules.events.envelope import UnitOutcome
from kaicore.rules.events.payloads import PodObserved
from psycopg import sql

from tests.chaos.link import Link
from tests.given.cluster.factory import pod
from tests.given.doubles.stopped_clock import StoppedClock
from tests.given.logs.new_events import new_event, unit

_T = TypeVar("_T")

_END_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"

#: Takes the third event out of a log, as if it had been restored to before it.
_GO_BACK = """
SET session_replication_role = replica;
DELETE FROM event WHERE position > 2;
DELETE FROM event_id WHERE position > 2;
DELETE FROM stream WHERE stream = 'node/c';
UPDATE log_head SET (position, hash, recorded_at) = (SELECT position, hash, recorded_at FROM event WHERE position = 2)
"""


async def eventually(ask: Callable[[], Awaitable[_T]]) -> _T:
    while True:
        with suppress(LogUnavailable):
            return await ask()


@pytest.fixture
async def log(module_database_url: str) -> AsyncIterator[PostgresLog]:
    async with await PostgresLog.open(module_database_url) as opened:
        yield opened


def changed(url: str, **parts: str) -> str:
    split = urlsplit(url)
    netloc = f"{parts.get('login', split.netloc.rpartition('@')[0])}@{split.hostname}:{parts.get('port', split.port)}"
    return urlunsplit(split._replace(netloc=netloc, path=parts.get("path", split.path)))


async def test_what_cannot_be_opened_is_said_at_once(module_database_url: str, empty_database_url: str) -> None:
    user = urlsplit(module_database_url).username
    for url, error, problem in (
        ("not a url", ConfigurationError, "not the url of a Postgres database"),
        ("postgresql://kai@localhost:5432a/kai", ConfigurationError, 'port "5432a" is no number from 1 to 65535'),
        ("postgresql://kai@localhost:99999/kai", ConfigurationError, 'port "99999" is no number from 1 to 65535'),
        ("postgresql://kai@localhost:5432/kai?sslmode=on", ConfigurationError, "invalid sslmode value"),
        (empty_database_url, ConfigurationError, "has no log of this version, migrate it"),
        (changed(module_database_url, login=f"{user}:wrong"), LogUnavailable, "cannot connect to Postgres: .*password"),
        (changed(module_database_url, path="/nowhere"), LogUnavailable, "cannot connect to Postgres: .*nowhere"),
        (changed(module_database_url, port="1"), LogUnavailable, "cannot connect to Postgres"),
    ):
        with pytest.raises(error, match=problem):
            await PostgresLog.open(url)


async def test_why_no_connection_is_had_is_said(superuser_url: str, postgres_url: str) -> None:
    name = sql.Identifier(urlsplit(superuser_url).path.removeprefix("/"))
    async with await PostgresLog.open(superuser_url, patience_s=0.3) as log:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
            connection.execute(_END_SESSIONS, [urlsplit(superuser_url).path.removeprefix("/")])
            with pytest.raises(
                LogUnavailable, match=r"cannot connect to Postgres: .*not currently accepting connections"
            ):
                await log.head("c1")
            connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))
        assert (await eventually(lambda: log.head("c1"))).position == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell which bytes have passed")
async def test_an_answer_that_takes_long_to_come_is_no_silence(
    module_database_url: str, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a large state over a slow network: a service could never start there."""
    monkeypatch.setattr(connections, "_LEAST_ANSWER_S", 0.8)
    saved = Snapshot("state", 1, "s", os.urandom(1_600_000))
    async with await PostgresLog.open(module_database_url) as log:
        await log.save_snapshot(cluster_name, saved)
    async with Link(module_database_url) as link, await PostgresLog.open(link.url, patience_s=0.8) as log:
        link.slowness = 1e-6
        assert await log.load_snapshot(cluster_name, name="state", schema="s") == saved


async def test_what_a_broken_server_refuses_is_not_for_what_it_was_asked(superuser_url: str) -> None:
    """As with an index that a bad disk has damaged: an outbox is to wait, and to drop nothing."""
    async with await PostgresLog.open(superuser_url, patience_s=0.2) as log:
        with psycopg.connect(superuser_url) as connection:
            connection.execute(
                "CREATE FUNCTION damaged() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE 'index is damaged' USING ERRCODE = 'index_corrupted'; END $$;"
                "CREATE TRIGGER damaged BEFORE INSERT ON event_id EXECUTE FUNCTION damaged()"
            )
        with pytest.raises(LogUnavailable, match="Postgres cannot do it now: index is damaged"):
            await log.append("c1", [unit(new_event())])


@pytest.mark.parametrize("grown", [False, True], ids=["shorter", "grown"])
async def test_a_log_without_what_was_appended_takes_nothing_more_of_that_process(
    superuser_url: str, *, grown: bool
) -> None:
    """As after a restore under live services: what they know of the log is wrong, and they have to begin anew."""
    async with await PostgresLog.open(superuser_url) as log:
        for name in ("a", "b", "c"):
            await log.append("c1", [unit(new_event(f"node/{name}"))])
        with psycopg.connect(superuser_url, autocommit=True) as connection:
            connection.execute(_GO_BACK)
            connection.execute(_END_SESSIONS, [urlsplit(superuser_url).path.removeprefix("/")])
        if grown:
            async with await PostgresLog.open(superuser_url) as other:
                await other.append("c1", [unit(new_event(f"node/{name}")) for name in ("d", "e")])
        with pytest.raises(CorruptLog, match="event 3 was appended, and is not in the log any more"):
            await log.append("c1", [unit(new_event("node/f"))])
        assert (await log.head("c1")).position == (4 if grown else 2)


async def test_a_clock_that_goes_back_by_more_than_minutes_is_said_once(
    module_database_url: str, cluster_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = StoppedClock(now=7_200_000_000)
    async with await PostgresLog.open(module_database_url, clock=clock) as log:
        await log.append(cluster_name, [unit(new_event())])
        clock.now = 3_600_000_000
        for _ in range(2):
            await log.append(cluster_name, [unit(new_event())])
        assert [event.recorded_at for event in await log.read(cluster_name)] == [7_200_000_000] * 3
    assert [record.getMessage() for record in caplog.records if "behind" in record.getMessage()] == [
        f"cluster {cluster_name}: the clock of Postgres is 3600 s behind the log's last event, so every event is "
        "recorded with that one's time until then: was the clock ahead, or is it behind now?"
    ]


async def test_what_the_server_refuses_of_one_caller_is_appended_for_the_others(
    log: PostgresLog, module_database_url: str, cluster_name: str
) -> None:
    with psycopg.connect(module_database_url) as connection:
        connection.execute(f"ALTER TABLE event ADD CONSTRAINT refused CHECK (subject <> 'refused-{cluster_name}')")
    try:
        answers = await asyncio.gather(
            *(
                log.append(cluster_name, [unit(new_event(subject=subject))])
                for subject in ("a", "b", f"refused-{cluster_name}", "c")
            ),
            return_exceptions=True,
        )
    finally:
        with psycopg.connect(module_database_url) as connection:
            connection.execute("ALTER TABLE event DROP CONSTRAINT refused")
    assert [type(answer) for answer in answers] == [list, list, LogError, list]
    assert [event.subject for event in await log.read(cluster_name)] == ["a", "b", "c"]
    assert (await verify(log, cluster_name)).ok


async def test_an_invalid_append_does_not_reach_the_others(log: PostgresLog, cluster_name: str) -> None:
    answers = await asyncio.gather(
        log.append(cluster_name, [unit()]),
        log.append(cluster_name, [unit(new_event(subject="nul\0"))]),
        log.append(cluster_name, [unit()]),
        return_exceptions=True,
    )
    assert isinstance(answers[1], InvalidObject)
    assert [answers[0], answers[2]] == [[UnitOutcome((1,))], [UnitOutcome((2,))]]


async def test_appends_that_wait_share_a_transaction(
    log: PostgresLog, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions: list[int] = []
    begun = asyncio.Event()
    transaction = Appender._transaction

    async def counted(self: Appender, connection: object, calls: list[object]) -> object:
        transactions.append(len(calls))
        begun.set()
        return await transaction(self, connection, calls)

    monkeypatch.setattr(Appender, "_transaction", counted)
    await asyncio.gather(*(log.append(cluster_name, [unit()]) for _ in range(100)))
    assert sum(transactions) == 100
    assert len(transactions) == 1
    transactions.clear()
    begun.clear()
    first = asyncio.create_task(log.append(cluster_name, [unit()]))
    await begun.wait()
    await asyncio.gather(first, *(log.append(cluster_name, [unit() for _ in range(900)]) for _ in range(3)))
    # Two of 900 fit into one transaction, three do not.
    assert transactions == [1, 2, 1]


async def test_a_call_that_is_dropped_while_it_waits_is_not_appended(log: PostgresLog, cluster_name: str) -> None:
    tasks = [asyncio.create_task(log.append(cluster_name, [unit(new_event(subject=str(number)))])) for number in (1, 2)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [event.subject for event in await log.read(cluster_name)] == ["2"]


async def test_closing_lets_the_append_under_way_end_and_refuses_the_others(
    module_database_url: str, cluster_name: str
) -> None:
    log = await PostgresLog.open(module_database_url)
    tasks = [asyncio.create_task(log.append(cluster_name, [unit() for _ in range(2000)])) for _ in range(3)]
    for _ in range(3):
        await asyncio.sleep(0)
    await log.close()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert len(answers[0]) == 2000
    assert [type(answer) for answer in answers[1:]] == [LogUnavailable, LogUnavailable]


async def test_two_openers_of_one_log_see_each_others_events(
    log: PostgresLog, module_database_url: str, cluster_name: str
) -> None:
    async with await PostgresLog.open(module_database_url) as other:
        for number in range(5):
            writer, reader = (log, other) if number % 2 else (other, log)
            waiting = asyncio.create_task(reader.wait_beyond(cluster_name, number, timeout_s=600))
            await writer.append(cluster_name, [unit(n1=number)])
            assert await waiting == number + 1
        assert await log.read(cluster_name) == await other.read(cluster_name)


async def test_a_connection_that_is_given_up_leaves_no_session_behind(module_database_url: str) -> None:
    connections = Connections(module_database_url, size=1, patience_s=1, application="given up")
    # Kept, because what a cancelled task has open is closed when the task is forgotten, if not before.
    kept = []
    for steps in range(0, 2000, 40):
        connecting = asyncio.create_task(connections.connect())
        kept.append(connecting)
        for _ in range(steps):
            await asyncio.sleep(0)
        await end(connecting)
        if not connecting.cancelled():
            await connecting.result().close()
    sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = 'given up' OR state = 'starting'"
    async with (
        asyncio.timeout(60),
        await psycopg.AsyncConnection.connect(module_database_url, autocommit=True) as watching,
    ):
        while await (await watching.execute(sessions)).fetchone() is not None:
            pass


async def test_bodies_alike_are_stored_as_their_values_and_read_as_they_were(
    log: PostgresLog, module_database_url: str, cluster_name: str
) -> None:
    labels = ({}, {"a": "50 %", "b": 'say "no"\n'}, {"a": "b/c", "b": "é\x00\x1f,"}, {"a": "train-0", "b": "train-0"})
    sent = []
    for number in range(12):
        one = pod(f"train-{number}", gpu=1 + number % 2, labels=labels[number % 4])
        seen = new_event(f"pod/{one.uid}", payload=PodObserved(one), subject=one.subject, correlation="b/c")
        sent.append(encode_payload(seen.payload).decode())
        await log.append(cluster_name, [unit(seen)])
    read = {event.position: bytes(event.body).decode() for event in await log.read(cluster_name)}
    with psycopg.connect(module_database_url) as connection:
        whole = dict(
            connection.execute(
                "SELECT position, body::text FROM readable_event WHERE cluster = %s", [cluster_name]
            ).fetchall()
        )
        kept = connection.execute(
            "SELECT position, octet_length(body::text) FROM event WHERE cluster = %s AND schema > 1024", [cluster_name]
        ).fetchall()
        for template in ("%1000s", "%1$1000s", "%I", "%"):
            with pytest.raises(psycopg.errors.InvalidParameterValue), connection.transaction():
                connection.execute("SELECT kai_shape(%s)", [template])
    assert whole == read == dict(enumerate(sent, 1))
    assert len(kept) == 3
    assert all(size < len(read[position]) // 3 for position, size in kept)
    assert (await verify(log, cluster_name)).ok


async def test_a_sign_of_life_is_heard_while_all_connections_are_busy_and_leaves_no_other_behind(
    module_database_url: str,
) -> None:
    async with await PostgresLog.open(module_database_url, application="pinged", connections=1) as log:
        heard = False

        async def busy(connection: psycopg.AsyncConnection[Any]) -> None:
            nonlocal heard
            await log.ping(timeout_s=10)
            heard = True

        await log.ping(timeout_s=10)
        assert await sessions_of(module_database_url, "pinged") == 1
        await log.connections.run(busy)
        assert heard
        async with asyncio.timeout(10):
            while await sessions_of(module_database_url, "pinged") > 1:  # noqa: ASYNC110  # its end sets no event
                await asyncio.sleep(0.01)


async def test_a_sign_of_life_is_heard_at_once_after_the_server_ended_all_connections(module_database_url: str) -> None:
    async with await PostgresLog.open(module_database_url, application="ended", connections=3) as log:
        together = asyncio.Barrier(3)
        await asyncio.gather(*(log.connections.run(lambda _: together.wait()) for _ in range(3)))
        assert await sessions_of(module_database_url, "ended") == 3
        async with await psycopg.AsyncConnection.connect(module_database_url) as connection:
            await connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'ended'"
            )
        await log.ping(timeout_s=5)


async def sessions_of(url: str, application: str) -> int:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        rows = await connection.execute("SELECT FROM pg_stat_activity WHERE application_name = %s", [application])
        return rows.rowcount
