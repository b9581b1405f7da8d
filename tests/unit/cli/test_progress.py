"""Progress of long commands: a line that is written over on a terminal, one every half a minute anywhere else."""

import io
import sys

import pytest
from kai_cli import output as module
from kai_cli.output import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_on_a_terminal_the_line_is_written_over_and_goes_at_the_end(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("replaying") as progress:
        progress(1, 68_000)
        assert terminal.getvalue() == "", "what is done soon needs no line"
        clock[0] += 2
        progress(28_000, 68_000)
        assert terminal.getvalue().endswith("replaying  41 % (28,000 of 68,000)  14,000/s  2 s, 3 s left")
        clock[0] += 1
        progress(68_000, 68_000)
        assert terminal.getvalue().endswith("\r\x1b[2K")
        clock[0] += 0.1
        progress(1, 10)
        assert terminal.getvalue().endswith("\r\x1b[2K"), "what comes next begins anew"


def test_where_there_is_no_terminal_a_line_is_written_every_half_a_minute(
    monkeypatch: pytest.MonkeyPatch, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("replaying") as progress:
        for _ in range(5):
            clock[0] += 14
            progress(1_000, 13_000)
    assert capsys.readouterr().err == "replaying  7 % (1,000 of 13,000)  24/s  42 s, 8 min 24 s left\n"
