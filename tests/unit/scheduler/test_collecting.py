"""The work of Python's garbage collector beside a scheduler; `test_digest.py` has what cycles leave."""

import gc
import weakref

from kai_scheduler.scheduler import Collecting

from tests.given.doubles.garbage import collector_as_before


class Looped:
    def __init__(self) -> None:
        self.me = self


def test_what_only_the_collector_finds_is_found_in_an_idle_moment_once_an_hour_if_a_cycle_has_been_since() -> None:
    now = [0.0]
    with collector_as_before():
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
        lost = weakref.ref(Looped())
        gc.freeze()
        now[0] += 3600
        collecting.idle()
        assert lost() is not None
