"""Processes die where it hurts, and the log has what it acknowledged, exactly once, in one chain."""

import asyncio
import os
import signal
from pathlib import Path

import psycopg
import pytest
from kaicore.errors import LogUnavailable
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.audit import verify
from kaicore.rules.events.envelope import UnitOutcome
from kaicore.runtime.embedded import EmbeddedPostgres

from tests.chaos.conftest import Start
from tests.chaos.kept import assert_kept
from tests.chaos.link import Link
from tests.given.examples import BEYOND_THE_GATE
from tests.given.logs.new_events import new_event, unit

pytestmark = pytest.mark.slow

#: How often all sessions are ended; the gate does it less often.
_SESSION_ENDS = 8 if "KAI_TEST_LONG" in os.environ else 4

Admin = psycopg.AsyncConnection[tuple[object, ...]]


@BEYOND_THE_GATE
async def test_many_processes_append_at_once(server: EmbeddedPostgres, start: Start, cluster_name: str) -> None:
    appenders = [await start(f"a{number}", "--workers", "3") for number in range(3)]
    await asyncio.gather(*(appender.units(15) for appender in appenders))
    await asyncio.gather(*(appender.stop() for appender in appenders))
    await assert_kept(server.url, cluster_name, appenders)


async def test_an_appender_is_killed_while_it_holds_the_head(
    server: EmbeddedPostgres, start: Start, cluster_name: str
) -> None:
    other = await start("other")
    await other.units(5)
    for at in (2, 3, 7):
        victim = await start("victim", "--at", str(at))
        assert await victim.wait() == -signal.SIGKILL
        # The head is free again, and at once: no timeout has to pass.
        await other.units(5)
    await other.stop()
    await assert_kept(server.url, cluster_name, [other])


async def test_an_appender_is_killed_while_its_statement_runs(
    server: EmbeddedPostgres, start: Start, admin: Admin, cluster_name: str
) -> None:
    """The server notices although it is busy: the statement waits for a lock that the test keeps."""
    await admin.execute("SELECT pg_advisory_lock(1)")
    await admin.execute(
        """
        CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM set_config('lock_timeout', '0', true), pg_advisory_xact_lock(1)
            WHERE current_setting('application_name') = 'victim';
            RETURN NULL;
        END $$
        """
    )
    await admin.execute("CREATE TRIGGER stall AFTER INSERT ON event FOR EACH STATEMENT EXECUTE FUNCTION stall()")
    try:
        victim = await start("victim")
        await until(admin, "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        other = await start("other")
        await until(admin, "SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted")
        victim.process.kill()
        await other.units(5)
        await other.stop()
    finally:
        await admin.execute("DROP TRIGGER stall ON event")
        await admin.execute("DROP FUNCTION stall")
        await admin.execute("SELECT pg_advisory_unlock_all()")
    await assert_kept(server.url, cluster_name, [victim, other])


async def test_an_appender_is_stopped_while_it_holds_the_head(
    server: EmbeddedPostgres, start: Start, cluster_name: str
) -> None:
    """The others go on without it, and when it wakes it finds its transaction gone and appends again, once."""
    other = await start("other")
    await other.units(5)
    victim = await start("victim", "--at", "3", "--signal", "SIGSTOP")
    await stopped(victim.process.pid)
    await other.units(5)
    victim.process.send_signal(signal.SIGCONT)
    await victim.units(5)
    await asyncio.gather(victim.stop(), other.stop())
    await assert_kept(server.url, cluster_name, [victim, other])


async def test_postgres_is_killed_under_load(server: EmbeddedPostgres, start: Start, cluster_name: str) -> None:
    appenders = [await start(f"a{number}", "--workers", "2") for number in range(2)]
    for _ in range(3):
        await asyncio.gather(*(appender.units(10) for appender in appenders))
        await server.kill()
        await server.start()
    await asyncio.gather(*(appender.units(10) for appender in appenders))
    await asyncio.gather(*(appender.stop() for appender in appenders))
    await assert_kept(server.url, cluster_name, appenders)


async def test_sessions_are_ended_under_load(
    server: EmbeddedPostgres, start: Start, admin: Admin, cluster_name: str
) -> None:
    appenders = [await start(f"a{number}", "--workers", "2") for number in range(2)]
    for _ in range(_SESSION_ENDS):
        await asyncio.gather(*(appender.units(5) for appender in appenders))
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name IN ('a0', 'a1')"
        )
    await asyncio.gather(*(appender.units(5) for appender in appenders))
    await asyncio.gather(*(appender.stop() for appender in appenders))
    await assert_kept(server.url, cluster_name, appenders)


