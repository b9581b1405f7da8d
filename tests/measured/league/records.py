"""Figures of a run over time, from its records: the same function for the engine and for every baseline.

GAR, SOR, GFR, JWTD and JTTED are the product's own, with their source in `kaicore.analysis.trial.history.results`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import NamedTuple

import numpy as np
from kaicore.analysis.life.waits import quantile
from kaicore.analysis.trial.history import results
from kaicore.analysis.trial.history.reading import Sample

from tests.measured.league.jobs import HOUR_S, Job, Setting

#: Part of the time after whose arrivals nothing has to have started by the end, and from which GAR and GFR count.
_SETTLED, _WARM = 0.8, 0.2
#: Shorter runs count as so long in slowdowns (Feitelson's bounded slowdown), seconds.
_SHORTEST_S = 10
_SECOND_US = 1_000_000


class Stint(NamedTuple):
    """A pod on a node: from when, until when, which row, and how many GPUs it held; seconds."""

    begin: int
    end: int
    row: int
    gpus: int


@dataclass(slots=True)
class Record:
    """The fate of a job.

    Attributes:
        started: when all of its pods were on nodes first, seconds; None if they never were.
        rows: the pods' nodes then.
        stints: of all of its pods.
        evicted: how many of its pods were.
        lost_gpu_s: the work that they lost, GPU-seconds.
        ended: when it had run to its end, seconds; None if it had not.
    """

    job: Job
    started: int | None = None
    rows: tuple[int, ...] = ()
    stints: list[Stint] = field(default_factory=list)
    evicted: int = 0
    lost_gpu_s: int = 0
    ended: int | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """The outcome of a run; waits of what has not started by the end count until then.

    Attributes:
        gar: GPUs held, per cent: the mean after the time to warm up.
        sor: GPU-hours held of those there were, per cent, from the first moment on.
        gfr: nodes of which some GPUs are held and some are not, per cent, after the time to warm up.
        mean_h, p50_h, p99_h: waits (JWTD), hours.
        by_size: mean waits by GPUs, hours.
        slowdown: mean of wait and run, divided by the run; of a job that was evicted, until it ended in the end.
        evicted: pods.
        moved: those in per cent of the pods that started.
        lost_h: GPU-hours of work that evictions cost.
        useful: GPU-hours held less those, of those there were, per cent.
        jtted_nodes, jtted_domains: nodes and access switches of jobs of several pods, by the fewest; None of none.
        worst_h: the worst wait of jobs of at least a quarter of the largest, hours.
        never: jobs that arrived early enough and never started.
    """

    gar: float
    sor: float
    gfr: float
    mean_h: float
    p50_h: float
    p99_h: float
    by_size: dict[str, float]
    slowdown: float
    evicted: int
    moved: float
    lost_h: float
    useful: float
    jtted_nodes: float | None
    jtted_domains: float | None
    worst_h: float
    never: int


def figures(records: Sequence[Record], given: Setting) -> Figures:
    until = given.until
    every = list(_samples(records, given))
    warm = _from(every, int(until * _WARM) * _SECOND_US)
    early = [record for record in records if record.job.arrives <= until * _SETTLED]
    waits = [_wait(record, until) for record in early]
    sizes: dict[str, list[int]] = defaultdict(list)
    for record, wait in zip(early, waits, strict=True):
        sizes[results.size_name(record.job.gpus)].append(wait)
    largest = max(record.job.gpus for record in records)
    end = until * _SECOND_US
    p50, p99 = (quantile(waits, share) or 0.0 for share in (0.5, 0.99))
    by_nodes, by_domains = _jtted(records, given)
    evicted = sum(record.evicted for record in records)
    occupied, lost_gpu_s = results.occupancy(every, end=end), sum(record.lost_gpu_s for record in records)
    return Figures(
        gar=100 * results.mean(warm, results.allocation_rate, end=end),
        sor=100 * occupied,
        gfr=100 * results.mean(warm, results.fragmentation, end=end),
        mean_h=mean(waits) / HOUR_S,
        p50_h=p50 / HOUR_S,
        p99_h=p99 / HOUR_S,
        by_size={name: mean(of_size) / HOUR_S for name, of_size in sizes.items()},
        slowdown=mean(_slowdown(record, until) for record in early),
        evicted=evicted,
        moved=100 * evicted / max(sum(one.job.pods for one in records if one.started is not None), 1),
        lost_h=lost_gpu_s / HOUR_S,
        useful=100 * (occupied - lost_gpu_s / (until * int(given.nodes.gpus.sum()))),
        jtted_nodes=by_nodes,
        jtted_domains=by_domains,
        worst_h=max(w for one, w in zip(early, waits, strict=True) if one.job.gpus * 4 >= largest) / HOUR_S,
        never=sum(record.started is None for record in early),
    )


def _wait(record: Record, until: int) -> int:
    return (until if record.started is None else record.started) - record.job.arrives


def _slowdown(record: Record, until: int) -> float:
    """Return wait and run, divided by the run; a moved job's wait goes on until its work is done."""
    runs, waits = record.job.runs, _wait(record, until)
    if record.evicted:
        waits = (until if record.ended is None else record.ended) - record.job.arrives - runs
    return (max(waits, 0) + runs) / max(runs, _SHORTEST_S)


