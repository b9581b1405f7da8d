"""Progress of a long command, on standard error: one rewritten line on a terminal, else a line now and then."""

import sys
import time
from typing import Self

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
