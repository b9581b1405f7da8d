"""A what-if over history as text: the runs side by side, then who gains and who loses."""

from collections.abc import Callable, Sequence

from kaicore.analysis.history.comparison import Fares, HistoryComparison
from kaicore.analysis.history.results import RunResult, Waits

from kai_cli.printing import table

_ORDER = (Fares.LOSES, Fares.MIXED, Fares.GAINS, Fares.SAME)


def comparison_text(comparison: HistoryComparison) -> str:
    """Return the answer for people."""
    parts = [_head(comparison), _runs(comparison), _sizes(comparison)]
    for alternative in comparison.alternatives:
        rows = [
            (
                one.fares.value,
                one.queue,
                _signed(one.started),
                _signed_time(one.wait_p50),
                _signed_time(one.wait_p99),
                f"{one.gpu_hours:+.2f}",
            )
            for one in sorted(alternative.queues, key=lambda one: (_ORDER.index(one.fares), one.queue))
        ]
        head = ("", "QUEUE", "STARTED", "WAIT P50", "WAIT P99", "GPU HOURS")
        parts.append(f"{alternative.name}, by queue, against the baseline:\n{table(head, rows)}")
    return "\n\n".join(part for part in parts if part)


def _head(comparison: HistoryComparison) -> str:
    assumed, validity = comparison.assumptions, comparison.validity
    lines = [
        f"cluster {comparison.cluster}: {comparison.begin} to {comparison.end}, "
        f"{comparison.events:,} events, {comparison.cycles:,} cycles recorded",
        f"the baseline is as recorded for {validity.same_waits:.0%} of the waiting times; "
        f"of what started in both, {validity.same_nodes:.0%} did so on the same node",
    ]
    guessed = [
        f"{count} {what}"
        for count, what in (
            (assumed.estimated, "by survival of their kind"),
            (assumed.unbounded, "to the end of the window, for too little is known"),
        )
        if count
    ]
    if guessed:
        lines.append(f"of {assumed.observed} runs the log has the end; others run {', '.join(guessed)}")
    return "\n".join(lines)


def _runs(comparison: HistoryComparison) -> str:
    results = [comparison.recorded, comparison.baseline, *(one.result for one in comparison.alternatives)]
    figures: Sequence[tuple[str, Callable[[RunResult], str]]] = (
        ("pods that waited", lambda one: str(one.pods)),
        ("  started", lambda one: str(one.started)),
        ("  wait p50", lambda one: _time(one.waits.p50)),
        ("  wait p90", lambda one: _time(one.waits.p90)),
        ("  wait p99", lambda one: _time(one.waits.p99)),
        ("finished", lambda one: str(one.finished)),
        ("rejections by kubelets", lambda one: str(one.rejections)),
        ("preemptions", lambda one: str(one.preemptions)),
        ("GPU allocation rate (GAR), mean", lambda one: f"{one.allocation_rate:.1%}"),
        ("  most", lambda one: f"{one.allocation_rate_most:.1%}"),
        ("occupancy over time (SOR)", lambda one: f"{one.occupancy:.1%}"),
        ("fragmented nodes (GFR)", lambda one: f"{one.fragmentation:.1%}"),
        ("stranded GPU hours", lambda one: f"{one.stranded_gpu_hours:.2f}"),
        ("spread of jobs over nodes (JTTED)", lambda one: _ratio(one.spread.nodes)),
        ("  over domains", lambda one: _ratio(one.spread.domains)),
    )
    head = ("", *(result.name for result in results))
    return table(head, [(name, *(figure(result) for result in results)) for name, figure in figures])


def _sizes(comparison: HistoryComparison) -> str:
    results = [comparison.recorded, comparison.baseline, *(one.result for one in comparison.alternatives)]
    sizes = list(dict.fromkeys(size.gpus for result in results for size in result.waiting_times))
    rows = []
    for gpus in sizes:
        by_run = [next((size for size in result.waiting_times if size.gpus == gpus), None) for result in results]
        jobs = max((size.jobs for size in by_run if size is not None), default=0)
        rows.append((gpus, str(jobs), *(_pair(None if size is None else size.waits) for size in by_run)))
    if not rows:
        return ""
    head = ("GPUS", "JOBS", *(result.name for result in results))
    return f"waiting times of jobs by their GPUs (JWTD), p50 / p99:\n{table(head, rows)}"


def _pair(waits: Waits | None) -> str:
    return "-" if waits is None else f"{_time(waits.p50)} / {_time(waits.p99)}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _signed_time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{'-' if seconds < 0 else '+'}{_time(abs(seconds))}"


def _signed(count: int) -> str:
    return f"{count:+d}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
