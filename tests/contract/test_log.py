"""The promises of every implementation of `kaicore.ledger.log.port.EventLog`."""

import asyncio
import time
import uuid
from itertools import pairwise

import pytest
from kaicore.errors import IdempotencyConflict, InvalidObject, StaleExpectation
from kaicore.ledger.log.chain import GENESIS, event_hash
from kaicore.ledger.log.port import EventLog, Head
from kaicore.rules.events.codec import decode_payload, encode_payload
from kaicore.rules.events.envelope import Event, Stale, Unit, UnitOutcome
from kaicore.rules.events.payloads import NodeDeleted, TopologyDeleted

from tests.given.logs.new_events import OCCURRED_AT, new_event, unit
from tests.given.logs.reading import everything


async def test_log_without_events_has_position_zero(log: EventLog, cluster: str) -> None:
    assert await log.head(cluster) == Head()
    assert await log.read(cluster) == []
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
    assert [event for outcome in outcomes for event in outcome.events] == await everything(log, cluster)
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


async def test_a_unit_that_follows_a_stale_one_is_stale_as_well(log: EventLog, cluster: str) -> None:
    await log.append(cluster, [unit()])
    # Each on another stream; the third follows the second, and so the first.
    units = [unit(n1=0), Unit((new_event("node/n2"),), follows=(0,)), Unit((new_event("node/n3"),), follows=(1,))]
    outcomes = await log.append(cluster, [*units, Unit((new_event("node/n4"),))])
    stale = UnitOutcome(stale=Stale("node/n1", 0, 1))
    assert outcomes == [stale, stale, stale, UnitOutcome((2,))]
    with pytest.raises(InvalidObject, match="names no earlier unit"):
        await log.append(cluster, [Unit((new_event(),), follows=(0,))])


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
    recorded = new_event()
    await log.append(cluster, [unit(recorded)])
    with pytest.raises(IdempotencyConflict, match="only a part"):
        await log.append(cluster, [unit(), unit(recorded, new_event())])
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
    recorded = new_event()
    await log.append(cluster, [unit(recorded)])
    with pytest.raises(IdempotencyConflict, match="in the log at 1, but not as"):
        await log.append(cluster, [unit(new_event(id=recorded.id, **other))])


async def test_the_same_fact_told_with_other_words_is_the_same_fact(log: EventLog, cluster: str) -> None:
    recorded = new_event()
    await log.append(cluster, [unit(recorded)])
    retold = new_event(id=recorded.id, payload=NodeDeleted(uid="u1", name="written-by-a-newer-version"))
    assert await log.append(cluster, [unit(retold)]) == [UnitOutcome((1,), duplicate=True)]
    assert decode_payload((await everything(log, cluster))[0]) == recorded.payload


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
    assert await log.head(cluster) == Head()


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
    recorded = new_event()
    await log.append(cluster, [unit(recorded)])
    answers = await asyncio.gather(
        log.append(cluster, [unit(new_event("node/n2"))]),
        log.append(cluster, [unit()], expect={"node/n1": 9}),
        log.append(cluster, [unit(recorded, new_event())]),
        log.append(cluster, [unit(recorded)]),
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
