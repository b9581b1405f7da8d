"""The reference pages that are made from the code are those that the code makes."""

import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts/docs"))

import devices_reference  # noqa: E402
import reference  # noqa: E402
import settings_reference  # noqa: E402
import shares_reference  # noqa: E402
from kai_cli.main import app  # noqa: E402
from kaicore.rules.events import codec  # noqa: E402

page = cache(reference.page)


@pytest.mark.parametrize("name", reference.PAGES)
def test_reference_page_is_what_the_code_says(name: str) -> None:
    assert (reference.REFERENCE / f"{name}.md").read_text() == page(name), "run: make reference"


def test_reference_has_every_event_type_command_and_program() -> None:
    events, kinds, commands, settings = (page(name) for name in ("events", "kinds", "commands", "settings"))
    assert all(f"`{name}`" in events + kinds for name in codec.event_types())
    assert all(f"\n- `kai {name}" in commands for name in app if not name.startswith("-"))
    packages = [ROOT / "pyproject.toml", *(ROOT / "tools").glob("*/pyproject.toml")]
    programs = [name for path in packages for name in tomllib.loads(path.read_text())["project"]["scripts"]]
    # `kai` and `kubectl-kai` have commands instead of settings.
    assert len(programs) == len(settings_reference.PROGRAMS) + 2
    assert all(f"## `{program}`" in settings for program in programs if program not in ("kai", "kubectl-kai"))


@pytest.mark.parametrize("program", settings_reference.DESCRIBED_ELSEWHERE)
def test_page_of_a_simulator_has_every_setting_of_it(program: str) -> None:
    described = (reference.REFERENCE / settings_reference.DESCRIBED_ELSEWHERE[program]).read_text()
    shared = settings_reference.described(settings_reference.ServiceSettings)
    for name in settings_reference.described(settings_reference.PROGRAMS[program]):
        flags = (f"`--{name.replace('_', '-')}`", f"`--no-{name.replace('_', '-')}`")
        assert name in shared or any(flag in described for flag in flags), name


def test_rows_of_conformance_name_tests_that_there_are() -> None:
    devices = {row.part: row.tests for row in devices_reference.ROWS}
    shares = {row.asked: row.tests for row in (*shares_reference.ROWS, *shares_reference.DEVIATIONS)}
    assert [row for row, tests in (devices | shares).items() if not tests] == []
    named = {tuple(name.split("::")) for tests in (*devices.values(), *shares.values()) for name in tests}
    assert [name for name in named if f"def {name[1]}(" not in (ROOT / name[0]).read_text()] == []


def test_recorded_cases_ask_for_each_row_of_device_conformance() -> None:
    cases = devices_reference.recorded_cases()
    assert [row.part for row in devices_reference.ROWS if row.asks is not None and not any(map(row.asks, cases))] == []
