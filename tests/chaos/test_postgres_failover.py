"""Postgres with a synchronous standby: one of the two dies, and nothing that was acknowledged is lost."""

import asyncio
from collections.abc import Iterator

import pytest
from kaicore.errors import LogUnavailable
from kaicore.ledger import connections
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.postgres import PostgresLog

from tests.chaos.conftest import Start
from tests.chaos.kept import assert_kept
from tests.given.logs.new_events import new_event, unit
from tests.given.servers.postgres_pair import PostgresPair
from tests.given.servers.servers import scratch_directory

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer is hung up on after one second, not ten."""
    monkeypatch.setattr(connections, "_LEAST_ANSWER_S", 1.0)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresPair]:
    with scratch_directory() as directory:
        pair = PostgresPair(directory)
        try:
            asyncio.run(pair.start())
            upgrade(pair.url_of("kai_migrate"))
            asyncio.run(make_months(pair.url_of("kai_append")))
            yield pair
        finally:
            asyncio.run(pair.kill())


async def make_months(url: str) -> None:
    async with await PostgresLog.open(url):
        pass


async def test_without_its_standby_a_primary_acknowledges_nothing_and_says_why(
    server: PostgresPair, cluster_name: str
) -> None:
    """Not even what it has itself: the retry of an append must not take its own unconfirmed commit for an answer."""
    await server.standby.kill()
    lost = unit(new_event("node/n1"))
    async with await PostgresLog.open(server.url_of("kai_append"), patience_s=3) as log:
        with pytest.raises(LogUnavailable, match=r"synchronous standby \('standby' in synchronous_standby_names\)"):
            await log.append(cluster_name, [lost])
        with pytest.raises(LogUnavailable, match="synchronous standby"):
            await log.ping(timeout_s=5)
        # A crash ends the wait: the commit is in the primary's own log for all to see.
        await server.primary.kill()
        await server.primary.start()
        assert (await log.head(cluster_name)).position == 1
        with pytest.raises(LogUnavailable, match="synchronous standby"):
            await log.append(cluster_name, [lost])
        await server.standby.start()
        (outcome,) = await log.append(cluster_name, [lost])
        assert outcome.positions == (1,)


async def test_a_primary_is_killed_and_its_standby_takes_over_and_the_old_one_comes_back(
    server: PostgresPair, start: Start, cluster_name: str
) -> None:
    appenders = [await start("a", "--workers", "3")]
    await asyncio.gather(*(appender.units(10) for appender in appenders))
    with pytest.raises(LogUnavailable, match=r"cannot connect to Postgres: .*standby"):
        await PostgresLog.open(server.standby.url_of("kai_append"), of_service=True)
    await server.fail_over()
    await asyncio.gather(*(appender.units(10) for appender in appenders))
    # By itself, the old primary believes that it leads; it waits for a standby that follows another now.
    await server.primary.start()
    async with await PostgresLog.open(server.primary.url_of("kai_append"), patience_s=3) as old:
        with pytest.raises(LogUnavailable, match="synchronous standby"):
            await old.append(cluster_name, [unit(new_event("node/n1"))])
    await server.rejoin()
    await asyncio.gather(*(appender.units(10) for appender in appenders))
    await asyncio.gather(*(appender.stop() for appender in appenders))
    await assert_kept(server.url_of("kai_append"), cluster_name, appenders)
