"""The state at a position is what folding the first events gives, whatever was asked before and whatever is kept."""

import asyncio
from functools import cache
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.analysis.replay import past_states
from kaicore.analysis.replay.past_states import KeptState, PastStates
from kaicore.ledger.log import snapshots
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import Snapshot
from kaicore.ledger.log.snapshots import TrailPlace, to_drop
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event, NewEvent, Unit
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA, encode_state

from tests.given.examples import examples
from tests.measured.bench.questions import history

C = "c"
SIZE = 120


@cache
def units() -> list[Unit]:
    return [
        Unit((NewEvent(one.id, one.stream, decode_payload(one), one.actor, one.occurred_at, one.subject),))
        for one in history(SIZE).events[:SIZE]
    ]


@cache
def folded() -> list[bytes]:
    """The state after each number of events, as bytes."""

    async def events() -> list[Event]:
        return await (await filled()).read(C)

    state = ClusterState(C)
    return [encode_state(state), *(encode_state(state.fold_all([event])) for event in asyncio.run(events()))]


async def filled() -> MemoryLog:
    log = MemoryLog(lambda: 1_000_000)
    await log.append(C, units())
    return log


SAVED = st.lists(st.tuples(st.integers(1, SIZE), st.sampled_from(("sound", "spoilt", "elsewhere"))), max_size=6)


def snapshot(position: int, how: str) -> Snapshot:
    place = position if how != "elsewhere" else max(1, position - 1)
    body = b"nonsense" if how == "spoilt" else folded()[place]
    return Snapshot("state", position, SNAPSHOT_SCHEMA, body)


@given(
    asked=st.lists(st.integers(0, SIZE), min_size=1, max_size=6),
    along=SAVED,
    newest=SAVED,
    spacing=st.integers(1, 50),
    step=st.integers(1, 50),
)
@settings(max_examples=examples(30), deadline=None)
def test_state_is_the_fold_of_the_first_events(
    asked: list[int], along: list[tuple[int, str]], newest: list[tuple[int, str]], spacing: int, step: int
) -> None:
    async def ask() -> None:
        log = await filled()
        for position, how in along:
            await log.trail.save(C, snapshot(position, how), b"")
        for position, how in newest:
            await log.save_snapshot(C, snapshot(position, how))
        past = PastStates(log, C)
        for position in asked:
            assert encode_state(await past.at(position)) == folded()[position]
        for place in await log.trail.places(C):
            if place.position not in {position for position, _ in along}:
                left = await log.trail.load(C, schema=SNAPSHOT_SCHEMA, upto=place.position)
                assert left is not None
                assert left.body == folded()[place.position]

    # Before a loop runs.
    folded()
    with (
        patch.object(snapshots, "SPACING", spacing),
        patch.object(past_states, "_STEP", step),
        patch.object(past_states, "_PAGE", 7),
    ):
        asyncio.run(ask())


async def test_whoever_follows_the_log_leaves_a_trail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SPACING", 30)
    monkeypatch.setattr(snapshots, "_BYTES_PER_EVENT", 10_000)
    monkeypatch.setattr("kaicore.analysis.replay.past_states._EVENTS_A_PAGE", 10)
    log = await filled()
    await KeptState(log, C).current()
    assert [place.position for place in await log.trail.places(C)] == [30, 60, 90, 120]
    again = await log.trail.places(C)
    await KeptState(log, C).current()
    assert await log.trail.places(C) == again, "what is there already is not left again"


async def test_states_behind_the_end_are_kept_so_that_a_step_back_reads_no_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(past_states, "_STEP", 30)
    monkeypatch.setattr(past_states, "_EVENTS_A_PAGE", 10)
    log = await filled()
    past = PastStates(log, C)
    await KeptState(log, C, past=past).current()
    assert len(past._passed) >= 3
    monkeypatch.setattr("kaicore.analysis.replay.log_states.read_state", None)
    for position in (SIZE - 1, SIZE - 35, SIZE - 5):
        assert encode_state(await past.at(position)) == folded()[position]


async def test_places_of_another_version_stand_for_none_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SPACING", 30)
    monkeypatch.setattr(snapshots, "_BYTES_PER_EVENT", 10_000)
    monkeypatch.setattr("kaicore.analysis.replay.past_states._EVENTS_A_PAGE", 10)
    log = await filled()
    for position in (25, 55, 85, 115):
        await log.trail.save(C, Snapshot("state", position, "state-of-another", b"x"), b"x")
    await KeptState(log, C).current()
    ours = [place.position for place in await log.trail.places(C) if place.schema == SNAPSHOT_SCHEMA]
    assert ours == [30, 60, 90, 120]


def test_a_trail_that_is_too_large_is_thinned_where_it_is_old() -> None:
    places = [TrailPlace(position, "now", 10) for position in range(100, 10_100, 100)]
    old = [TrailPlace(position, "before", 10) for position in (50, 60)]
    gone = to_drop([*old, *places], schema="now", most_bytes=200)
    assert gone[:2] == old, "what another version left goes first"
    left = [place.position for place in places if place not in gone]
    assert len(left) == 20
    assert (left[0], left[-1]) == (100, 10_000)
    gaps = [after - before for before, after in pairwise(left)]
    assert max(gaps[len(gaps) // 2 :]) <= min(gaps[: len(gaps) // 2])
    assert to_drop(places, schema="now", most_bytes=1000) == []
