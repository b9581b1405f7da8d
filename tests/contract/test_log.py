"""What every implementation of `kaicore.ledger.log.port.EventLog` promises."""

import asyncio
import time
import uuid
from itertools import pairwise

import pytest
from kaicore.errors import IdempotencyConflict, InvalidObject, LogUnavailable, StaleExpectation
from kaicore.ledger.log.chain import GENESIS, event_hash
from kaicore.ledger.log.port import EventLog, Filter, Head, Snapshot
from kaicore.rules.events import codec
from kaicore.rules.events.codec import decode_payload, encode_payload
from kaicore.rules.events.envelope import Event, Stale, Unit, UnitOutcome
from kaicore.rules.events.payloads import NodeDeleted, Payload, PodDeleted, TopologyDeleted

from tests.new_events import OCCURRED_AT, new_event, unit


async def everything(log: EventLog, cluster: str) -> list[Event]:
    return await log.read(cluster, limit=100_000)


# Appending and reading


async def test_a_log_without_events(log: EventLog, cluster: str) -> None:
    assert await log.head(cluster) == Head(0, GENESIS, 0)
    assert await log.read(cluster) == []
    assert await log.read_last(cluster, where=Filter()) is None
    assert cluster not in await log.clusters()
    assert await log.append(cluster, []) == []


async def test_an_event_comes_back_as_it_was_appended(log: EventLog, cluster: str) -> None:
    cause = uuid.uuid4()
    new = new_event("pod/u1", subject="default/train-0", cause=cause, correlation="shard-0/7")
    before = time.time_ns() // 1000
    assert await log.append(cluster, [unit(new)]) == [UnitOutcome((1,))]
    (event,) = await log.read(cluster)
    assert event == Event(
        cluster=cluster,
        position=1,
        stream="pod/u1",
        version=1,
        type="NodeDeleted",
        schema=1,
        id=new.id,
        actor="test",
        occurred_at=OCCURRED_AT,
        recorded_at=event.recorded_at,
        body=event.body,
        hash=event_hash(GENESIS, event),
        subject="default/train-0",
        cause=cause,
        correlation="shard-0/7",
    )
    assert bytes(event.body) == encode_payload(new.payload)
    assert decode_payload(event) == new.payload
    assert before <= event.recorded_at <= time.time_ns() // 1000
    assert await log.head(cluster) == Head(1, event.hash, event.recorded_at)


async def test_positions_are_gapless_and_versions_count_each_stream(log: EventLog, cluster: str) -> None:
    outcomes = await log.append(cluster, [unit(new_event("node/n1"), new_event("node/n2")), unit(new_event("node/n1"))])
    assert outcomes == [UnitOutcome((1, 2)), UnitOutcome((3,))]
    await log.append(cluster, [unit(new_event("node/n1"))])
    events = await everything(log, cluster)
    assert [(event.position, event.stream, event.version) for event in events] == [
        (1, "node/n1", 1),
        (2, "node/n2", 1),
        (3, "node/n1", 2),
        (4, "node/n1", 3),
    ]
    assert await log.stream_versions(cluster, ["node/n1", "node/n2", "node/n3"]) == {
        "node/n1": 3,
        "node/n2": 1,
        "node/n3": 0,
    }


async def test_each_event_is_chained_to_the_one_before(log: EventLog, cluster: str) -> None:
    for _ in range(3):
        await log.append(cluster, [unit(new_event(), new_event())])
    previous = GENESIS
    for event in await everything(log, cluster):
        assert event.hash == event_hash(previous, event)
        previous = event.hash
    assert (await log.head(cluster)).hash == previous


async def test_recorded_at_never_decreases(log: EventLog, cluster: str) -> None:
    for _ in range(20):
        await log.append(cluster, [unit()])
    assert all(a.recorded_at <= b.recorded_at for a, b in pairwise(await everything(log, cluster)))


