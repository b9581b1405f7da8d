"""Python's garbage collector for tests that set it up in their own way."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_as_before() -> Iterator[None]:
    """Leave the collector as it was: it looks through what is made from now on (`tests/conftest.py`)."""
    thresholds = gc.get_threshold()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*thresholds)
