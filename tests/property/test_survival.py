"""The durations of things, whatever runs there were."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.deciding.forecast.runs import Run, Survival, shares_of

from tests.given.examples import examples

_times = st.integers(1, 10_000)
_run = st.builds(
    lambda duration, entered, ended: Run(duration, min(entered, duration - 1), ended), _times, _times, st.booleans()
)
_runs = st.lists(_run, min_size=1, max_size=30)
_share = st.floats(0, 1, exclude_max=True)
#: As `st.text()`, which takes two seconds to find out what UTF-8 can encode.
_text = st.text(st.characters(exclude_categories=["Cs"]))


def remaining(survival: Survival, age: int, share: float) -> int:
    return int(survival.remaining(np.array([age]), np.array([share]))[0])


@settings(deadline=None, max_examples=examples(200))
@given(runs=_runs, age=st.integers(0, 20_000), share=_share, more=_share)
def test_what_runs_goes_on_for_some_time_and_longer_for_a_larger_share(
    runs: list[Run], age: int, share: float, more: float
) -> None:
    survival = Survival(runs)
    low, high = sorted((share, more))
    first, second = remaining(survival, age, low), remaining(survival, age, high)
    assert first == -1 or first >= 1
    assert second == -1 or second >= first >= 1
    assert first != -1 or second == -1
    longer = [run.duration_us for run in runs if run.ended and run.duration_us > age]
    assert int(survival.longer_than(np.array([age]))[0]) == len(longer)
    assert second == -1 or age + second in longer


@settings(deadline=None)
@given(lengths=st.lists(_times, min_size=1, max_size=30), age=st.integers(0, 10_000), share=_share)
def test_runs_that_all_ended_tell_their_own_share(lengths: list[int], age: int, share: float) -> None:
    longer = sorted(length for length in lengths if length > age)
    answer = remaining(Survival([Run(length) for length in lengths]), age, share)
    if not longer:
        assert answer == -1
    else:
        ended = sum(length <= age + answer for length in longer)
        assert sum(length < age + answer for length in longer) / len(longer) <= share + 1e-9
        assert ended / len(longer) >= share - 1e-9


@given(run=_text, scenarios=st.sampled_from([11, 31]))
def test_over_the_scenarios_each_part_of_the_range_comes_once(run: str, scenarios: int) -> None:
    shares = shares_of(run, scenarios)
    assert sorted(int(share * scenarios) for share in shares) == list(range(scenarios))
    assert (shares == shares_of(run, scenarios)).all()
