"""Several builders of one generation of read models."""

import pytest
from kaicore.analysis.ask.hours.kept import CountedHours
from kaicore.analysis.ask.projections.building import Builder, FoldedRows
from kaicore.analysis.ask.projections.projection import HOUR_US
from kaicore.analysis.ask.projections.rows import PodHistory, RowChanges
from kaicore.errors import CorruptLog
from kaicore.ledger.log.memory import MemoryLog
from kaicore.rules.events.envelope import Event, Unit
from kaicore.rules.state.cluster_state import ClusterState

from tests.given.logs.new_events import as_new
from tests.given.logs.projected import story
from tests.simulation.views import MemoryViews

_CLUSTER = "c1"


class _Overtaken(MemoryViews):
    """Read models that another builder moves on while one that begins asks for the rows of pods."""

    other: Builder | None = None

    async def there(self, cluster: str, generation: int) -> list[PodHistory]:
        if (other := self.other) is not None:
            self.other = None
            assert await other.step()
        return await super().there(cluster, generation)


async def _extend(log: MemoryLog, events: list[Event]) -> None:
    await log.append(_CLUSTER, [Unit((as_new(event),)) for event in events])


async def test_a_builder_that_another_one_overtakes_as_it_begins_counts_nothing_twice() -> None:
    log, store, alone, events = MemoryLog(lambda: 1_700_000_000_000_000), _Overtaken(), MemoryViews(), story()
    placed, bound = (
        next(number for number, event in enumerate(events) if event.type == kind) for kind in ("PodPlaced", "PodBound")
    )
    await _extend(log, events[:placed])
    first = await Builder.resume(log, store, _CLUSTER)
    await first.catch_up()
    await _extend(log, events[placed:bound])
    store.other = first
    second = await Builder.resume(log, store, _CLUSTER)
    await second.catch_up()
    await _extend(log, events[bound:])
    await second.catch_up()
    await (await Builder.resume(log, alone, _CLUSTER)).catch_up()
    assert _rows(store) == _rows(alone)
    assert any(row.placements for row in _rows(alone).values())


async def test_a_builder_that_trails_one_beyond_the_logs_end_names_the_missing_event() -> None:
    log, store, events = MemoryLog(lambda: 1_700_000_000_000_000), MemoryViews(), story()
    await _extend(log, events)
    await (await Builder.resume(log, store, _CLUSTER)).catch_up()
    behind = await Builder.beside(log, store, _CLUSTER)
    assert behind is not None
    beyond = len(events) + 3
    await store.save(_CLUSTER, behind.generation, RowChanges(), position=beyond, recorded_at=0)
    with pytest.raises(CorruptLog, match=f"event {len(events) + 1} is missing"):
        await behind.trail()


@pytest.mark.parametrize("step", [1, 7])
async def test_rows_of_minutes_and_hours_are_as_events_make_them_wherever_checks_begin(step: int) -> None:
    log, store, events, now = MemoryLog(lambda: now), MemoryViews(), story(), 0
    for event in events:
        now = event.recorded_at
        await _extend(log, [event])
    builder = await Builder.resume(log, store, _CLUSTER)
    await builder.catch_up()
    hours = set[int]()
    for begin in range(1, len(events)):
        state, rows = (
            ClusterState(_CLUSTER).fold_all(await log.read(_CLUSTER, upto=begin)),
            FoldedRows(log, CountedHours(log, _CLUSTER, labels=())),
        )
        while state.position < len(events):
            await rows.fold(state, min(state.position + step, len(events)))
            hours.update(range(*rows.hours, HOUR_US))
            assert await builder.times_differ(rows) is None
    assert len(hours) > 2


def _rows(store: MemoryViews) -> dict[str, PodHistory]:
    live = store.live(_CLUSTER)
    assert live is not None
    return live[1].pods
