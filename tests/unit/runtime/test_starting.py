"""The one starter of processes: exit codes, and works that run beside a body."""

import asyncio

import pytest
from kaicore.errors import ClusterUnavailable, ConfigurationError, KaiError
from kaicore.runtime import process_context
from kaicore.runtime.agent.process import AgentContext, AgentLog
from kaicore.runtime.process_context import Health, beside, run_until_stopped, served, start


def never(_: object) -> int:
    raise AssertionError("started")


def test_settings_that_cannot_work_end_a_process_before_it_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> object:
        raise ConfigurationError("--shard: is empty")

    monkeypatch.setattr("sys.argv", ["kai-x"])
    assert start("x", read=read, run=never) == 2
    assert capsys.readouterr().err == "kai-x: --shard: is empty\n"


def test_a_process_without_its_supervisor_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["kai-x"])
    monkeypatch.setenv("KAI_PARENT_PID", "1073741824")
    assert start("x", read=lambda: None, run=never) == 1


@pytest.mark.parametrize(
    ("error", "code"), [(None, 0), (ConfigurationError("no such file"), 2), (ClusterUnavailable("no answer"), 1)]
)
async def test_exit_code_follows_from_the_error_that_ended_the_body(error: KaiError | None, code: int) -> None:
    async def body() -> None:
        if error is not None:
            raise error

    assert await served(AgentContext("x", Health(), AgentLog("x")), body()) == code


async def test_work_beside_a_body_has_ended_when_the_body_has() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    async with beside(work()):
        await asyncio.sleep(0)
    assert ended == ["work"]


async def test_a_body_that_goes_on_after_it_is_cancelled_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_context, "STOP_GRACE_S", 0)
    context, cancelled = AgentContext("x", Health(), AgentLog("x")), 0

    async def deaf() -> None:
        # As `asyncio.wait_for` of Python 3.11 may have it.
        nonlocal cancelled
        while cancelled < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled += 1

    context.stopping.set()
    running = asyncio.ensure_future(run_until_stopped(context, deaf()))
    ended, _ = await asyncio.wait({running}, timeout=10)
    assert ended, "it waits for a body that nobody cancels"
    assert cancelled == 2
