"""A projector that stands by is ready once it is where the read models are, so that it can take over at once."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest
from kai_projector.main import ProjectorMetrics, follow
from kaicore.analysis.ask.projections.building import Builder
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

from tests.given.logs.new_events import as_new
from tests.given.logs.projected import story
from tests.simulation.views import MemoryViews

_CLUSTER = "c1"
_EVENTS = story()
#: How many of them the projector that leads has taken in.
_SEEN = 12


class _CountingLog(MemoryLog):
    """Counts the events that were read."""

    read_events = 0

    async def read(
        self, cluster: str, *, after: int = 0, upto: int | None = None, limit: int = 1000, where: Filter | None = None
    ) -> list[Event]:
        events = await super().read(cluster, after=after, upto=upto, limit=limit, where=where)
        self.read_events += len(events)
        return events


@pytest.fixture
async def log() -> _CountingLog:
    made = _CountingLog(lambda: 1_700_000_000_000_000)
    await made.append(_CLUSTER, [Unit((as_new(event),)) for event in _EVENTS[:_SEEN]])
    return made


@pytest.fixture
async def views(log: _CountingLog) -> MemoryViews:
    made = MemoryViews()
    await (await Builder.resume(log, made, _CLUSTER)).catch_up()
    log.read_events = 0
    return made


async def _until_tried(log: MemoryLog, views: MemoryViews) -> None:
    """Let a projector stand by until it says that it has the state, or cannot."""
    context, tried = ServiceContext("projector", Health("log"), get_logger()), asyncio.Event()
    metrics = ProjectorMetrics(registry=CollectorRegistry())
    following = asyncio.create_task(
        follow(context, log, views, _CLUSTER, leads=asyncio.Event(), tried=tried, metrics=metrics)
    )
    try:
        async with asyncio.timeout(30):
            await tried.wait()
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def test_who_stands_by_is_at_its_place_when_it_has_read_what_the_read_models_have(
    log: _CountingLog, views: MemoryViews
) -> None:
    await log.append(_CLUSTER, [Unit((as_new(event),)) for event in _EVENTS[_SEEN:]])
    await _until_tried(log, views)
    assert log.read_events == _SEEN


async def test_who_stands_by_begins_from_the_last_saved_state_that_is_not_beyond_the_read_models(
    log: _CountingLog, views: MemoryViews
) -> None:
    await log.append(_CLUSTER, [Unit((as_new(event),)) for event in _EVENTS[_SEEN:]])
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


def _spoil_pods(state: ClusterState, _: MemoryViews) -> None:
    state.pods.clear()


def _spoil_row(_: ClusterState, views: MemoryViews) -> None:
    made = views.live(_CLUSTER)
    assert made is not None
    pods = made[1].pods
    pods |= {uid: replace(row, node="elsewhere") for uid, row in pods.items()}


@pytest.mark.parametrize(
    ("spoil", "check_s"),
    # Often enough for the whole check, and for the samples in between alone.
    [(_spoil_pods, 0.001), (_spoil_pods, 600), (_spoil_row, 600)],
)
async def test_read_models_that_a_wrong_state_made_and_wrong_rows_are_made_anew(
    log: _CountingLog,
    views: MemoryViews,
    spoil: Callable[[ClusterState, MemoryViews], None],
    check_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context, tried, leads = ServiceContext("projector", Health("log"), get_logger()), asyncio.Event(), asyncio.Event()
    metrics = ProjectorMetrics(registry=CollectorRegistry())
    leads.set()
    trust, spoilt = SelfCheck.trust, []

    def spoiling(self: SelfCheck[ClusterState], state: ClusterState) -> None:
        """Spoil the first state as soon as the check has it as it should be."""
        trust(self, state)
        if not spoilt:
            spoilt.append(state)
            spoil(state, views)

    monkeypatch.setattr(SelfCheck, "trust", spoiling)
    monkeypatch.setattr(self_check, "_SAMPLES", 1_000_000)
    following = asyncio.create_task(
        follow(context, log, views, _CLUSTER, leads=leads, tried=tried, metrics=metrics, check_s=check_s)
    )
    try:
        async with asyncio.timeout(30):
            await tried.wait()
            while (await views.generations(_CLUSTER))[-1].number == 1:
                await log.append(_CLUSTER, [Unit((as_new(event),)) for event in _EVENTS[_SEEN : _SEEN + 1]])
                await asyncio.sleep(0.01)
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
    (found,) = map(decode_payload, await log.read(_CLUSTER, where=Filter(types=("DifferenceFound",))))
    assert isinstance(found, DifferenceFound)
    assert found.check == "projector"
    assert found.parts[0].startswith("/rows/" if spoil is _spoil_row else "/pods")
    (made,) = [made for made in map(views.made, [_CLUSTER], [2]) if made is not None]
    assert {row.node for row in made[1].pods.values()} <= {"", "n0"}
