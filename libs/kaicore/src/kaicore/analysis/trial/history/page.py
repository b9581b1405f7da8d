"""A what-if over history as one HTML file: no script, no other file, light and dark, on paper and on a phone.

Plots as SVG, made without scripts. Colours and strokes are the page's styles, by the number of the run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.resources import files
from math import floor, log10

import yaml
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from kaicore.analysis.life.waits import signed_wait_text, wait_text
from kaicore.analysis.trial.history.comparison import AlternativeAnswer, Fares, HistoryComparison, QueueComparison
from kaicore.analysis.trial.history.results import FIGURES, Figure, RunResult, waits_by_size

#: Size of a plot in its own units, and what is kept free around its area.
WIDTH, HEIGHT = 480, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 10, 12, 30
#: Height of a bar, and the gap between the bars of two queues.
_BAR, _GAP = 11, 12
_LABELS = 130


@dataclass(frozen=True, slots=True)
class Line:
    """A run's line.

    Attributes:
        run: number of the run, which chooses the stroke.
        points: in order of x.
        stepped: whether y holds until the next point.
    """

    run: int
    points: Sequence[tuple[float, float]]
    stepped: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: from `least` to `most`, with labelled ticks."""

    least: float
    most: float
    ticks: Sequence[tuple[float, str]]
    title: str = ""


