"""Snapshots on Postgres: one that was altered is noticed, thrown away and replaced; one that is needed is kept."""

import asyncio
import zlib
from collections.abc import AsyncIterator

import msgspec
import psycopg
import pytest
from kai_ingest.projection import SCHEMA
from kaicore.analysis.replay.log_states import first_state, folded, restored
from kaicore.analysis.replay.moments import Moment, position_of, state_at
from kaicore.analysis.replay.replay import replay_log
from kaicore.errors import ConfigurationError, EventsRetired
from kaicore.ledger.log.partitions import Month
from kaicore.ledger.log.port import Filter, Snapshot
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.snapshots import DISCARDED, newest, take_state
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA, decode_state, encode_state

from tests.given.doubles.stopped_clock import StoppedClock
from tests.given.processes.ingest_service import running_ingest
from tests.given.work.reports import GPU, pod_report, report
from tests.integration.scheduling import Facts, placed, scheduling

C = "cluster-a"
NOVEMBER = Month(2026, 11)
DAY = 24 * 3600 * 1_000_000


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock(NOVEMBER.start + 5 * DAY)


@pytest.fixture
def url(monthless_url: str) -> str:
    return monthless_url


@pytest.fixture
async def log(url: str, clock: StoppedClock) -> AsyncIterator[PostgresLog]:
    async with await PostgresLog.open(url, clock=clock, patience_s=15) as opened:
        yield opened


def change(url: str, statement: str, *parameters: object) -> None:
    """Change a snapshot behind the back of the service that saved it."""
    with psycopg.connect(url) as connection:
        assert connection.execute(statement, parameters).rowcount == 1


def one_bad_byte(url: str, name: str) -> None:
    change(
        url,
        "UPDATE snapshot SET body = set_byte(body, length(body) / 2, get_byte(body, length(body) / 2) # 1) "
        "WHERE name = %s",
        name,
    )


def discarded(name: str, why: str) -> float:
    return DISCARDED.labels(name, why)._value.get()  # type: ignore[no-any-return]


async def decide(log: PostgresLog, facts: Facts, count: int, *names: str) -> None:
    async with scheduling(log, C):
        await facts.add_pods(*names, cpu=2, gpu=1)
        await placed(log, C, count)


async def test_a_state_with_one_bad_byte_is_thrown_away_and_the_scheduler_goes_on(log: PostgresLog, url: str) -> None:
    facts = Facts(log, C)
    await facts.add_nodes(1)
    await decide(log, facts, 1, "a")
    before = discarded("state", "digest")
    one_bad_byte(url, "state")
    await decide(log, facts, 2, "b")
    assert discarded("state", "digest") > before
    # The one that it saved as it ended has taken the place of the bad one.
    assert encode_state(await restored(log, C)) == encode_state(await _refolded(log))
    assert (await replay_log(log, C)).differences == []


async def test_a_state_that_was_altered_but_can_be_read_is_thrown_away(log: PostgresLog, url: str) -> None:
    """Streams are said to have moved less than they have: nothing but the digest shows it."""
    facts = Facts(log, C)
    await facts.add_nodes(1)
    await decide(log, facts, 1, "a")
    saved = await log.load_snapshot(C, name="state", schema=SNAPSHOT_SCHEMA)
    assert saved is not None
    record = msgspec.msgpack.decode(saved.body)
    record["versions"] = {}
    altered = msgspec.msgpack.encode(record)
    assert decode_state(altered).versions == {}
    change(url, "UPDATE snapshot SET body = %s WHERE name = 'state'", altered)
    assert await log.load_snapshot(C, name="state", schema=SNAPSHOT_SCHEMA) is None
    assert (await folded(log, C)).versions == (await _refolded(log)).versions


async def test_a_snapshot_that_claims_to_be_far_ahead_keeps_no_other_out(log: PostgresLog, url: str) -> None:
    await log.save_snapshot(C, Snapshot("state", 3, "1", b"good"))
    change(url, "UPDATE snapshot SET position = 9000000000")
    assert await log.load_snapshot(C, name="state", schema="1") is None
    await log.save_snapshot(C, Snapshot("state", 4, "1", b"better"))
    assert await log.load_snapshot(C, name="state", schema="1") == Snapshot("state", 4, "1", b"better")


