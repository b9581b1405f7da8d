"""The waits before a failed thing is tried again."""

import pytest
from kaicore.backoff import backoff, jittered


@pytest.mark.parametrize(("failures", "wait"), [(0, 0), (1, 5), (2, 10), (4, 40), (5, 60), (10**9, 60)])
def test_wait_doubles_with_each_failure_up_to_the_longest(failures: int, wait: int) -> None:
    assert backoff(failures, first=5, most=60) == wait
    assert backoff(failures, first=0.5, most=6.0) == wait / 10


def test_jitter_leaves_between_half_and_all_of_a_wait() -> None:
    assert [jittered(8.0, jitter) for jitter in (0.0, 0.5, 1.0)] == [4.0, 6.0, 8.0]
