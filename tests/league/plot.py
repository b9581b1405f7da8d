"""A plot of the league as one SVG file: GPUs allocated by how much has arrived, a line for each policy."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from kaicore.analysis.trial.history.page import HEIGHT, WIDTH, Axis, Line, line_plot
from markupsafe import Markup

#: How much has arrived where a line has a point, per cent of all GPUs.
POINTS = range(60, 131, 2)
_LEAST = 55
_COLOURS = ("#0b7285", "#c92a2a", "#5f3dc4", "#868e96", "#e67700", "#2b8a3e")
_STYLE = (
    ".run{fill:none;stroke-width:1.6;stroke-linejoin:round}.grid{stroke:#8884}.base,.mark{stroke:#888;fill:none}"
    "text{fill:#777;font:11px sans-serif}.tick{font-size:10px}"
)


def write(path: Path, title: str, curves: Mapping[str, Sequence[float]]) -> None:
    """Write the plot.

    Args:
        path: of the file.
        title: above the plot.
        curves: by policy, per cent of the GPUs allocated at each of `POINTS`.
    """
    lines = [Line(number, list(zip(POINTS, curve, strict=True))) for number, curve in enumerate(curves.values())]
    arrived = Axis(POINTS[0], POINTS[-1], [(at, f"{at} %") for at in range(60, 131, 10)])
    held = Axis(_LEAST, 100, [(at, f"{at} %") for at in range(60, 101, 10)])
    described = f"{title}: per cent of the GPUs allocated, by GPUs that arrived tasks ask for"
    plot = line_plot("league", described, lines, x=arrived, y=held)
    styles = _STYLE + "".join(f".run{number}{{stroke:{_colour(number)}}}" for number in range(len(lines)))
    legend = Markup("").join(
        Markup('<text x="{}" y="{}" style="fill:{}" text-anchor="end">{}</text>').format(
            WIDTH - 16, HEIGHT - 44 - 14 * (len(curves) - 1 - number), _colour(number), name
        )
        for number, name in enumerate(curves)
    )
    head = Markup("<style>{}</style>").format(Markup(styles))
    named = Markup('<text x="52" y="11">{}</text>').format(title)
    body = str(plot).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    path.write_text(body.replace("</svg>", f"{head}{named}{legend}</svg>") + "\n")


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
