"""Prints answers: a table for people, JSON or YAML for machines."""

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

Output = Literal["table", "json", "yaml"]
OutputFlag = Annotated[Output, Parameter(name=["--output", "-o"])]

#: ANSI colours by what a status says.
_COLOURS = {
    "Pending": "33",
    "Gated": "33",
    "Terminating": "33",
    "Rejected": "31",
    "Failed": "31",
    "NotReady": "31",
    "Running": "32",
    "Ready": "32",
    "ready": "32",
    "Succeeded": "2",
}


def print_data(answer: object, output: Output) -> None:
    """Print an answer for machines; JSON is indented on a terminal."""
    body = msgspec.json.encode(answer)
    if output == "yaml":
        # A tenth of a second that a table need not wait for.
        import yaml  # noqa: PLC0415

        print(yaml.safe_dump(msgspec.json.decode(body), sort_keys=False, allow_unicode=True), end="")
        return
    print((msgspec.json.format(body, indent=2) if sys.stdout.isatty() else body).decode())


def print_answers(answers: Sequence[object], output: Output) -> None:
    """Print an answer per cluster for machines: of one cluster as the API answers it, of several in a list."""
    print_data(answers[0] if len(answers) == 1 else answers, output)


def in_colour() -> bool:
    """True if the terminal gets colours: not with `--no-color`, `$NO_COLOR`, or where it is none."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as kubectl draws it; the last column is cut to the terminal's width."""
    cells = [[_one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    room = shutil.get_terminal_size((10_000, 50)).columns if sys.stdout.isatty() else 10_000
    lines = [_line(head, widths, room, colour=False)]
    lines += [_line(row, widths, room, colour=in_colour()) for row in cells]
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _line(row: Sequence[str], widths: Sequence[int], room: int, *, colour: bool) -> str:
    *first, last = row
    left = sum(widths[:-1]) + 3 * len(first)
    if len(last) > max(room - left, 20):
        last = last[: max(room - left, 20) - 1] + "…"
    parts = [_coloured(cell, width, colour=colour) for cell, width in zip(first, widths, strict=False)]
    return "   ".join([*parts, last]).rstrip()


def _coloured(cell: str, width: int, *, colour: bool) -> str:
    code = _COLOURS.get(cell.partition(",")[0]) if colour else None
    padding = " " * (width - len(cell))
    return f"{cell}{padding}" if code is None else f"\x1b[{code}m{cell}\x1b[0m{padding}"
