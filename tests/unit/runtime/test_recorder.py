"""A recorder in front of a log that is away, and how it ends."""

import asyncio
from typing import Any

import pytest
from kaicore.errors import ConfigurationError, KaiError, LogError, LogUnavailable, StaleExpectation
from kaicore.ledger.log.outbox import OutboxOptions
from kaicore.ledger.log.port import EventLog, Snapshot
from kaicore.rules.events.envelope import Unit
from kaicore.runtime.service import Health, ServiceContext, get_logger
from kaicore.runtime.service.recorder import Recorder, save_snapshot, until_answered

from tests.given.doubles.unreliable import UnreliableLog
from tests.unit.log.test_outbox import CLUSTER, unit

LOG = "log"


def recorder(log: EventLog, *, flush_s: float = 60, **more: Any) -> tuple[Recorder, ServiceContext]:
    context = ServiceContext(name="test", health=Health(LOG), log=get_logger())
    given = {"options": OutboxOptions(retry_s=0.001), "flush_s": flush_s, **more}
    return Recorder(log, CLUSTER, context=context, condition=LOG, on_dropped=lambda *_: None, **given), context


async def idle() -> None:
    await asyncio.Event().wait()


async def subjects(log: EventLog) -> list[str]:
    return [event.subject for event in await log.read(CLUSTER, after=0, limit=100)]


async def test_units_put_before_the_stop_are_in_the_log_after_it() -> None:
    log = UnreliableLog()
    recording, context = recorder(log)
    recording.outbox.put_now([unit("a"), unit("b")])
    context.stopping.set()
    await recording.run_with(idle())
    assert await subjects(log) == ["a", "b"]
    assert context.health.ready


async def test_a_log_that_stays_away_is_given_up_after_the_flush_time() -> None:
    log = UnreliableLog()
    log.away = True
    recording, context = recorder(log, flush_s=0.02)
    recording.outbox.put_now([unit("a")])
    context.stopping.set()
    async with asyncio.timeout(60):
        await recording.run_with(idle())
    assert recording.outbox.pending == 1
    assert not context.health.ready


class UnkeepingLog(UnreliableLog):
    """Keeps no snapshot, as for a role without the right or a state beyond what a value may have."""

    def __init__(self, error: KaiError) -> None:
        super().__init__()
        self._error = error

    async def save_snapshot(self, cluster: str, snapshot: Snapshot) -> None:
        raise self._error


@pytest.mark.parametrize("error", [LogUnavailable("away"), ConfigurationError("no right"), LogError("too large")])
async def test_a_snapshot_that_cannot_be_saved_ends_no_service(error: KaiError) -> None:
    assert not await save_snapshot(UnkeepingLog(error), CLUSTER, Snapshot("state", 1, "1", b""), get_logger())


async def test_an_expectation_that_fails_while_flushing_is_raised() -> None:
    log = UnreliableLog()
    await log.append(CLUSTER, [unit("a", stream="claim")])
    recording, context = recorder(log, expect={"claim": 0})
    recording.outbox.put_now([unit("b")])
    context.stopping.set()
    with pytest.raises(StaleExpectation):
        await recording.run_with(idle())
    assert await subjects(log) == ["a"]


async def test_a_body_that_fails_ends_the_recorder_with_its_error() -> None:
    async def failing() -> None:
        raise ValueError("body")

    recording, _ = recorder(UnreliableLog())
    with pytest.raises(ValueError, match="body"):
        await recording.run_with(failing(), idle())


async def test_an_unanswered_question_is_asked_until_there_is_an_answer() -> None:
    _, context = recorder(UnreliableLog())
    answers: list[LogUnavailable | list[Unit]] = [LogUnavailable("away"), LogUnavailable("away"), []]
    unmet: list[str | None] = []

    async def ask() -> list[Unit]:
        unmet.append(context.health.conditions[LOG])
        match answers.pop(0):
            case LogUnavailable() as error:
                raise error
            case answer:
                return answer

    assert await until_answered(context, LOG, ask, retry_s=0.001) == []
    assert unmet == ["not yet", "away", "away"]
    assert context.health.ready


async def test_an_unanswered_question_is_dropped_when_the_service_stops() -> None:
    _, context = recorder(UnreliableLog())

    async def ask() -> int:
        context.stopping.set()
        raise LogUnavailable("away")

    assert await until_answered(context, LOG, ask, retry_s=60) is None
