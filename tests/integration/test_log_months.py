"""Months of the log: made ahead, detached, sealed."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
from kaicore.errors import ConfigurationError, EventsRetired, LogUnavailable
from kaicore.ledger.log.partitions import Month
from kaicore.ledger.log.port import Filter, Snapshot
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.audit import verify
from kaicore.rules.events.envelope import UnitOutcome
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA, encode_state

from tests.given.doubles.stopped_clock import StoppedClock
from tests.given.logs.new_events import unit

C = "cluster-a"
JANUARY = Month(2031, 1)
DAY = 24 * 3600 * 1_000_000


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock(JANUARY.start)


@pytest.fixture
async def log(monthless_url: str, clock: StoppedClock) -> AsyncIterator[PostgresLog]:

    async with await PostgresLog.open(monthless_url, clock=clock) as opened:
        yield opened


async def fill(log: PostgresLog, clock: StoppedClock, *, months: int) -> None:
    """Append three events in each month, beginning with January."""
    for number in range(months):
        clock.now = (JANUARY + number).start + 5 * DAY
        await log.make_months()
        for _ in range(3):
            clock.now += DAY
            await log.append(C, [unit()])


def partition_of(url: str, position: int) -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT tableoid::regclass::text FROM event WHERE position = %s", [position])
        ((name,),) = row.fetchall()
        return str(name)


def test_events_are_in_the_partition_of_their_month() -> None:
    assert Month.of(0) == Month(1970, 1)
    assert Month.of(JANUARY.start - 1) == Month(2030, 12) == JANUARY + -1
    assert Month.of(JANUARY.start) == JANUARY == Month.parse("2031-01")
    assert Month(2032, 1) == JANUARY + 12
    assert (JANUARY + 1).start - JANUARY.start == 31 * DAY
    assert str(JANUARY) == "2031-01"
    with pytest.raises(ConfigurationError, match="not a month"):
        Month.parse("January")


async def test_months_are_made_ahead_as_time_goes_by(log: PostgresLog, clock: StoppedClock, monthless_url: str) -> None:
    assert await log.months() == [JANUARY, JANUARY + 1, JANUARY + 2, JANUARY + 3]
    await log.append(C, [unit()])
    clock.now = (JANUARY + 2).start
    await log.append(C, [unit()])
    assert log._maintenance is not None
    await log._maintenance
    assert await log.months() == [JANUARY + number for number in range(6)]
    assert [partition_of(monthless_url, position) for position in (1, 2)] == ["event_2031_01", "event_2031_03"]


async def test_months_made_at_the_same_time_are_made_once(log: PostgresLog, clock: StoppedClock) -> None:
    clock.now = (JANUARY + 24).start
    await asyncio.gather(*(log.make_months() for _ in range(8)))
    assert await log.months() == [JANUARY + number for number in (0, 1, 2, 3, 24, 25, 26, 27)]


async def test_an_event_that_no_month_was_made_for_is_kept(
    log: PostgresLog, clock: StoppedClock, monthless_url: str
) -> None:
    clock.now = (JANUARY + 7).start
    await log.append(C, [unit()])
    assert partition_of(monthless_url, 1) == "event_default"
    await log.make_months()
    assert JANUARY + 7 not in await log.months()
    assert JANUARY + 8 in await log.months()
    clock.now = (JANUARY + 8).start
    await log.append(C, [unit()])
    assert len(await log.read(C)) == 2
    assert (await verify(log, C)).ok


async def test_a_detached_month_is_sealed_and_the_rest_can_be_verified(
    log: PostgresLog, clock: StoppedClock, monthless_url: str
) -> None:
    await fill(log, clock, months=4)
    await log.append("idle", [unit()])
    before = await log.read(C)
    assert before[5].position == 6
    for number in (0, 1):
        (seal,) = await log.detach_month(JANUARY + number, without_snapshot=True)
        last = before[3 * number + 2]
        assert (seal.cluster, seal.position, seal.first_position) == (C, last.position, last.position - 2)
        assert (seal.hash, seal.recorded_at) == (last.hash, last.recorded_at)
        assert seal.detached == (JANUARY + number).table
        assert seal == (await log.seals(C))[-1]
    assert await log.read(C, after=6) == before[6:]
    assert await log.read(C, where=Filter(streams=("node/n1",))) == before[6:]
    report = await verify(log, C)
    assert report.ok
    assert (report.after, report.events) == (6, 6)
    assert "events up to 6 retired and sealed" in str(report)
    assert (await verify(log, "idle")).ok
    with psycopg.connect(monthless_url) as connection:
        (count,) = connection.execute("SELECT count(*) FROM event_2031_02").fetchone() or (0,)
        assert count == 3
        connection.execute("DROP TABLE event_2031_01")


async def test_a_broken_seal_is_found(log: PostgresLog, clock: StoppedClock, monthless_url: str) -> None:
    await fill(log, clock, months=4)
    for number in (0, 1):
        await log.detach_month(JANUARY + number, without_snapshot=True)
    sealed = await log.seals(C)
    assert (await verify(log, C, anchors={3: sealed[0].hash})).ok
    assert (await verify(log, C, anchors={3: sealed[1].hash})).first_broken == 3
    with psycopg.connect(monthless_url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("UPDATE seal SET hash = sha256('x') WHERE position = 6")
    assert (await verify(log, C)).first_broken == 7
    with psycopg.connect(monthless_url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("DELETE FROM seal WHERE position = 3")
    assert (await verify(log, C)).first_broken == 4


async def test_reading_retired_events_fails_and_appending_goes_on(log: PostgresLog, clock: StoppedClock) -> None:
    again = unit()
    await log.append(C, [again, unit()])
    clock.now = (JANUARY + 2).start
    await log.detach_month(JANUARY, without_snapshot=True)
    for after in (0, 1):
        with pytest.raises(EventsRetired) as caught:
            await log.read(C, after=after)
        assert caught.value.position == 2
    assert await log.read(C, after=2) == []
    assert await log.append(C, [again, unit(n1=2)]) == [UnitOutcome((1,), duplicate=True), UnitOutcome((3,))]
    with pytest.raises(EventsRetired):
        await log.read(C)
    assert [event.position for event in await log.read(C, after=2)] == [3]
    assert (await verify(log, C)).ok


async def test_month_that_is_still_needed_is_not_detached(log: PostgresLog, clock: StoppedClock) -> None:
    await fill(log, clock, months=2)
    with pytest.raises(ConfigurationError, match="not in the log; its months are 2031-01, 2031-02"):
        await log.detach_month(Month(1999, 1))
    with pytest.raises(ConfigurationError, match="2031-01 is older than 2031-02"):
        await log.detach_month(JANUARY + 1)
    with pytest.raises(ConfigurationError, match="no sound snapshot 'state' at or after position 3"):
        await log.detach_month(JANUARY)
    state = ClusterState(C).fold_all(await log.read(C, upto=3))
    await log.save_snapshot(C, Snapshot("state", 3, SNAPSHOT_SCHEMA, encode_state(state)))
    clock.now = (JANUARY + 1).start
    with pytest.raises(ConfigurationError, match="a day after its end"):
        await log.detach_month(JANUARY)
    clock.now += DAY
    assert [seal.position for seal in await log.detach_month(JANUARY)] == [3]


async def test_while_an_audit_looks_nothing_is_detached_and_appending_goes_on(
    log: PostgresLog, clock: StoppedClock
) -> None:
    await fill(log, clock, months=2)
    async with log.audit_view(C) as view:
        pages = view.pages()
        assert len(await anext(pages)) == 6
        with pytest.raises(LogUnavailable, match=r"cannot do it now: .*lock timeout"):
            await log.detach_month(JANUARY, without_snapshot=True)
        await log.append(C, [unit()])
        assert len(await log.read(C)) == 7
        assert (await view.head()).position == 6
        await pages.aclose()
    assert len(await log.detach_month(JANUARY, without_snapshot=True)) == 1


async def test_recorded_rows_cannot_be_changed(log: PostgresLog, clock: StoppedClock, monthless_url: str) -> None:
    await fill(log, clock, months=3)
    await log.detach_month(JANUARY, without_snapshot=True)
    clock.now = (JANUARY + 9).start
    await log.append(C, [unit()])
    with psycopg.connect(monthless_url, autocommit=True) as connection:
        for table in ("event", "event_2031_02", "event_default", "event_id", "seal"):
            for statement in (f"UPDATE {table} SET cluster = 'x'", f"DELETE FROM {table}", f"TRUNCATE {table}"):
                with pytest.raises(psycopg.errors.RestrictViolation, match="is append-only"):
                    connection.execute(statement)
