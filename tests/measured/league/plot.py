"""Plots of the league, each one SVG file with a line for each policy."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from kaicore.analysis.trial.history.page import HEIGHT, WIDTH, Axis, Line, axis, line_plot
from kaicore.analysis.trial.history.results import distribution
from markupsafe import Markup

#: How much has arrived where a line has a point, per cent of all GPUs.
POINTS = range(60, 131, 2)
_LEAST = 55
_COLOURS = ("#0b7285", "#c92a2a", "#5f3dc4", "#868e96", "#e67700", "#2b8a3e", "#a61e4d", "#1864ab")
_STYLE = (
    ".run{fill:none;stroke-width:1.6;stroke-linejoin:round}.grid{stroke:#8884}.base,.mark{stroke:#888;fill:none}"
    "text{fill:#777;font:11px sans-serif}.tick{font-size:10px}"
)


def write(path: Path, title: str, curves: Mapping[str, Sequence[float]]) -> None:
    """Write the GPUs allocated by what has arrived.

    Args:
        path: of the file.
        title: above the plot.
        curves: by policy, per cent of the GPUs allocated at each of `POINTS`.
    """
    lines = {name: list(zip(POINTS, curve, strict=True)) for name, curve in curves.items()}
    arrived = Axis(POINTS[0], POINTS[-1], [(at, f"{at} %") for at in range(60, 131, 10)])
    held = Axis(_LEAST, 100, [(at, f"{at} %") for at in range(60, 101, 10)])
    _write(path, f"{title}: per cent of the GPUs allocated, by GPUs that arrived tasks ask for", lines, (arrived, held))


def write_waits(path: Path, title: str, waits: Mapping[str, Sequence[float]]) -> None:
    """Write how long jobs waited: which part of them no longer than so many hours.

    Args:
        path: of the file.
        title: above the plot.
        waits: of jobs by policy, hours.
    """
    lines = {name: [(at, 100 * part) for at, part in distribution(of, most=100)] for name, of in waits.items()}
    longest = axis(max(max(of) for of in waits.values()), text=lambda hours: f"{hours:g} h")
    parts = Axis(0, 100, [(at, f"{at} %") for at in range(0, 101, 20)])
    _write(path, f"{title}: per cent of the jobs that waited no longer, by hours", lines, (longest, parts))


def _write(
    path: Path, described: str, curves: Mapping[str, Sequence[tuple[float, float]]], axes: tuple[Axis, Axis]
) -> None:
    lines = [Line(number, points) for number, points in enumerate(curves.values())]
    plot = line_plot("league", described, lines, x=axes[0], y=axes[1])
    styles = _STYLE + "".join(f".run{number}{{stroke:{_colour(number)}}}" for number in range(len(lines)))
    legend = Markup("").join(
        Markup('<text x="{}" y="{}" style="fill:{}" text-anchor="end">{}</text>').format(
            WIDTH - 16, HEIGHT - 44 - 14 * (len(curves) - 1 - number), _colour(number), name
        )
        for number, name in enumerate(curves)
    )
    head = Markup("<style>{}</style>").format(Markup(styles))
    named = Markup('<text x="52" y="11">{}</text>').format(described.partition(":")[0])
    body = str(plot).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    path.write_text(body.replace("</svg>", f"{head}{named}{legend}</svg>") + "\n")


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
