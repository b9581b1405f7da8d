"""Months that are sealed, verified, and corrected."""

from pathlib import Path

import pytest
from kai_cli.history.report import check_text
from kaicore.analysis.ask.hours.sealing import seal_month, verify_month
from kaicore.errors import ConfigurationError
from kaicore.ledger.log.memory import MemoryLog

from tests.given.logs.exported import write_file
from tests.given.logs.reading import everything
from tests.given.logs.recorded_history import log_of
from tests.given.processes.kai_commands import kai
from tests.unit.hours.test_report import story

_NOVEMBER = "2026-11"


async def _with_seal(log: MemoryLog) -> MemoryLog:
    await seal_month(log, "c1", _NOVEMBER, now=1)
    return log


async def test_a_sealed_month_is_verified_and_the_same_one_is_not_sealed_twice() -> None:
    log = await log_of(story())
    sealed, position = await seal_month(log, "c1", _NOVEMBER, now=1)
    assert (sealed.month, sealed.corrects) == (_NOVEMBER, 0)
    assert sealed.figures["held"] == pytest.approx(4 * 3_600_000, abs=100)
    figures = [sealed.figures[name] for name in ("capacity", "held", "free", "out_of_service")]
    assert figures[0] == pytest.approx(sum(figures[1:]), abs=3), "whole seconds of exact sums"
    assert (await seal_month(log, "c1", _NOVEMBER, now=2))[1] == position
    check = await verify_month(log, "c1", _NOVEMBER)
    assert (check.same, check.seal, check.seals) == (True, position, 1)


async def test_a_log_that_was_rewritten_does_not_have_the_account_that_was_sealed() -> None:
    sealed = await everything(await _with_seal(await log_of(story())), "c1")
    lost = [event for event in sealed if not (event.type == "PodObserved" and b"Running" in bytes(event.body))]
    rewritten = await log_of(lost)
    check = await verify_month(rewritten, "c1", _NOVEMBER)
    assert not check.same
    assert "idle" in check_text(check)
    with pytest.raises(ConfigurationError, match="is counted otherwise now"):
        await seal_month(rewritten, "c1", _NOVEMBER, now=3)
    corrected, position = await seal_month(rewritten, "c1", _NOVEMBER, now=3, reason="two reports were lost")
    assert (corrected.corrects, corrected.reason) == (check.seal, "two reports were lost")
    again = await verify_month(rewritten, "c1", _NOVEMBER)
    assert (again.same, again.seal, again.seals) == (True, position, 2)


async def test_a_month_that_is_not_over_or_not_sealed_is_refused() -> None:
    log = await log_of(story())
    with pytest.raises(ConfigurationError, match="is not over"):
        await seal_month(log, "c1", "2026-12", now=1)
    with pytest.raises(ConfigurationError, match="is not sealed"):
        await verify_month(log, "c1", _NOVEMBER)


async def test_the_command_verifies_a_month_of_an_exported_log(tmp_path: Path) -> None:
    log = await _with_seal(await log_of(story()))
    file = str(write_file(tmp_path / "c1.log.gz", await everything(log, "c1")))
    verified = kai("report", "verify", "--file", file, "--month", _NOVEMBER)
    assert (verified.returncode, "the same" in verified.stdout) == (0, True)
    refused = kai("report", "seal", "--file", file, "--month", _NOVEMBER)
    assert (refused.returncode, "only read" in refused.stderr) == (2, True)