async def test_a_unit_without_events_is_appended_without_effect(log: EventLog, cluster: str) -> None:
    assert await log.append(cluster, [Unit(()), unit()]) == [UnitOutcome(()), UnitOutcome((1,))]


async def test_clusters_are_apart(log: EventLog, cluster: str) -> None:
    shared = new_event()
    first, second = f"{cluster}-1", f"{cluster}-2"
    await log.append(second, [unit(shared)])
    await log.append(first, [unit(shared), unit()])
    assert [name for name in await log.clusters() if name.startswith(cluster)] == [first, second]
    assert (await log.head(first)).position == 2
    assert [event.cluster for event in await everything(log, second)] == [second]
    assert await log.stream_versions(second, ["node/n1"]) == {"node/n1": 1}


# Expectations


async def test_a_unit_whose_expectation_fails_is_left_out_and_the_others_are_taken(log: EventLog, cluster: str) -> None:
    await log.append(cluster, [unit()])
    outcomes = await log.append(cluster, [unit(n1=0), unit(new_event("node/n2"), n1=1, n2=0), unit(n1=2)])
    assert outcomes == [
        UnitOutcome(stale=Stale("node/n1", 0, 1)),
        UnitOutcome((2,)),
        UnitOutcome(stale=Stale("node/n1", 2, 1)),
    ]
    assert (await log.head(cluster)).position == 2


async def test_units_of_one_append_do_not_make_each_other_stale(log: EventLog, cluster: str) -> None:
    outcomes = await log.append(cluster, [unit(n1=0), unit(n1=0), unit(n1=1)])
    assert outcomes == [UnitOutcome((1,)), UnitOutcome((2,)), UnitOutcome(stale=Stale("node/n1", 1, 0))]


async def test_nothing_is_appended_when_the_expectation_of_the_whole_fails(log: EventLog, cluster: str) -> None:
    await log.append(cluster, [unit()])
    with pytest.raises(StaleExpectation) as caught:
        await log.append(cluster, [unit(), unit(new_event("node/n2"))], expect={"node/n2": 0, "node/n1": 4})
    assert (caught.value.stream, caught.value.expected, caught.value.actual) == ("node/n1", 4, 1)
    assert (await log.head(cluster)).position == 1
    assert await log.append(cluster, [unit()], expect={"node/n1": 1}) == [UnitOutcome((2,))]


# Idempotency


async def test_appending_again_appends_nothing(log: EventLog, cluster: str) -> None:
    first, second = unit(new_event(), new_event("node/n2")), unit()
    await log.append(cluster, [first])
    outcomes = await log.append(cluster, [second, first, first])
    assert outcomes == [UnitOutcome((3,)), UnitOutcome((1, 2), duplicate=True), UnitOutcome((1, 2), duplicate=True)]
    assert (await log.head(cluster)).position == 3


async def test_appending_again_succeeds_whatever_was_expected(log: EventLog, cluster: str) -> None:
    again = unit(new_event(), n1=0)
    assert await log.append(cluster, [again], expect={"node/n1": 0}) == [UnitOutcome((1,))]
    assert await log.append(cluster, [again], expect={"node/n1": 0}) == [UnitOutcome((1,), duplicate=True)]


async def test_repeating_an_append_that_was_refused_in_part_gives_the_same_again(log: EventLog, cluster: str) -> None:
    await log.append(cluster, [unit(new_event("node/n2"))])
    units = [unit(n1=0), unit(n2=0)]
    stale = UnitOutcome(stale=Stale("node/n2", 0, 1))
    assert await log.append(cluster, units, expect={"node/n1": 0}) == [UnitOutcome((2,)), stale]
    # What the append as a whole expected does not hold any more, because of the append itself.
    assert await log.append(cluster, units, expect={"node/n1": 0}) == [
        UnitOutcome((2,), duplicate=True),
        UnitOutcome(stale=Stale("node/n1", 0, 1)),
    ]
    assert (await log.head(cluster)).position == 2


