"""Figures that compare scheduling policies: pure functions of samples and waiting times.

Source of the five with names in capitals: "Kant: An Efficient Unified Scheduling System for Large-Scale AI Clusters"
(ZTE, arXiv 2510.01256). Each function documents its exact computation; decision 0295 lists our own additions.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kaicore.analysis.history.samples import Sample

#: Sizes of jobs by which waiting times are told apart: GPUs from one of these up to below the next.
SIZES = (0, 1, 2, 8, 9, 65)
_SIZE_NAMES = ("0", "1", "2-7", "8", "9-64", "65+")


def integral(samples: Sequence[Sample], value: Callable[[Sample], float], *, end: int) -> float:
    """Return a value summed over time, times microseconds; each sample holds until the next one, the last to `end`."""
    ends = [*(sample.at for sample in samples[1:]), end]
    return sum(value(sample) * max(until - sample.at, 0) for sample, until in zip(samples, ends, strict=True))


def mean(samples: Sequence[Sample], value: Callable[[Sample], float], *, end: int) -> float:
    """Return a value's mean over time; 0 where there is no time."""
    time = integral(samples, lambda _: 1.0, end=end)
    return integral(samples, value, end=end) / time if time else 0.0


def allocation_rate(sample: Sample) -> float:
    """GAR, GPU Allocation Ratio: the share of the GPUs that is held at a moment; 0 where there are none."""
    return sample.held / sample.gpus if sample.gpus else 0.0


def occupancy(samples: Sequence[Sample], *, end: int) -> float:
    """SOR, Scheduling Occupancy Rate: GPU-hours held of GPU-hours there were, over the window."""
    there = integral(samples, lambda sample: sample.gpus, end=end)
    return integral(samples, lambda sample: sample.held, end=end) / there if there else 0.0


def fragmentation(sample: Sample) -> float:
    """GFR, GPU Node Fragmentation Ratio: of the nodes with GPUs, the share of which some are held and some are not."""
    return sample.fragmented / sample.nodes if sample.nodes else 0.0


def gpu_hours(samples: Sequence[Sample], value: Callable[[Sample], float], *, end: int) -> float:
    """Return a number of GPUs summed over time, in hours."""
    return integral(samples, value, end=end) / 3.6e9


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that so large a share of the values does not exceed; None of none.

    Args:
        values: in any order.
        share: from 0 to 1; 0.5 for the median.
    """
    if not values:
        return None
    rank = -(-share * len(values) // 1)
    return sorted(values)[max(int(rank), 1) - 1]


def size_name(gpus: int) -> str:
    """Return which of `SIZES` a job is of, in words: `0`, `1`, `2-7`, `8`, `9-64`, `65+`."""
    return next(name for least, name in zip(reversed(SIZES), reversed(_SIZE_NAMES), strict=True) if gpus >= least)


@dataclass(frozen=True, slots=True)
class JobPlaces:
    """Where the pods of a job started.

    Attributes:
        gpus: that they hold together.
        nodes: names, one for each pod.
        domains: of these nodes, as far as they are in any; none where no topology is known.
    """

    gpus: int
    nodes: tuple[str, ...]
    domains: tuple[str, ...] = ()


def node_deviation(job: JobPlaces, *, most_gpus: int) -> float:
    """JTTED, nodes: on how many nodes a job is, divided by the fewest that its GPUs could be on.

    Args:
        job: with GPUs.
        most_gpus: that any node has.
    """
    return len(set(job.nodes)) / max(-(-job.gpus // max(most_gpus, 1)), 1)


def domain_deviation(job: JobPlaces, *, most_gpus: int) -> float:
    """JTTED, topology: in how many domains a job is, divided by the fewest that its GPUs could be in.

    Args:
        job: with GPUs, and with domains.
        most_gpus: that any domain has.
    """
    return len(set(job.domains)) / max(-(-job.gpus // max(most_gpus, 1)), 1)


def binned(
    samples: Sequence[Sample], value: Callable[[Sample], float], *, begin: int, end: int, bins: int
) -> list[float]:
    """Return a value's means over equal parts of a window; before the first sample it is 0."""
    width = max((end - begin) / bins, 1.0)
    sums = [0.0] * bins
    ends = [*(sample.at for sample in samples[1:]), end]
    for sample, until in zip(samples, ends, strict=True):
        at, last = max(sample.at - begin, 0), min(until, end) - begin
        for place in range(min(int(at / width), bins - 1), min(int(last / width), bins - 1) + 1):
            overlap = min(last, (place + 1) * width) - max(at, place * width)
            sums[place] += value(sample) * max(overlap, 0.0)
    return [total / width for total in sums]


def distribution(values: Iterable[float], *, most: int) -> list[tuple[float, float]]:
    """Return a distribution as points: values in order, each with the share that does not exceed it.

    Args:
        values: in any order.
        most: points at most; of more the quantiles.
    """
    ordered = sorted(values)
    count = len(ordered)
    places = sorted(
        {-(-count * number // most) for number in range(1, most + 1)} if count > most else range(1, count + 1)
    )
    return [(ordered[place - 1], place / count) for place in places]
