"""A projector that stands by is ready once it is where the read models are, so that it can take over at once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from kai_projector import main
from kai_projector.main import Parts, ProjectorMetrics, follow
from kaicore.analysis.ask.projections.building import Builder
from kaicore.analysis.ask.projections.rows import RowChanges
from kaicore.analysis.ask.projections.store import Generation
from kaicore.analysis.replay import self_check
from kaicore.analysis.replay.self_check import SelfCheck
from kaicore.errors import CorruptLog
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import Filter
from kaicore.ledger.log.snapshots import take_state
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event, Unit
from kaicore.rules.events.payloads import DifferenceFound
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.runtime.service import Health, ServiceContext, get_logger
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from tests.given.doubles.counting_log import CountingLog
from tests.given.logs.new_events import as_new
from tests.given.logs.projected import Tables, projected, story
from tests.simulation.views import MemoryViews

_CLUSTER = "c1"
_EVENTS = story()
#: How many of them the projector that leads has taken in.
_SEEN = 12


class _CountingLog(CountingLog):
    """It is as late as its last event was."""

    now = 1_700_000_000_000_000

    async def extend(self, events: list[Event]) -> None:
        for event in events:
            self.now = max(self.now, event.recorded_at)
            await self.append(_CLUSTER, [Unit((as_new(event),))])


class _WrongViews(MemoryViews):
    """Read models that keep other rows than they are given in the first generation."""

    wrong: Callable[[RowChanges], None] | None = None

    def write(self, cluster: str, generation: Generation, tables: Tables, changes: RowChanges) -> None:
        if self.wrong is not None and generation.number == 1:
            self.wrong(changes)
        super().write(cluster, generation, tables, changes)


@pytest.fixture
async def log() -> _CountingLog:
    made = _CountingLog(lambda: made.now)
    await made.extend(_EVENTS[:_SEEN])
    return made


@pytest.fixture
async def views(log: _CountingLog) -> _WrongViews:
    made = _WrongViews()
    await (await Builder.resume(log, made, _CLUSTER)).catch_up()
    log.read_events = 0
    return made


@asynccontextmanager
async def _projecting(
    log: MemoryLog, views: MemoryViews, *, leads: bool = True, check_s: float = 0
) -> AsyncIterator[None]:
    """Run a projector, from when it says that it has the state, or cannot."""
    context, tried = ServiceContext("projector", Health("log"), get_logger()), asyncio.Event()
    parts = Parts(context, log, views, ProjectorMetrics(registry=CollectorRegistry()), check_s=check_s)
    if leads:
        parts.leads.set()
    following = asyncio.create_task(follow(parts, _CLUSTER, tried=tried))
    try:
        async with asyncio.timeout(60):
            await tried.wait()
            yield
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def _until_tried(log: MemoryLog, views: MemoryViews) -> None:
    async with _projecting(log, views, leads=False):
        pass


async def test_who_stands_by_is_at_its_place_when_it_has_read_what_the_read_models_have(
    log: _CountingLog, views: MemoryViews
) -> None:
    await log.extend(_EVENTS[_SEEN:])
    await _until_tried(log, views)
    assert log.read_events == _SEEN


async def test_who_stands_by_begins_from_the_last_saved_state_that_is_not_beyond_the_read_models(
    log: _CountingLog, views: MemoryViews
) -> None:
    await log.extend(_EVENTS[_SEEN:])
    for position in (_SEEN - 2, _SEEN + 2):
        state = ClusterState(_CLUSTER).fold_all(await log.read(_CLUSTER, upto=position))
        await log.trail.save(_CLUSTER, take_state(state), b"")
    log.read_events = 0
    await _until_tried(log, views)
    assert log.read_events == 2


async def test_a_log_that_cannot_be_folded_does_not_keep_who_stands_by_from_being_ready(
    log: _CountingLog, views: MemoryViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(state: ClusterState, _: list[Event]) -> ClusterState:
        raise CorruptLog(f"cluster {state.cluster}: broken")

    monkeypatch.setattr(ClusterState, "fold_all", broken)
    await _until_tried(log, views)


def _spoil_pods(state: ClusterState, _: _WrongViews) -> None:
    state.pods.clear()


def _spoil_row(_: ClusterState, views: _WrongViews) -> None:
    made = views.live(_CLUSTER)
    assert made is not None
    pods = made[1].pods
    pods |= {uid: replace(row, node="elsewhere") for uid, row in pods.items()}


def _writing(part: str, wrong: Callable[[Any], Any]) -> Callable[[ClusterState, _WrongViews], None]:
    """Have one part of what is written changed on its way."""

    def spoil(_: ClusterState, views: _WrongViews) -> None:
        views.wrong = lambda changes: setattr(changes, part, wrong(getattr(changes, part)))

    return spoil


_spoil_minutes = _writing("occupancy", lambda rows: [replace(row, pods_bound=row.pods_bound + 1) for row in rows])
_spoil_hours = _writing("queues", lambda rows: [replace(row, allocated=row.allocated + 1) for row in rows])
_lose_hours = _writing("decisions", lambda _: [])


def _spoil_once(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[ClusterState], None]) -> None:
    """Have the first state spoilt as soon as the check has it as it should be."""
    trust, spoilt = SelfCheck.trust, []

    def spoiling(self: SelfCheck[ClusterState], state: ClusterState) -> None:
        trust(self, state)
        if not spoilt:
            spoilt.append(state)
            spoil(state)

    monkeypatch.setattr(SelfCheck, "trust", spoiling)


class _Wrong(NamedTuple):
    """What is made wrong, the first of what is said to differ, and how often memory and log are compared."""

    spoil: Callable[[ClusterState, _WrongViews], None]
    part: str
    # Often enough for the whole check, or for the samples in between alone.
    check_s: float = 0.001
    events: list[Event] = _EVENTS[_SEEN : _SEEN + 1]


@pytest.mark.parametrize(
    "wrong",
    [
        _Wrong(_spoil_pods, "/pods"),
        _Wrong(_spoil_pods, "/pods", 600),
        _Wrong(_spoil_row, "/rows/", 600),
        # These are compared once their minute or hour is over.
        _Wrong(_spoil_minutes, "/occupancy/", events=_EVENTS[_SEEN:]),
        _Wrong(_spoil_hours, "/queue_hour/", events=_EVENTS[_SEEN:]),
        _Wrong(_lose_hours, "/decisions_hour/", events=_EVENTS[_SEEN:]),
    ],
)
async def test_read_models_that_a_wrong_state_made_and_wrong_rows_are_made_anew(
    log: _CountingLog, views: _WrongViews, wrong: _Wrong, monkeypatch: pytest.MonkeyPatch
) -> None:
    _spoil_once(monkeypatch, lambda state: wrong.spoil(state, views))
    monkeypatch.setattr(self_check, "_SAMPLES", 1_000_000)
    monkeypatch.setattr(main, "_GATHER_S", 0.0)
    async with _projecting(log, views, check_s=wrong.check_s):
        await log.extend(wrong.events)
        while (await views.generations(_CLUSTER))[-1].number == 1:
            await log.extend([replace(wrong.events[-1], id=uuid4())])
            await asyncio.sleep(0.01)
    (found,) = map(decode_payload, await log.read(_CLUSTER, where=Filter(types=("DifferenceFound",))))
    assert isinstance(found, DifferenceFound)
    assert found.check == "projector"
    assert found.parts[0].startswith(wrong.part)
    (made,) = [made for made in map(views.made, [_CLUSTER], [2]) if made is not None]
    assert {row.node for row in made[1].pods.values()} <= {"", "n0"}


async def test_a_state_that_raises_is_made_anew(
    log: _CountingLog, views: _WrongViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    _spoil_once(monkeypatch, lambda state: state.pods.clear())
    monkeypatch.setattr(main, "_PAUSE_S", 0.0)
    async with _projecting(log, views):
        await log.extend(_EVENTS[_SEEN:])
        while (await views.generations(_CLUSTER))[0].position < len(_EVENTS):
            await log.extend([replace(_EVENTS[-1], id=uuid4())])
            await asyncio.sleep(0.01)
    live = views.live(_CLUSTER)
    assert live is not None
    assert live[1].pods == projected(_EVENTS).pods