async def test_an_append_whose_answer_is_lost_is_found_to_have_succeeded(
    server: EmbeddedPostgres, cluster_name: str
) -> None:
    async with Link(server.url) as proxy, await PostgresLog.open(proxy.url) as log:
        assert await log.append(cluster_name, [unit(n1=0)], expect={"node/n1": 0}) == [UnitOutcome((1,))]
        proxy.lose_after(b"COMMIT")
        units = [unit(n1=1), unit(n1=0), unit(new_event("node/n2"), n1=1)]
        first, stale, second = await log.append(cluster_name, units, expect={"node/n1": 1})
        assert proxy.lost == 1
        assert (first, second) == (UnitOutcome((2,), duplicate=True), UnitOutcome((3,), duplicate=True))
        assert stale.stale is not None
        assert stale.stale.stream == "node/n1"
        assert (await log.head(cluster_name)).position == 3
        assert (await verify(log, cluster_name)).ok


async def test_a_server_that_stays_away_is_said_to_be_unavailable(server: EmbeddedPostgres, cluster_name: str) -> None:
    again = unit()
    async with await PostgresLog.open(server.url, patience_s=0.2) as log:
        waiting = asyncio.create_task(log.wait_beyond(cluster_name, 0, timeout_s=600))
        await server.kill()
        try:
            for call in (log.append(cluster_name, [again]), log.head(cluster_name), log.read(cluster_name), waiting):
                with pytest.raises(LogUnavailable, match=r"does not answer|cannot connect"):
                    await call
            with pytest.raises(LogUnavailable, match="cannot connect"):
                await PostgresLog.open(server.url)
        finally:
            await server.start()
        (outcome,) = await appended(log, cluster_name, again)
        assert outcome.positions == (1,)


async def test_waiters_are_woken_after_the_listening_session_was_ended(
    server: EmbeddedPostgres, admin: Admin, cluster_name: str
) -> None:
    async with await PostgresLog.open(server.url, application="listener", poll_s=3600) as log:
        for position in range(3):
            waiting = asyncio.create_task(log.wait_beyond(cluster_name, position, timeout_s=3600))
            listening = "FROM pg_stat_activity WHERE application_name = 'listener' AND query LIKE 'LISTEN%'"
            await until(admin, f"SELECT {listening}")
            await admin.execute(f"SELECT pg_terminate_backend(pid) {listening}")
            await log.append(cluster_name, [unit()])
            assert await waiting == position + 1


async def stopped(pid: int) -> None:
    """Wait until a process has been stopped."""
    stat = Path(f"/proc/{pid}/stat")
    async with asyncio.timeout(60):
        while stat.read_text().rpartition(")")[2].split()[0] != "T":  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)


async def until(admin: Admin, query: str) -> None:
    """Wait until a query finds something."""
    async with asyncio.timeout(60):
        while await (await admin.execute(query)).fetchone() is None:
            pass


async def appended(log: PostgresLog, cluster: str, one: object) -> list[UnitOutcome]:
    async with asyncio.timeout(60):
        while True:
            try:
                return await log.append(cluster, [one])
            except LogUnavailable:
                continue