async def test_a_unit_that_is_in_the_log_in_part_is_a_conflict(log: EventLog, cluster: str) -> None:
    known = new_event()
    await log.append(cluster, [unit(known)])
    with pytest.raises(IdempotencyConflict, match="only a part"):
        await log.append(cluster, [unit(), unit(known, new_event())])
    assert (await log.head(cluster)).position == 1


@pytest.mark.parametrize(
    "other",
    [
        {"stream": "node/n2"},
        {"payload": TopologyDeleted(node="n1")},
    ],
)
async def test_an_id_that_stands_for_another_event_is_a_conflict(
    log: EventLog, cluster: str, other: dict[str, str]
) -> None:
    known = new_event()
    await log.append(cluster, [unit(known)])
    with pytest.raises(IdempotencyConflict, match="in the log at 1, but not as"):
        await log.append(cluster, [unit(new_event(id=known.id, **other))])


async def test_the_same_fact_told_with_other_words_is_the_same_fact(log: EventLog, cluster: str) -> None:
    known = new_event()
    await log.append(cluster, [unit(known)])
    retold = new_event(id=known.id, payload=NodeDeleted(uid="u1", name="told-by-a-newer-version"))
    assert await log.append(cluster, [unit(retold)]) == [UnitOutcome((1,), duplicate=True)]
    assert decode_payload((await everything(log, cluster))[0]) == known.payload


async def test_the_same_unit_twice_in_one_append_is_appended_once(log: EventLog, cluster: str) -> None:
    twice = unit(new_event(), new_event())
    assert await log.append(cluster, [twice, unit(), twice]) == [
        UnitOutcome((1, 2)),
        UnitOutcome((3,)),
        UnitOutcome((1, 2), duplicate=True),
    ]
    assert [event.version for event in await everything(log, cluster)] == [1, 2, 3]


async def test_when_the_first_of_two_equal_units_is_stale_the_second_may_be_taken(log: EventLog, cluster: str) -> None:
    event = new_event()
    assert await log.append(cluster, [unit(event, n1=7), unit(event)]) == [
        UnitOutcome(stale=Stale("node/n1", 7, 0)),
        UnitOutcome((1,)),
    ]


async def test_units_of_one_append_that_share_only_some_events_are_a_conflict(log: EventLog, cluster: str) -> None:
    shared = new_event()
    with pytest.raises(IdempotencyConflict):
        await log.append(cluster, [unit(shared), unit(shared, new_event())])
    with pytest.raises(IdempotencyConflict):
        await log.append(cluster, [unit(shared, shared)])
    assert await log.head(cluster) == Head(0, GENESIS, 0)


# Appends at the same time


async def test_many_appends_at_once_are_all_appended_once(log: EventLog, cluster: str) -> None:
    units = [unit(new_event(f"node/n{number % 7}"), new_event()) for number in range(60)]
    answers = await asyncio.gather(*(log.append(cluster, [one]) for one in units))
    positions = [position for (outcome,) in answers for position in outcome.positions]
    assert sorted(positions) == list(range(1, 121))
    by_position = {event.position: event.id for event in await everything(log, cluster)}
    assert by_position == {
        position: new.id
        for one, (outcome,) in zip(units, answers, strict=True)
        for position, new in zip(outcome.positions, one.events, strict=True)
    }


async def test_of_appends_at_once_that_expect_the_same_one_succeeds(log: EventLog, cluster: str) -> None:
    calls = [log.append(cluster, [unit()], expect={"node/n1": 0}) for _ in range(10)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers].count(StaleExpectation) == 9
    assert [UnitOutcome((1,))] in answers


