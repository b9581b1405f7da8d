"""The figures of runs that are shown to people, and their wording."""

from collections.abc import Callable
from dataclasses import dataclass

from kaicore.analysis.trial.history.results import RunResult


def duration_text(seconds: float | None) -> str:
    """Write a duration: `1.5 s`, `3.0 min`, `2.5 h`."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def signed_duration_text(seconds: float | None) -> str:
    """Write a difference of durations: `+1.5 s`."""
    if seconds is None:
        return "-"
    return f"{'-' if seconds < 0 else '+'}{duration_text(abs(seconds))}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure.

    Attributes:
        name: what it is called; indented where it is part of the one above.
        text: writes a run's.
        meaning: in a few words.
        better: 1 if more is better, -1 if less is, 0 if neither.
    """

    name: str
    text: Callable[[RunResult], str]
    meaning: str
    value: Callable[[RunResult], float | None]
    better: int = 0


FIGURES = (
    Figure("pods that waited", lambda one: str(one.pods), "a pod and its successors count once", lambda one: one.pods),
    Figure("  started", lambda one: str(one.started), "of these", lambda one: one.started, 1),
    Figure(
        "  wait p50",
        lambda one: duration_text(one.waits.p50),
        "half of them waited no longer; what has not started counts as long as it has waited",
        lambda one: one.waits.p50,
        -1,
    ),
    Figure(
        "  wait p90", lambda one: duration_text(one.waits.p90), "nine in ten, likewise", lambda one: one.waits.p90, -1
    ),
    Figure("  wait p99", lambda one: duration_text(one.waits.p99), "99 in 100", lambda one: one.waits.p99, -1),
    Figure("finished", lambda one: str(one.finished), "in the window", lambda one: one.finished, 1),
    Figure("rejections by kubelets", lambda one: str(one.rejections), "pods", lambda one: one.rejections, -1),
    Figure("preemptions", lambda one: str(one.preemptions), "pods that were evicted", lambda one: one.preemptions, -1),
    Figure(
        "  GPU hours lost",
        lambda one: f"{one.lost_gpu_hours:.2f}",
        "work of evicted pods since their last checkpoints",
        lambda one: one.lost_gpu_hours,
        -1,
    ),
    Figure(
        "GPU allocation rate (GAR), mean",
        lambda one: f"{one.allocation_rate:.1%}",
        "GPUs held of GPUs there are",
        lambda one: one.allocation_rate,
        1,
    ),
    Figure(
        "  most",
        lambda one: f"{one.allocation_rate_most:.1%}",
        "at any moment",
        lambda one: one.allocation_rate_most,
        1,
    ),
    Figure(
        "occupancy over time (SOR)",
        lambda one: f"{one.occupancy:.1%}",
        "GPU-hours held of GPU-hours there were",
        lambda one: one.occupancy,
        1,
    ),
    Figure(
        "fragmented nodes (GFR)",
        lambda one: f"{one.fragmentation:.1%}",
        "nodes with some GPUs held and some not",
        lambda one: one.fragmentation,
        -1,
    ),
    Figure(
        "stranded GPU hours",
        lambda one: f"{one.stranded_gpu_hours:.2f}",
        "GPUs idle while pods that ask for GPUs waited and fitted nowhere on their node",
        lambda one: one.stranded_gpu_hours,
        -1,
    ),
    Figure(
        "spread of jobs over nodes (JTTED)",
        lambda one: _ratio(one.spread.nodes),
        "nodes that jobs of several pods are on, divided by the fewest possible",
        lambda one: one.spread.nodes,
        -1,
    ),
    Figure(
        "  over domains",
        lambda one: _ratio(one.spread.domains),
        "the same for domains of a network topology",
        lambda one: one.spread.domains,
        -1,
    ),
)