async def test_a_large_state_is_kept_compressed_and_one_bad_byte_of_it_is_noticed(log: PostgresLog, url: str) -> None:
    large = Snapshot("state", 3, "1", b"\x81\xa4node\xa5gpu-0" * 4_000_000)
    await log.save_snapshot(C, large)
    assert await log.load_snapshot(C, name="state", schema="1") == large
    change(url, "UPDATE snapshot SET schema = '1' WHERE octet_length(body) < %s", len(large.body) // 50)
    one_bad_byte(url, "state")
    assert await log.load_snapshot(C, name="state", schema="1") is None


async def test_a_compressed_state_that_cannot_be_unpacked_is_thrown_away(log: PostgresLog) -> None:
    before = discarded("state", "unreadable")
    await log.save_snapshot(C, Snapshot("state", 3, "1", b"zlib\nnothing that zlib wrote"))
    assert await log.load_snapshot(C, name="state", schema="1") is None
    assert discarded("state", "unreadable") == before + 1


async def test_a_state_beyond_the_logs_end_or_of_another_place_is_thrown_away(log: PostgresLog) -> None:
    await Facts(log, C).add_nodes(2)
    ahead = discarded("state", "ahead")
    other = ClusterState(C).fold_all(await log.read(C))
    await log.save_snapshot(C, Snapshot("state", 3, SNAPSHOT_SCHEMA, encode_state(other)))
    unreadable = discarded("state", "unreadable")
    assert (await restored(log, C)).position == 0
    assert discarded("state", "unreadable") == unreadable + 1
    await log.save_snapshot(C, Snapshot("state", 900, SNAPSHOT_SCHEMA, encode_state(other)))
    assert (await restored(log, C)).position == 0
    assert discarded("state", "ahead") == ahead + 1


async def test_ingest_starts_on_an_altered_snapshot_and_on_one_that_it_cannot_read(log: PostgresLog, url: str) -> None:
    facts = Facts(log, C)
    await facts.add_nodes(1)
    await decide(log, facts, 1, "a")
    content = report(pod_report("a", node_0={"cpu": 2000, GPU: 1}), observed_at=2**60) | {"node": "n0"}
    async with running_ingest(log, C, snapshot_events=1) as ingest:
        _, answer = await ingest.post(content, node="n0")
        assert answer["unknown"] == []
        async with asyncio.timeout(60):
            while await log.load_snapshot(C, name="ingest", schema=SCHEMA) is None:  # noqa: ASYNC110  # by ingest
                await asyncio.sleep(0.01)
    one_bad_byte(url, "ingest")
    before = discarded("ingest", "digest")
    async with running_ingest(log, C):
        assert discarded("ingest", "digest") == before + 1
    saved = (await log.head(C)).position
    await log.save_snapshot(C, Snapshot("ingest", saved, SCHEMA, b"nonsense"))
    async with running_ingest(log, C) as ingest:
        _, answer = await ingest.post(content | {"instance": "two"}, node="n0")
        assert answer["unknown"] == []
        assert ingest.counted("unchanged_pods_total") == 1


async def test_a_month_goes_only_when_a_sound_state_leads_past_it(
    log: PostgresLog, url: str, clock: StoppedClock
) -> None:
    facts = Facts(log, C)
    await facts.add_nodes(1)
    await facts.add_pods("a", cpu=2, gpu=1)
    state = await folded(log, C)
    clock.now = (NOVEMBER + 2).start
    for name, schema, body in (("other", "1", b""), ("state", "of-old", encode_state(state))):
        await log.save_snapshot(C, Snapshot(name, state.position, schema, body))
        with pytest.raises(
            ConfigurationError, match=f"no sound snapshot 'state' at or after position {state.position}"
        ):
            await log.detach_month(NOVEMBER)
    await log.save_snapshot(C, Snapshot("state", state.position, SNAPSHOT_SCHEMA, encode_state(state)))
    one_bad_byte_of = "UPDATE snapshot SET body = set_byte(body, 9, 7) WHERE schema = %s"
    change(url, one_bad_byte_of, SNAPSHOT_SCHEMA)
    with pytest.raises(ConfigurationError, match="no sound snapshot"):
        await log.detach_month(NOVEMBER)
    await log.save_snapshot(C, Snapshot("state", state.position, SNAPSHOT_SCHEMA, encode_state(state)))
    await log.save_snapshot(C, Snapshot("binder", state.position - 1, "1", b"too old"))
    with pytest.raises(ConfigurationError, match="no sound snapshot 'binder'"):
        await log.detach_month(NOVEMBER)
    await log.save_snapshot(C, Snapshot("binder", state.position, "1", b"new enough"))
    assert len(await log.detach_month(NOVEMBER)) == 1
    assert await log.retired(C) == state.position
    assert [one.body for one in await log.kept_snapshots(C, name="binder")] == [b"new enough"]


async def test_after_a_month_has_gone_every_reader_starts_and_a_replay_goes_on_from_there(
    log: PostgresLog, url: str, clock: StoppedClock
) -> None:
    facts = Facts(log, C)
    await facts.add_nodes(1)
    await decide(log, facts, 1, "a")
    clock.now = (NOVEMBER + 1).start + DAY
    await decide(log, facts, 2, "b")
    whole = encode_state(await _refolded(log))
    last_of_november = max(event.position for event in await log.read(C, where=Filter(until=(NOVEMBER + 1).start)))
    (seal,) = await log.detach_month(NOVEMBER)
    assert seal.position == last_of_november
    # The cache may be lost or altered now, too.
    one_bad_byte(url, "state")
    assert encode_state(await folded(log, C)) == whole
    change(url, "DELETE FROM snapshot WHERE name = 'state'")
    assert (await restored(log, C)).position == (await first_state(log, C)).position > seal.position
    clock.now += DAY
    async with scheduling(log, C):
        await facts.add_pods("c", cpu=2, gpu=1)
        head = 0
        while not await log.read(C, after=seal.position, where=Filter(subject="default/c", types=("PodPlaced",))):
            head = await log.wait_beyond(C, head, timeout_s=5)
    replay = await replay_log(log, C)
    assert replay.differences == []
    assert (replay.cycles >= 1, replay.decisions) == (True, 1)


async def test_a_kept_snapshot_of_another_version_is_better_than_none(
    log: PostgresLog, url: str, clock: StoppedClock
) -> None:
    await Facts(log, C).add_nodes(1)
    state = await folded(log, C)
    await log.save_snapshot(C, Snapshot("state", state.position, SNAPSHOT_SCHEMA, encode_state(state)))
    clock.now = (NOVEMBER + 2).start
    await log.detach_month(NOVEMBER)
    latest = await newest(log, C, name="state", schema="of-tomorrow", read=lambda one: one.position)
    assert latest == state.position
    with psycopg.connect(url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("DELETE FROM kept_snapshot")
        connection.execute("DELETE FROM snapshot")
    for question in (restored, first_state, replay_log):
        with pytest.raises(EventsRetired, match="start from a snapshot at or after it"):
            await question(log, C)  # type: ignore[operator]


async def _refolded(log: PostgresLog) -> ClusterState:
    return ClusterState(C).fold_all(await log.read(C, limit=100_000))


async def test_a_spoilt_place_of_the_trail_is_dropped_and_the_one_before_it_serves(log: PostgresLog, url: str) -> None:
    await Facts(log, C).add_nodes(2)
    events = await log.read(C)
    states = [ClusterState(C).fold_all(events[:position]) for position in range(5)]
    for state in states[1:4]:
        snapshot = take_state(state)
        await log.trail.save(C, snapshot, zlib.compress(snapshot.body))
    change(url, "UPDATE state_trail SET body = 'nonsense' WHERE position = 3")
    change(url, "UPDATE state_trail SET digest = sha256(body) WHERE position = 2")
    async with await PostgresLog.open(f"{url}&options=-crole%3Dkai_read") as reader:
        assert await reader.trail.load(C, schema=SNAPSHOT_SCHEMA, upto=4) == take_state(states[1])
    assert [place.position for place in await log.trail.places(C)] == [1, 2, 3]
    sound = await log.trail.load(C, schema=SNAPSHOT_SCHEMA, upto=4)
    assert sound == take_state(states[1])
    assert [place.position for place in await log.trail.places(C)] == [1]
    change(url, "DELETE FROM state_trail")
    assert await log.trail.load(C, schema=SNAPSHOT_SCHEMA, upto=4) is None


async def test_past_of_a_log_with_retired_months_begins_with_what_was_kept(
    log: PostgresLog, clock: StoppedClock
) -> None:
    facts = Facts(log, C)
    await facts.add_nodes(1)
    clock.now += 40 * DAY
    await facts.add_pods("a", "b", "c", cpu=1)
    await log.save_snapshot(C, take_state(ClusterState(C).fold_all(await log.read(C, upto=4))))
    whole = {position: encode_state(await state_at(log, C, position)) for position in range(6)}
    await log.detach_month(NOVEMBER)
    assert {position: encode_state(await state_at(log, C, position)) for position in (4, 5)} == {
        position: whole[position] for position in (4, 5)
    }
    for position in (1, 2, 3):
        with pytest.raises(EventsRetired):
            await state_at(log, C, position)
    assert await position_of(log, C, Moment(time=clock.now)) == 5
    with pytest.raises(EventsRetired, match="events up to 2 have been retired"):
        await position_of(log, C, Moment(time=clock.now - DAY))
