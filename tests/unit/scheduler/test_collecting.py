"""The work of Python's garbage collector beside a scheduler."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from kai_scheduler.scheduler import Collecting
from kaicore.rules.deciding import cycle_run
from kaicore.rules.engine.decisions import CycleResult

from tests.digest.families import IN_THE_GATE, run_story


class Looped:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def collector() -> Iterator[None]:
    """Leave the collector as it was."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("family", IN_THE_GATE)
def test_a_cycle_leaves_nothing_that_only_the_collector_finds(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
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

    run_story(family, 0)  # What is made once is made now.
    monkeypatch.setattr(cycle_run, "run_cycle", watched)
    run_story(family, 0)
    assert left
    assert not any(left)


@pytest.mark.usefixtures("collector")
def test_what_only_the_collector_finds_is_found_in_an_idle_moment_once_an_hour() -> None:
    now = [0.0]
    collecting = Collecting(monotonic=lambda: now[0])
    lost = weakref.ref(Looped())
    collecting.cycle_is_over()
    gc.collect()
    now[0] += 3599
    collecting.idle()
    assert lost() is not None
    now[0] += 1
    collecting.idle()
    assert lost() is None
