"""Figures against examples worked by hand."""

import pytest
from kaicore.analysis.life.waits import quantile, waits_of
from kaicore.analysis.trial.history import results
from kaicore.analysis.trial.history.reading import Sample
from kaicore.analysis.trial.history.results import JobPlaces

HOUR = 3_600_000_000


def sample(at: float, *, held: int, gpus: int = 8, nodes: int = 2, fragmented: int = 0, stranded: int = 0) -> Sample:
    return Sample(int(at * HOUR), gpus, held, nodes, fragmented, stranded, 0)


#: 2 hours with 4 of 8 GPUs held, 1 hour with 8, then 1 hour in which 4 of 16 are.
DAY = [sample(0, held=4, fragmented=1, stranded=2), sample(2, held=8), sample(3, held=4, gpus=16, nodes=4)]
END = 4 * HOUR


def test_figures_of_a_day_are_those_worked_out_by_hand() -> None:
    assert results.occupancy(DAY, end=END) == (2 * 4 + 8 + 4) / (2 * 8 + 8 + 16), "weighs GPUs and time"
    assert [results.allocation_rate(one) for one in DAY] == [0.5, 1.0, 0.25]
    assert results.mean(DAY, results.allocation_rate, end=END) == (2 * 0.5 + 1.0 + 0.25) / 4, "weighs time alone"
    assert results.fragmentation(DAY[0]) == 0.5
    assert results.mean(DAY, results.fragmentation, end=END) == 0.25
    assert results.gpu_hours(DAY, lambda one: one.stranded, end=END) == pytest.approx(4.0)


def test_a_cluster_without_gpus_or_time_has_figures_of_zero() -> None:
    none = sample(0, held=0, gpus=0, nodes=0)
    assert results.allocation_rate(none) == results.fragmentation(none) == results.occupancy([none], end=END) == 0
    assert results.mean([none], results.allocation_rate, end=0) == 0


def test_quantiles_are_values_that_there_were() -> None:
    assert quantile([], 0.5) is None
    assert quantile([7], 0.99) == 7
    assert [quantile([4, 1, 3, 2], share) for share in (0, 0.25, 0.5, 0.51, 1)] == [1, 1, 2, 3, 4]


def test_jobs_are_told_apart_by_their_gpus() -> None:
    names = [results.size_name(gpus) for gpus in (0, 1, 2, 7, 8, 9, 64, 65, 4096)]
    assert names == ["0", "1", "2-7", "2-7", "8", "9-64", "9-64", "65+", "65+"]


def test_sizes_of_several_runs_ascend_whichever_run_has_them() -> None:
    waits = waits_of([3.0])
    first, second = (
        [results.SizeResult(gpus=gpus, jobs=2, waits=waits) for gpus in sizes] for sizes in (("0", "8"), ("1",))
    )
    wait = waits.text
    assert results.waits_by_size([first, second]) == [
        ("0", 2, [wait, "-"]),
        ("1", 2, ["-", wait]),
        ("8", 2, [wait, "-"]),
    ]


def test_deviation_is_against_the_fewest_nodes_and_domains() -> None:
    # 16 GPUs on nodes of 8 could be on 2 nodes, in one rack of 32 GPUs; they are on 4, in 2 racks.
    job = JobPlaces(16, ("a", "b", "c", "d"), ("r1", "r1", "r2", "r2"))
    assert results.deviation(job, job.nodes, most_gpus=8) == 2.0
    assert results.deviation(job, job.domains, most_gpus=32) == 2.0
    assert results.deviation(JobPlaces(16, ()), ("a", "a", "b"), most_gpus=8) == 1.0


def test_parts_of_a_window_show_means_over_their_time() -> None:
    assert results.binned(DAY, lambda one: one.held, begin=0, end=END, bins=4) == [4, 4, 8, 4]
    assert results.binned(DAY, lambda one: one.held, begin=0, end=END, bins=2) == [4, 6]
    # Before the first sample nothing is known.
    assert results.binned(DAY[1:2], lambda one: one.held, begin=0, end=END, bins=4) == [0, 0, 8, 8]


def test_a_distribution_of_many_values_is_shown_by_its_quantiles() -> None:
    assert results.distribution([3, 1], most=10) == [(1, 0.5), (3, 1.0)]
    assert results.distribution(range(1, 1001), most=4) == [(250, 0.25), (500, 0.5), (750, 0.75), (1000, 1.0)]
