"""Cycles decide as when the digests were last renewed; `tests/measured/digest` says how to look at a difference.

Nor do they leave anything that only Python's garbage collector finds: it would stop a scheduler at any moment.
"""

import gc
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from kaicore.rules.deciding import cycle_run
from kaicore.rules.engine.decisions import CycleResult

from tests.given.doubles.garbage import collector_as_before
from tests.measured.digest.engine import ENGINE_VERSION
from tests.measured.digest.families import IN_THE_GATE, StoryRun, expected, run_story


@dataclass(frozen=True, slots=True)
class Told:
    """The stories of a family; of each cycle of the first one, how many objects only the collector found after it."""

    stories: tuple[StoryRun, ...]
    left: tuple[int, ...]


@cache
def told(family: str) -> Told:
    # What is made once is made by the others.
    others = [run_story(family, number) for number in range(1, IN_THE_GATE[family])]
    run_cycle, left = cycle_run.run_cycle, list[int]()

    def watched(*args: Any, **options: Any) -> CycleResult:
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            result = run_cycle(*args, **options)
            left.append(gc.collect())
        finally:
            gc.enable()
        return result

    with pytest.MonkeyPatch.context() as patched, collector_as_before():
        patched.setattr(cycle_run, "run_cycle", watched)
        first = run_story(family, 0)
    return Told((first, *others), tuple(left))


@pytest.mark.parametrize("family", IN_THE_GATE)
def test_cycles_of_a_known_engine_version_decide_as_recorded(family: str) -> None:
    stories = told(family).stories
    before = expected().stories[family]
    assert [f"{family}/{number}" for number, one in enumerate(stories) if one.digest != before[number]] == []
    assert sum(one.decisions for one in stories) > 2 * sum(one.cycles for one in stories), "next to nothing is decided"


def test_digests_are_of_this_engine_version() -> None:
    assert expected().engine_version == ENGINE_VERSION


@pytest.mark.parametrize("family", IN_THE_GATE)
def test_a_cycle_leaves_nothing_that_only_the_collector_finds(family: str) -> None:
    left = told(family).left
    assert left
    assert not any(left)
