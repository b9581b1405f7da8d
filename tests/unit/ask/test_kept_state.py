"""A state that is kept: folded once, as of the log's end at each question, and never by half."""

import asyncio
from functools import partial

import pytest
from kaicore.analysis.ask.answers import CycleRow, RowSelection
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.replay import log_states as last_events
from kaicore.analysis.replay import past_states
from kaicore.analysis.replay.past_states import KeptState, QuestionsFirst
from kaicore.errors import ConfigurationError, CorruptLog, LogUnavailable
from kaicore.ledger.log import snapshots
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import Snapshot
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import Event
from kaicore.rules.state.cluster_state import ClusterState

from tests.given.cluster.factory import pod
from tests.integration.scheduling import Facts


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(lambda: 1_000_000)


async def test_each_event_is_folded_once_whatever_is_asked(log: MemoryLog) -> None:
    facts, kept = Facts(log, "c"), KeptState(log, "c")
    await facts.add_pods("a", "b", cpu=1)
    assert len((await kept.current()).pods) == 2
    await kept.current()
    assert kept.folded == 2
    await facts.add_pods("c", cpu=1)
    assert len((await kept.current()).pods) == 3, "what was recorded before the question is in the answer"
    assert kept.folded == 3


async def test_questions_at_once_share_one_folding(log: MemoryLog) -> None:
    await Facts(log, "c").add_pods(*(f"p{number}" for number in range(500)), cpu=1)
    kept = KeptState(log, "c")
    states = await asyncio.gather(*(kept.current() for _ in range(5)))
    assert kept.folded == 500
    assert len({id(state) for state in states}) == 1


async def test_the_state_follows_the_log_without_being_asked(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_states, "_LOOK_S", 0.0)
    monkeypatch.setattr(past_states, "_MOST_LACKING", 10)
    facts, kept = Facts(log, "c"), KeptState(log, "c")
    await facts.add_pods("a", cpu=1)
    following = asyncio.create_task(kept.follow())
    async with asyncio.timeout(60):
        await _reached(kept, 1)
        await facts.add_pods("b", cpu=1)
        await facts.add_pods(*(f"p{number}" for number in range(10)), cpu=1)
        for _ in range(100):
            await asyncio.sleep(0)
        assert kept.position == 1, "nobody has asked"
        await kept.current()
        await facts.add_pods(*(f"q{number}" for number in range(11)), cpu=1)
        await _reached(kept, 23)
        await facts.add_pods("last", cpu=1)
        await _reached(kept, 24)
        monkeypatch.setattr(past_states, "_MANY_LACKING", 1)
        await facts.add_pods("r", "s", cpu=1)
        assert len((await kept.current()).pods) == 26, "a snapshot is read only where it is nearer"
    following.cancel()


async def test_what_is_folded_ahead_of_questions_waits_for_those_about_other_clusters(log: MemoryLog) -> None:
    for cluster in ("asked", "large"):
        await Facts(log, cluster).add_pods(*(f"p{number}" for number in range(1000)), cpu=1)
    questions = QuestionsFirst()
    large = KeptState(log, "large", questions=questions)
    following = asyncio.create_task(large.follow())
    async with asyncio.timeout(60):
        await _reached(large, 1)
        with questions.about("asked"):
            await asyncio.sleep(0)
            before = large.position
            assert 0 < before < 1000
            await KeptState(log, "asked", questions=questions).current()
            assert large.position == before
            assert (await large.current()).position == 1000, "a question about it goes on with what was begun"
    following.cancel()


async def test_an_inquiry_has_caught_up_when_each_state_is_at_its_logs_end_or_cannot_be(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cluster in ("broken", "c"):
        await Facts(log, cluster).add_pods(*(f"p{number}" for number in range(100)), cpu=1)
    fold = ClusterState.fold

    def broken(state: ClusterState, event: Event) -> None:
        if state.cluster == "broken":
            raise CorruptLog("broken")
        fold(state, event)

    monkeypatch.setattr(ClusterState, "fold", broken)
    inquiry, caught_up = Inquiry(log), asyncio.Event()
    following = asyncio.create_task(inquiry.follow(caught_up=caught_up.set))
    async with asyncio.timeout(60):
        await caught_up.wait()
    following.cancel()
    assert {state.cluster: state.position for state in inquiry.states} == {"broken": 0, "c": 100}


async def test_who_may_not_leave_snapshots_on_the_trail_takes_one_and_no_more(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SPACING", 100)
    taken: list[int] = []

    def take(position: int) -> Snapshot:
        taken.append(position)
        return Snapshot("state", position, "1", b"")

    async def refuse(*_: object, **__: object) -> None:
        raise ConfigurationError("the database role may not do this")

    monkeypatch.setattr(log.trail, "save", refuse)
    left = snapshots.Trail(log, "c", schema="1")
    for position in range(50, 1000, 50):
        await left.passed(position, partial(take, position))
    assert taken == [100]


async def test_an_event_that_cannot_be_folded_leaves_no_half_state(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, kept = Facts(log, "c"), KeptState(log, "c")
    await facts.add_pods("a", "b", cpu=1)
    fold = ClusterState.fold

    def broken(state: ClusterState, event: Event) -> None:
        fold(state, event)
        if event.position == 2:
            raise KeyError("broken")

    with monkeypatch.context() as patched:
        patched.setattr(ClusterState, "fold", broken)
        with pytest.raises(KeyError):
            await kept.current()
    assert kept.position == 0
    assert len((await kept.current()).pods) == 2


async def test_a_log_that_does_not_answer_costs_nothing_that_was_folded(log: MemoryLog) -> None:
    facts, kept = Facts(log, "c"), KeptState(log, "c")
    await facts.add_pods("a", cpu=1)
    await kept.current()
    await log.close()
    with pytest.raises(LogUnavailable):
        await kept.current()
    assert kept.position == 1


async def test_the_last_cycles_are_found_from_the_end_and_an_old_one_by_its_name(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_events, "_WINDOW", 10)
    facts = Facts(log, "c")
    for number in range(30):
        cycle = payloads.CycleCompleted(
            cycle=f"default/{number}",
            shard="default",
            input_position=number,
            config_digest="d",
            engine_version="e",
            now=0,
            decisions_digest="x",
            pods=1,
            placed=0,
        )
        await facts.append(("cycle/default", cycle), (f"pod/{number}", payloads.PodObserved(pod(f"p{number}"))))

    async def cycles(wanted: RowSelection) -> list[str]:
        answer = await Inquiry(log).listing("c", "cycles", wanted)
        return [row.cycle for row in answer.rows if isinstance(row, CycleRow)]

    assert await cycles(RowSelection(limit=3)) == ["default/29", "default/28", "default/27"]
    assert await cycles(RowSelection(limit=3, name="default/2")) == ["default/2"]
    assert len(await cycles(RowSelection())) == 30


async def _reached(kept: KeptState, position: int) -> None:
    while kept.position < position:  # noqa: ASYNC110  # a state that is kept reports no progress
        await asyncio.sleep(0)
