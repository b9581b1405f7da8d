"""Plots as SVG, made without scripts. Colours and strokes are the page's styles, by the number of the run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, log10

from markupsafe import Markup, escape

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
        x: axis.
        y: axis.
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
        name: unique on the page.
        description: for who does not see it.
        rows: label, and a value for each run; None for none.
        text: writes a value.
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
