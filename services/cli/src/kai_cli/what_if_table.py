"""A what-if over history as text: the runs side by side, then who gains and who loses."""

from kaicore.analysis.history.comparison import Fares, HistoryComparison
from kaicore.analysis.history.figures import FIGURES, duration_text, signed_duration_text
from kaicore.analysis.history.results import Waits

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
                f"{one.started:+d}",
                signed_duration_text(one.wait_p50),
                signed_duration_text(one.wait_p99),
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
    head = ("", *(result.name for result in results))
    return table(head, [(one.name, *(one.text(result) for result in results)) for one in FIGURES])


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
    return "-" if waits is None else f"{duration_text(waits.p50)} / {duration_text(waits.p99)}"