def axis(most: float, title: str = "", *, text: Callable[[float], str] = lambda value: f"{value:g}") -> Axis:
    """Return an axis from 0 to a round figure, with some five ticks."""
    if most <= 0:
        return Axis(0, 1, [(0, text(0)), (1, text(1))], title)
    raw = most / 5
    magnitude = 10.0 ** floor(log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw * 0.999)
    count = -(-most // step)
    return Axis(0, count * step, [(step * number, text(step * number)) for number in range(int(count) + 1)], title)


def line_plot(name: str, description: str, lines: Sequence[Line], *, x: Axis, y: Axis) -> Markup:
    """Return a plot of lines.

    Args:
        name: unique on the page, for what refers to it.
        description: for who does not see it.
        lines: of runs; later ones are drawn above.
    """
    paths = [Markup('<path class="run run{}" d="{}"/>').format(line.run, _path(line, x, y)) for line in lines]
    return _svg(name, description, HEIGHT, [_frame(x, y), *paths])


def _frame(x: Axis, y: Axis) -> Markup:
    parts = []
    for value, label in y.ticks:
        at = _y(value, y)
        parts.append(
            Markup(
                '<path class="grid" d="M{} {:.1f}H{}"/><text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(_LEFT, at, WIDTH - _RIGHT, _LEFT - 6, at + 3.5, label)
        )
    for number, (value, label) in enumerate(x.ticks):
        anchor = "end" if number == len(x.ticks) - 1 and value >= x.most else "middle"
        parts.append(
            Markup(
                '<path class="mark" d="M{0:.1f} {1}v4"/>'
                '<text class="tick" x="{0:.1f}" y="{2}" text-anchor="{3}">{4}</text>'
            ).format(_x(value, x), HEIGHT - _BOTTOM, HEIGHT - _BOTTOM + 16, anchor, label)
        )
    parts.append(Markup('<path class="base" d="M{} {}H{}"/>').format(_LEFT, HEIGHT - _BOTTOM, WIDTH - _RIGHT))
    return Markup("").join(parts)


def _path(line: Line, x: Axis, y: Axis) -> str:
    commands: list[str] = []
    for number, (across, up) in enumerate(line.points):
        at, height = _x(across, x), _y(up, y)
        if not number:
            commands.append(f"M{at:.1f} {height:.1f}")
        elif line.stepped:
            commands.append(f"H{at:.1f}V{height:.1f}")
        else:
            commands.append(f"L{at:.1f} {height:.1f}")
    return "".join(commands)


def _x(value: float, on: Axis) -> float:
    share = (min(max(value, on.least), on.most) - on.least) / (on.most - on.least)
    return _LEFT + share * (WIDTH - _LEFT - _RIGHT)


def _y(value: float, on: Axis) -> float:
    share = (min(max(value, on.least), on.most) - on.least) / (on.most - on.least)
    return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)


def bar_plot(
    name: str, description: str, rows: Sequence[tuple[str, Sequence[float | None]]], text: Callable[[float], str]
) -> Markup:
    """Return bars of several runs for each row.

    Args:
        description: for who does not see it.
        rows: label, and a value for each run; None for none.
    """
    most = max((value for _, values in rows for value in values if value is not None), default=0.0) or 1.0
    room = WIDTH - _LABELS - 70
    parts, top = [], 4.0
    for label, values in rows:
        middle = top + len(values) * _BAR / 2
        short = label if len(label) <= 20 else f"{label[:19]}…"
        parts.append(
            Markup('<text class="label" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
                _LABELS - 8, middle + 3.5, short
            )
        )
        for run, value in enumerate(values):
            if value is not None:
                width = max(value / most * room, 1)
                parts.append(
                    Markup(
                        '<rect class="bar bar{}" x="{}" y="{:.1f}" width="{:.1f}" height="{}"/>'
                        '<text class="value" x="{:.1f}" y="{:.1f}">{}</text>'
                    ).format(run, _LABELS, top, width, _BAR - 1, _LABELS + width + 4, top + _BAR - 1.5, text(value))
                )
            top += _BAR
        top += _GAP
    return _svg(name, description, int(top), parts)


def _svg(name: str, description: str, height: int, parts: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-labelledby="{}-what"><desc id="{}-what">{}</desc>{}</svg>'
    ).format(WIDTH, height, name, name, escape(description), Markup("").join(parts))


#: Queues that the plot of queues shows at most: those with the most pods.
_MOST_QUEUES = 12

#: Waiting times that are marked on a scale of their logarithms: seconds.
_WAITS = (1, 10, 60, 600, 3600, 36_000, 360_000)

#: Units of time, how many of each an hour has, and how long a window is at least that is shown in them.
_UNITS = (("days", 1 / 24, 3.0), ("hours", 1.0, 3.0), ("minutes", 60.0, 3.0), ("seconds", 3600.0, 0.0))


def page(comparison: HistoryComparison, *, title: str = "What if, over history", lead: str = "") -> str:
    """Return the report (`lead`: HTML that comes before all else)."""
    runs = comparison.runs
    return template(__package__, "page.html.j2").render(
        comparison=comparison,
        title=title,
        lead=lead,
        names=[run.name for run in runs],
        figures=[_figure(figure, runs) for figure in FIGURES],
        plots=_plots(comparison, runs),
        sentences=[(one.name, _sentence(one, comparison.baseline)) for one in comparison.alternatives],
        queues=[(one.name, [_queue(queue) for queue in one.queues]) for one in comparison.alternatives],
        sizes=waits_by_size([run.waiting_times for run in runs]),
        patches=[(one.name, yaml.safe_dump(one.patch, sort_keys=False)) for one in comparison.alternatives],
    )


@cache
def template(package: str, name: str) -> Template:
    """Return a package's template of HTML."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    return environment.from_string((files(package) / name).read_text())


def _figure(figure: Figure, runs: Sequence[RunResult]) -> dict[str, object]:
    """Return a row: of each run the text, and whether it is better or worse than the baseline."""
    base = figure.value(runs[1])
    cells = []
    for number, run in enumerate(runs):
        value, how = figure.value(run), ""
        if (
            number > 1
            and figure.better
            and base is not None
            and value is not None
            and figure.text(run) != figure.text(runs[1])
        ):
            how = "better" if (value - base) * figure.better > 0 else "worse"
        cells.append((figure.text(run), how))
    return {"name": figure.name.strip(), "part": figure.name.startswith(" "), "cells": cells, "meaning": figure.meaning}


def _sentence(alternative: AlternativeAnswer, baseline: RunResult) -> str:
    result = alternative.result
    parts = [f"{result.started} of {result.pods} pods start (baseline: {baseline.started})"]
    if result.waits.p50 is not None and baseline.waits.p50 is not None:
        waits = wait_text(result.waits.p50), wait_text(baseline.waits.p50)
        parts.append(f"the median wait is {waits[0]} ({waits[1]})")
    if result.rejections or baseline.rejections:
        parts.append(f"kubelets reject {result.rejections} pods ({baseline.rejections})")
    gains, loses = (sum(queue.fares is fares for queue in alternative.queues) for fares in (Fares.GAINS, Fares.LOSES))
    parts.append(f"of {len(alternative.queues)} queues, {gains} gain and {loses} lose")
    return "; ".join(parts)


def _queue(queue: QueueComparison) -> dict[str, str]:
    return {
        "name": queue.queue,
        "fares": queue.fares.value,
        "started": f"{queue.started:+d}",
        "p50": signed_wait_text(queue.wait_p50),
        "p99": signed_wait_text(queue.wait_p99),
        "hours": f"{queue.gpu_hours:+.2f}",
    }


def _plots(comparison: HistoryComparison, runs: Sequence[RunResult]) -> list[dict[str, object]]:
    hours = (datetime.fromisoformat(comparison.end) - datetime.fromisoformat(comparison.begin)).total_seconds() / 3600
    unit, length = next(
        (unit, hours * scale) for unit, scale, least in _UNITS if hours * scale >= least or unit == _UNITS[-1][0]
    )
    time = axis(length, f"{unit} since the window began")
    time = Axis(0, length, [tick for tick in time.ticks if tick[0] <= length], time.title)
    plots = [
        _over_time("GPUs held", runs, time, lambda run: run.series.held, capacity=True),
        _over_time("Pods waiting", runs, time, lambda run: run.series.waiting),
        _waits(runs),
        _over_time("Stranded GPUs", runs, time, lambda run: run.series.stranded),
        _by_queue(runs),
    ]
    return [plot for plot in plots if plot is not None]


def _over_time(
    title: str,
    runs: Sequence[RunResult],
    time: Axis,
    values: Callable[[RunResult], Sequence[float]],
    *,
    capacity: bool = False,
) -> dict[str, object]:
    name, length = title.partition(" ")[0].lower(), time.most
    every = [values(run) for run in runs]
    most = max((value for one in every for value in one), default=0.0)
    lines = [Line(number, _spaced(one, length), stepped=True) for number, one in enumerate(every)]
    shown = title
    if capacity:
        there = [run.series.gpus for run in runs]
        most = max((value for one in there for value in one), default=most)
        distinct = {tuple(one): None for one in there}
        lines = [*(Line(-1, _spaced(one, length), stepped=True) for one in distinct), *lines]
        shown = f"{title}, and how many there are"
    means = ", ".join(f"{run.name} {sum(one) / max(len(one), 1):.1f}" for run, one in zip(runs, every, strict=True))
    described = f"{shown} over the window; means: {means}"
    return _plot(shown, line_plot(name, described, lines, x=time, y=axis(most)), described, x=time.title)


def _plot(title: str, svg: Markup, text: str, *, x: str = "") -> dict[str, object]:
    """Return a plot as the page has it (`x`: the title of the axis below)."""
    return {"title": title, "x": x, "svg": svg, "text": text}


def _spaced(values: Sequence[float], length: float) -> list[tuple[float, float]]:
    width = length / max(len(values), 1)
    points = [(number * width, value) for number, value in enumerate(values)]
    return [*points, (length, values[-1])] if values else points


def _waits(runs: Sequence[RunResult]) -> dict[str, object] | None:
    longest = max((seconds for run in runs for seconds, _ in run.waits_seen), default=0.0)
    if longest <= 0:
        return None
    most = log10(max(longest, 10))
    x = Axis(0, most, [(log10(seconds), _tick(seconds)) for seconds in _WAITS if log10(seconds) <= most])
    lines = []
    for number, run in enumerate(runs):
        points = [(0.0, 0.0)]
        points += [(log10(max(seconds, 1.0)), share) for seconds, share in run.waits_seen]
        lines.append(Line(number, points, stepped=True))
    y = Axis(0, 1, [(share / 4, f"{share * 25} %") for share in range(5)])
    medians = ", ".join(f"{run.name} {wait_text(run.waits.p50)}" for run in runs)
    title = "Share of the pods that waited no longer"
    described = f"{title}; medians: {medians}"
    svg = line_plot("waits", described, lines, x=x, y=y)
    return _plot(title, svg, described, x="wait, on a logarithmic scale")


def _tick(seconds: int) -> str:
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min" if seconds < 3600 else f"{seconds // 3600} h"


def _by_queue(runs: Sequence[RunResult]) -> dict[str, object] | None:
    queues = sorted(runs[1].queues, key=lambda queue: (-queue.pods, queue.queue))[:_MOST_QUEUES]
    if not queues:
        return None
    rows = []
    for queue in sorted(queues, key=lambda queue: queue.queue):
        of_runs = [next((one for one in run.queues if one.queue == queue.queue), None) for run in runs]
        rows.append((queue.queue, [None if one is None else one.waits.p90 for one in of_runs]))
    described = "Wait that nine pods in ten did not exceed, by queue"
    left = len(runs[1].queues) - len(queues)
    more = f" (the {len(queues)} queues with the most pods; {left} more are in the tables)" if left else ""
    return _plot(described + more, bar_plot("queues", described, rows, wait_text), described)