async def test_an_append_that_is_refused_does_not_spoil_those_at_the_same_time(log: EventLog, cluster: str) -> None:
    known = new_event()
    await log.append(cluster, [unit(known)])
    answers = await asyncio.gather(
        log.append(cluster, [unit(new_event("node/n2"))]),
        log.append(cluster, [unit()], expect={"node/n1": 9}),
        log.append(cluster, [unit(known, new_event())]),
        log.append(cluster, [unit(known)]),
        log.append(cluster, [unit(n2=1)]),
        return_exceptions=True,
    )
    assert answers[0] == [UnitOutcome((2,))]
    assert isinstance(answers[1], StaleExpectation)
    assert isinstance(answers[2], IdempotencyConflict)
    assert answers[3] == [UnitOutcome((1,), duplicate=True)]
    # It came after the first one, and was judged so.
    assert answers[4] == [UnitOutcome((3,))]


async def test_a_cancelled_append_leaves_the_log_as_good_as_before(log: EventLog, cluster: str) -> None:
    for steps in range(12):
        cancelled = [asyncio.create_task(log.append(cluster, [unit()])) for _ in range(5)]
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in cancelled:
            task.cancel()
        await asyncio.gather(*cancelled, return_exceptions=True)
        await log.append(cluster, [unit()])
    events = await everything(log, cluster)
    assert [event.position for event in events] == list(range(1, len(events) + 1))
    assert [event.version for event in events] == list(range(1, len(events) + 1))


async def test_a_cancelled_call_leaves_the_log_as_good_as_before(log: EventLog, cluster: str) -> None:
    await log.append(cluster, [unit() for _ in range(200)])
    for steps in range(12):
        calls = [log.read(cluster), log.head(cluster), log.clusters(), log.wait_beyond(cluster, 200, timeout_s=600)]
        tasks = [asyncio.create_task(call) for call in calls]
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(await log.read(cluster)) == 200


# Reading with bounds and filters


async def test_reading_between_positions(log: EventLog, cluster: str) -> None:
    await log.append(cluster, [unit() for _ in range(10)])
    assert [event.position for event in await log.read(cluster, after=3, upto=6)] == [4, 5, 6]
    assert [event.position for event in await log.read(cluster, after=3, limit=2)] == [4, 5]
    assert [event.position for event in await log.read(cluster, after=8, upto=100)] == [9, 10]
    assert await log.read(cluster, after=10) == []
    assert await log.read(cluster, after=5, upto=5) == []
    assert await log.read(cluster, limit=0) == []


@pytest.fixture
async def varied(log: EventLog, cluster: str) -> EventLog:
    """Positions 1 to 12: streams a, b, c in turn; types NodeDeleted and TopologyDeleted in turn."""
    for number in range(12):
        payload: Payload = NodeDeleted(uid="u", name="n") if number % 2 == 0 else TopologyDeleted(node="n")
        await log.append(
            cluster,
            [unit(new_event(f"node/{'abc'[number % 3]}", payload=payload, subject="odd" if number % 2 else ""))],
        )
    await log.append(f"{cluster}-other", [unit(new_event("node/a"))])
    return log


