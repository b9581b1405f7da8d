"""The work of Python's garbage collector beside a scheduler; `test_digest.py` has what cycles leave."""

import gc
import weakref
from collections.abc import Iterator

import pytest
from kai_scheduler.scheduler import Collecting


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