def _samples(records: Iterable[Record], given: Setting) -> Iterable[Sample]:
    """Yield how the GPUs stand, whenever that changes; the first sample is at 0."""
    changes: dict[int, Counter[int]] = {0: Counter()}
    for record in records:
        for stint in record.stints:
            if stint.gpus and stint.begin < given.until:
                changes.setdefault(stint.begin, Counter())[stint.row] += stint.gpus
                changes.setdefault(min(stint.end, given.until), Counter())[stint.row] -= stint.gpus
    gpus = given.nodes.gpus
    held, total = np.zeros(len(gpus), np.int64), int(gpus.sum())
    for at in sorted(changes):
        for row, change in changes[at].items():
            held[row] += change
        assert ((held >= 0) & (held <= gpus)).all(), "a node has more GPUs held than it has"
        yield Sample(
            at=at * _SECOND_US,
            gpus=total,
            held=int(held.sum()),
            nodes=int((gpus > 0).sum()),
            fragmented=int(((held > 0) & (held < gpus)).sum()),
            stranded=0,
            waiting=0,
        )


def _from(samples: Sequence[Sample], begin: int) -> list[Sample]:
    """Return the samples from a moment on; what stands then is the first."""
    last = max(number for number, sample in enumerate(samples) if sample.at <= begin)
    first = samples[last]
    rest = [sample for sample in samples[last + 1 :] if sample.at > begin]
    return [
        Sample(begin, first.gpus, first.held, first.nodes, first.fragmented, 0, 0),
        *rest,
    ]


def _jtted(records: Iterable[Record], given: Setting) -> tuple[float | None, float | None]:
    """Return the mean deviations in nodes and in access switches, of jobs of several pods that started."""
    most, of_domain = int(given.nodes.gpus.max()), Counter[str]()
    for domain, gpus in zip(given.domains, given.nodes.gpus.tolist(), strict=False):
        of_domain[domain] += gpus
    by_nodes, by_domains = [], []
    for record in records:
        if len(record.rows) > 1:
            domains = tuple(given.domains[row] for row in record.rows) if given.domains else ()
            places = results.JobPlaces(record.job.gpus, tuple(str(row) for row in record.rows), domains)
            by_nodes.append(results.deviation(places, places.nodes, most_gpus=most))
            if domains:
                by_domains.append(results.deviation(places, places.domains, most_gpus=max(of_domain.values())))
    return mean(by_nodes) if by_nodes else None, mean(by_domains) if by_domains else None