@pytest.mark.parametrize(
    ("where", "positions"),
    [
        (Filter(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        (Filter(streams=("node/a",)), [1, 4, 7, 10]),
        (Filter(streams=("node/c", "node/a", "node/c", "node/x")), [1, 3, 4, 6, 7, 9, 10, 12]),
        (Filter(streams=()), []),
        (Filter(types=("TopologyDeleted",)), [2, 4, 6, 8, 10, 12]),
        (Filter(types=("TopologyDeleted", "NodeDeleted", "Unknown")), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        (Filter(types=()), []),
        (Filter(subject="odd"), [2, 4, 6, 8, 10, 12]),
        (Filter(subject=""), [1, 3, 5, 7, 9, 11]),
        (Filter(subject="even"), []),
        (Filter(streams=("node/a", "node/b"), types=("NodeDeleted",)), [1, 5, 7, 11]),
        (Filter(streams=("node/a",), subject="odd"), [4, 10]),
        (Filter(subject="odd", types=("TopologyDeleted",)), [2, 4, 6, 8, 10, 12]),
        (Filter(subject="odd", types=("NodeDeleted",)), []),
        (Filter(streams=("node/b",), subject="odd", types=("TopologyDeleted",)), [2, 8]),
    ],
)
async def test_filters(varied: EventLog, cluster: str, where: Filter, positions: list[int]) -> None:
    assert [event.position for event in await varied.read(cluster, where=where)] == positions
    last = await varied.read_last(cluster, where=where)
    assert (last.position if last else None) == (positions[-1] if positions else None)
    page = await varied.read(cluster, where=where, after=4, upto=11, limit=2)
    assert [event.position for event in page] == [position for position in positions if 4 < position <= 11][:2]


async def test_filtering_by_time(varied: EventLog, cluster: str) -> None:
    events = await everything(varied, cluster)
    since, until = events[3].recorded_at, events[8].recorded_at
    for where in (Filter(since=since), Filter(until=until), Filter(since=since, until=until), Filter(since=until + 1)):
        wanted = [
            event.position
            for event in events
            if (where.since is None or event.recorded_at >= where.since)
            and (where.until is None or event.recorded_at < where.until)
        ]
        assert [event.position for event in await varied.read(cluster, where=where)] == wanted
        last = await varied.read_last(cluster, where=where)
        assert (last.position if last else None) == (wanted[-1] if wanted else None)
    far = events[-1].recorded_at + 10**9
    assert await varied.read(cluster, where=Filter(since=far)) == []
    assert len(await varied.read(cluster, where=Filter(until=far))) == 12


# Waiting


async def test_waiting_ends_when_the_log_grows(log: EventLog, cluster: str) -> None:
    for position in range(3):
        waiting = [asyncio.create_task(log.wait_beyond(cluster, position, timeout_s=600)) for _ in range(3)]
        elsewhere = asyncio.create_task(log.wait_beyond(f"{cluster}-other", 0, timeout_s=600))
        await log.append(cluster, [unit()])
        assert await asyncio.gather(*waiting) == [position + 1] * 3
        assert not elsewhere.done()
        elsewhere.cancel()


async def test_waiting_ends_at_once_when_the_log_has_grown_already(log: EventLog, cluster: str) -> None:
    await log.append(cluster, [unit(), unit()])
    assert await log.wait_beyond(cluster, 1, timeout_s=600) == 2


async def test_waiting_ends_after_the_timeout(log: EventLog, cluster: str) -> None:
    assert await log.wait_beyond(cluster, 0, timeout_s=0) == 0
    await log.append(cluster, [unit()])
    assert await log.wait_beyond(cluster, 1, timeout_s=0.01) == 1


# Snapshots


async def test_snapshots(log: EventLog, cluster: str) -> None:
    assert await log.load_snapshot(cluster, name="state", schema="1") is None
    first = Snapshot("state", 5, "1", b"\x00\xff five")
    await log.save_snapshot(cluster, first)
    await log.save_snapshot(cluster, Snapshot("state", 7, "2", b"of another schema"))
    await log.save_snapshot(cluster, Snapshot("other", 8, "1", b"of another name"))
    assert await log.load_snapshot(cluster, name="state", schema="1") == first
    assert await log.load_snapshot(cluster, name="state", schema="1", upto=5) == first
    assert await log.load_snapshot(cluster, name="state", schema="1", upto=4) is None
    assert await log.load_snapshot(f"{cluster}-other", name="state", schema="1") is None


async def test_a_snapshot_is_replaced_unless_it_is_newer(log: EventLog, cluster: str) -> None:
    for position, body in ((5, b"old"), (9, b"new"), (9, b"newer"), (6, b"late")):
        await log.save_snapshot(cluster, Snapshot("state", position, "1", body))
    assert await log.load_snapshot(cluster, name="state", schema="1") == Snapshot("state", 9, "1", b"newer")


# What cannot be said, and what can


@pytest.mark.parametrize(
    "text", ["Zürich 東京 🚀", "quote ' double \" backslash \\ brace {}", "line\nfeed\ttab\x7f\x01", "\0"]
)
async def test_any_text_in_a_payload_is_kept_to_the_byte(log: EventLog, cluster: str, text: str) -> None:
    payload = PodDeleted(uid=text, namespace="default", name="p")
    await log.append(cluster, [unit(new_event(payload=payload))])
    (event,) = await log.read(cluster)
    assert bytes(event.body) == encode_payload(payload)
    assert decode_payload(event) == payload


async def test_any_text_but_nul_in_a_name(log: EventLog, cluster: str) -> None:
    name = "Zürich 東京 🚀 '\"\\{}%s\n"
    await log.append(name, [unit(new_event(name, subject=name, correlation=name))])
    (event,) = await log.read(name, where=Filter(streams=(name,), subject=name))
    assert (event.cluster, event.stream, event.subject, event.correlation) == (name, name, name, name)
    assert await log.wait_beyond(name, 0, timeout_s=600) == 1


@pytest.mark.parametrize("text", ["nul\0", "surrogate \ud800", "x" * 1025, "ü" * 513])
@pytest.mark.parametrize("field", ["stream", "subject", "correlation"])
async def test_a_name_that_no_database_takes_is_refused(log: EventLog, cluster: str, field: str, text: str) -> None:
    with pytest.raises(InvalidObject) as caught:
        await log.append(cluster, [unit(), unit(new_event(**{field: text}))])
    assert caught.value.field == field
    assert (await log.head(cluster)).position == 0


@pytest.mark.parametrize("name", ["", "nul\0", "x" * 1025])
async def test_a_cluster_needs_a_name(log: EventLog, name: str) -> None:
    with pytest.raises(InvalidObject, match="cluster"):
        await log.append(name, [unit()])


async def test_a_payload_that_cannot_be_written_is_refused(log: EventLog, cluster: str) -> None:
    with pytest.raises(InvalidObject, match="cannot be encoded"):
        await log.append(cluster, [unit(new_event(payload=NodeDeleted(uid="\ud800", name="n")))])
    with pytest.raises(InvalidObject, match="more than"):
        await log.append(cluster, [unit(new_event(payload=NodeDeleted(uid="x" * 9_000_000, name="n")))])


async def test_large_payloads(log: EventLog, cluster: str) -> None:
    payload = NodeDeleted(uid="x" * 3_000_000, name="n")
    await log.append(cluster, [unit(new_event(payload=payload)), unit()])
    first, _ = await log.read(cluster)
    assert decode_payload(first) == payload


async def test_old_events_are_upcast_as_they_are_read(
    log: EventLog, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append(cluster, [unit(new_event(payload=NodeDeleted(uid="u1", name="old")))])
    monkeypatch.setitem(codec._SCHEMAS, "NodeDeleted", 2)
    monkeypatch.setitem(codec._UPCASTERS, ("NodeDeleted", 1), lambda old: {**old, "name": old["name"] + "-upcast"})
    await log.append(cluster, [unit(new_event(payload=NodeDeleted(uid="u1", name="new")))])
    events = await log.read(cluster)
    assert [event.schema for event in events] == [1, 2]
    assert [decode_payload(event) for event in events] == [NodeDeleted("u1", "old-upcast"), NodeDeleted("u1", "new")]
    assert events[0].hash == event_hash(GENESIS, events[0])


async def test_a_closed_log_is_unavailable(log: EventLog, cluster: str) -> None:
    waiting = asyncio.create_task(log.wait_beyond(cluster, 0, timeout_s=600))
    await log.append(f"{cluster}-other", [unit()])
    await log.close()
    with pytest.raises(LogUnavailable):
        await waiting
    for call in (log.append(cluster, [unit()]), log.head(cluster), log.read(cluster), log.clusters()):
        with pytest.raises(LogUnavailable):
            await call
