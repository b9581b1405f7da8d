"""Whatever is appended at the same time, in whatever way it fits together: the log in Postgres does what the one in
memory does, and both keep what a log promises."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.errors import IdempotencyConflict, StaleExpectation
from kaicore.ledger.log.chain import GENESIS, event_hash
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events.envelope import Event, NewEvent, Unit, UnitOutcome
from kaicore.rules.events.payloads import NodeDeleted, Payload, TopologyDeleted

from tests.given.examples import examples
from tests.given.logs.new_events import new_event

STREAMS = ("node/a", "node/b", "node/c")
PAYLOADS: tuple[Payload, ...] = (NodeDeleted(uid="u", name="n"), TopologyDeleted(node="n"))

#: Few ids, streams and versions, so that they meet: repeated, in part, under another type, too early and too late.
events = st.builds(
    lambda number, stream, payload: new_event(stream, id=uuid.UUID(int=number), payload=payload),
    st.integers(0, 12),
    st.sampled_from(STREAMS),
    st.sampled_from(PAYLOADS),
)
expectations = st.dictionaries(st.sampled_from(STREAMS), st.integers(0, 4), max_size=2)
units = st.builds(
    lambda taken, expect: Unit(tuple(taken), expect),
    st.lists(events, min_size=1, max_size=3, unique_by=lambda new: new.id),
    st.one_of(st.just({}), expectations),
)
calls = st.tuples(st.lists(units, max_size=3), st.one_of(st.none(), expectations))
#: Calls in a list are made at the same time.
histories = st.lists(st.lists(calls, min_size=1, max_size=5), max_size=5)

Answer = list[UnitOutcome] | type[Exception]


async def answers(log: EventLog, cluster: str, at_once: list[tuple[list[Unit], dict[str, int] | None]]) -> list[Answer]:
    async def one(appended: list[Unit], expect: dict[str, int] | None) -> Answer:
        try:
            return await log.append(cluster, appended, expect=expect)
        except (StaleExpectation, IdempotencyConflict) as error:
            return type(error)

    return await asyncio.gather(*(one(*call) for call in at_once))


def assert_is_a_log(recorded: list[Event]) -> None:
    versions: Counter[str] = Counter()
    hash_, recorded_at = GENESIS, 0
    for position, event in enumerate(recorded, start=1):
        versions[event.stream] += 1
        assert (event.position, event.version) == (position, versions[event.stream])
        assert event.recorded_at >= recorded_at
        assert event.hash == event_hash(hash_, event)
        hash_, recorded_at = event.hash, event.recorded_at
    assert len({event.id for event in recorded}) == len(recorded)


def without_time(recorded: list[Event]) -> list[tuple[object, ...]]:
    return [
        (event.position, event.stream, event.version, event.type, event.id, bytes(event.body)) for event in recorded
    ]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def postgres(runner: asyncio.Runner, module_database_url: str) -> Iterator[PostgresLog]:
    log = runner.run(PostgresLog.open(module_database_url))
    yield log
    runner.run(log.close())


_numbers = count()


@given(history=histories)
@settings(max_examples=examples(150), deadline=None)
def test_both_logs_do_the_same(
    runner: asyncio.Runner, postgres: PostgresLog, history: list[list[tuple[list[Unit], dict[str, int] | None]]]
) -> None:
    cluster = f"example-{next(_numbers)}"

    async def compare() -> None:
        memory = MemoryLog(clock=lambda: 0)
        for at_once in history:
            assert await answers(postgres, cluster, at_once) == await answers(memory, cluster, at_once)
        recorded = await postgres.read(cluster)
        assert_is_a_log(recorded)
        modelled = await memory.read(cluster)
        assert_is_a_log(modelled)
        assert without_time(recorded) == without_time(modelled)
        assert await postgres.stream_versions(cluster, STREAMS) == await memory.stream_versions(cluster, STREAMS)
        head = await postgres.head(cluster)
        assert head.position == len(recorded)
        assert head.hash == (recorded[-1].hash if recorded else GENESIS)

    runner.run(compare())


@given(taken=st.lists(events, max_size=8, unique_by=lambda new: new.id))
@settings(max_examples=examples(30), deadline=None)
def test_one_append_gives_the_same_as_several(
    runner: asyncio.Runner, postgres: PostgresLog, taken: list[NewEvent]
) -> None:
    at_once, apart = (f"example-{next(_numbers)}" for _ in range(2))

    async def compare() -> None:
        await postgres.append(at_once, [Unit((new,)) for new in taken])
        for new in taken:
            await postgres.append(apart, [Unit((new,))])
        assert without_time(await postgres.read(at_once)) == without_time(await postgres.read(apart))

    runner.run(compare())
