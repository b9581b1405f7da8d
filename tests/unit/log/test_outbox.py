"""The outbox in front of a log that is away, refuses and forgets to answer."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from kaicore.errors import KaiError, LogUnavailable, StaleExpectation
from kaicore.ledger.log import appending
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.outbox import Outbox, OutboxOptions
from kaicore.rules.events.envelope import NewEvent, Unit, UnitOutcome, derived_id
from kaicore.rules.events.payloads import NodeDeleted, PodDeleted

from tests.given.doubles.unreliable import UnreliableLog

CLUSTER = "test"


class Notes:
    """An observer that takes notes."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.dropped_names: list[str] = []
        self.away = asyncio.Event()

    def appended(self, units: Sequence[Unit], outcomes: Sequence[UnitOutcome], seconds: float) -> None:
        assert len(units) == len(outcomes)
        assert seconds >= 0
        self.batches.append(len(units))

    def unavailable(self, error: LogUnavailable) -> None:
        self.away.set()

    def dropped(self, unit: Unit, error: KaiError) -> None:
        self.dropped_names.append(unit.events[0].subject)


def unit(name: str, *, stream: str = "", payload: Any = None) -> Unit:
    return Unit(
        (
            NewEvent(
                id=derived_id(name),
                stream=stream or f"pod/{name}",
                payload=payload or PodDeleted(uid=name, namespace="default", name=name),
                actor="test",
                occurred_at=0,
                subject=name,
            ),
        )
    )


class Running:
    """An outbox with a running task; one second of waiting is none."""

    def __init__(self, log: MemoryLog, expect: Mapping[str, int] | None = None, **options: Any) -> None:
        self.log = log
        self.notes = Notes()
        self.outbox = Outbox(
            log, CLUSTER, observer=self.notes, expect=expect, options=OutboxOptions(retry_s=0.001, **options)
        )

    async def __aenter__(self) -> "Running":
        self.task = asyncio.create_task(self.outbox.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])

    async def subjects(self) -> list[str]:
        return [event.subject for event in await self.log.read(CLUSTER, limit=10_000)]


async def test_units_go_in_order_and_in_batches() -> None:
    names = [str(number) for number in range(25)]
    async with Running(UnreliableLog(), batch=10) as running:
        await running.outbox.put([unit(name) for name in names])
        await running.outbox.flushed()
        assert await running.subjects() == names
        assert running.notes.batches == [10, 10, 5]
        assert running.outbox.pending == 0


async def test_a_log_that_is_away_is_waited_for_and_nothing_is_lost_or_doubled() -> None:
    log = UnreliableLog()
    log.away = True
    async with Running(log) as running:
        await running.outbox.put([unit("a"), unit("b")])
        await running.notes.away.wait()
        await running.outbox.put([unit("c")])
        assert running.outbox.pending == 3
        log.away = False
        await running.outbox.flushed()
        assert await running.subjects() == ["a", "b", "c"]


class ForgetfulLog(UnreliableLog):
    """Appends, and at first does not say so."""

    forgets = 3

    async def append(
        self, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        outcomes = await super().append(cluster, units, expect=expect)
        if self.forgets:
            self.forgets -= 1
            raise LogUnavailable("the answer was lost")
        return outcomes


async def test_unit_whose_answer_was_lost_is_appended_once() -> None:
    async with Running(ForgetfulLog()) as running:
        await running.outbox.put([unit("a"), unit("b")])
        await running.outbox.flushed()
        assert await running.subjects() == ["a", "b"]


class SlowLog(UnreliableLog):
    """Does not get done in time with more than three units."""

    async def append(
        self, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        if len(units) > 3:
            raise LogUnavailable("no answer in time")
        return await super().append(cluster, units, expect=expect)


async def test_a_log_that_is_too_slow_for_a_batch_gets_smaller_ones() -> None:
    names = [str(number) for number in range(12)]
    async with Running(SlowLog(), batch=10, busy_gather_s=0.0) as running:
        await running.outbox.put([unit(name) for name in names])
        await running.outbox.flushed()
        assert await running.subjects() == names
        assert sum(running.notes.batches) == len(names)


async def test_units_that_are_too_large_for_one_append_go_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "MAX_APPEND", 2500)
    names = ["a" * 500, "b" * 500, "c" * 500, "d" * 900]
    async with Running(UnreliableLog()) as running:
        await running.outbox.put([unit(name) for name in names])
        await running.outbox.flushed()
        assert await running.subjects() == names
        assert running.notes.batches == [2, 1, 1]


async def test_a_full_outbox_makes_writers_wait() -> None:
    log = UnreliableLog()
    log.away = True
    async with Running(log, limit=2) as running:
        await running.outbox.put([unit("a"), unit("b")])
        await running.notes.away.wait()
        put = asyncio.create_task(running.outbox.put([unit("c")]))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not put.done()
        log.away = False
        await put
        await running.outbox.flushed()
        assert await running.subjects() == ["a", "b", "c"]


async def test_what_no_log_can_take_is_left_out_by_itself() -> None:
    async with Running(UnreliableLog()) as running:
        await running.outbox.put([unit("taken")])
        conflicting = unit("taken", stream="node/x", payload=NodeDeleted(uid="x", name="x"))
        bad = unit("bad", stream="pod/\0")
        await running.outbox.put([unit("a"), conflicting, unit("b"), bad, unit("c")])
        await running.outbox.flushed()
        assert await running.subjects() == ["taken", "a", "b", "c"]
        assert running.notes.dropped_names == ["taken", "bad"]


async def test_a_fenced_outbox_stops_and_appends_nothing_more() -> None:
    log = UnreliableLog()
    await log.append(CLUSTER, [unit("claim", stream="watcher")])
    async with Running(log, expect={"watcher": 1}) as running:
        await running.outbox.put([unit("a")])
        await running.outbox.flushed()
        await log.append(CLUSTER, [unit("other claim", stream="watcher")])
        await running.outbox.put([unit("b")])
        with pytest.raises(StaleExpectation):
            await running.task
        assert await running.subjects() == ["claim", "a", "other claim"]


async def test_a_fenced_outbox_whose_first_units_are_in_the_log_already() -> None:
    log = UnreliableLog()
    await log.append(CLUSTER, [unit("claim", stream="watcher"), unit("a")])
    async with Running(log, expect={"watcher": 0}) as running:
        await running.outbox.put([unit("a"), unit("b")])
        with pytest.raises(StaleExpectation):
            await running.task
        assert await running.subjects() == ["claim", "a"]


async def test_another_run_goes_on_where_one_was_cancelled() -> None:
    log = UnreliableLog()
    log.away = True
    running = Running(log)
    async with running:
        await running.outbox.put([unit("a")])
        await running.notes.away.wait()
    log.away = False
    async with running:
        await running.outbox.flushed()
        assert await running.subjects() == ["a"]
