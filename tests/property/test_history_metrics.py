"""Figures of runs, whatever was sampled."""

from hypothesis import given
from hypothesis import strategies as st
from kaicore.analysis.trial.history import results
from kaicore.analysis.trial.history.reading import Sample

END = 10_000


@st.composite
def _samples(draw: st.DrawFn) -> list[Sample]:
    times = sorted(draw(st.sets(st.integers(0, END - 1), min_size=1, max_size=12)))
    samples = []
    for at in times:
        gpus, nodes = draw(st.integers(0, 64)), draw(st.integers(0, 8))
        held, fragmented = draw(st.integers(0, gpus)), draw(st.integers(0, nodes))
        samples.append(Sample(at, gpus, held, nodes, fragmented, draw(st.integers(0, gpus - held)), 0))
    return samples


@given(_samples())
def test_shares_are_between_none_and_all(samples: list[Sample]) -> None:
    assert 0 <= results.occupancy(samples, end=END) <= 1
    for figure in (results.allocation_rate, results.fragmentation):
        mean = results.mean(samples, figure, end=END)
        assert min(map(figure, samples)) - 1e-9 <= mean <= max(map(figure, samples)) + 1e-9


@given(_samples(), st.integers(1, 40))
def test_parts_of_a_window_sum_up_to_the_whole(samples: list[Sample], bins: int) -> None:
    parts = results.binned(samples, lambda one: one.held, begin=0, end=END, bins=bins)
    whole = results.integral(samples, lambda one: one.held, end=END)
    assert abs(sum(parts) * END / bins - whole) < 1e-6 * max(whole, 1)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=200), st.integers(1, 50))
def test_a_distribution_rises_to_all_of_the_values(values: list[float], most: int) -> None:
    steps = results.distribution(values, most=most)
    assert len(steps) <= max(most, len(values))
    assert steps == sorted(steps)
    assert steps[-1] == (max(values), 1.0)
    for value, share in steps:
        assert sum(one <= value for one in values) / len(values) >= share - 1e-9
