"""`kai` commands called in the tests' own process, where it matters which clock, folder or variables they have."""

import sys
from collections.abc import Callable

import pytest
from kai_cli.main import main

#: Takes the words of a command; returns its exit code, and all that it printed.
Run = Callable[..., tuple[int, str]]


def caller(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["kai", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out + output.err

    return run
