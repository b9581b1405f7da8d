"""Use over time: what was used when, and what of it counts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.errors import ConfigurationError
from kaicore.rules.model.pod import Amounts
from kaicore.rules.queues.division import HOUR_US, USAGE_SCALE, FairShareConfig
from kaicore.rules.queues.usage import UsageReader, UseHistory, halved

START = 500_000 * HOUR_US
A, B = ("a", ""), ("b", "")


def parts(
    histories: dict[tuple[str, str], UseHistory], hours: int, config: FairShareConfig, reader: UsageReader | None = None
) -> dict[str, int]:
    """Thousandths of 10 GPUs that each used, so many hours after the start."""
    now = START + hours * HOUR_US
    by_queue = (reader or UsageReader()).parts(
        histories, config, totals={"gpu": 10}, since_us=START, recorded_us=now, now_us=now
    )
    return {name[0]: amounts.get("gpu", 0) * 1000 // USAGE_SCALE for name, amounts in by_queue.items()}


def history(*changes: tuple[int, int]) -> UseHistory:
    """GPUs more or less, at hours after the start."""
    made = UseHistory(settled_ms=START // 1000)
    for hour, gpus in changes:
        made.change({"gpu": abs(gpus)}, sign=1 if gpus > 0 else -1, at_us=START + hour * HOUR_US)
    return made


def test_use_is_part_of_what_there_was_since_the_log_began() -> None:
    histories = {A: history((0, 10), (2, -10)), B: history((2, 5))}
    assert parts(histories, 4, FairShareConfig()) == {"a": 500, "b": 250}


def test_a_sliding_window_forgets_what_is_before_it() -> None:
    histories = {A: history((0, 10), (2, -10)), B: history((2, 5))}
    assert parts(histories, 4, FairShareConfig(window_hours=2)) == {"a": 0, "b": 500}


def test_tumbling_windows_begin_anew() -> None:
    config = FairShareConfig(window_hours=4, tumbling=True)
    histories = {A: history((0, 10))}
    assert parts(histories, 3, config) == {"a": 1000}
    # The start is the first hour of a window, and so is the fourth hour after it.
    histories = {A: history((0, 10), (4, -5))}
    assert parts(histories, 6, config) == {"a": 500}


def test_use_of_one_half_life_ago_counts_half() -> None:
    histories = {A: history((0, 10), (1, -10)), B: history((1, 10))}
    # Hours of weights 1/2 and 1, and the one that has just begun.
    assert parts(histories, 2, FairShareConfig(half_life_hours=1)) == {"a": 333, "b": 666}


@settings(deadline=None)
@given(st.integers(0, 2000), st.integers(1, 500))
def test_halved_is_a_power_of_one_half(age: int, half_life: int) -> None:
    exact = 2**32 * 0.5 ** (age / half_life)
    assert abs(halved(age, half_life) - exact) <= exact * 2e-5 + 1


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3 * HOUR_US), st.integers(0, 9)), max_size=8),
    st.lists(st.integers(0, 30 * HOUR_US), max_size=5),
)
def test_it_does_not_matter_when_use_is_written_down_or_read(changes: list[tuple[int, int]], looks: list[int]) -> None:
    config = FairShareConfig(window_hours=3, half_life_hours=2)
    plain, looked_at = UseHistory(settled_ms=START // 1000), UseHistory(settled_ms=START // 1000)
    reader = UsageReader()
    now, held = START, 0
    events = [(wait, gpus, False) for wait, gpus in changes] + [(wait, 0, True) for wait in looks]
    for wait, gpus, look in events:
        now += wait
        if look:
            looked_at.settle(now)
            arguments = {"totals": {"gpu": 10}, "since_us": START, "recorded_us": now, "now_us": now}
            fresh = UsageReader().parts({A: plain}, config, **arguments)
            assert reader.parts({A: looked_at}, config, **arguments) == fresh
        else:
            for one in (plain, looked_at):
                change: Amounts = {"gpu": abs(gpus - held)}
                one.change(change, sign=1 if gpus >= held else -1, at_us=now)
            held = gpus
    plain.settle(now)
    looked_at.settle(now)
    assert plain == looked_at


@pytest.mark.parametrize("setting", [{"k_milli": -1}, {"window_hours": 0}, {"reclaim_margin_milli": 999}])
def test_settings_that_cannot_work_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(setting))):
        FairShareConfig(**setting)
