"""The outcome of a run in figures, the same for the recorded run and for simulated ones.

The figures are pure functions of samples and waiting times, with the wording for people. Source of the five with names
in capitals: "Kant: An Efficient Unified Scheduling System for Large-Scale AI Clusters" (ZTE, arXiv 2510.01256). Each
function documents its exact computation; decision 0295 lists our own additions.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from kaicore.analysis.ask.projections.capacity import gpus_held
from kaicore.analysis.json_spelling import Answer
from kaicore.analysis.life.pod_stories import PodStory, StoryEnd
from kaicore.analysis.life.waits import Waits, quantile, wait_text, waits_of
from kaicore.analysis.trial.history.reading import History, Sample
from kaicore.rules.model.gpu_share import WHOLE
from kaicore.rules.state.views import FleetView

#: Sizes of jobs by which waiting times are distinguished: GPUs from one of these up to below the next.
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
    """GFR, GPU Node Fragmentation Ratio: the share of the nodes with GPUs that have both held and free ones."""
    return sample.fragmented / sample.nodes if sample.nodes else 0.0


def gpu_hours(samples: Sequence[Sample], value: Callable[[Sample], float], *, end: int) -> float:
    """Return a number of GPUs summed over time, in hours."""
    return integral(samples, value, end=end) / 3.6e9


def size_name(gpus: float) -> str:
    """Return which of `SIZES` a job is of, in words: `0`, `1`, `2-7`, `8`, `9-64`, `65+`; a part counts as a GPU."""
    whole = ceil(gpus)
    return next(name for least, name in zip(reversed(SIZES), reversed(_SIZE_NAMES), strict=True) if whole >= least)


@dataclass(frozen=True, slots=True)
class JobPlaces:
    """The domains where a job's pods started.

    Attributes:
        gpus: that they hold together.
        domains: of these nodes, as far as they are in any; none where no topology is known.
    """

    gpus: float
    nodes: tuple[str, ...]
    domains: tuple[str, ...] = ()


def deviation(job: JobPlaces, places: Sequence[str], *, most_gpus: int) -> float:
    """JTTED: over how many places a job is spread, nodes or domains, divided by the fewest its GPUs could be in."""
    return len(set(places)) / max(ceil(job.gpus / max(most_gpus, 1)), 1)


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
        most: points at most; of more the quantiles.
    """
    ordered = sorted(values)
    count = len(ordered)
    places = sorted(
        {-(-count * number // most) for number in range(1, most + 1)} if count > most else range(1, count + 1)
    )
    return [(ordered[place - 1], place / count) for place in places]


#: Parts of the window over which plots show means, and points of a distribution.
BINS, POINTS = 120, 100


class QueueResult(Answer, frozen=True, kw_only=True):
    """The figures of a queue's pods.

    Attributes:
        queue: as the groups name it; `namespace/NAME` for pods of groups that name none.
        pods: that waited in the window, successors of lost ones not counted.
        waits: until they started first.
    """

    queue: str
    pods: int
    started: int
    finished: int
    rejections: int
    preemptions: int
    waits: Waits
    gpu_hours: float


class SizeResult(Answer, frozen=True, kw_only=True):
    """JWTD, Job Waiting Time Distribution: from a job's first pod until all of its pods have started, by its GPUs."""

    gpus: str
    jobs: int
    waits: Waits


class Spread(Answer, frozen=True, kw_only=True):
    """JTTED: over how many nodes, and domains, jobs of several pods are spread, against the fewest possible.

    Attributes:
        jobs: of several pods with GPUs that started.
        nodes: mean deviation, 1 for the fewest.
        nodes_p90: nine jobs in ten deviate no more.
        domains: of the narrowest level of a network topology above the nodes; None where none is known.
    """

    jobs: int
    nodes: float | None
    nodes_p90: float | None
    domains: float | None
    level: str


class Series(Answer, frozen=True, kw_only=True):
    """Means over equal parts of the window, one after the other."""

    held: tuple[float, ...]
    gpus: tuple[float, ...]
    fragmentation: tuple[float, ...]
    stranded: tuple[float, ...]
    waiting: tuple[float, ...]


class RunResult(Answer, frozen=True, kw_only=True):
    """The figures of one run.

    Attributes:
        name: of the run: `recorded`, `baseline`, or the alternative's.
        pods: that waited in the window; a pod with its successors counts once.
        finished: all that finished in the window.
        rejections: by kubelets.
        preemptions: pods that cycles decided to evict.
        lost: pods that ended with their node.
        lost_gpu_hours: work that evicted pods lost since their last checkpoints.
        waits: see `QueueResult`.
        allocation_rate: GAR, its mean over the window; `allocation_rate_most` the most.
        occupancy: SOR.
        fragmentation: GFR, its mean.
        stranded_gpu_hours: see `kaicore.analysis.ask.projections.capacity`.
        held_gpu_hours: that pods held GPUs.
        waiting_times: JWTD.
        spread: JTTED.
        queues: in order of name.
        waits_seen: points of the distribution of `waits`: seconds, and the share that did not wait longer.
    """

    name: str
    pods: int
    started: int
    finished: int
    rejections: int
    preemptions: int
    lost: int
    lost_gpu_hours: float
    waits: Waits
    allocation_rate: float
    allocation_rate_most: float
    occupancy: float
    fragmentation: float
    stranded_gpu_hours: float
    held_gpu_hours: float
    waiting_times: tuple[SizeResult, ...]
    spread: Spread
    queues: tuple[QueueResult, ...]
    series: Series
    waits_seen: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Places:
    """The places of nodes in topologies.

    Attributes:
        domains: by node, at the narrowest level of a topology above the nodes; empty where there is none.
        level: that level's name.
    """

    most_gpus: int
    domains: Mapping[str, str]
    most_gpus_of_domain: int
    level: str = ""


def _places_of(state: FleetView) -> Places:
    """Return where the nodes of a state are."""
    total, _ = gpus_held(state)
    gpus = {name: int(total[row]) // WHOLE for name, row in state.columns.rows.items()}
    most, book = max(gpus.values(), default=0), state.network_topologies
    for key in sorted(book.topologies()):
        tree = book.tree(key)
        for depth in range(len(tree.levels), 0, -1):
            if not any(count > 1 for count in tree.domains(depth - 1).values()):
                continue
            domains = {name: "/".join(tree.path_of(name)[:depth]) for name in gpus if len(tree.path_of(name)) >= depth}
            sums: dict[str, int] = defaultdict(int)
            for name, domain in domains.items():
                sums[domain] += gpus[name]
            level = tree.levels[depth - 1].name
            return Places(most, domains, max(sums.values(), default=0), f"{key.text}: {level}")
    return Places(most, {}, 0)


@dataclass(slots=True)
class _Work:
    """A lineage as it went in one run; times in microseconds, 0 for what has not happened."""

    stories: list[PodStory]

    @property
    def created_at(self) -> int:
        return self.stories[0].created_at

    @property
    def started_at(self) -> int:
        return next((story.running_at for story in self.stories if story.running_at), 0)


def result_of(
    name: str,
    history: History,
    stories: Mapping[str, PodStory],
    lineage_of: Mapping[str, str],
    samples: Sequence[Sample],
    *,
    state: FleetView,
) -> RunResult:
    """Tell what a run came to.

    Args:
        stories: what became of each pod, by its uid.
        lineage_of: uid of each pod's lineage, by the pod's uid; other pods do not count.
        samples: that were taken along the run.
        state: at the end, for the places of nodes.
    """
    works: dict[str, _Work] = {}
    for uid, story in sorted(stories.items(), key=lambda item: (item[1].created_at, item[0])):
        lineage = lineage_of.get(uid)
        if lineage is not None:
            works.setdefault(lineage, _Work([])).stories.append(story)
    begin, end = history.begin, history.end
    waited = [work for work in works.values() if not 0 < work.started_at <= begin]
    every = [story for work in works.values() for story in work.stories]
    waits = [_wait(work, end) for work in waited]
    by_queue: dict[str, list[_Work]] = defaultdict(list)
    for work in works.values():
        by_queue[work.stories[0].queue].append(work)
    rates = [allocation_rate(sample) for sample in samples]
    return RunResult(
        name=name,
        **_counts(waited, every),
        lost=_ended(every, StoryEnd.LOST),
        lost_gpu_hours=sum(story.lost_gpu_us for story in every) / 3.6e9,
        waits=waits_of(waits),
        allocation_rate=mean(samples, allocation_rate, end=end),
        allocation_rate_most=max(rates, default=0.0),
        occupancy=occupancy(samples, end=end),
        fragmentation=mean(samples, fragmentation, end=end),
        stranded_gpu_hours=gpu_hours(samples, lambda sample: sample.stranded, end=end),
        held_gpu_hours=gpu_hours(samples, lambda sample: sample.held, end=end),
        waiting_times=_by_size(waited, end),
        spread=_spread(waited, _places_of(state)),
        queues=tuple(_queue(queue, by_queue[queue], begin, end) for queue in sorted(by_queue)),
        series=_series(samples, begin, end),
        waits_seen=tuple(distribution(waits, most=POINTS)),
    )


def _counts(waited: Sequence[_Work], every: Sequence[PodStory]) -> dict[str, Any]:
    """Return the counts that results of runs and of queues have."""
    return {
        "pods": len(waited),
        "started": sum(work.started_at > 0 for work in waited),
        "finished": _ended(every, StoryEnd.FINISHED),
        "rejections": _ended(every, StoryEnd.REJECTED),
        "preemptions": _ended(every, StoryEnd.EVICTED),
    }


def _ended(stories: Sequence[PodStory], end: StoryEnd) -> int:
    return sum(story.end is end for story in stories)


def _wait(work: _Work, end: int) -> float:
    return max((work.started_at or end) - work.created_at, 0) / 1e6


def _queue(queue: str, works: Sequence[_Work], begin: int, end: int) -> QueueResult:
    waited = [work for work in works if not 0 < work.started_at <= begin]
    every = [story for work in works for story in work.stories]
    ran = sum(
        story.gpus * max((story.ended_at or end) - max(story.running_at, begin), 0)
        for story in every
        if story.running_at
    )
    return QueueResult(
        queue=queue,
        **_counts(waited, every),
        waits=waits_of([_wait(work, end) for work in waited]),
        gpu_hours=ran / 3.6e9,
    )


def _jobs(works: Sequence[_Work]) -> list[list[_Work]]:
    jobs: dict[str, list[_Work]] = defaultdict(list)
    for work in works:
        jobs[work.stories[0].group or work.stories[0].pod.uid].append(work)
    return [jobs[key] for key in sorted(jobs)]


def waits_by_size(runs: Sequence[Sequence[SizeResult]]) -> list[tuple[str, int, list[str]]]:
    """Return the sizes of jobs that any of some runs has, ascending: name, jobs, and the waits in each run in words."""
    rows = []
    for name in _SIZE_NAMES:
        of_runs = [next((size for size in run if size.gpus == name), None) for run in runs]
        if jobs := max((size.jobs for size in of_runs if size is not None), default=0):
            rows.append((name, jobs, ["-" if size is None else size.waits.text for size in of_runs]))
    return rows


def _by_size(works: Sequence[_Work], end: int) -> tuple[SizeResult, ...]:
    by_size: dict[str, list[float]] = defaultdict(list)
    for job in _jobs(works):
        began = min(work.created_at for work in job)
        started = max(work.started_at or end for work in job)
        by_size[size_name(sum(work.stories[0].gpus for work in job))].append(max(started - began, 0) / 1e6)
    return tuple(
        SizeResult(gpus=name, jobs=len(by_size[name]), waits=waits_of(by_size[name]))
        for name in _SIZE_NAMES
        if name in by_size
    )


def _spread(works: Sequence[_Work], places: Places) -> Spread:
    jobs = []
    for job in _jobs(works):
        ran = [next((story for story in work.stories if story.running_at), None) for work in job]
        started = [story for story in ran if story is not None and story.gpus]
        if len(started) > 1 and len(started) == len(job):
            nodes = tuple(story.node for story in started)
            domains = tuple(places.domains[node] for node in nodes if node in places.domains)
            jobs.append(JobPlaces(sum(story.gpus for story in started), nodes, domains))
    by_nodes = [deviation(job, job.nodes, most_gpus=places.most_gpus) for job in jobs]
    inside = [job for job in jobs if len(job.domains) == len(job.nodes)] if places.domains else []
    by_domains = [deviation(job, job.domains, most_gpus=places.most_gpus_of_domain) for job in inside]
    return Spread(
        jobs=len(jobs),
        nodes=sum(by_nodes) / len(by_nodes) if by_nodes else None,
        nodes_p90=quantile(by_nodes, 0.9),
        domains=sum(by_domains) / len(by_domains) if by_domains else None,
        level=places.level,
    )


def _series(samples: Sequence[Sample], begin: int, end: int) -> Series:
    def means(value: Callable[[Sample], float]) -> tuple[float, ...]:
        return tuple(binned(samples, value, begin=begin, end=end, bins=BINS))

    return Series(
        held=means(lambda sample: sample.held),
        gpus=means(lambda sample: sample.gpus),
        fragmentation=means(fragmentation),
        stranded=means(lambda sample: sample.stranded),
        waiting=means(lambda sample: sample.waiting),
    )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure.

    Attributes:
        name: what it is called; indented where it is part of the one above.
        meaning: in a few words.
        value: a run's.
        written: writes a value for people.
        better: 1 if more is better, -1 if less is, 0 if neither.
    """

    name: str
    meaning: str
    value: Callable[[RunResult], float | None]
    written: Callable[..., str] = str
    better: int = 0

    def text(self, run: RunResult) -> str:
        """Return a run's value for people."""
        return self.written(self.value(run))


_hundredths, _percent = "{:.2f}".format, "{:.1%}".format

FIGURES = (
    Figure("pods that waited", "a pod and its successors count once", lambda one: one.pods),
    Figure("  started", "of these", lambda one: one.started, better=1),
    Figure(
        "  wait p50",
        "half of them waited no longer; what has not started counts as long as it has waited",
        lambda one: one.waits.p50,
        wait_text,
        -1,
    ),
    Figure("  wait p90", "nine in ten, likewise", lambda one: one.waits.p90, wait_text, -1),
    Figure("  wait p99", "99 in 100", lambda one: one.waits.p99, wait_text, -1),
    Figure("finished", "in the window", lambda one: one.finished, better=1),
    Figure("rejections by kubelets", "pods", lambda one: one.rejections, better=-1),
    Figure("evictions", "pods that were evicted or moved", lambda one: one.preemptions, better=-1),
    Figure(
        "  GPU hours lost",
        "work of evicted pods since their last checkpoints",
        lambda one: one.lost_gpu_hours,
        _hundredths,
        -1,
    ),
    Figure(
        "GPU allocation rate (GAR), mean",
        "GPUs held of GPUs there are",
        lambda one: one.allocation_rate,
        _percent,
        1,
    ),
    Figure("  most", "at any moment", lambda one: one.allocation_rate_most, _percent, 1),
    Figure(
        "occupancy over time (SOR)", "GPU-hours held of GPU-hours there were", lambda one: one.occupancy, _percent, 1
    ),
    Figure(
        "fragmented nodes (GFR)",
        "nodes with some GPUs held and some not",
        lambda one: one.fragmentation,
        _percent,
        -1,
    ),
    Figure(
        "stranded GPU hours",
        "free GPUs with too little CPU or memory beside them",
        lambda one: one.stranded_gpu_hours,
        _hundredths,
        -1,
    ),
    Figure(
        "spread of jobs over nodes (JTTED)",
        "nodes that jobs of several pods are on, divided by the fewest possible",
        lambda one: one.spread.nodes,
        _ratio,
        -1,
    ),
    Figure("  over domains", "the same for domains of a network topology", lambda one: one.spread.domains, _ratio, -1),
)
