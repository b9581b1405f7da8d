"""Printed answers (a table for people, JSON or YAML for machines), and the progress of a long command on stderr."""

import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import msgspec
from cyclopts import Parameter

#: Seconds until the line is shown at all, and between two times that it is written.
_PATIENCE_S, _EVERY_S = 0.5, 0.1
#: The same where it goes into a file or to another program.
_PATIENCE_ELSEWHERE_S = 30.0
#: Seconds that must have passed before a rate says anything.
_RATE_S = 1.0
#: Clears a line.
_CLEAR = "\r\x1b[2K"


class Progress:
    """A line such as `replaying events  41 % (28,000 of 68,000)  9,300/s  3 s, 4 s left`, gone when the block ends."""

    def __init__(self, what: str) -> None:
        """Args: what: is being done."""
        self._what = what
        self._shown = False
        self._began = self._written = 0.0

    def __enter__(self) -> Self:
        self._began = self._written = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def __call__(self, done: int, of: int = 0) -> None:
        """Tell how much is done; of how much, where that is known: when it is all, the line goes."""
        now = time.monotonic()
        if done == of:
            self._clear()
            self._began = self._written = now
            return
        terminal = sys.stderr.isatty()
        due = (_EVERY_S if self._shown else _PATIENCE_S) if terminal else _PATIENCE_ELSEWHERE_S
        if now - self._written < due:
            return
        self._shown, self._written = terminal, now
        line = f"{self._what}  {_amount(done, of)}  {_pace(done, of, now - self._began)}"
        sys.stderr.write(f"{_CLEAR}{line}" if terminal else f"{line}\n")
        sys.stderr.flush()

    def _clear(self) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
        self._shown = False


def _amount(done: int, of: int) -> str:
    return f"{100 * done // of} % ({done:,} of {of:,})" if of else f"{done:,}"


def _pace(done: int, of: int, passed_s: float) -> str:
    """Say how fast it goes, how long it has gone on, and how long it will, if it goes on so."""
    if passed_s < _RATE_S or not done:
        return f"{passed_s:.0f} s"
    rate = done / passed_s
    left = f", {_length((of - done) / rate)} left" if of else ""
    return f"{rate:,.0f}/s  {_length(passed_s)}{left}"


def _length(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


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
