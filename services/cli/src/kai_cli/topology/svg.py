"""Topologies as one picture: domains as boxes in boxes, nodes as squares, darker the more of them is used."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from kaicore.analysis.ask.topology.answers import DomainAnswer, TopologiesAnswer, TopologyAnswer
from kaicore.rules.model.quantity import CPU, parse_amount, readable_amount
from kaicore.rules.queues.tree import GPU

#: Pixels: a node's square with the gap after it, the space around boxes, a heading's line and letter.
_CELL, _GAP, _LINE, _LETTER = 11.0, 6.0, 15.0, 6.2
_MARGIN = 16.0

#: Nodes side by side where there are few; half as high as wide where there are many.
_FEWEST_IN_A_LINE = 16

#: Fills by how much is used: idle, some pods, up to a half, less than all, all; and of nodes that take no pods.
_IDLE, _SHADES, _OFF = "#ffffff", ("#dbe9f6", "#9ecae1", "#4292c6", "#08519c"), "url(#off)"
_LEGEND = (
    (_IDLE, "idle"),
    (_SHADES[0], "pods without any"),
    (_SHADES[1], "up to half used"),
    (_SHADES[2], "more than half"),
    (_SHADES[3], "full"),
    (_OFF, "not ready or cordoned"),
)


@dataclass(frozen=True, slots=True)
class _Box:
    """Something drawn: width, height, and its parts with their places in it; or a square with its fill."""

    width: float
    height: float
    title: str
    heading: str = ""
    fill: str = ""
    parts: tuple[tuple[float, float, "_Box"], ...] = ()


def picture(answers: Sequence[TopologiesAnswer]) -> str:
    """Return an SVG document that needs nothing else."""
    boxes = [(_title(answer, one), _topology(one), one.problems) for answer in answers for one in answer.topologies]
    legend = _MARGIN * 2 + sum(_legend_width(text) for _, text in _LEGEND)
    width = max(legend, *(box.width for _, box, _ in boxes)) + 2 * _MARGIN
    parts: list[str] = [*_legend(_MARGIN, _MARGIN)]
    y = 2 * _MARGIN + _LINE
    for title, box, problems in boxes:
        parts.append(_text(_MARGIN, y + _LINE - 4, title, size=14, bold=True))
        y += _LINE + _GAP
        for problem in problems:
            parts.append(_text(_MARGIN, y + _LINE - 4, problem, fill="#b30000"))
            y += _LINE
        parts += _drawn(box, _MARGIN, y)
        y += box.height + _MARGIN
    size = f'width="{width:.0f}" height="{y:.0f}" viewBox="0 0 {width:.0f} {y:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    hatch = (
        '<defs><pattern id="off" width="4" height="4" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="4" height="4" fill="#eeeeee"/><rect width="2" height="4" fill="#aaaaaa"/></pattern></defs>'
    )
    return "\n".join([head, hatch, '<rect width="100%" height="100%" fill="#ffffff"/>', *parts, "</svg>", ""])


def _title(answer: TopologiesAnswer, topology: TopologyAnswer) -> str:
    where = f", cluster {answer.cluster} at position {answer.position}" if answer.cluster else ""
    return f"{f'{topology.kind} {topology.name}'.rstrip()}, {topology.nodes} nodes{where}"


def _topology(topology: TopologyAnswer) -> _Box:
    resources = {one.resource for domain in topology.domains for one in domain.resources if one.allocatable != "0"}
    counted = GPU if GPU in resources else CPU
    single = "" if topology.levels[-1].labels else topology.levels[-1].name
    return _flow("", "", [_domain(domain, counted, single) for domain in topology.domains])


def _domain(domain: DomainAnswer, counted: str, single: str) -> _Box:
    title = _figures(domain)
    if domain.domains:
        free = next((one.free for one in domain.resources if one.resource == counted), "")
        room = (
            f", {domain.slots} slots"
            if domain.slots is not None
            else f", {readable_amount(counted, free)} {counted} free"
        )
        inner = [_domain(one, counted, single) for one in domain.domains]
        return _flow(title, f"{domain.name}{room if free else ''}", inner)
    fill = _fill(domain, counted)
    if domain.level == single:
        return _Box(_CELL, _CELL, title, fill=fill)
    return _flow(title, domain.name, [_Box(_CELL, _CELL, title, fill=fill)] * domain.nodes)


def _figures(domain: DomainAnswer) -> str:
    figures = [
        (one.resource, *(readable_amount(one.resource, text) for text in (one.used, one.free)))
        for one in domain.resources
    ]
    amounts = "; ".join(f"{resource} {used} used, {free} free" for resource, used, free in figures)
    slots = "" if domain.slots is None else f"; {domain.slots} slots"
    nodes = f"{domain.nodes} nodes, {domain.available} available, {domain.idle} idle"
    return f"{domain.level} {domain.name}: {nodes}; {amounts}{slots}"


def _fill(domain: DomainAnswer, counted: str) -> str:
    if not domain.available:
        return _OFF
    if domain.idle == domain.nodes:
        return _IDLE
    figures = next((one for one in domain.resources if one.resource == counted), None)
    if figures is None:
        return _SHADES[0]
    have, used = (
        parse_amount(amount, resource=counted, subject=domain.name, field=counted)
        for amount in (figures.allocatable, figures.used)
    )
    if used <= 0:
        return _SHADES[0]
    if used >= have:
        return _SHADES[3]
    return _SHADES[1] if 2 * used <= have else _SHADES[2]


def _flow(title: str, heading: str, parts: Sequence[_Box]) -> _Box:
    """Put parts side by side, in as many lines as make a box about twice as wide as high."""
    squares = all(part.fill for part in parts)
    gap = 0.0 if squares else _GAP
    area = sum((part.width + gap) * (part.height + gap) for part in parts)
    least = _FEWEST_IN_A_LINE * _CELL if squares else max((part.width for part in parts), default=0.0)
    most = max(least, math.sqrt(2 * area))
    top = (_LINE if heading else 0.0) + gap
    x, y, line, width = gap, top, 0.0, 0.0
    placed: list[tuple[float, float, _Box]] = []
    for part in parts:
        if x > gap and x + part.width > most + gap:
            x, y, line = gap, y + line + gap, 0.0
        placed.append((x, y, part))
        x += part.width + gap
        line, width = max(line, part.height), max(width, x)
    padding = _GAP / 2 if squares else 0.0
    placed = [(left + padding, above, part) for left, above, part in placed]
    least_of_heading = min(len(heading), 24) * _LETTER + _GAP
    size = max(width + 2 * padding, least_of_heading), y + line + (gap or padding)
    return _Box(*size, title, heading, "", tuple(placed))


def _drawn(box: _Box, x: float, y: float) -> Iterator[str]:
    tip = f"<title>{escape(box.title)}</title>" if box.title else ""
    if box.fill:
        side = f'width="{_CELL - 2:g}" height="{_CELL - 2:g}"'
        yield f'<rect x="{x:.1f}" y="{y:.1f}" {side} fill="{box.fill}" stroke="#8899aa" stroke-width=".6">{tip}</rect>'
        return
    if box.title:
        side = f'width="{box.width:.1f}" height="{box.height:.1f}"'
        yield f'<rect x="{x:.1f}" y="{y:.1f}" {side} rx="2" fill="#f7f7f5" stroke="#555555">{tip}</rect>'
    if box.heading:
        room = max(int((box.width - _GAP) / _LETTER), 1)
        text = box.heading if len(box.heading) <= room else f"{box.heading[: room - 1]}…"
        yield _text(x + 3, y + _LINE - 4, text)
    for left, above, part in box.parts:
        yield from _drawn(part, x + left, y + above)


def _legend_width(text: str) -> float:
    return _CELL + len(text) * _LETTER + 2 * _GAP


def _legend(x: float, y: float) -> Iterator[str]:
    for fill, text in _LEGEND:
        yield from _drawn(_Box(_CELL, _CELL, "", fill=fill), x, y)
        yield _text(x + _CELL + 2, y + _CELL - 3, text)
        x += _legend_width(text)


def _text(x: float, y: float, text: str, *, size: int = 11, bold: bool = False, fill: str = "#222222") -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{weight} fill="{fill}">{escape(text)}</text>'
